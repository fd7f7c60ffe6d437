"""Printing: text for terminals and pipes, JSON; and what a set of findings exits with."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import assert_never

from dsv4check.cli.exit_codes import FINDINGS, OK
from dsv4check.report.model import Report


class Format(StrEnum):
    """Output formats of a report."""

    TEXT = "text"
    JSON = "json"


class FailOn(StrEnum):
    """The lowest severity that makes the exit code 1."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    NEVER = "never"


def print_report(report: Report, output: Format) -> None:
    """Print one report on stdout; colours only on a terminal, never with NO_COLOR."""
    match output:
        case Format.JSON:
            from dsv4check.report.json_format import render

            print(render(report))
        case Format.TEXT:
            if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
                from rich.console import Console

                from dsv4check.report.rich_format import print_report as print_rich

                print_rich(report, Console())
            else:
                from dsv4check.report.text_format import render as render_text

                print(render_text(report), end="")
        case _:
            assert_never(output)


def exit_code(report: Report, fail_on: FailOn, strict: bool) -> int:
    """0, or 1 when a finding reaches ``fail_on`` or, with ``strict``, a question stayed open."""
    if strict and report.not_evaluated:
        return FINDINGS
    if fail_on is FailOn.NEVER:
        return OK
    threshold = {FailOn.ERROR: 2, FailOn.WARNING: 1, FailOn.NOTE: 0}[fail_on]
    return FINDINGS if any(finding.severity.rank >= threshold for finding in report.findings) else OK
