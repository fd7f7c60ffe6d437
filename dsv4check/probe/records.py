"""Records of a probe, and their plain form: what travels to a child, to another node and into the report.

Standard library only, so that a machine with PyTorch alone can run the children.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from dsv4check.records import dataclass, field


class CheckStatus(StrEnum):
    """How a check ended."""

    OK = "ok"
    FAILED = "failed"
    REFUSED = "refused-as-expected"
    """The kernel (or its argument checks) said no to something that is wrong on purpose."""
    SKIPPED = "skipped"
    """Not done; the message says why. Never counts as passed."""
    CRASHED = "crashed"
    """The child ended, or had to be ended, during this check."""


class Verdict(StrEnum):
    """The answer in one word."""

    PASS = "pass"
    FAIL = "fail"
    NO_GPU = "no-gpu"
    """Everything up to the kernel went well, but no kernel was run."""
    UNAVAILABLE = "unavailable"
    """There is nothing to probe with (no PyTorch)."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check and what came of it."""

    name: str
    status: CheckStatus
    message: str = ""
    seconds: float = 0.0
    data: Mapping[str, Any] = field(default_factory=dict)
    """Figures for programs: errors and their bounds, bytes, versions."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "status": self.status.value,
            "message": self.message,
            "seconds": self.seconds,
            "data": dict(self.data),
        }


def check_from(record: Mapping[str, Any]) -> Check:
    """The check of a child's message. Raises ValueError, KeyError or TypeError when it is none."""
    data = record.get("data") or {}
    if not isinstance(data, dict):
        raise TypeError("data is no object")
    return Check(
        str(record["name"]),
        CheckStatus(record["status"]),
        str(record.get("message") or "")[:_LONGEST],
        float(record.get("seconds") or 0.0),
        _finite(data),
    )


def _finite(value: Any) -> Any:
    """``value`` without numbers that JSON has not: a wrong kernel's errors may be infinite or no numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(name): _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


_LONGEST: Final = 2000


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How one layer of a kind sees its cache."""

    kind: str
    """``main_c4``, ``main_c128``, ``swa``, ``indexer_k``, ``state_c4``, ...; ``draft_`` in front for a drafter's."""
    layer: str
    """Name of the layer that stands for its kind."""
    layers: int
    shape: tuple[int, ...]
    """Blocks first."""
    stride: tuple[int, ...]
    """In elements."""
    dtype: str
    """torch's name: ``uint8``, ``float8_e4m3fn``, ``bfloat16``, ``float32``."""
    offset: int
    """Bytes from the start of the storage to block 0."""
    storage: int
    """Which of :attr:`Layouts.storages` it lies in."""
    group: int
    """KV-cache group: layers of different groups use the same bytes, in different blocks."""
    tokens_per_state: int = 1

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**plain, "shape": list(self.shape), "stride": list(self.stride)}


@dataclass(frozen=True, slots=True)
class Layouts:
    """The caches of a launch, cut to a few blocks."""

    caches: tuple[CacheLayout, ...]
    storages: tuple[int, ...]
    """Bytes of each allocation."""
    blocks: int
    origin: str
    """Where they come from, as a sentence: vLLM's own code, or the rules' facts."""
    by_vllm: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "origin": self.origin,
            "by_vllm": self.by_vllm,
            "blocks": self.blocks,
            "storages": list(self.storages),
            "caches": [cache.to_dict() for cache in self.caches],
        }


def layouts_from(record: Mapping[str, Any]) -> Layouts:
    """Layouts from plain data. Raises ValueError, KeyError or TypeError when they are none."""
    caches = tuple(
        CacheLayout(
            kind=str(item["kind"]),
            layer=str(item["layer"]),
            layers=int(item["layers"]),
            shape=tuple(map(int, item["shape"])),
            stride=tuple(map(int, item["stride"])),
            dtype=str(item["dtype"]),
            offset=int(item["offset"]),
            storage=int(item["storage"]),
            group=int(item["group"]),
            tokens_per_state=int(item["tokens_per_state"]),
        )
        for item in record["caches"]
    )
    return Layouts(
        caches, tuple(map(int, record["storages"])), int(record["blocks"]), str(record["origin"]), record["by_vllm"]
    )


@dataclass(frozen=True, slots=True)
class Attention:
    """What the kernels are asked for."""

    cls: str
    """vLLM's attention class; empty when it cannot be told."""
    padded_heads: int
    local_heads: int
    topk: int
    """Compressed states a C4 layer attends to."""
    capability: tuple[int, int] | None
    """Of the GPU the launch is for."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "class": self.cls,
            "padded_heads": self.padded_heads,
            "local_heads": self.local_heads,
            "topk": self.topk,
            "capability": list(self.capability) if self.capability else None,
        }


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """What one child said: one device, or the CPU."""

    device: str
    """``GPU 0`` or ``CPU``."""
    checks: tuple[Check, ...]
    seconds: float = 0.0
    """Of the checks, imports left out."""
    import_seconds: float = 0.0
    unavailable: str = ""
    """Why there is no answer at all; empty where there is one."""

    @property
    def _kernels(self) -> list[Check]:
        return [check for check in self.checks if check.name.startswith(KERNEL)]

    @property
    def kernel_ran(self) -> bool:
        """Whether a kernel gave numbers, right or wrong."""
        return any(check.status is CheckStatus.OK or check.data for check in self._kernels)

    @property
    def kernel_agreed(self) -> bool:
        """Whether every kernel that should run did, and its numbers are the reference's."""
        return bool(self._kernels) and all(check.status is CheckStatus.OK for check in self._kernels)

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks that failed or crashed."""
        return tuple(item for item in self.checks if item.status in (CheckStatus.FAILED, CheckStatus.CRASHED))

    @property
    def verdict(self) -> Verdict:
        """Of this device."""
        if self.failed:
            return Verdict.FAIL
        if self.unavailable:
            return Verdict.UNAVAILABLE
        return Verdict.PASS if self.kernel_agreed else Verdict.NO_GPU

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "device": self.device,
            "verdict": self.verdict.value,
            "kernel_ran": self.kernel_ran,
            "seconds": self.seconds,
            "import_seconds": self.import_seconds,
            "unavailable": self.unavailable or None,
            "checks": [check.to_dict() for check in self.checks],
        }


KERNEL: Final = "kernel: "
"""In front of the names of checks that compare a kernel's numbers."""


def combined(verdicts: list[Verdict]) -> Verdict:
    """The verdict of several: the worst counts, and what was not looked at is no pass."""
    for verdict in (Verdict.FAIL, Verdict.UNAVAILABLE, Verdict.NO_GPU):
        if verdict in verdicts:
            return verdict
    return Verdict.PASS if verdicts else Verdict.UNAVAILABLE
