"""The stacked bar: shares, marks and legend."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsv4check.report.bar import Bar, BarPart, Mark, bar_lines, cells

SIZES = st.lists(st.integers(0, 2**48), min_size=1, max_size=9)


@given(SIZES, st.integers(10, 200))
def test_cells_add_up_and_show_every_part(sizes: list[int], width: int) -> None:
    shares = cells(sizes, width)
    assert sum(shares) == (width if any(sizes) else 0)
    assert [share > 0 for share in shares] == [size > 0 for size in sizes]


@given(SIZES, st.integers(10, 200))
def test_cells_are_in_proportion(sizes: list[int], width: int) -> None:
    shares, total = cells(sizes, width), sum(sizes)
    # A part that is lifted to one cell takes it from another.
    lifted = sum(0 < size * width < total for size in sizes)
    for size, share in zip(sizes, shares, strict=True):
        exact = size * width / total if total else 0
        assert exact - 1 - lifted <= share <= max(exact + 1, 1)


@given(SIZES, st.integers(10, 200))
def test_a_larger_part_has_no_fewer_cells(sizes: list[int], width: int) -> None:
    drawn = sorted(zip(sizes, cells(sizes, width), strict=True))
    shares = [share for _size, share in drawn]
    by_size = {size: sorted(share for other, share in drawn if other == size) for size, _share in drawn}
    ordered = [share for size in sorted(by_size) for share in by_size[size]]
    assert ordered == sorted(shares)


def part(letter: str, size: int, label: str = "some part") -> BarPart:
    return BarPart(letter, label, size, f"{size}.0", "plain")


@given(SIZES, st.integers(40, 200), st.booleans(), st.integers(0, 2**50))
def test_lines_fit(sizes: list[int], columns: int, compact: bool, at: int) -> None:
    parts = tuple(BarPart("EXTRACTED"[number], "part", size, "1.0 - 2.0", "plain") for number, size in enumerate(sizes))
    bar = Bar(parts, "GiB", marks=(Mark(at, "here it ends"),), compact=compact)
    lines = ["".join(text for text, _style in line) for line in bar_lines(bar, columns)]
    assert max(map(len, lines)) <= min(columns, 80)
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert lines[1].count("^") == 1


def drawn(bar: Bar, columns: int = 24) -> list[str]:
    return ["".join(text for text, _style in line) for line in bar_lines(bar, columns)]


def test_a_bar() -> None:
    parts = (part("A", 10), part("B", 5), part("C", 0), part(".", 5, "left"))
    assert drawn(Bar(parts, "GiB", marks=(Mark(15, "15"), Mark(10, "ten"), Mark(20, "end")))) == [
        "  [AAAAAAAAAABBBBB.....]",
        "                 ^ 15",
        "            ^ ten",
        "                  end ^",
        "   A  some part  10.0 GiB",
        "   B  some part   5.0 GiB",
        "   C  some part   0.0 GiB",
        "   .  left        5.0 GiB",
    ]


def test_a_mark_below_the_bar_points_at_the_last_cell_before_it() -> None:
    line, caret = drawn(Bar((part("A", 3), part("B", 7)), "GiB", marks=(Mark(3, "x"),)))[:2]
    assert line[caret.index("^")] == "A"
    assert line[caret.index("^") + 1] == "B"


def test_a_running_legend_is_wrapped_between_parts() -> None:
    bar = Bar(tuple(part(letter, 1) for letter in "ABC"), "GiB", compact=True)
    assert drawn(bar, 42)[1:] == ["  A some part: 1.0  B some part: 1.0", "  C some part: 1.0 GiB"]


def test_nothing_to_draw() -> None:
    assert drawn(Bar((part("A", 0),), "GiB"))[0] == "  []"
