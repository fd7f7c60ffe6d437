"""Parts of a triage answer's text: the error itself, what is said where no rule explains it, what the log states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dsv4check.report.blocks import Block, Heading, Paragraph, Table, finding_blocks
from dsv4check.report.gate_words import clipped
from dsv4check.report.secret_text import masked_named, masked_secrets
from dsv4check.report.triage_words import (
    causes,
    exception_line,
    frame_line,
    masked_and_clipped,
    other_findings,
    place,
    repeated,
)
from dsv4check.triage.answer import Outcome, TriageReport
from dsv4check.triage.records import ErrorEvent, Fact

_ERROR_LINES: Final = 12
_LINE: Final = 300
_VALUE: Final = 400
_FRAMES: Final = 14
_EXCERPT: Final = 30
_FACTS: Final = 60


def error_blocks(event: ErrorEvent) -> Iterator[Block]:
    """vLLM's own words, and where they stand."""
    for label, item in (("vLLM says", event), *(("caused by", cause) for cause in causes(event))):
        lines = exception_line(item).splitlines() or [""]
        where = "; ".join(part for part in (place(item.line), repeated(item)) if part)
        more = [f"[{len(lines) - _ERROR_LINES} more lines]"] if len(lines) > _ERROR_LINES else []
        yield Paragraph(f"{label}{f' ({where})' if where else ''}:")
        yield Paragraph(_cut([*lines[:_ERROR_LINES], *more]), indent=4, style="error", verbatim=True)


def unexplained_blocks(answer: TriageReport) -> Iterator[Block]:
    """An error that no rule explains, or a log without one, and the checker's findings."""
    event = answer.error
    if event is not None:
        yield Heading("The error")
        if answer.outcome is Outcome.UNKNOWN:
            yield Paragraph("No rule knows this error: what follows is what the log shows, and not a cause.")
        yield from error_blocks(event)
        yield from _trace(event)
        if event.excerpt:
            yield Paragraph("as it stands in the log:")
            yield Paragraph(_cut(event.excerpt[-_EXCERPT:]), indent=4, style="dim", verbatim=True)
    elif not answer.candidates:
        more = " Where the server hangs or answers wrongly, see the hazards below." if other_findings(answer) else ""
        yield Paragraph(f"No error was found in the log.{more}")
    if answer.nearest:
        yield Heading("Nearest rules (they do not explain it)")
        yield Table(
            (), tuple((rule.id, f"{rule.name} [{rule.stage.value}]: {rule.summary}") for rule in answer.nearest)
        )
    if answer.report is None:
        yield Heading("The launch was not checked")
        yield Paragraph("The log states too little of it.")
        return
    findings = other_findings(answer)
    hazards = "to watch" if answer.outcome is Outcome.NO_ERROR else "whether or not they cause the error"
    yield Heading(
        f"What the checker finds in the stated launch ({hazards})" if findings else "The stated launch was checked"
    )
    if not findings:
        yield Paragraph(
            "The checker finds nothing else in it." if answer.candidates else "The checker finds nothing in it."
        )
    for finding in findings:
        yield from finding_blocks(finding)


def _trace(event: ErrorEvent) -> Iterator[Block]:
    if not event.frames:
        return
    hidden = len(event.frames) - _FRAMES
    more = [f"[{hidden} outer frames]"] if hidden > 0 else []
    yield Paragraph("traceback, innermost last:")
    yield Paragraph(_cut([*more, *map(frame_line, event.frames[-_FRAMES:])]), indent=4, style="dim", verbatim=True)


def stated_blocks(answer: TriageReport) -> Iterator[Block]:
    """Everything that the log says about the launch, and where."""
    facts: list[Fact] = []
    packages: list[Fact] = []
    for fact in answer.stated.facts:
        (packages if fact.name.startswith("package ") else facts).append(fact)
    if not facts and not packages:
        return
    rows = [
        (fact.name, f"{masked_and_clipped(_value(fact), _VALUE)} [{fact.how}{_comma(fact)}]") for fact in facts[:_FACTS]
    ]
    if len(facts) > _FACTS:
        rows.append(("", f"and {len(facts) - _FACTS} more"))
    if packages:
        named = ", ".join(f"{fact.name.removeprefix('package ')} {fact.value}" for fact in packages[:_FACTS])
        rows.append(("packages", f"{masked_and_clipped(named, 2 * _VALUE)} [{packages[0].how}{_comma(packages[0])}]"))
    yield Heading("What the log states")
    yield Table((), tuple(rows))
    if answer.command and answer.outcome is not Outcome.EXPLAINED:
        yield Paragraph("as a command:")
        yield Paragraph(answer.command, indent=6, verbatim=True)


def _value(fact: Fact) -> str:
    return masked_named(fact.name.split()[-1] if fact.name.split() else "", " ".join(fact.value.split()))


def _comma(fact: Fact) -> str:
    return f", {place(fact.line)}" if fact.line is not None else ""


def _cut(lines: Sequence[str]) -> str:
    return "\n".join(clipped(line, _LINE) for line in masked_secrets("\n".join(lines)).split("\n"))
