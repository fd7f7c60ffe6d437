"""The formats of a look at an installation, by name."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from dsv4check.doctor.records import DoctorReport


class DoctorFormat(StrEnum):
    """Output formats of ``doctor``."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def render(report: DoctorReport, format: DoctorFormat, *, width: int = 110) -> str:
    """The report in one format, to be written as it is: it ends with one line end.

    Args:
        report: The report.
        format: The format.
        width: Columns of the text.
    """
    match format:
        case DoctorFormat.TEXT:
            from dsv4check.report import doctor_text

            text = doctor_text.render(report, width)
        case DoctorFormat.JSON:
            from dsv4check.doctor import plain

            text = plain.render(report)
        case DoctorFormat.MARKDOWN:
            from dsv4check.report.doctor_text import doctor_blocks
            from dsv4check.report.triage_markdown import blocks_as_markdown

            text = blocks_as_markdown(doctor_blocks(report))
        case _:
            assert_never(format)
    return text.rstrip("\n") + "\n"
