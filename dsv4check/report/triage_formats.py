"""The formats of a triage answer, by name."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from dsv4check.triage.answer import TriageReport


class TriageFormat(StrEnum):
    """Output formats of a triage answer."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def render(answer: TriageReport, format: TriageFormat, *, width: int = 110) -> str:
    """The answer in one format, to be written as it is: it ends with one line end.

    Args:
        answer: The answer.
        format: The format.
        width: Columns of the text.
    """
    match format:
        case TriageFormat.TEXT:
            from dsv4check.report import triage_text

            text = triage_text.render(answer, width)
        case TriageFormat.JSON:
            from dsv4check.report import triage_json

            text = triage_json.render(answer)
        case TriageFormat.MARKDOWN:
            from dsv4check.report import triage_markdown

            text = triage_markdown.render(answer)
        case _:
            assert_never(format)
    return text.rstrip("\n") + "\n"
