"""What all formats of a triage answer say in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dsv4check.report.figures import plural
from dsv4check.report.gate_words import clipped
from dsv4check.report.model import Finding
from dsv4check.report.secret_text import masked_secrets
from dsv4check.triage.answer import Candidate, Outcome, Sureness, TriageReport
from dsv4check.triage.records import ErrorEvent, Frame, LogLine

SURENESS: Final = {
    Sureness.CERTAIN: "certain: vLLM's text of this hazard is in the log, and the launch it states has the hazard",
    Sureness.LIKELY: "likely: its text is in the log and nothing speaks against it; too little of the launch is known",
    Sureness.POSSIBLE: "possible: other causes look the same, or only the launch points to it",
}
_MOST_CAUSES: Final = 20


def headline(answer: TriageReport) -> str:
    """What happened, at which stage, and how sure."""
    stage = answer.milestone.stage.value
    top = answer.candidates[0] if answer.candidates else None
    if answer.outcome is Outcome.UNKNOWN or (top is None and answer.error is not None):
        return f"NOT KNOWN: failed at {stage}, with an error that no rule explains"
    if top is None:
        return f"NO ERROR in the log; it ends at {stage}: {answer.milestone.reached}"
    happened = f"FAILED at {stage}" if answer.error is not None else f"NO ERROR in the log, which ends at {stage}"
    rivals = undecided(answer)
    if len(rivals) > 1:
        return f"{happened}: {plural(len(rivals), 'cause')} possible, not decided between {_listed(rivals)}"
    link = ", but a known hazard" if answer.error is None else ""
    return f"{happened}{link}: {top.rule.id} {top.rule.name} ({top.sureness.value})"


def style(answer: TriageReport) -> str:
    """The role of the headline."""
    if answer.outcome is Outcome.NO_ERROR:
        return "warn" if answer.candidates else "pass"
    return "fail"


def undecided(answer: TriageReport) -> tuple[Candidate, ...]:
    """The candidates among which the log does not decide; none where the first one is surer than the others."""
    if not answer.candidates or answer.candidates[0].sureness is not Sureness.POSSIBLE:
        return ()
    return answer.candidates


def _listed(candidates: tuple[Candidate, ...]) -> str:
    names = [item.rule.id for item in candidates]
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def subject(answer: TriageReport) -> str:
    """The files, the start in them, and the launch in one line."""
    reading = answer.reading
    names = [source_name(name) for name in reading.sources]
    files = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    starts = f"; start {answer.run_number} of {len(reading.runs)}" if len(reading.runs) > 1 else ""
    stated = answer.stated
    gpu = stated.gpu or ""
    if stated.gpus:
        gpu = f"{stated.gpus} x {gpu or 'GPU'}"
    if stated.nodes and stated.nodes > 1:
        gpu = f"{stated.nodes} nodes{f' of {gpu}' if gpu else ''}"
    launch = ", ".join(part for part in (f"vLLM {stated.vllm}" if stated.vllm else "", stated.model or "", gpu) if part)
    return f"{files} ({plural(reading.line_count, 'line')}){starts}; states: {launch or 'nothing about the launch'}"


def source_name(name: str) -> str:
    """The file, or words for standard input."""
    return "standard input" if name == "-" else name


def place(line: LogLine | None) -> str:
    """``file:line`` in the log; empty where nothing is known."""
    if line is None:
        return ""
    return f"{source_name(line.source)}:{line.number}" if line.number else source_name(line.source)


def at(line: LogLine | None) -> str:
    """The same in brackets, to stand behind a sentence."""
    where = place(line)
    return f" ({where})" if where else ""


def exception_line(event: ErrorEvent) -> str:
    """The type and the message of one error."""
    if not event.kind or event.kind == "argparse":
        return event.message or event.line.text
    return f"{event.kind}: {event.message}" if event.message else event.kind


def repeated(event: ErrorEvent) -> str:
    """Which processes said it, and how often."""
    parts = []
    if len(event.processes) > 3:
        parts.append(f"{len(event.processes)} processes, first {event.processes[0]}")
    elif event.processes:
        parts.append(", ".join(event.processes))
    if event.times > max(len(event.processes), 1):
        parts.append(f"{event.times:,} times")
    return "; ".join(parts)


def causes(event: ErrorEvent) -> Iterator[ErrorEvent]:
    """What led to the error, nearest first; a chain without end is cut."""
    for _ in range(_MOST_CAUSES):
        if event.caused_by is None:
            return
        event = event.caused_by
        yield event


def frame_line(frame: Frame) -> str:
    """``vllm/path/file.py:12 in function: code``."""
    code = f": {frame.code}" if frame.code else ""
    return f"{frame.path}:{frame.line} in {frame.function}{masked_and_clipped(code, 200)}"


def other_findings(answer: TriageReport) -> tuple[Finding, ...]:
    """The checker's findings for the stated launch that are no candidates."""
    if answer.report is None:
        return ()
    told = {item.rule.id for item in answer.candidates}
    return tuple(item for item in answer.report.findings if item.rule not in told)


def fixed_in(item: Candidate) -> str:
    """First release without the hazard; empty where none is known."""
    return item.fixed_in or (item.finding.fixed_in if item.finding else None) or item.rule.fixed_in or ""


def message_of(item: Candidate) -> str:
    """What is wrong, in plain words."""
    return item.message or (item.finding.message if item.finding else item.rule.summary)


def unchecked(answer: TriageReport, item: Candidate) -> str:
    """Why the remedies of a candidate were not checked."""
    if answer.report is None:
        return "the log states too little of the launch to check it"
    if item.finding is None:
        return "the checker does not find this hazard in the launch as the log states it"
    return "the checker offers no change for this launch"


def no_fix(item: Candidate) -> str:
    """Why there is nothing to change, where the rule says so."""
    return (item.finding.no_fix if item.finding else "") or item.rule.no_fix


def missing(answer: TriageReport) -> tuple[str, ...]:
    """What would make the answer surer, each sentence once."""
    needed: list[str] = list(answer.missing)
    for item in undecided(answer) or answer.candidates[:1]:
        needed += item.needed
    if answer.outcome is not Outcome.EXPLAINED or answer.candidates[:1] == () or answer.report is None:
        needed += answer.stated.missing
    return unique(needed)


def masked_and_clipped(text: str, size: int) -> str:
    """At most ``size`` characters; secrets are masked first, since half of one is not recognised."""
    return clipped(masked_secrets(text), size)


def unique(texts: Iterable[str]) -> tuple[str, ...]:
    """Each text once, in order."""
    return tuple(dict.fromkeys(text for text in texts if text))
