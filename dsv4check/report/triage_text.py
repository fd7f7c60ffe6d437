"""A triage answer as headings, paragraphs and tables: text on terminals and in pipes, and the base of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from dsv4check.report.bar import Bar
from dsv4check.report.blocks import Block, Heading, Paragraph, Table
from dsv4check.report.model import Finding, Fix
from dsv4check.report.secret_text import masked_secrets
from dsv4check.report.triage_parts import error_blocks, stated_blocks, unexplained_blocks
from dsv4check.report.triage_words import (
    SURENESS,
    at,
    exception_line,
    fixed_in,
    headline,
    masked_and_clipped,
    message_of,
    missing,
    no_fix,
    other_findings,
    style,
    subject,
    unchecked,
    undecided,
    unique,
)
from dsv4check.triage.answer import Candidate, Evidence, Outcome, TriageReport

_LINE: Final = 300
_VALUE: Final = 400
_OTHERS: Final = 8


def render(answer: TriageReport, width: int = 110) -> str:
    """The answer as plain text of at most ``width`` columns (commands and lines of the log are not wrapped)."""
    from dsv4check.report.text_format import render_blocks

    return render_blocks(triage_blocks(answer), width)


def triage_blocks(answer: TriageReport) -> Iterator[Block]:
    """The whole answer, top to bottom, secrets masked."""
    return map(_masked, _blocks(answer))


def _blocks(answer: TriageReport) -> Iterator[Block]:
    yield Heading(headline(answer), style(answer))
    yield Paragraph(subject(answer), indent=0)
    yield from _candidates(answer)
    if answer.outcome is not Outcome.EXPLAINED or not answer.candidates:
        yield from unexplained_blocks(answer)
    yield from stated_blocks(answer)
    yield Heading("Stage reached")
    yield Paragraph(f"{answer.milestone.stage.value}: {answer.milestone.reached}{at(answer.milestone.line)}")
    needed = missing(answer)
    if needed:
        yield Heading("To be surer")
        yield from _list(needed)
    yield from _later(answer)
    if answer.outcome is Outcome.EXPLAINED:
        yield from _other_findings(answer)
    if answer.outcome is Outcome.UNKNOWN:
        yield Heading("For a bug report")
        yield from _list(_attach(answer))
    notes = unique((*answer.notes, *answer.reading.notes))
    if notes:
        yield Paragraph("")
    for note in notes:
        yield Paragraph(f"note: {note}", indent=0, style="dim")


def _candidates(answer: TriageReport) -> Iterator[Block]:
    if not answer.candidates:
        return
    rivals = undecided(answer)
    top, others = answer.candidates[0], answer.candidates[1:]
    yield Heading("Most likely cause" if len(rivals) > 1 else "Cause")
    yield Paragraph(f"{top.rule.id} {top.rule.name}: {message_of(top)}")
    if answer.error is not None:
        yield from error_blocks(answer.error)
    yield Paragraph(SURENESS[top.sureness], style="dim")
    yield Heading("What to change")
    yield from _changes(answer, top)
    if top.evidence:
        yield Heading("Evidence")
        yield from _evidence(top.evidence)
    if others:
        yield Heading("Other candidates")
        for number, item in enumerate(others[:_OTHERS], start=2):
            yield from _short(number, item)
        if len(others) > _OTHERS:
            yield Paragraph(f"and {len(others) - _OTHERS} more, less likely", style="dim")
    if answer.apart:
        yield Paragraph(f"What tells them apart: {answer.apart}")


def _changes(answer: TriageReport, item: Candidate) -> Iterator[Block]:
    fixes = item.finding.fixes if item.finding else ()
    for number, fix in enumerate(fixes, start=1):
        yield from _fix(number, fix)
    if not fixes and item.remedies:
        for remedy in unique(item.remedies):
            yield Paragraph(f"- {remedy}", style="fix")
        yield Paragraph(f"not checked: {unchecked(answer, item)}", style="dim")
        if answer.command:
            yield Paragraph("the launch as the log states it:", style="dim")
            yield Paragraph(answer.command, indent=6, verbatim=True)
    why = no_fix(item)
    if why:
        yield Paragraph(f"no fix: {why}")
    elif not fixes and not item.remedies:
        yield Paragraph(f"no change is known; {unchecked(answer, item)}")
    release = fixed_in(item)
    if release:
        yield Paragraph(f"first release without it: vLLM {release}")
    references = (item.finding.references if item.finding else ()) or item.rule.references
    yield Paragraph(f"see: {', '.join((*references, f'dsv4check explain {item.rule.id}'))}", style="dim")


def _fix(number: int, fix: Fix) -> Iterator[Block]:
    edits = "; ".join(edit.text for edit in fix.edits)
    also = "; ".join(edit.text for edit in fix.also)
    state = "checked: no error is left" if fix.verified else "checked: removes this error, but others are left"
    yield Paragraph(
        f"{number}. {edits}{f' (and, for the other findings: {also})' if also else ''} [{state}]", style="fix"
    )
    if fix.note:
        yield Paragraph(fix.note, indent=4)
    yield Paragraph(fix.command, indent=6, verbatim=True)


def _evidence(items: Sequence[Evidence]) -> Iterator[Block]:
    for item in sorted(items, key=lambda item: not item.supports):
        yield Paragraph(
            f"{'for' if item.supports else 'against'}: {masked_and_clipped(item.text, _VALUE)}{at(item.line)}"
        )


def _reason(item: Evidence) -> str:
    return f"{'for' if item.supports else 'against'}: {masked_and_clipped(item.text, _VALUE)}"


def _short(number: int, item: Candidate) -> Iterator[Block]:
    yield Paragraph(f"{number}. {item.rule.id} {item.rule.name} ({item.sureness.value}): {message_of(item)}")
    for evidence in item.evidence[:3]:
        word = "for" if evidence.supports else "against"
        yield Paragraph(
            f"{word}: {masked_and_clipped(evidence.text, _VALUE)}{at(evidence.line)}", indent=5, style="dim"
        )
    fixes = item.finding.fixes if item.finding else ()
    change = "; ".join(edit.text for edit in fixes[0].edits) if fixes else next(iter(item.remedies), "")
    release = fixed_in(item)
    parts = [f"change: {change}" if change else "", f"first release without it: vLLM {release}" if release else ""]
    if any(parts):
        yield Paragraph("; ".join(part for part in parts if part), indent=5, style="dim")


def _later(answer: TriageReport) -> Iterator[Block]:
    if not answer.later:
        return
    yield Heading("Other errors in the log")
    for event in answer.later[:_OTHERS]:
        first = (exception_line(event).splitlines() or [""])[0]
        yield Paragraph(f"- {masked_and_clipped(first, _LINE)}{at(event.line)}")
    if len(answer.later) > _OTHERS:
        yield Paragraph(f"- and {len(answer.later) - _OTHERS} more")


def _other_findings(answer: TriageReport) -> Iterator[Block]:
    findings: Sequence[Finding] = other_findings(answer)
    if not findings:
        return
    yield Heading("What else the checker finds in the stated launch")
    for item in findings:
        yield Paragraph(f"{item.severity.value} {item.rule} {item.name} [{item.stage.value}]: {item.message}")


def _attach(answer: TriageReport) -> Iterator[str]:
    yield "the redacted report that `dsv4check triage LOG --bundle FILE` writes (read it before you post it)"
    if answer.error is not None and not answer.error.frames:
        yield "the log from its first line to the first traceback: the error stands here without one"
    if answer.run.first is None:
        yield "the log from the start of vLLM on: its version banner is not in what was read"
    yield "the output of `vllm collect-env`, the whole command, and the model's config.json"


def _list(texts: Sequence[str] | Iterator[str]) -> Iterator[Block]:
    for text in texts:
        yield Paragraph(f"- {text}")


def _masked(block: Block) -> Block:
    match block:
        case Heading():
            return replace(block, text=masked_secrets(block.text))
        case Paragraph():
            return replace(block, text=masked_secrets(block.text))
        case Table():
            return replace(block, rows=tuple(tuple(masked_secrets(cell) for cell in row) for row in block.rows))
        case Bar():
            return block
