"""A triage answer as Markdown, to be put into an issue or a chat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dsv4check.report.blocks import Block, Heading, Paragraph, Table
from dsv4check.report.markdown import code, escaped, fence
from dsv4check.report.triage_text import triage_blocks
from dsv4check.triage.answer import TriageReport

_POINTS: Final = ("- ", "for: ", "against: ")


def render(answer: TriageReport) -> str:
    """The same blocks as the text, as GitHub's Markdown."""
    return blocks_as_markdown(triage_blocks(answer))


def blocks_as_markdown(blocks: Iterable[Block]) -> str:
    """Headings, paragraphs, lists, blocks of code and tables; nothing from outside is taken for markup."""
    return "\n\n".join(_parts(blocks))


def _parts(blocks: Iterable[Block]) -> Iterator[str]:
    points: list[str] = []
    for number, block in enumerate(blocks):
        if isinstance(block, Paragraph) and not block.verbatim and block.text.startswith(_POINTS):
            points.append(f"- {escaped(block.text.removeprefix('- '))}")
            continue
        if points:
            yield "\n".join(points)
            points = []
        match block:
            case Heading(text):
                yield f"{'###' if number == 0 else '####'} {escaped(text)}"
            case Paragraph(text, _indent, _style, True):
                yield fence(text, "sh" if _command(text) else "text")
            case Paragraph(text):
                if text.strip():
                    yield escaped(text)
            case Table(header, rows):
                names = [escaped(name) or " " for name in header or ("", "")]
                lines = [names, ["---"] * len(names), *([code(row[0]), *map(escaped, row[1:])] for row in rows)]
                yield "\n".join(f"| {' | '.join(line)} |" for line in lines)
            case _:
                # A bar is drawn for a terminal.
                continue
    if points:
        yield "\n".join(points)


def _command(text: str) -> bool:
    return "vllm serve" in text.split("\n")[0] or "python" in text.split(" ")[0]
