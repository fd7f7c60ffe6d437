"""What ``dsv4check doctor`` is asked, and what it answers: plain records that travel as JSON between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsv4check.host.records import Observation, State
from dsv4check.installation.fingerprint import Quote
from dsv4check.records import dataclass, field
from dsv4check.report.model import Report, Verdict

DOCTOR_SCHEMA_VERSION: Final = 1
"""Version of the JSON; additions keep it."""


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """Which installation is looked at, and the launch that is meant for it; fields as the options of ``doctor``."""

    vllm_path: str | None = None
    python: str | None = None
    command: str | tuple[str, ...] | None = None
    """The launch; None looks at build and machine alone."""
    source: str = "command line"
    """What the command is called in messages."""
    gpu: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    gpu_memory_gib: float | None = None
    vllm: str | None = None
    """Counts where no tree is found, or the tree does not say its version."""
    model_config: str | None = None
    checkpoint: str | None = None
    packages: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    online: bool = False
    rules: Path | None = None


@dataclass(frozen=True, slots=True)
class FingerprintAnswer:
    """One question about the build's code, answered from its text."""

    id: str
    question: str
    value: str | None
    """None when it could not be read; ``why`` says what was met instead."""
    says: str = ""
    quotes: tuple[Quote, ...] = ()
    why: str = ""
    fault: bool | None = None
    """True when the answer is one of those that are known to fail; None where no answer is."""
    release: str | None = None
    """The release it is compared with."""
    release_value: str | None = None
    """What that release answers; None when nothing is known of it."""
    rules: tuple[str, ...] = ()
    references: tuple[str, ...] = ()

    @property
    def as_release(self) -> bool | None:
        """Whether the nearest release answers the same; None where one of the two is not known."""
        return None if self.value is None or self.release_value is None else self.value == self.release_value


@dataclass(frozen=True, slots=True)
class FactDifference:
    """One fact that the build's own code decides in another way than the release it is nearest to."""

    path: str
    here: str
    release: str


@dataclass(frozen=True, slots=True)
class Unread:
    """A part of the build's code that could not be read as facts."""

    part: str
    why: str


@dataclass(frozen=True, slots=True)
class BuildAnswer:
    """Which vLLM this is."""

    found: bool
    why: str = ""
    """Why nothing was found."""
    package: str = ""
    """The folder ``vllm``; the home folder as ``~``."""
    found_by: str = ""
    python: str | None = None
    version: str | None = None
    version_from: str = ""
    commit: str | None = None
    commit_from: str = ""
    nearest: str | None = None
    """The release whose facts are compared."""
    learned: tuple[str, ...] = ()
    """Sections of facts that were read from this very code."""
    differs: tuple[FactDifference, ...] = ()
    unread: tuple[Unread, ...] = ()

    @property
    def is_release(self) -> bool | None:
        """Whether all that was read equals the nearest release; None when nothing was read."""
        return None if not self.learned or self.nearest is None else not self.differs


@dataclass(frozen=True, slots=True)
class Machine:
    """What nodes are compared by, beside the observations."""

    gpus: tuple[Mapping[str, Any], ...] = ()
    """``name``, ``sm`` and ``memory_mib`` of each; more as NVML said."""
    python: str | None = None
    """Version of the interpreter whose packages were read."""
    packages: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    """``VLLM_*`` and what else decides; secrets and addresses masked."""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Everything one look at an installation gave."""

    build: BuildAnswer
    fingerprints: tuple[FingerprintAnswer, ...] = ()
    machine: Machine = field(default_factory=Machine)
    observations: tuple[Observation, ...] = ()
    launch: Mapping[str, Any] | None = None
    """The launch's report in the schema of ``serve-args``; None without a launch."""
    report: Report | None = None
    """The same as a record, on the machine it was made; never part of the JSON."""
    notes: tuple[str, ...] = ()
    tool_version: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst that machine and launch say."""
        launch = None if self.launch is None else self.launch.get("verdict")
        states = {item.state for item in self.observations}
        if State.ERROR in states or launch == "fail":
            return Verdict.FAIL
        return Verdict.WARN if State.WARNING in states or launch == "warn" else Verdict.PASS

    def with_state(self, *states: State) -> tuple[Observation, ...]:
        """The observations of these states, in the order they were made."""
        return tuple(item for item in self.observations if item.state in states)

    @property
    def open_answers(self) -> int:
        """How much could not be looked at or was not answered: what ``--strict`` asks for."""
        launch = () if self.launch is None else self.launch.get("not_evaluated", ())
        unanswered = [item for item in self.fingerprints if item.value is None]
        return len(self.with_state(State.UNKNOWN)) + len(unanswered) + len(self.build.unread) + len(launch)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, in the published schema (``docs/doctor.schema.json``)."""
        from dsv4check.doctor.plain import report_to_dict

        return report_to_dict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> DoctorReport:
        """The report that ``to_dict`` gave, on this or another node. Raises InputError for anything else."""
        from dsv4check.doctor.plain import report_from_dict

        return report_from_dict(data)
