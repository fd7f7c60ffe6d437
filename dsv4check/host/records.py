"""What was seen of a machine: one record an observation, the same for every part of ``host/``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from dsv4check.records import dataclass, field


class State(StrEnum):
    """What an observation says of a launch."""

    OK = "ok"
    NOTE = "note"
    """Good to know."""
    WARNING = "warning"
    """The launch starts, with a hazard."""
    ERROR = "error"
    """A launch of this release fails on this machine."""
    UNKNOWN = "unknown"
    """It could not be looked at; ``why`` says what was missing."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that was looked at, and what it means for the release."""

    id: str
    """Kebab-case and stable, unique on a machine: ``gpu-0``, ``driver-cuda``, ``package-torch``, ``limit-shm``."""
    area: str
    """``gpu``, ``driver``, ``packages``, ``extensions``, ``limits`` or ``environment``."""
    state: State
    what: str
    """What was looked at, in a few words."""
    found: str = ""
    """What is there."""
    wanted: str = ""
    """What this release needs; empty where nothing is asked for."""
    why: str = ""
    """What follows from it, or why it could not be looked at; one sentence."""
    advice: str = ""
    """What to do; empty where there is nothing to do."""
    source: str = ""
    """Where it was read: an NVML call, a metadata file, ``/proc/...``, ``file:line`` of vLLM."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs: numbers with their unit in the key (``memory_mib``), versions as text."""
