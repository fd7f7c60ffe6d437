"""A triage answer as headings, paragraphs and tables: text on terminals and in pipes, and the base of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from dsv4check.engine.rule import FoundIn
from dsv4check.report.bar import Bar
from dsv4check.report.blocks import Block, Heading, Paragraph, Table
from dsv4check.report.model import Finding
from dsv4check.report.secret_text import masked_secrets
from dsv4check.report.triage_parts import (
    error_blocks,
    finding_list,
    fix_blocks,
    packed,
    stated_blocks,
    unexplained_blocks,
)
from dsv4check.report.triage_remedies import remedies
from dsv4check.report.triage_words import (
    Places,
    exception_line,
    fixed_in,
    headline,
    masked_and_clipped,
    message_of,
    missing,
    no_fix,
    other_findings,
    places_in,
    style,
    subject,
    sureness,
    unchecked,
    undecided,
    unique,
)
from dsv4check.triage.answer import Candidate, Evidence, Outcome, TriageReport
from dsv4check.triage.apart import listed, ruled_out

_LINE: Final = 300
_VALUE: Final = 400
_OTHERS: Final = 6
_REFUTED: Final = 3
_LATER: Final = 5


def render(answer: TriageReport, width: int = 110) -> str:
    """The answer as plain text of at most ``width`` columns (commands and lines of the log are not wrapped)."""
    from dsv4check.report.text_format import render_blocks

    return render_blocks(triage_blocks(answer), width)


def triage_blocks(answer: TriageReport) -> Iterator[Block]:
    """The whole answer, top to bottom, secrets masked."""
    return map(_masked, _blocks(answer))


def _blocks(answer: TriageReport) -> Iterator[Block]:
    places = places_in(answer.reading)
    yield Heading(headline(answer), style(answer))
    yield Paragraph(subject(answer), indent=0)
    yield from _candidates(answer, places)
    if answer.outcome is not Outcome.EXPLAINED or not answer.candidates:
        yield from unexplained_blocks(answer, places)
    yield from stated_blocks(answer, places)
    needed = missing(answer)
    if needed:
        yield Heading("To be surer, say or attach")
        yield from _list(needed)
    yield from _later(answer, places)
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


def _candidates(answer: TriageReport, places: Places) -> Iterator[Block]:
    if not answer.candidates:
        return
    top = answer.candidates[0]
    several = len(undecided(answer)) > 1
    yield Heading("First of the possible causes" if several else "Cause")
    yield Paragraph(f"{top.rule.id} {top.rule.name}: {message_of(top)}")
    if answer.error is not None:
        yield from error_blocks(answer.error, places)
    yield Paragraph(sureness(top), style="dim")
    yield Heading(f"What to change, if it is {top.rule.id}" if several else "What to change")
    yield from _changes(answer, top)
    if top.evidence:
        yield Heading("Evidence")
        yield from _evidence(top.evidence, places)
    yield from _others(answer)


def _changes(answer: TriageReport, item: Candidate) -> Iterator[Block]:
    fixes = item.finding.fixes if item.finding else ()
    for number, fix in enumerate(fixes, start=1):
        yield from fix_blocks(number, fix, command=number == 1)
    on_machine = item.rule.found_in is FoundIn.LOG
    words = remedies(item)
    for remedy in words:
        yield Paragraph(f"- {remedy}", style="fix")
    if words and not fixes and not on_machine:
        yield Paragraph(f"not checked: {unchecked(answer, item)}", style="dim")
        if answer.command:
            yield Paragraph("the launch as the log states it:", style="dim")
            yield Paragraph(packed(answer.command), indent=6, verbatim=True)
    why = no_fix(item)
    if why:
        yield Paragraph(f"no fix: {why}")
    elif not fixes and not words:
        yield Paragraph(f"no change is known; {unchecked(answer, item)}")
    release = fixed_in(item)
    if release:
        yield Paragraph(f"first release without it: vLLM {release}")
    references = (item.finding.references if item.finding else ()) or item.rule.references
    yield Paragraph(f"see: {', '.join((*references, f'dsv4check explain {item.rule.id}'))}", style="dim")


def _evidence(items: Sequence[Evidence], places: Places) -> Iterator[Block]:
    for item in sorted(items, key=lambda item: not item.supports):
        text = masked_and_clipped(item.text, _VALUE)
        yield Paragraph(f"{'for' if item.supports else 'against'}: {places.behind(text, item.line)}")


def _others(answer: TriageReport) -> Iterator[Block]:
    """Rivals with what to change; those the launch speaks against in a line each, and only the first of them."""
    others = answer.candidates[1:]
    rivals = [item for item in others if ruled_out(item) is None]
    refuted = [(item, reason) for item in others if (reason := ruled_out(item)) is not None]
    if not others:
        return
    yield Heading("Other causes with the same text" if answer.error is not None else "Other hazards with the same text")
    if answer.apart and rivals:
        yield Paragraph(answer.apart)
    for number, item in enumerate(rivals[:_OTHERS], start=2):
        yield Paragraph(f"{number}. {item.rule.id} {item.rule.name} ({item.sureness.value}): {message_of(item)}")
        fixes = item.finding.fixes if item.finding else ()
        change = "; ".join(edit.text for edit in fixes[0].edits) if fixes else next(iter(remedies(item)), "")
        release = fixed_in(item)
        parts = [f"change: {change}" if change else "", f"first release without it: vLLM {release}" if release else ""]
        if any(parts):
            yield Paragraph("; ".join(part for part in parts if part), indent=5, style="dim")
    if len(rivals) > _OTHERS:
        yield Paragraph(f"and {len(rivals) - _OTHERS} more, less likely", style="dim")
    for item, reason in refuted[:_REFUTED]:
        yield Paragraph(f"not {item.rule.id} {item.rule.name}: {masked_and_clipped(reason.text, _VALUE)}", style="dim")
    if len(refuted) > _REFUTED:
        yield Paragraph(f"nor {listed([item for item, _ in refuted[_REFUTED:]])}", style="dim")


def _later(answer: TriageReport, places: Places) -> Iterator[Block]:
    if not answer.later:
        return
    yield Heading("Other errors in the log")
    for event in answer.later[:_LATER]:
        first = (exception_line(event).splitlines() or [""])[0]
        yield Paragraph(f"- {places.behind(masked_and_clipped(first, _LINE), event.line)}")
    if len(answer.later) > _LATER:
        yield Paragraph(f"- and {len(answer.later) - _LATER} more")


def _other_findings(answer: TriageReport) -> Iterator[Block]:
    findings: Sequence[Finding] = other_findings(answer)
    if not findings:
        return
    yield Heading("What else the checker finds in the stated launch")
    yield from finding_list(answer, findings, fixes=False)


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
