"""Markdown of the gate's report: escaping, and the size of a comment."""

from __future__ import annotations

import re

import pytest

from dsv4check.gate.records import GateReport
from dsv4check.report.gate_markdown import MAX_SIZE, render
from dsv4check.report.markdown import code, escaped, fence, in_html
from tests.report.gate import NASTY, clean_report, empty_report, finding, fix, large_report, launch, rich_report


def outside_fences(text: str) -> str:
    return re.sub(r"^(`{3,})\w+\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)


def test_headline() -> None:
    said = render(rich_report()).splitlines()
    assert said[0] == "<!-- dsv4check gate -->"
    assert said[2] == "### dsv4check: fail (3 errors, 2 warnings, 2 notes; 1 ignored, 2 in the baseline)"
    assert "### dsv4check: pass (no findings)" in render(clean_report())
    assert "| rule |" not in render(empty_report())


def test_a_row_for_each_finding_that_counts() -> None:
    report = rich_report()
    rows = [line for line in render(report).splitlines() if re.match(r"\| (error|warning|note) ", line)]
    assert len(rows) == sum(item.active for item in report.findings)
    for row in rows:
        # Four cells have five bars that are not escaped.
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 5, row


def test_only_our_own_tags() -> None:
    tags = set(re.findall(r"<[^>]*>", outside_fences(render(rich_report()))))
    assert tags <= {
        "<!-- dsv4check gate -->",
        "<details>",
        "</details>",
        "<summary>",
        "</summary>",
        "<code>",
        "</code>",
    }
    assert render(rich_report()).count("<details>") == outside_fences(render(rich_report())).count("</details>")


def test_commands_stand_in_fences() -> None:
    command = "vllm serve m ```` ```"
    report = GateReport((launch(findings=(finding(fixes=(fix(command=command),)),)),))
    assert f"\n`````sh\n{command}\n`````\n" in render(report)


def test_findings_without_more_to_say_have_no_details() -> None:
    bare = finding(error="", launch="")
    assert "<details>" not in render(GateReport((launch(findings=(bare,)),)))


@pytest.mark.parametrize(("number", "size"), [(20, 400), (300, 400), (2000, 30), (3, 100_000), (40, 5_000)])
def test_size(number: int, size: int) -> None:
    said = render(large_report(number, size))
    assert len(said) < MAX_SIZE
    rows = len(re.findall(r"^\| error ", said, re.MULTILINE))
    left = re.search(r"^([\d,]+) more findings? left out", said, re.MULTILINE)
    assert rows + (int(left[1].replace(",", "")) if left else 0) == number
    details = said.count("<details>")
    missing = re.search(r"^([\d,]+) more details? left out", said, re.MULTILINE)
    assert details + (int(missing[1].replace(",", "")) if missing else 0) == rows


def test_size_where_a_character_becomes_many() -> None:
    assert len(render(large_report(50, 5_000, "\U000e0001"))) < MAX_SIZE


def test_escaped() -> None:
    assert escaped("a|b `c` <b> & [x](y) _z_") == "a\\|b \\`c\\` &lt;b&gt; &amp; \\[x\\](y) \\_z\\_"
    assert escaped("two\nlines\r\nand \x1b[0m") == "two lines and \\\\x1b\\[0m"
    assert [escaped(text) for text in ("- x", "---", "--kv-cache-dtype fp8")] == [
        "\\- x",
        "\\---",
        "--kv-cache-dtype fp8",
    ]
    assert "@someone" not in escaped(NASTY)
    assert in_html("<a> @b") == "&lt;a&gt; @\u200bb"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a b.sh:3", "`a b.sh:3`"),
        ("a|b", "<code>a\\|b</code>"),
        ("`<x>`", "<code>\\`&lt;x&gt;\\`</code>"),
        ("a\\|b", "<code>a\\\\\\|b</code>"),
        ("", "<code></code>"),
    ],
)
def test_code(text: str, said: str) -> None:
    assert code(text) == said


@pytest.mark.parametrize("text", ["plain", "``` ```", "a\n`````\nb", ""])
def test_fence(text: str) -> None:
    first, *content, last = fence(text, "sh").split("\n")
    assert first == f"{last}sh"
    assert set(last) == {"`"}
    assert last not in text
    assert "\n".join(content) == text
