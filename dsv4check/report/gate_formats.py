"""The formats of the gate's report, by name."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from dsv4check.engine.rule import Rule
    from dsv4check.gate.records import GateReport


class GateFormat(StrEnum):
    """Output formats of the gate."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    JUNIT = "junit"
    GITHUB = "github"
    MARKDOWN = "markdown"


def render(
    report: GateReport,
    format: GateFormat,
    *,
    rules: tuple[Rule, ...],
    fail_rank: int,
    verbose: bool = False,
    own: Mapping[str, tuple[str, str]] | None = None,
) -> str:
    """The report in one format, to be written as it is: it ends with one line end.

    Args:
        report: The gate's report.
        format: The format.
        rules: All rules that are known; SARIF describes those that fired.
        fail_rank: Rank of the lowest severity that fails a case of JUnit, 3 for none.
        verbose: Text with everything that is known.
        own: Summary and help of the rules of the gate itself, by id, for SARIF.
    """
    match format:
        case GateFormat.TEXT:
            from dsv4check.report.gate_text import gate_blocks
            from dsv4check.report.text_format import render_blocks

            text = render_blocks(gate_blocks(report, verbose=verbose))
        case GateFormat.JSON:
            from dsv4check.report import gate_json

            text = gate_json.render(report)
        case GateFormat.SARIF:
            from dsv4check.report import gate_sarif

            text = gate_sarif.render(report, rules, own)
        case GateFormat.JUNIT:
            from dsv4check.report import gate_junit

            text = gate_junit.render(report, fail_rank)
        case GateFormat.GITHUB:
            from dsv4check.report import gate_github

            text = gate_github.render(report)
        case GateFormat.MARKDOWN:
            from dsv4check.report import gate_markdown

            text = gate_markdown.render(report)
        case _:
            assert_never(format)
    return text.rstrip("\n") + "\n"
