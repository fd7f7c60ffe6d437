"""The answer to a log: what the renderers print and the API returns."""

from __future__ import annotations

from enum import Enum, StrEnum, auto

from dsv4check.engine.rule import Rule
from dsv4check.records import dataclass
from dsv4check.report.model import Finding, Report
from dsv4check.triage.records import ErrorEvent, LogLine, LogReading, Milestone, Run, Stated


class Outcome(StrEnum):
    """What triage could say about a log."""

    EXPLAINED = "explained"
    """At least one rule explains the first real error."""
    UNKNOWN = "unknown"
    """There is an error that no rule explains."""
    NO_ERROR = "no-error"
    """The log shows no error."""


class Sureness(StrEnum):
    """How sure a candidate cause is."""

    CERTAIN = "certain"
    """vLLM's own text of this hazard stands in the log, and the checker finds the hazard in the launch it states."""
    LIKELY = "likely"
    """The text stands in the log and nothing in it speaks against the rule, but the launch is not known well enough."""
    POSSIBLE = "possible"
    """Other causes show the same text, or only the launch (not the text) points to it."""


class Standing(Enum):
    """What the launch that a log states says about a rule whose text was found."""

    FOUND = auto()
    """The checker finds the hazard in it."""
    LOG_ONLY = auto()
    """The rule is about what no launch shows."""
    PLAUSIBLE = auto()
    """It holds if what the log leaves open is as in one of the rule's examples."""
    OPEN = auto()
    """The log states too little to say."""
    UNCONFIRMED = auto()
    """The checker does not find it, nor with anything tried for what is not known."""
    NOT_FOUND = auto()
    """The checker knows the whole launch and does not find it."""
    OTHER_RELEASE = auto()
    """The rule is about other releases."""
    REFUTED = auto()
    """The rule is about another GPU or package version."""

    @property
    def contradicts(self) -> bool:
        """True when it speaks against the rule."""
        return self in (Standing.UNCONFIRMED, Standing.NOT_FOUND, Standing.OTHER_RELEASE, Standing.REFUTED)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason for or against a candidate."""

    text: str
    """One sentence or the words of the log."""
    supports: bool = True
    line: LogLine | None = None
    """Where in the log it stands."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One rule that may explain the error."""

    rule: Rule
    sureness: Sureness
    evidence: tuple[Evidence, ...]
    finding: Finding | None = None
    """The checker's finding for the launch that the log states, with fixes that were checked on that launch."""
    message: str = ""
    """What is wrong: the finding's message, or the rule's summary where the launch is not known."""
    remedies: tuple[str, ...] = ()
    """What to do on the machine; where there is no finding also the rule's fixes in words, which were not checked."""
    fixed_in: str | None = None
    """First release in which the hazard is gone, where one is known."""
    standing: Standing = Standing.OPEN
    """What the launch that the log states says about the rule."""
    needed: tuple[str, ...] = ()
    """What would make this candidate sure or rule it out, one sentence each."""


@dataclass(frozen=True, slots=True)
class TriageReport:
    """The answer for one log (or several files of one launch)."""

    outcome: Outcome
    reading: LogReading
    run: Run
    """The start that the answer is about."""
    run_number: int
    """Its 1-based number in the log."""
    stated: Stated
    milestone: Milestone
    error: ErrorEvent | None
    """The first real error."""
    later: tuple[ErrorEvent, ...] = ()
    """Other errors that are no mere consequences."""
    candidates: tuple[Candidate, ...] = ()
    """Best first."""
    nearest: tuple[Rule, ...] = ()
    """For an unknown error: rules that look most like it. They do not explain it."""
    report: Report | None = None
    """The checker's report on the launch that the log states; None where it states too little."""
    command: str = ""
    """That launch as a command, secrets masked."""
    apart: str = ""
    """Where several causes show the same text: what tells them apart, in one or two sentences."""
    missing: tuple[str, ...] = ()
    """What the log does not say and would make the answer surer, one sentence each."""
    notes: tuple[str, ...] = ()
