"""``triage``: from logs to an answer. Reading, the run that failed, its launch, the check, the causes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import BinaryIO, Final

from dsv4check.api import check_request
from dsv4check.engine.rule import Rule, Severity
from dsv4check.errors import InputError
from dsv4check.inputs.command import format_command
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.problems import Stage
from dsv4check.report.masking import masked_command
from dsv4check.report.model import Finding, Report
from dsv4check.request import Request
from dsv4check.triage.agreement import disagreements
from dsv4check.triage.answer import Candidate, Outcome, TriageReport
from dsv4check.triage.apart import told_apart
from dsv4check.triage.candidates import rank_candidates, refuted
from dsv4check.triage.foreign import foreign, rules_for_foreign
from dsv4check.triage.known import KnownLaunch
from dsv4check.triage.matching import TextMatch, rules_for_event, rules_for_lines
from dsv4check.triage.milestones import stage_reached
from dsv4check.triage.nearest import nearest_rules
from dsv4check.triage.reading import read_logs
from dsv4check.triage.records import ErrorEvent, LogReading, Milestone, Run, Stated
from dsv4check.triage.requesting import stated_build, stated_hardware, to_request
from dsv4check.triage.root_cause import ordered_causes
from dsv4check.triage.said import SaidByUser
from dsv4check.triage.stated import read_stated


def triage(
    names: Sequence[str],
    rules: tuple[Rule, ...],
    said: SaidByUser,
    *,
    run_number: int | None = None,
    stdin: BinaryIO | None = None,
    progress: Callable[[int], None] | None = None,
) -> TriageReport:
    """Read logs (files, ``-``, gz) of one launch and explain the first real error.

    ``said`` is what the user says about the launch; it wins over the log. ``run_number``: which start in the log,
    1-based; by default the last one that shows an error. Raises InputError for what cannot be read.
    """
    # A log may be long: what is wrong with the options is said before.
    said.check()
    return diagnose(read_logs(names, stdin=stdin, progress=progress), rules, said, run_number)


def diagnose(
    reading: LogReading, rules: tuple[Rule, ...], said: SaidByUser, run_number: int | None = None
) -> TriageReport:
    """The answer for what was read. Raises InputError when the log has no such run."""
    number = _number(reading, run_number)
    run = reading.runs[number - 1]
    causes = ordered_causes(run)
    # What vLLM survived ended nothing, and what only points elsewhere is better than nothing.
    error = causes[0] if causes and not causes[0].survived else None
    milestone = stage_reached(run, error)
    stated = said.over(read_stated(reading, run))
    other = foreign(stated, error)
    known = rules_for_foreign(rules) if other else rules
    matches = _matches(run, causes, known)
    launch, notes = _launch(stated, rules, said, matches)
    candidates = _candidates(matches, launch, milestone)
    if candidates and not milestone.shown:
        # Better than a guess: where the likeliest cause shows.
        milestone = replace(milestone, stage=_stage(candidates[0]))
    outcome = Outcome.EXPLAINED if candidates and not refuted(candidates) else Outcome.UNKNOWN
    if error is None:
        outcome = Outcome.NO_ERROR
    return TriageReport(
        outcome=outcome,
        reading=reading,
        run=run,
        run_number=number,
        stated=stated,
        milestone=milestone,
        error=error,
        later=tuple(item for item in causes if item is not error and not item.consequence),
        candidates=candidates,
        nearest=nearest_rules(error, milestone.stage, known) if outcome is Outcome.UNKNOWN and error else (),
        report=launch.report,
        command=format_command(masked_command(launch.report.deployment.command)) if launch.report is not None else "",
        apart=told_apart(candidates),
        missing=stated.missing,
        notes=(
            *([other] if other else ()),
            *reading.notes,
            *notes,
            *_doubts(launch, stated, milestone),
            *_other_runs(reading, number),
        ),
    )


def _stage(candidate: Candidate) -> Stage:
    return candidate.finding.stage if candidate.finding is not None else candidate.rule.stage


def _doubts(launch: KnownLaunch, stated: Stated, milestone: Milestone) -> tuple[str, ...]:
    """Only for a launch that is known: one without its flags is another launch."""
    if launch.report is None or not launch.complete:
        return ()
    return tuple(disagreements(stated, launch.report, milestone))


_WHOLE: Final = frozenset({"non-default args", "command"})
"""Where all flags of a launch are read from; the engine's summary lacks some."""


def _number(reading: LogReading, asked: int | None) -> int:
    if asked is not None:
        if not 1 <= asked <= len(reading.runs):
            raise InputError(f"--run {asked}: the log shows {len(reading.runs)} start(s) of vLLM")
        return asked
    real = [number for number, run in enumerate(reading.runs, 1) if any(not item.consequence for item in run.events)]
    any_error = [number for number, run in enumerate(reading.runs, 1) if run.events]
    return (real or any_error or [len(reading.runs)])[-1]


def _other_runs(reading: LogReading, number: int) -> list[str]:
    if len(reading.runs) == 1:
        return []
    return [f"the log shows {len(reading.runs)} starts of vLLM; this is about number {number} (--run N for another)"]


def _matches(
    run: Run, causes: Sequence[ErrorEvent], rules: tuple[Rule, ...]
) -> list[tuple[ErrorEvent | None, list[TextMatch]]]:
    """Rules whose text stands in the first error, else (None) in any line: the first entry that leads to a candidate.

    A later error is never asked; the lines are where the first one is a mere consequence, which explains nothing else.
    """
    if not causes or causes[0].survived:
        return [(None, rules_for_lines(run, rules))]
    first = causes[0]
    found: list[tuple[ErrorEvent | None, list[TextMatch]]] = [(first, rules_for_event(first, rules))]
    if first.consequence:
        found.append((None, rules_for_lines(run, rules)))
    return found


def _candidates(
    matches: Sequence[tuple[ErrorEvent | None, list[TextMatch]]], launch: KnownLaunch, milestone: Milestone
) -> tuple[Candidate, ...]:
    ranked = (rank_candidates(error, found, launch, milestone) for error, found in matches)
    return next((candidates for candidates in ranked if candidates), ())


def _launch(
    stated: Stated,
    rules: tuple[Rule, ...],
    said: SaidByUser,
    matches: Sequence[tuple[ErrorEvent | None, list[TextMatch]]],
) -> tuple[KnownLaunch, list[str]]:
    """What is known about the launch; notes say why it could not be checked.

    Raises InputError where that is the fault of a model that the user named.
    """
    told = {match.rule.id for _error, found in matches for match in found}

    def may_be_told(finding: Finding) -> bool:
        # What quotes an error may turn out to be the cause by that.
        return finding.severity is Severity.ERROR or finding.rule in told or bool(finding.error)

    notes: list[str] = []
    build = stated_build(stated)
    report: Report | None = None
    request: Request | None = None
    try:
        request = to_request(stated, model_config=said.model_config)
        report = check_request(request, rules, wanted=may_be_told)
    except InputError as error:
        option = "--model-config" if said.model_config else "--model" if said.model else None
        if request is not None and option is not None:
            raise InputError(f"{option}: {error}") from None
        notes.append(f"the launch was not checked: {error}")
        request = None
    hardware = request.hardware if request is not None else stated_hardware(stated)

    def recheck(release: str) -> Report | None:
        if request is None:
            return None
        try:
            return check_request(replace(request, vllm=resolve_vllm(release)), rules, fixes=False)
        except InputError:
            return None

    # Flags from prose are those that its author thought of.
    flags_known = stated.flags_from not in ("", "prose")
    known = KnownLaunch(
        rules={rule.id: rule for rule in rules},
        request=request,
        build=build,
        hardware=hardware,
        packages=dict(stated.packages),
        report=report,
        recheck=recheck if report is not None else None,
        flags_known=flags_known,
        complete=report is not None
        and build is not None
        and hardware.vendor is not None
        and stated.flags_from in _WHOLE,
    )
    return known, notes
