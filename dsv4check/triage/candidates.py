"""The causes that may explain an error, ranked, each with the evidence for and against it.

Two things speak for a rule: its text stands in the log, and the checker finds the hazard in the launch that the log
states. Many hazards share a text ("illegal memory access"), so the launch tells them apart: its release, its GPU and
what the checker finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from dsv4check.engine.edits import edits_text
from dsv4check.engine.rule import Certainty, FoundIn, Rule, Severity
from dsv4check.problems import Stage
from dsv4check.records import dataclass
from dsv4check.report.model import Finding
from dsv4check.triage.answer import Candidate, Evidence, Standing, Sureness
from dsv4check.triage.hypotheses import can_be_tried, fitting_hypothesis
from dsv4check.triage.known import KnownLaunch
from dsv4check.triage.matching import TextMatch
from dsv4check.triage.records import ErrorEvent, Milestone

_WEIGHT: Final = {
    Standing.FOUND: 80.0,
    Standing.PLAUSIBLE: 20.0,
    Standing.LOG_ONLY: 16.0,
    Standing.OPEN: 12.0,
    Standing.UNCONFIRMED: -40.0,
    Standing.NOT_FOUND: -60.0,
    Standing.OTHER_RELEASE: -80.0,
    Standing.REFUTED: -80.0,
}
_REFUTING: Final = frozenset({Standing.OTHER_RELEASE, Standing.REFUTED})
_SUPPORTING: Final = frozenset({Standing.FOUND, Standing.LOG_ONLY, Standing.PLAUSIBLE})
_WITHOUT_FLAGS: Final = -50.0
"""For a finding in a launch without its flags, which may be another one."""
_LETTER: Final = 0.4
_MOST_LETTERS: Final = 60
_AT_ITS_PLACE: Final = 12.0
"""For a signature that also asks for a frame of the traceback."""
_INNERMOST: Final = 8.0
"""And the nearer that frame is to the one that failed."""
_SAME_STAGE: Final = 10.0
"""Weights: what the launch says counts more than a longer text, and that more than the stage."""
_MOST: Final = 6
"""Candidates that are worth reading."""
_SHORTEST_QUOTE: Final = 16
_NOT_FOUND: Final = "the checker does not find it in the launch that the log states"
_OF_THE_CHECKPOINT: Final = frozenset({"weights", "quantization"})
"""Areas of rules that may need the checkpoint's files, which no log shows."""


@dataclass(frozen=True, slots=True)
class _Weighed:
    rule: Rule
    score: float
    standing: Standing
    finding: Finding | None
    evidence: tuple[Evidence, ...]
    needed: tuple[str, ...]


def rank_candidates(
    error: ErrorEvent | None, matches: Sequence[TextMatch], launch: KnownLaunch, milestone: Milestone
) -> tuple[Candidate, ...]:
    """Candidates for an error, best first.

    ``matches`` are the rules whose text stands in the error; without an ``error``, in lines of the log.
    """
    known = {match.rule.id for match in matches}
    found = [*matches, *(_quoted(error, launch, known) if error is not None else ())]
    weighed = sorted(
        (_weigh(match, launch, milestone) for match in found), key=lambda item: (-item.score, item.rule.id)
    )
    return tuple(_candidate(item, weighed, launch) for item in weighed[:_MOST])


def refuted(candidates: Sequence[Candidate]) -> bool:
    """True when the log's release, GPU or packages speak against every candidate: then none of them explains it."""
    return bool(candidates) and all(item.standing in _REFUTING for item in candidates)


def _quoted(error: ErrorEvent, launch: KnownLaunch, known: set[str]) -> list[TextMatch]:
    """Rules without a signature for it whose finding quotes the very text of the error."""
    said = _normal(error.said)
    found = []
    for finding in launch.report.findings if launch.report is not None else ():
        quoted = _normal(finding.error)
        if finding.rule not in known and len(quoted) >= _SHORTEST_QUOTE and quoted in said:
            found.append(TextMatch(launch.rules[finding.rule], None, error.line, len(quoted)))
    return found


def _normal(text: str) -> str:
    return " ".join(text.split()).lower()


def _weigh(match: TextMatch, launch: KnownLaunch, milestone: Milestone) -> _Weighed:
    rule = match.rule
    finding = launch.finding(rule)
    view = _view(rule, finding, launch)
    evidence = [Evidence(_text_evidence(match), line=match.line)]
    evidence.append(Evidence(view.reason, supports=view.standing in _SUPPORTING))
    score = _WEIGHT[view.standing] + view.weight + _LETTER * min(match.specificity, _MOST_LETTERS) + _worth(rule)
    if match.frames_below is not None:
        score += _AT_ITS_PLACE + max(0.0, _INNERMOST - match.frames_below)
    stage = finding.stage if finding is not None else rule.stage
    if milestone.shown:
        same = stage is milestone.stage
        score += _SAME_STAGE if same else 0.0
        evidence.append(Evidence(_stage_evidence(stage, milestone.stage), same, milestone.line))
    return _Weighed(rule, score, view.standing, finding, tuple(evidence), view.needed)


def _worth(rule: Rule) -> float:
    """Where nothing else decides: what fails before what only warns, what is proven before what was reported."""
    severity = {Severity.ERROR: 6.0, Severity.WARNING: 3.0, Severity.NOTE: 0.0}[rule.severity]
    return severity + {Certainty.PROVEN: 2.0, Certainty.DECLARED: 1.0, Certainty.REPORTED: 0.0}[rule.certainty]


@dataclass(frozen=True, slots=True)
class _View:
    """What the launch says about a rule, in words, and what would settle it."""

    standing: Standing
    reason: str
    needed: tuple[str, ...] = ()
    weight: float = 0.0


def _view(rule: Rule, finding: Finding | None, launch: KnownLaunch) -> _View:
    if finding is not None:
        if launch.flags_known:
            return _View(Standing.FOUND, "the checker finds it in the launch that the log states")
        reason = "the checker finds it in the launch that the log states, whose flags are not known"
        return _View(Standing.FOUND, reason, weight=_WITHOUT_FLAGS)
    if rule.found_in is FoundIn.LOG:
        return _View(Standing.LOG_ONLY, "it lies in the machine or its software, which no flag shows")
    if launch.build is not None and launch.release_admits(rule) is False:
        return _View(Standing.OTHER_RELEASE, f"it is about {_releases(rule)}, and the log is of {launch.build.version}")
    condition = launch.refuted_by(rule)
    if condition is not None:
        return _View(Standing.REFUTED, f"it is about another {_subject(condition)} than the log shows")
    return _tried(rule, launch) if can_be_tried(rule) else _untried(rule, launch)


def _tried(rule: Rule, launch: KnownLaunch) -> _View:
    hypothesis = fitting_hypothesis(rule, launch)
    if hypothesis is None:
        if launch.complete:
            return _View(Standing.NOT_FOUND, _NOT_FOUND)
        return _View(Standing.UNCONFIRMED, f"{_NOT_FOUND}, nor with what was tried for the rest")
    if not hypothesis.assumed:
        return _View(Standing.PLAUSIBLE, "it holds for the launch, too, behind another finding")
    what = ", and ".join(hypothesis.assumed)
    return _View(Standing.PLAUSIBLE, f"it holds if {what}", (f"{rule.id}: whether {what}",), hypothesis.weight)


def _untried(rule: Rule, launch: KnownLaunch) -> _View:
    if launch.report is None:
        return _View(
            Standing.OPEN, "the log does not state the launch", (f"the whole command: whether {rule.id} holds",)
        )
    question = launch.question(rule)
    if question is not None:
        return _View(Standing.OPEN, f"open whether it holds: {question.why}", (f"{rule.id}: {question.how}",))
    if rule.area in _OF_THE_CHECKPOINT:
        reason = "open whether it holds: that depends on the files of the checkpoint"
        return _View(Standing.OPEN, reason, (f"{rule.id}: `dsv4check weights` on the checkpoint",))
    return _View(Standing.NOT_FOUND if launch.complete else Standing.UNCONFIRMED, _NOT_FOUND)


def _releases(rule: Rule) -> str:
    if rule.vllm is not None:
        return f"vLLM {rule.vllm}"
    return "development builds" if rule.development else "all releases"


def _subject(field: str) -> str:
    area, _dot, name = field.partition(".")
    return name if area == "package" else "GPU"


def _text_evidence(match: TextMatch) -> str:
    if match.signature is None:
        return "the log says what the checker quotes for it"
    return "the log has its text" + (" at its place in the traceback" if match.signature.frame else "")


def _stage_evidence(expected: Stage, reached: Stage) -> str:
    if expected is reached:
        return f"it shows at the stage that was under way ({reached.value})"
    return f"it shows at the stage {expected.value}, and the log stops at {reached.value}"


def _candidate(item: _Weighed, ranked: Sequence[_Weighed], launch: KnownLaunch) -> Candidate:
    from dsv4check.triage.first_fix import first_release_with_fix

    rule, finding = item.rule, item.finding
    return Candidate(
        rule=rule,
        sureness=_sureness(item, ranked, launch),
        evidence=item.evidence,
        finding=finding,
        message=finding.message if finding is not None else rule.summary,
        remedies=rule.advice
        if finding is not None
        else (*rule.advice, *(edits_text(fix["edits"]) for fix in rule.fixes)),
        # Checked on the launch for the likeliest cause alone: that checks it on every later release.
        fixed_in=first_release_with_fix(rule, launch if item is ranked[0] else None),
        needed=item.needed,
        standing=item.standing,
    )


def _sureness(item: _Weighed, ranked: Sequence[_Weighed], launch: KnownLaunch) -> Sureness:
    rivals = [other for other in ranked if other is not item and not other.standing.contradicts]
    match item.standing:
        case Standing.FOUND:
            first = not any(other.standing is Standing.FOUND and other.score > item.score for other in rivals)
            sure = first and launch.flags_known and item.rule.certainty is not Certainty.REPORTED
            return Sureness.CERTAIN if sure else Sureness.LIKELY
        case Standing.LOG_ONLY:
            return Sureness.LIKELY if rivals else Sureness.CERTAIN
        case Standing.PLAUSIBLE | Standing.OPEN:
            alone = not rivals and item.rule.certainty is not Certainty.REPORTED
            return Sureness.LIKELY if alone else Sureness.POSSIBLE
        case Standing.UNCONFIRMED | Standing.NOT_FOUND | Standing.OTHER_RELEASE | Standing.REFUTED:
            return Sureness.POSSIBLE
        case _:
            assert_never(item.standing)
