"""What the gate reports: files, launches, findings with their places."""

from __future__ import annotations

from dsv4check.engine.rule import Certainty, Severity
from dsv4check.problems import Stage
from dsv4check.records import dataclass, field
from dsv4check.report.model import Fix
from dsv4check.resolution import NotEvaluated


@dataclass(frozen=True, slots=True)
class Region:
    """A place in a file. Lines and columns count from 1, columns in characters; the end column is behind the last."""

    line: int
    column: int
    end_line: int
    end_column: int
    token: str = ""
    """What stands there, masked where it is a secret; empty for a place that is no single word."""


@dataclass(frozen=True, slots=True)
class GateFinding:
    """One finding of one launch, or of the gate itself (an ignore without a reason)."""

    rule: str
    name: str
    severity: Severity
    certainty: Certainty
    stage: Stage | None
    """None for findings of the gate itself."""
    message: str
    error: str
    """What vLLM prints; empty when it says nothing."""
    path: str
    """Relative to where the gate runs, with ``/``."""
    region: Region
    launch: str
    """Name of the launch."""
    fixes: tuple[Fix, ...] = ()
    no_fix: str = ""
    fixed_in: str | None = None
    references: tuple[str, ...] = ()
    fingerprint: str = ""
    """Stays the same when lines move: of the path, the launch, the rule and the token."""
    ignored: str | None = None
    """The reason, where an ignore covers it; such a finding does not count."""
    baseline: bool = False
    """True where the baseline lists it; such a finding does not count."""

    @property
    def active(self) -> bool:
        """True for a finding that counts for the exit code."""
        return self.ignored is None and not self.baseline


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact a launch was checked with, and where it comes from."""

    value: str
    source: str
    """``file``, ``option``, ``config`` or ``assumed``."""
    line: int = 0
    """Line in the file, for ``file``."""


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """One launch and the answer."""

    path: str
    name: str
    format: str
    region: Region
    """Where it starts."""
    command: str
    """The whole command, secrets masked, ready to paste."""
    model: str | None
    facts: dict[str, Fact]
    """``vllm``, ``image``, ``gpu``, ``gpus``, ``nodes``, as far as known."""
    verdict: str | None
    """``pass``, ``warn`` or ``fail``; None when the launch was not checked."""
    not_checked: str = ""
    """Why it was not checked: another model, another server, a model whose config is not at hand."""
    other_model: bool = False
    """True where the launch is no DeepSeek-V4 launch: nothing is to be said about it."""
    findings: tuple[GateFinding, ...] = ()
    not_evaluated: tuple[NotEvaluated, ...] = ()
    notes: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    """The words behind the program (model and flags), secrets masked."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment that the file states, secrets masked."""


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A file, or a part of it, that could not be read or understood."""

    path: str
    line: int
    """0 for the whole file."""
    why: str
    skipped: bool = False
    """True where nothing is wrong with it (a template to be rendered first): it does not change the exit code."""


@dataclass(frozen=True, slots=True)
class GateReport:
    """The answer for a tree."""

    launches: tuple[LaunchResult, ...]
    """By path and line."""
    problems: tuple[FileProblem, ...] = ()
    own: tuple[GateFinding, ...] = ()
    """Findings of the gate itself: ignores without a reason, unknown or unused ones."""
    files: int = 0
    """Files that were looked at."""
    seconds: float = 0.0
    stale: tuple[str, ...] = ()
    """Entries of the baseline that nothing matches any more."""
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def findings(self) -> tuple[GateFinding, ...]:
        """Every finding, those of the gate itself last."""
        return (*(item for launch in self.launches for item in launch.findings), *self.own)
