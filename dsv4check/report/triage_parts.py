"""Parts of a triage answer's text: the error itself, what is said where no rule explains it, what the log states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from dsv4check.engine.rule import Severity
from dsv4check.report.blocks import Block, Heading, Paragraph, Table
from dsv4check.report.figures import plural
from dsv4check.report.gate_words import clipped
from dsv4check.report.model import Finding, Fix
from dsv4check.report.secret_text import masked_named, masked_secrets
from dsv4check.report.triage_words import (
    Places,
    causes,
    exception_line,
    frame_line,
    masked_and_clipped,
    other_findings,
    repeated,
    stage_shown,
)
from dsv4check.triage.answer import Outcome, TriageReport
from dsv4check.triage.records import ErrorEvent, Fact

_ERROR_LINES: Final = 12
_LINE: Final = 300
_VALUE: Final = 400
_FRAMES: Final = 14
_EXCERPT: Final = 30
_FACTS: Final = 60
_FINDINGS: Final = 4
_BOILERPLATE: Final = (
    *("CUDA kernel errors might be", "For debugging consider", "Compile with `TORCH_USE_CUDA_DSA`"),
    *("HIP kernel errors might be", "Compile with `TORCH_USE_HIP_DSA`", "Search for `cuda"),
)
"""What PyTorch adds to every error of a GPU."""
_COMMAND: Final = 98
_LONG: Final = 160
_BREAK: Final = " \\\n  "


def error_blocks(event: ErrorEvent, places: Places) -> Iterator[Block]:
    """vLLM's own words, and where they stand."""
    for label, item in (("vLLM says", event), *(("caused by", cause) for cause in causes(event))):
        first, *more_lines = exception_line(item).splitlines() or [""]
        lines = [first, *(line for line in more_lines if not line.lstrip().startswith(_BOILERPLATE))]
        where = "; ".join(part for part in (places.of(item.line), repeated(item)) if part)
        more = [f"[{len(lines) - _ERROR_LINES} more lines]"] if len(lines) > _ERROR_LINES else []
        yield Paragraph(f"{label}{f' ({where})' if where else ''}:")
        yield Paragraph(_cut([*lines[:_ERROR_LINES], *more]), indent=4, style="error", verbatim=True)


def unexplained_blocks(answer: TriageReport, places: Places) -> Iterator[Block]:
    """An error that no rule explains, or a log without one, and the checker's findings."""
    event = answer.error
    if event is not None:
        yield Heading("The error")
        if answer.outcome is Outcome.UNKNOWN:
            yield Paragraph("No rule knows this error: what follows is what the log shows, and not a cause.")
        yield from error_blocks(event, places)
        yield from _trace(event)
        # With its frames the traceback was shown.
        if event.excerpt and not event.frames:
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
        if any(note.startswith("the launch was not checked") for note in answer.notes):
            # The note says why.
            return
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
    yield from finding_list(answer, findings, fixes=True)


def finding_list(answer: TriageReport, findings: Sequence[Finding], *, fixes: bool) -> Iterator[Block]:
    """Findings in a few lines each, notes only by their ids; the first fix with its command, where asked for."""
    if findings and not answer.stated.words:
        yield Paragraph(
            "(the flags are not known: this is about the model and the GPUs without any flags)", style="dim"
        )
    told = [item for item in findings if item.severity is not Severity.NOTE]
    notes = [item.rule for item in findings if item.severity is Severity.NOTE]
    for item in told[:_FINDINGS]:
        said = masked_and_clipped(item.message, _LINE)
        yield Paragraph(f"{item.severity.value} {item.rule} {item.name} [{item.stage.value}]: {said}")
        if fixes:
            for number, fix in enumerate(item.fixes, start=1):
                yield from fix_blocks(number, fix, command=item is told[0] and number == 1)
            if item.no_fix:
                yield Paragraph(f"no fix: {item.no_fix}", indent=5)
    if len(told) > _FINDINGS:
        yield Paragraph(f"and {len(told) - _FINDINGS} more: {', '.join(item.rule for item in told[_FINDINGS:])}")
    if notes:
        yield Paragraph(f"{plural(len(notes), 'note')}: {', '.join(notes)} (`dsv4check explain ID`)", style="dim")


def fix_blocks(number: int, fix: Fix, *, command: bool) -> Iterator[Block]:
    """One fix; the whole command only where it is asked for, since further fixes differ in what their line says."""
    edits = "; ".join(edit.text for edit in fix.edits)
    also = "; ".join(edit.text for edit in fix.also)
    state = "checked: no error is left" if fix.verified else "checked: removes this error, but others are left"
    rest = f" (with, for the other findings: {also})" if also else ""
    yield Paragraph(f"{number}. {edits}{rest} [{state}]", style="fix")
    if fix.note:
        yield Paragraph(fix.note, indent=4)
    if command:
        yield Paragraph(packed(fix.command), indent=6, verbatim=True)


def _trace(event: ErrorEvent) -> Iterator[Block]:
    if not event.frames:
        return
    hidden = len(event.frames) - _FRAMES
    more = [f"[{hidden} outer frames]"] if hidden > 0 else []
    yield Paragraph("traceback, innermost last:")
    yield Paragraph(_cut([*more, *map(frame_line, event.frames[-_FRAMES:])]), indent=4, style="dim", verbatim=True)


def stated_blocks(answer: TriageReport, places: Places) -> Iterator[Block]:
    """Everything that the log says about the launch and how far it got, each thing once, and where."""
    yield Heading("What the log states")
    rows = [(fact.name, _sourced([fact], _shown(fact, answer), places)) for fact in _told(answer)[:_FACTS]]
    for label in ("env", "package"):
        facts = [fact for fact in answer.stated.facts if fact.name.startswith(f"{label} ")]
        if facts:
            sign = "=" if label == "env" else " "
            pairs = dict.fromkeys(f"{fact.name.partition(' ')[2]}{sign}{_value(fact)}" for fact in facts[:_FACTS])
            rows.append((label if label == "env" else "packages", _sourced(facts, ", ".join(pairs), places)))
    milestone = answer.milestone
    reached = milestone.reached
    if stage_shown(answer):
        reached = places.behind(f"{milestone.stage.value}: {milestone.reached}", milestone.line)
    rows.append(("stage reached", reached))
    yield Table((), tuple(rows))
    if answer.command and answer.outcome is not Outcome.EXPLAINED:
        yield Paragraph("as a command:")
        yield Paragraph(packed(answer.command), indent=6, verbatim=True)


def _told(answer: TriageReport) -> list[Fact]:
    """Facts of the launch but for variables and packages; what several places say alike stands once."""
    known: dict[tuple[str, str], Fact] = {}
    for fact in answer.stated.facts:
        if not fact.name.startswith(("env ", "package ")):
            known.setdefault((fact.name, fact.value), fact)
    # A decision that repeats a flag's value says nothing new.
    flags = {token: value for token, value in pairwise(answer.stated.words) if not value.startswith("-")}
    return [fact for fact in known.values() if flags.get(f"--{fact.name.replace('_', '-')}") != fact.value]


def _shown(fact: Fact, answer: TriageReport) -> str:
    finding = answer.candidates[0].finding if answer.candidates else None
    if fact.name == "flags" and len(fact.value) > _LONG and finding is not None and finding.fixes:
        return "as in the command above, but for what it changes"
    return _value(fact)


def _sourced(facts: Sequence[Fact], value: str, places: Places) -> str:
    where = places.of(facts[0].line)
    return f"{masked_and_clipped(value, _VALUE)} ({facts[0].how}{f', {where}' if where else ''})"


def _value(fact: Fact) -> str:
    return masked_named(fact.name.split()[-1] if fact.name.split() else "", " ".join(fact.value.split()))


def packed(command: str) -> str:
    """A command with a flag a line, put on as few lines as its width allows; the same words for a shell."""
    first, *flags = command.split(_BREAK)
    if any("\n" in part for part in (first, *flags)):
        # A line end within quotes belongs to the value.
        return command
    lines = [first]
    for flag in flags:
        if len(lines) > 1 and len(lines[-1]) + len(flag) < _COMMAND:
            lines[-1] += f" {flag}"
        else:
            lines.append(flag)
    return _BREAK.join(lines)


def _cut(lines: Sequence[str]) -> str:
    return "\n".join(clipped(line, _LINE) for line in masked_secrets("\n".join(lines)).split("\n"))
