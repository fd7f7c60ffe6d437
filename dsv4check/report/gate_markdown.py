"""The gate's report as Markdown, to be posted on a pull request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dsv4check.gate.records import GateFinding, GateReport
from dsv4check.report.figures import plural
from dsv4check.report.gate_words import (
    Counts,
    active_findings,
    clipped,
    count,
    finding_counts,
    fix_words,
    launch_counts,
    not_checked,
    place,
    problem_counts,
    real_problems,
)
from dsv4check.report.markdown import code, escaped, fence, in_html

MAX_SIZE: Final = 60_000
"""Characters of the whole text; GitHub refuses a comment of more than 65,536."""

_MARK: Final = "<!-- dsv4check gate -->"
_LISTED: Final = 8_000
_ROWS: Final = 20_000
_NOTES: Final = 4_000
# Before escaping: one character may become eleven.
_CELL: Final = 600
_HEADER: Final = "| | rule | place | what |\n| --- | --- | --- | --- |"


def render(report: GateReport) -> str:
    """The report in fewer than ``MAX_SIZE`` characters; what does not fit is left out, and counted.

    The first line is a comment by which a later run finds its own text and replaces it.
    """
    counts = count(report)
    findings = active_findings(report)
    said = "; ".join(part for part in (launch_counts(counts), problem_counts(counts)) if part)
    parts = [_MARK, f"### dsv4check: {_verdict(counts)} ({finding_counts(counts)})", f"{said}."]
    rows, left = _fitting(map(_row, findings), _ROWS)
    if rows:
        parts.append("\n".join([_HEADER, *rows]))
    if left:
        parts.append(_left_out(left, "finding"))
    lists = [
        *_list(
            "Launches not checked", ((item.path, item.region.line, item.not_checked) for item in not_checked(report))
        ),
        *_list("Not understood or skipped", ((it.path, it.line, it.why) for it in real_problems(report.problems))),
        *_list("Stale in the baseline", ((entry, 0, "found no more") for entry in report.stale)),
        *_fitting((f"Note: {escaped(clipped(note, _CELL))}" for note in report.notes), _NOTES)[0],
    ]
    used = sum(len(part) + 2 for part in (*parts, *lists)) + 200
    shown = [item for item in map(_details, findings[: len(rows)]) if item]
    details, left = _fitting(shown, MAX_SIZE - used)
    parts += details
    if left:
        parts.append(_left_out(left, "detail"))
    return "\n\n".join([*parts, *lists])


def _verdict(counts: Counts) -> str:
    if counts.errors:
        return "fail"
    if counts.problems:
        return "not everything was understood"
    return "warn" if counts.warnings else "pass"


def _fitting(items: Iterable[str], size: int) -> tuple[list[str], int]:
    """As many of the first items as fit into ``size`` characters, and the number of the others."""
    kept: list[str] = []
    left = 0
    for item in items:
        size -= len(item) + 2
        if left or size < 0:
            left += 1
        else:
            kept.append(item)
    return kept, left


def _left_out(left: int, what: str) -> str:
    return f"{plural(left, f'more {what}')} left out here: `dsv4check gate` prints all."


def _row(finding: GateFinding) -> str:
    rule = f"{escaped(finding.rule)} {escaped(finding.name)}"
    where = code(clipped(place(finding.path, finding.region.line), _CELL))
    return f"| {finding.severity.value} | {rule} | {where} | {escaped(clipped(finding.message, _CELL))} |"


def _details(finding: GateFinding) -> str:
    """What the row of the finding does not say; empty where that is all."""
    where = in_html(clipped(place(finding.path, finding.region.line), _CELL))
    parts = [
        f"<details><summary>{finding.severity.value} {in_html(finding.rule)} {in_html(finding.name)}, {where}</summary>"
    ]
    if finding.launch:
        stage = f"; stage: {finding.stage.value}" if finding.stage else ""
        parts.append(f"Launch: {escaped(clipped(finding.launch, _CELL))}{stage}")
    if len(finding.message) > _CELL:
        parts.append(escaped(finding.message))
    if finding.error:
        parts += ["vLLM prints:", fence(finding.error, "text")]
    if finding.fixes:
        fix = finding.fixes[0]
        parts += [f"Fix: {escaped(fix_words(fix))}", fence(fix.command, "sh")]
        if fix.note:
            parts.append(escaped(fix.note))
    elif finding.no_fix:
        parts.append(f"No fix: {escaped(finding.no_fix)}")
    return "\n\n".join([*parts, "</details>"]) if len(parts) > 1 else ""


def _list(title: str, items: Iterable[tuple[str, int, str]]) -> list[str]:
    lines, left = _fitting(
        (f"- {code(clipped(place(path, line), _CELL))}: {escaped(clipped(why, _CELL))}" for path, line, why in items),
        _LISTED,
    )
    if left:
        lines.append(f"- and {left:,} more")
    if not lines:
        return []
    return [f"**{title}**", "\n".join(lines)]
