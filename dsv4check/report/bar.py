"""A stacked bar: parts of a whole as letters in a row, with a legend. Both text renderers draw it from here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dsv4check.records import dataclass

_COLUMNS: Final = 80
"""Wider than this a bar gains nothing."""
_INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class BarPart:
    """One part of the whole."""

    letter: str
    """Drawn once for each cell, also where there is colour: the bar must not rest on colour alone."""
    label: str
    size: int
    """What the cells are in proportion to; 0 draws none."""
    said: str
    """The size as people read it; may be a range."""
    style: str
    """A role, not a colour."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on the bar that matters."""

    at: int
    """In the unit of the parts, from the start."""
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """The parts in order; what they add up to is the whole width."""

    parts: tuple[BarPart, ...]
    unit: str
    marks: tuple[Mark, ...] = ()
    compact: bool = False
    """True: the legend runs on in one paragraph; False: a line for each part."""


Span = tuple[str, str]
"""Text and its style."""


def cells(sizes: Sequence[int], width: int) -> list[int]:
    """Share ``width`` cells out by largest remainder; whatever is there gets one at least, so that it can be seen.

    ``width`` is exceeded only by more parts than cells.
    """
    total = sum(sizes)
    if total <= 0:
        return [0] * len(sizes)
    shares = [max(size * width // total, 1) if size else 0 for size in sizes]
    # Parts that were lifted to one cell have had more than their remainder already.
    waiting = sorted(
        (index for index, size in enumerate(sizes) if size * width // total),
        key=lambda index: (-(sizes[index] * width % total), index),
    )
    for index in waiting[: max(width - sum(shares), 0)]:
        shares[index] += 1
    while sum(shares) > width and max(shares) > 1:
        # Where it is missed least; of equals, from the smaller part, so that no part overtakes a larger one.
        index = max(range(len(shares)), key=lambda number: (shares[number], -sizes[number]))
        shares[index] -= 1
    return shares


def bar_lines(bar: Bar, columns: int) -> Iterator[tuple[Span, ...]]:
    """The bar, its marks and the legend, in lines of at most ``columns`` (and 80) characters."""
    columns = min(columns, _COLUMNS)
    width = max(columns - len(_INDENT) - 2, 10)
    shown = [part for part in bar.parts if part.size > 0]
    shares = cells([part.size for part in shown], width)
    drawn = [(part.letter * share, part.style) for part, share in zip(shown, shares, strict=True)]
    yield ((f"{_INDENT}[", "plain"), *drawn, ("]", "plain"))
    for mark in bar.marks:
        yield ((_mark_line(mark, shown, shares, columns), "plain"),)
    yield from _running_legend(bar, columns) if bar.compact else _legend(bar)


def _mark_line(mark: Mark, parts: Sequence[BarPart], shares: Sequence[int], columns: int) -> str:
    """A caret under the last cell that lies before the mark, its text on whichever side there is room."""
    cell, before = 0.0, 0
    for part, share in zip(parts, shares, strict=True):
        if mark.at < before + part.size:
            # In proportion within the part: a mark between two parts then stands exactly between their cells.
            cell += share * (mark.at - before) / part.size
            break
        cell, before = cell + share, before + part.size
    column = len(_INDENT) + max(round(cell), 1)
    if column + 2 + len(mark.text) <= columns:
        return f"{' ' * column}^ {mark.text}"
    return f"{mark.text} ^".rjust(column + 1)


def _legend(bar: Bar) -> Iterator[tuple[Span, ...]]:
    labels = max((len(part.label) for part in bar.parts), default=0)
    figures = max((len(part.said) for part in bar.parts), default=0)
    for part in bar.parts:
        text = f"  {part.label:<{labels}}  {part.said:>{figures}} {bar.unit}"
        yield ((f"{_INDENT} ", "plain"), (part.letter, part.style), (text, "plain"))


def _running_legend(bar: Bar, columns: int) -> Iterator[tuple[Span, ...]]:
    line: list[Span] = []
    length = 0
    for number, part in enumerate(bar.parts):
        last = number == len(bar.parts) - 1
        text = f" {part.label}: {part.said}" + (f" {bar.unit}" if last else "")
        gap = "  " if line else _INDENT
        if line and length + len(gap) + 1 + len(text) > columns:
            yield tuple(line)
            line, length, gap = [], 0, _INDENT
        line += [(gap, "plain"), (part.letter, part.style), (text, "plain")]
        length += len(gap) + 1 + len(text)
    if line:
        yield tuple(line)
