"""What all formats of the gate's report say alike: counts, subjects, fixes, and text that is safe to show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dsv4check.engine.rule import Severity
from dsv4check.records import dataclass
from dsv4check.report.figures import plural

if TYPE_CHECKING:
    from dsv4check.gate.records import FileProblem, GateFinding, GateReport, LaunchResult
    from dsv4check.report.model import Fix


@dataclass(frozen=True, slots=True)
class Counts:
    """How much of what a report holds."""

    files: int
    launches: int
    """All of them: the next five add up to it."""
    passed: int
    warned: int
    failed: int
    not_checked: int
    other_models: int
    errors: int
    """Active findings of this severity; so are the next two."""
    warnings: int
    notes: int
    ignored: int
    baseline: int
    """Findings that the baseline lists, without the ignored ones."""
    problems: int
    """Files, or parts of files, that could not be understood."""
    skipped: int
    """Files with which nothing is wrong and which still could not be read (templates)."""
    stale: int

    @property
    def active(self) -> int:
        """Findings that count for the exit code."""
        return self.errors + self.warnings + self.notes


def count(report: GateReport) -> Counts:
    """The counts of a report."""
    verdicts = [launch.verdict for launch in report.launches]
    severities = [item.severity for item in report.findings if item.active]
    others = sum(launch.other_model for launch in report.launches)
    skipped = sum(item.skipped for item in report.problems)
    return Counts(
        files=report.files,
        launches=len(verdicts),
        passed=verdicts.count("pass"),
        warned=verdicts.count("warn"),
        failed=verdicts.count("fail"),
        not_checked=verdicts.count(None) - others,
        other_models=others,
        errors=severities.count(Severity.ERROR),
        warnings=severities.count(Severity.WARNING),
        notes=severities.count(Severity.NOTE),
        ignored=sum(item.ignored is not None for item in report.findings),
        baseline=sum(item.baseline and item.ignored is None for item in report.findings),
        problems=len(report.problems) - skipped,
        skipped=skipped,
        stale=len(report.stale),
    )


def launch_counts(counts: Counts) -> str:
    """``7 files, 6 launches: 2 pass, 3 fail, 1 not checked``."""
    text = f"{plural(counts.files, 'file')}, {counts.launches:,} launch{'es' * (counts.launches != 1)}"
    parts = _parts(
        (counts.passed, "pass"),
        (counts.warned, "warn"),
        (counts.failed, "fail"),
        (counts.not_checked, "not checked"),
        (counts.other_models, "of other models"),
    )
    return f"{text}: {parts}" if parts else text


def finding_counts(counts: Counts) -> str:
    """``2 errors, 1 warning; 1 ignored, 1 in the baseline``, or ``no findings``."""
    active = ", ".join(
        plural(number, one)
        for number, one in ((counts.errors, "error"), (counts.warnings, "warning"), (counts.notes, "note"))
        if number
    )
    quiet = _parts((counts.ignored, "ignored"), (counts.baseline, "in the baseline"))
    return "; ".join(part for part in (active or "no findings", quiet) if part)


def problem_counts(counts: Counts) -> str:
    """``2 places not understood, 1 skipped``; empty where there is none."""
    places = f"{plural(counts.problems, 'place')} not understood" if counts.problems else ""
    return ", ".join(part for part in (places, _parts((counts.skipped, "skipped"))) if part)


def _parts(*counted: tuple[int, str]) -> str:
    return ", ".join(f"{number:,} {what}" for number, what in counted if number)


def subject(launch: LaunchResult) -> str:
    """Model, vLLM and hardware of a launch in a few words, as far as they are known."""
    facts = launch.facts
    values = {name: fact.value for name, fact in facts.items()}
    nodes = f"{values['nodes']} nodes of " if values.get("nodes", "1") != "1" else ""
    gpu = values.get("gpu", "")
    if "gpus" in values:
        gpu = f"{values['gpus']} x {gpu or 'GPU'}"
    vllm = f"vLLM {values['vllm']}" if "vllm" in values else ""
    assumed = {name for name, fact in facts.items() if fact.source == "assumed"}
    parts = (
        launch.model or "",
        f"assumed {vllm}" if "vllm" in assumed else vllm,
        f"assumed {nodes}{gpu}" if gpu and assumed & {"gpu", "gpus"} else f"{nodes}{gpu}",
    )
    return ", ".join(part for part in parts if part)


def place(path: str, line: int) -> str:
    """``path:line``, or the path alone for a whole file."""
    return f"{path}:{line}" if line else path


def fix_words(fix: Fix) -> str:
    """The edits of a fix in one line, without its note."""
    edits = "; ".join(edit.text for edit in fix.edits)
    also = "; ".join(edit.text for edit in fix.also)
    return edits + (f" (and, for the other findings: {also})" if also else "")


def active_findings(report: GateReport) -> list[GateFinding]:
    """The findings that count, errors first, then by place."""
    return sorted(
        (item for item in report.findings if item.active),
        key=lambda item: (-item.severity.rank, item.path, item.region.line, item.region.column, item.rule),
    )


def not_checked(report: GateReport) -> Iterator[LaunchResult]:
    """The launches of which nothing is known, without those of other models."""
    return (item for item in report.launches if item.verdict is None and not item.other_model)


def real_problems(problems: Iterable[FileProblem]) -> list[FileProblem]:
    """The problems with which something is wrong first, then the skipped ones."""
    return sorted(problems, key=lambda item: (item.skipped, item.path, item.line))


def visible(text: str, keep: str = "") -> str:
    """The text with every character that is not printable spelt out, but those of ``keep``.

    Files and names from outside hold anything: escape sequences, parts of characters that cannot be encoded.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


def flat(text: str) -> str:
    """The text in one visible line."""
    return visible(" ".join(text.split()))


def clipped(text: str, size: int) -> str:
    """At most ``size`` characters of the text, with a mark where some are missing."""
    return text if len(text) <= size else text[: size - 5] + " [..]"
