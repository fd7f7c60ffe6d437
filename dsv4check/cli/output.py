"""Printing: text for terminals and pipes, JSON; and what a set of findings exits with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from dsv4check.cli.exit_codes import FINDINGS, OK
from dsv4check.report.model import Finding, Report

if TYPE_CHECKING:
    from dsv4check.report.blocks import Block


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

    @property
    def rank(self) -> int:
        """The rank of the severity (see ``Severity.rank``), above all of them for ``never``."""
        return {"error": 2, "warning": 1, "note": 0, "never": 3}[self.value]


def print_report(report: Report, output: Format) -> None:
    """Print one report on stdout; colours only on a terminal, never with NO_COLOR."""
    match output:
        case Format.JSON:
            from dsv4check.report.json_format import render

            print(render(report))
        case Format.TEXT:
            from dsv4check.report.blocks import report_blocks

            print_blocks(report_blocks(report))
        case _:
            assert_never(output)


def print_blocks(blocks: Iterable[Block]) -> None:
    """Print text blocks on stdout, with rich on a terminal."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        from rich.console import Console

        from dsv4check.report.rich_format import print_blocks as print_rich

        print_rich(blocks, Console())
    else:
        from dsv4check.report.text_format import render_blocks

        print(render_blocks(blocks), end="")


def exit_code(report: Report, fail_on: FailOn, strict: bool) -> int:
    """0, or 1 when a finding reaches ``fail_on`` or, with ``strict``, a question stayed open."""
    if strict and report.not_evaluated:
        return FINDINGS
    return FINDINGS if reaches(report.findings, fail_on) else OK


def reaches(findings: Iterable[Finding], fail_on: FailOn) -> bool:
    """True when a finding is at or above ``fail_on``."""
    return any(finding.severity.rank >= fail_on.rank for finding in findings)
