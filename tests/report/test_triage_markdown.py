"""A triage answer as Markdown: nothing from a log is taken for markup."""

from __future__ import annotations

from dsv4check.report.blocks import Heading, Paragraph, Table
from dsv4check.report.triage_formats import TriageFormat, render
from dsv4check.report.triage_markdown import blocks_as_markdown
from dsv4check.triage.answer import Outcome
from tests.report.gate import NASTY
from tests.report.triage import answer, certain, event, undecided


def test_blocks() -> None:
    said = blocks_as_markdown(
        [
            Heading("One", "fail"),
            Heading("Two"),
            Paragraph("- a"),
            Paragraph("- b"),
            Paragraph("for: c"),
            Paragraph("text"),
            Paragraph(""),
            Paragraph("vllm serve x", verbatim=True),
            Table((), (("a_b", "c|d"),)),
        ]
    )
    assert said.split("\n\n") == [
        "### One",
        "#### Two",
        "- a\n- b\n- for: c",
        "text",
        "```sh\nvllm serve x\n```",
        "|   |   |\n| --- | --- |\n| `a_b` | c\\|d |",
    ]


def test_commands_stand_in_blocks_to_copy() -> None:
    said = render(certain(), TriageFormat.MARKDOWN)
    assert "\n```sh\nvllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 --kv-cache-dtype fp8\n```\n" in said
    assert said.startswith("### FAILED at model-init: KV001 auto-on-packed-layout (certain)\n")


def test_evidence_is_a_list() -> None:
    assert "- for: the text stands in the log (line 77)\n- against: the log names no GPU\n" in render(
        undecided(), TriageFormat.MARKDOWN
    )


def test_a_log_opens_no_tag_mentions_nobody_and_closes_no_block() -> None:
    nasty = f"{NASTY}\n```\n# heading <img src=x> @someone"
    made = answer(error=event(message=nasty, excerpt=(nasty,)), outcome=Outcome.UNKNOWN, notes=(nasty,), apart=nasty)
    outside = []
    fence = ""
    for row in render(made, TriageFormat.MARKDOWN).splitlines():
        ticks = row[: len(row) - len(row.lstrip("`"))]
        if not fence and len(ticks) >= 3:
            fence = ticks
        elif fence and row == fence:
            fence = ""
        elif not fence:
            outside.append(row)
    assert not fence
    text = "\n".join(outside)
    assert "note: " in text
    assert "<script" not in text
    assert "<img" not in text
    assert "@someone" not in text
