"""What the written logs are made of."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4check.problems import Stage
from tests.triage.log_table import LogFrame


@dataclass(frozen=True, slots=True)
class LogError:
    """The failure (or the warning) that a log is to show."""

    kind: str
    """Type of the exception as a traceback prints it (``torch.OutOfMemoryError``); ``argparse`` for a refused command
    line; empty where vLLM logs a line alone."""
    message: str
    stage: Stage
    frames: tuple[LogFrame, ...] = ()
    """The last frames of the traceback, behind those that every failure of the stage has."""
    level: str = "ERROR"
    """``WARNING`` or ``INFO`` for a line of a launch that goes on."""
    survived: bool = False
    """True for an error of one request, after which the server goes on."""

    @property
    def said(self) -> str:
        """The exception as the last lines of a traceback show it, or the line."""
        if self.kind == "argparse":
            return f"vllm serve: error: {self.message}"
        if not self.kind:
            return self.message
        return f"{self.kind}: {self.message}" if self.message else self.kind

    @property
    def short_kind(self) -> str:
        return self.kind.rpartition(".")[2]

    @property
    def fatal(self) -> bool:
        return self.level == "ERROR" and not self.survived


@dataclass(frozen=True, slots=True)
class Entry:
    """One write of one process: a logger's record, or text that went to stderr or stdout as it is."""

    second: float
    process: str
    text: str
    level: str = ""
    """Empty for raw text."""
    module: str = ""
    burst: int = 0
    """Entries of several processes with one number come at the same time."""


PIDS = {"APIServer": 1, "EngineCore": 311, "Worker": 640, "DPCoordinator": 290}


def pid_of(process: str) -> int:
    """A process number that stays the same for one name."""
    name, _, rest = process.partition("_")
    digits = [int("".join(character for character in part if character.isdigit()) or 0) for part in rest.split("_")]
    offset = 0
    for digit in digits[:2]:
        offset = offset * 8 + digit
    return PIDS.get(name, 77) + offset
