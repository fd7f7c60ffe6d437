"""The gate's report as headings and paragraphs: one line a launch, its findings below it, a summary at the end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dsv4check.engine.rule import Certainty, Severity
from dsv4check.gate.records import GateFinding, GateReport, LaunchResult
from dsv4check.report.blocks import Block, Heading, Paragraph
from dsv4check.report.figures import plural
from dsv4check.report.gate_words import (
    Counts,
    count,
    finding_counts,
    fix_words,
    flat,
    launch_counts,
    place,
    problem_counts,
    real_problems,
    subject,
    visible,
)


def gate_blocks(report: GateReport, *, verbose: bool) -> list[Block]:
    """The whole report; ``verbose`` adds launches of other models, ignored findings, notes and facts."""
    blocks: list[Block] = []
    for launch in report.launches:
        blocks += _launch(launch, verbose)
    shown = [item for item in report.own if item.active or verbose]
    if shown:
        blocks.append(Heading("Found by the gate itself"))
        for finding in shown:
            blocks += _finding(finding)
    blocks += _problems(report)
    if report.stale:
        blocks.append(Heading("In the baseline, but found no more"))
        blocks += [_line(entry, indent=2) for entry in report.stale]
    return [*blocks, *_summary(report)]


def _line(text: str, style: str = "plain", indent: int = 0) -> Paragraph:
    # Never wrapped, and blanks stay: places are clicked on and searched for.
    return Paragraph(visible(text), indent, style, verbatim=True)


def _launch(launch: LaunchResult, verbose: bool) -> Iterator[Block]:
    active = [item for item in launch.findings if item.active]
    loud = [item for item in active if verbose or item.severity is not Severity.NOTE]
    quiet = len(launch.findings) - len(active)
    if launch.other_model:
        if verbose:
            yield _line(_title(launch, "another model"), "dim")
        return
    if launch.verdict is None:
        yield _line(f"{_title(launch, 'not checked')}: {launch.not_checked}", "warning")
    else:
        title = _title(launch, launch.verdict)
        if quiet and not active:
            title += f"; {plural(quiet, 'finding')} ignored or in the baseline"
        yield Heading(title, launch.verdict) if loud else _line(title, launch.verdict)
    for finding in launch.findings if verbose else loud:
        yield from _finding(finding)
    for why, what in _open_questions(launch).items():
        yield Paragraph(f"not evaluated, {why}: {what}", style="dim")
    if verbose:
        yield from _details(launch)


def _open_questions(launch: LaunchResult) -> dict[str, str]:
    """What is not known, by the reason; of a rule the id is enough here."""
    grouped: dict[str, list[str]] = {}
    for item in launch.not_evaluated:
        parts = item.what.split("; ")
        grouped.setdefault(item.why, []).extend(_RULE.sub(r"\1", part) for part in parts)
    return {why: ", ".join(dict.fromkeys(what)) for why, what in grouped.items()}


_RULE: Final = re.compile(r"([A-Z]{2}\d{3}) [a-z0-9-]+$")


def _title(launch: LaunchResult, answer: str) -> str:
    about = subject(launch)
    return f"{place(launch.path, launch.region.line)}: {answer}  {launch.name}" + (f" ({about})" if about else "")


def _details(launch: LaunchResult) -> Iterator[Block]:
    for item in launch.not_evaluated:
        yield Paragraph(f"to know {item.what}: {item.how}", style="dim")
    if launch.facts:
        said = (
            f"{name} {fact.value} ({fact.source}{f', line {fact.line}' if fact.line else ''})"
            for name, fact in launch.facts.items()
        )
        yield Paragraph(f"facts: {'; '.join(said)}", style="dim")
    for note in launch.notes:
        yield Paragraph(f"note: {note}", style="dim")


def _finding(finding: GateFinding) -> Iterator[Block]:
    region = finding.region
    stage = f" [{finding.stage.value}]" if finding.stage else ""
    title = f"{finding.path}:{region.line}:{region.column}: {finding.severity.value} {finding.rule} {finding.name}"
    if not finding.active:
        why = "in the baseline" if finding.ignored is None else f"ignored: {finding.ignored}"
        yield _line(f"{title}{stage} ({why})", "dim", 2)
        return
    yield _line(title + stage, finding.severity.value, 2)
    yield Paragraph(finding.message, 4)
    if finding.error:
        yield Paragraph(f"vLLM prints: {finding.error}", 4, "dim")
    if region.token:
        yield Paragraph(f"at: {flat(region.token)}", 4, "dim")
    if finding.certainty is not Certainty.PROVEN:
        yield Paragraph(f"certainty: {finding.certainty.value}", 4, "dim")
    if finding.fixes:
        fix = finding.fixes[0]
        state = "" if fix.verified else " (not verified)"
        yield Paragraph(f"fix: {fix_words(fix)}{state}", 4, "fix")
        if fix.note:
            yield Paragraph(fix.note, 6)
    elif finding.no_fix:
        yield Paragraph(f"no fix: {finding.no_fix}", 4)


def _problems(report: GateReport) -> Iterator[Block]:
    wrong = [item for item in real_problems(report.problems) if not item.skipped]
    skipped = [item for item in real_problems(report.problems) if item.skipped]
    for title, style, items in (("Not understood", "fail", wrong), ("Skipped", "section", skipped)):
        if items:
            yield Heading(title, style)
            yield from (_line(f"{place(item.path, item.line)}: {item.why}", indent=2) for item in items)


def _summary(report: GateReport) -> Iterator[Block]:
    counts = count(report)
    yield Heading(launch_counts(counts), _style(counts))
    said = [finding_counts(counts), problem_counts(counts)]
    if counts.stale:
        said.append(f"{counts.stale} stale in the baseline")
    if report.seconds:
        said.append(f"checked in {report.seconds:.1f} s")
    yield Paragraph("; ".join(part for part in said if part), 0)
    for note in report.notes:
        yield Paragraph(f"note: {note}", 0, "dim")


def _style(counts: Counts) -> str:
    if counts.errors or counts.problems:
        return "fail"
    return "warn" if counts.warnings or counts.not_checked else "pass"
