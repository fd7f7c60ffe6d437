"""What a plan consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv4check.engine.rule import Severity
from dsv4check.inputs.command import format_command
from dsv4check.planning.capacity import Capacity
from dsv4check.planning.layouts import Layout
from dsv4check.planning.question import Wanted
from dsv4check.planning.repairs import Additions
from dsv4check.planning.tuning import Tuning
from dsv4check.records import dataclass
from dsv4check.report.masking import masked_command
from dsv4check.report.model import Finding, Report

if TYPE_CHECKING:
    from dsv4check.deployment import Command
    from dsv4check.memory.records import Memory


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate, checked."""

    layout: Layout
    tuning: Tuning
    additions: Additions
    """What the release needs beside it."""
    report: Report
    """The check of the first node's command, without a search for fixes."""
    capacity: Capacity | None
    tokens: int
    """max_num_batched_tokens, given or default."""
    seqs: int
    """max_num_seqs of each engine, given or default."""
    flags: int
    """Flags and assignments that the plan added to what was asked."""
    lacks: str = ""
    """Why it does not serve; empty where it does."""
    commands: tuple[Command, ...] = ()
    """One for each node, the first node's first."""

    @property
    def serves(self) -> bool:
        """Whether it holds what was asked for."""
        return not self.lacks

    @property
    def memory(self) -> Memory | None:
        """Where a GPU's memory goes."""
        return self.report.resolution.memory

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Hazards of the launch."""
        return tuple(item for item in self.report.findings if item.severity is Severity.WARNING)

    @property
    def texts(self) -> tuple[str, ...]:
        """The commands ready to paste, secrets masked."""
        return tuple(format_command(masked_command(command)) for command in self.commands)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a number of GPUs does not do."""

    gpus: int
    closest: Trial | None
    """The candidate that gets furthest; None where no layout agrees with the flags that were given."""

    @property
    def reason(self) -> str:
        """What it lacks, behind the name of its layout."""
        if self.closest is None:
            return "no layout agrees with the flags behind the model"
        lacks = self.closest.lacks
        return lacks if self.gpus == 1 else f"{self.closest.layout.label} {lacks}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer."""

    wanted: Wanted
    per_node: int
    """GPUs of a node."""
    base: Report
    """Of some candidate: model, machine and release are those of all."""
    best: Trial | None
    """None: nothing serves."""
    alternatives: tuple[Trial, ...]
    """Other layouts on as many GPUs that serve, the next best first."""
    shortfalls: tuple[Shortfall, ...]
    """Numbers of GPUs that do not do, ascending."""
    checks: int
    """Launches that were checked."""
