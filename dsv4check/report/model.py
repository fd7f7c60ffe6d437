"""The report: what every renderer prints and the API returns."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from dsv4check.deployment import Command, Deployment
from dsv4check.engine.rule import Certainty, Severity
from dsv4check.problems import Origin, Stage
from dsv4check.records import dataclass
from dsv4check.resolution import NotEvaluated, Resolution

SCHEMA_VERSION: Final = 1
"""Version of the JSON report. Additions keep it; a renamed or removed key raises it."""


class Verdict(StrEnum):
    """The answer in one word."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Edit:
    """One change to the launch."""

    kind: str
    """``set_flag``, ``drop_flag``, ``set_env``, ``set_package``, ``set_vllm``, ``set_gpu``, ..."""
    target: str
    """Flag, variable, package, ...; empty for ``set_vllm`` and ``set_gpu``."""
    value: str | None
    text: str
    """As a person reads it: ``--kv-cache-dtype fp8``, ``remove --attention-backend``, ``vLLM >=0.30.0``."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A set of edits after which the launch was resolved and checked again."""

    edits: tuple[Edit, ...]
    command: str
    """The whole corrected command, ready to paste."""
    verified: bool
    """True when the edited launch was checked again and no error was left in it."""
    also: tuple[Edit, ...] = ()
    """Edits of the other findings that ``command`` contains too, so that it has no error left."""
    note: str = ""
    edited: Command | None = None
    """The corrected command taken apart, secrets and all: never printed, only compared with the one that was read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that fired."""

    rule: str
    name: str
    severity: Severity
    certainty: Certainty
    stage: Stage
    message: str
    error: str
    """What vLLM prints, as that release words it; empty when it says nothing."""
    location: Origin | None
    fixes: tuple[Fix, ...] = ()
    no_fix: str = ""
    """Why no fix is offered, where none is."""
    references: tuple[str, ...] = ()
    fixed_in: str | None = None
    evidence: tuple[str, ...] = ()
    """Where the build's own code shows the fault: ``vllm/config/vllm.py:123 has ...``; empty without its tree."""


@dataclass(frozen=True, slots=True)
class Report:
    """The answer for one launch."""

    verdict: Verdict
    deployment: Deployment
    resolution: Resolution
    findings: tuple[Finding, ...]
    """Errors first, then by the stage at which vLLM gets to them."""
    not_evaluated: tuple[NotEvaluated, ...]
    notes: tuple[str, ...] = ()
    """What was assumed (release, model, GPU) and what was dropped from the command text."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings of severity error."""
        return tuple(item for item in self.findings if item.severity is Severity.ERROR)

    @property
    def stage(self) -> Stage | None:
        """The first stage at which the launch fails; None when no error was found."""
        return min((item.stage for item in self.errors), key=lambda stage: stage.order, default=None)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, in the published schema."""
        from dsv4check.report.json_format import report_to_dict

        return report_to_dict(self)
