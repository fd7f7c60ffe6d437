"""What all formats of a triage answer say in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dsv4check.engine.rule import Certainty, FoundIn
from dsv4check.problems import Stage
from dsv4check.records import dataclass
from dsv4check.report.figures import plural
from dsv4check.report.gate_words import clipped
from dsv4check.report.model import Finding
from dsv4check.report.secret_text import masked_secrets
from dsv4check.triage.answer import Candidate, Outcome, Sureness, TriageReport
from dsv4check.triage.apart import listed, ruled_out
from dsv4check.triage.records import ErrorEvent, Frame, LogLine, LogReading

_SURENESS: Final = {
    Sureness.CERTAIN: "certain: vLLM's text of this hazard is in the log, and the launch it states has the hazard",
    Sureness.LIKELY: "likely: its text is in the log and nothing speaks against it; too little of the launch is known",
    Sureness.POSSIBLE: "possible: other causes look the same, or only the launch points to it",
}
_ALONE: Final = "certain: its text is in the log, and no other known cause shows it"
_MOST_CAUSES: Final = 20


def sureness(item: Candidate) -> str:
    """How sure a candidate is, and why."""
    if item.sureness is Sureness.CERTAIN and item.rule.found_in is FoundIn.LOG:
        return _ALONE
    if item.sureness is Sureness.LIKELY and item.finding is not None:
        but = (
            "this hazard is known from reports alone" if item.rule.certainty is Certainty.REPORTED else "so has another"
        )
        return f"likely: its text is in the log and the launch it states has the hazard, but {but}"
    if item.sureness is Sureness.LIKELY and item.rule.found_in is FoundIn.LOG:
        return "likely: its text is in the log, but other causes show the same text"
    return _SURENESS[item.sureness]


def headline(answer: TriageReport) -> str:
    """What happened, at which stage, and how sure."""
    stage = answer.milestone.stage.value
    at = f" at {stage}" if stage_shown(answer) else ""
    top = answer.candidates[0] if answer.candidates else None
    if answer.outcome is Outcome.UNKNOWN or (top is None and answer.error is not None):
        return f"NOT KNOWN: failed{at}, with an error that no rule explains"
    if top is None:
        return f"NO ERROR in the log; it ends at {stage}: {answer.milestone.reached}"
    happened = f"FAILED{at}" if answer.error is not None else f"NO ERROR in the log{at and f', which ends{at}'}"
    rivals = undecided(answer)
    if len(rivals) > 1:
        return f"{happened}: {plural(len(rivals), 'cause')} possible, not decided between {listed(rivals)}"
    link = ", but a known hazard" if answer.error is None else ""
    return f"{happened}{link}: {top.rule.id} {top.rule.name} ({top.sureness.value})"


def stage_shown(answer: TriageReport) -> bool:
    """False where neither lines nor the traceback tell how far the start got."""
    return answer.milestone.line is not None or answer.milestone.stage is not Stage.ARGPARSE


def style(answer: TriageReport) -> str:
    """The role of the headline."""
    if answer.outcome is Outcome.NO_ERROR:
        return "warn" if answer.candidates else "pass"
    return "fail"


def undecided(answer: TriageReport) -> tuple[Candidate, ...]:
    """The candidates among which the log does not decide; none where the first one is surer than the others."""
    if not answer.candidates or answer.candidates[0].sureness is not Sureness.POSSIBLE:
        return ()
    return tuple(item for item in answer.candidates if ruled_out(item) is None)


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
    build = stated.vllm or ""
    if build:
        build = f"image {build}" if "/" in build else f"vLLM {build}"
    launch = ", ".join(part for part in (build, stated.model or "", gpu) if part)
    return f"{files} ({plural(reading.line_count, 'line')}){starts}; states: {launch or 'nothing about the launch'}"


def source_name(name: str) -> str:
    """The file, or words for standard input."""
    return "standard input" if name == "-" else name


@dataclass(frozen=True, slots=True)
class Places:
    """Places in the logs, as short as they can be said."""

    names: Mapping[str, str]
    """What each file is called here; empty where there is only one."""

    def of(self, line: LogLine | None) -> str:
        """``line 12``, or ``file:12`` where there are several files; empty where nothing is known."""
        if line is None or not line.number:
            return "" if line is None or not self.names else self._name(line)
        return f"{self._name(line)}:{line.number}" if self.names else f"line {line.number}"

    def behind(self, text: str, line: LogLine | None) -> str:
        """A sentence with the place in brackets; brackets at its end are shared."""
        where = self.of(line)
        if not where:
            return text
        return f"{text[:-1]}; {where})" if text.endswith(")") else f"{text} ({where})"

    def _name(self, line: LogLine) -> str:
        return self.names.get(line.source, line.source)


def places_in(reading: LogReading) -> Places:
    """Places of one reading: files are named by their last part where that tells them apart."""
    if len(reading.sources) < 2:
        return Places({})
    short = {source: source_name(source).replace("\\", "/").rpartition("/")[2] for source in reading.sources}
    if len(set(short.values())) < len(short):
        short = {source: source_name(source) for source in reading.sources}
    return Places(short)


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
    needed += _needed(undecided(answer) or answer.candidates[:1])
    if answer.outcome is not Outcome.EXPLAINED or answer.candidates[:1] == () or answer.report is None:
        needed += answer.stated.missing
    return unique(needed)


def _needed(candidates: Sequence[Candidate]) -> list[str]:
    """What candidates need; the same thing for several of them is said once, with all their ids."""
    ids: dict[tuple[str, ...], list[str]] = {}
    for item in candidates:
        for text in item.needed:
            ids.setdefault(tuple(text.split(item.rule.id)), []).append(item.rule.id)
    return [_or(names).join(parts) for parts, names in ids.items()]


def _or(names: Sequence[str]) -> str:
    *some, last = dict.fromkeys(names)
    return f"{', '.join(some)} or {last}" if some else last


def masked_and_clipped(text: str, size: int) -> str:
    """At most ``size`` characters; secrets are masked first, since half of one is not recognised."""
    return clipped(masked_secrets(text), size)


def unique(texts: Iterable[str]) -> tuple[str, ...]:
    """Each text once, in order."""
    return tuple(dict.fromkeys(text for text in texts if text))
