"""The gate's report as workflow commands: GitHub shows them at the lines of a change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsv4check.engine.rule import Severity
from dsv4check.gate.records import GateReport, Region
from dsv4check.report.gate_words import (
    active_findings,
    count,
    finding_counts,
    fix_words,
    launch_counts,
    not_checked,
    problem_counts,
    visible,
)

_COMMANDS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
_ORDER: Final = tuple(_COMMANDS.values())


def render(report: GateReport) -> str:
    """One command a line, errors first (of each kind GitHub shows ten a step), and a last line with the counts."""
    commands = sorted(_commands(report), key=lambda item: _ORDER.index(item[0]))
    counts = count(report)
    said = "; ".join(part for part in (launch_counts(counts), finding_counts(counts), problem_counts(counts)) if part)
    return "\n".join([*(line for _kind, line in commands), f"dsv4check: {said}"])


def _commands(report: GateReport) -> Iterator[tuple[str, str]]:
    for problem in sorted(report.problems, key=lambda item: (item.path, item.line)):
        kind = "notice" if problem.skipped else "error"
        title = "Skipped" if problem.skipped else "Not understood"
        yield kind, _command(kind, problem.path, title, problem.why, line=problem.line)
    for finding in active_findings(report):
        message = [finding.message]
        if finding.error:
            message.append(f"vLLM prints: {finding.error}")
        if finding.fixes:
            fix = finding.fixes[0]
            message.append(f"Fix: {fix_words(fix)}" + (f" ({fix.note})" if fix.note else ""))
        elif finding.no_fix:
            message.append(f"No fix: {finding.no_fix}")
        kind = _COMMANDS[finding.severity]
        title = f"{finding.rule} {finding.name}"
        yield kind, _command(kind, finding.path, title, "\n".join(message), region=finding.region)
    for launch in not_checked(report):
        said = f"{launch.name}: {launch.not_checked}"
        yield "notice", _command("notice", launch.path, "Not checked", said, line=launch.region.line)


def _command(kind: str, path: str, title: str, message: str, *, line: int = 0, region: Region | None = None) -> str:
    properties = {"file": path}
    if region is not None:
        properties["line"] = str(region.line)
        if region.end_line == region.line:
            properties |= {"col": str(region.column), "endColumn": str(region.end_column)}
        else:
            # GitHub refuses columns of a range over several lines.
            properties["endLine"] = str(region.end_line)
    elif line:
        properties["line"] = str(line)
    properties["title"] = title
    said = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{kind} {said}::{_data(message)}"


def _data(text: str) -> str:
    shown = visible(text, "\r\n")
    return shown.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
