"""What the rehearsal's parent and child say to each other: one JSON object a line, in both directions.

The parent sends one *launch* at a time. The child answers with ``ready`` (once), then for every launch a ``started``
and a ``result`` message per stage and one ``done``. ``broken`` says that the rehearsal itself failed; it never
stands for a verdict. Both sides state :data:`PROTOCOL`; another number is refused.

Standard library only: the child imports this file too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

PROTOCOL: Final = 2
"""Raised whenever a message changes its meaning."""

MAX_MESSAGE: Final = 4 << 20
"""Bytes of one message; a child that writes more without a line end is stopped."""


class ProtocolError(Exception):
    """The other side did not keep to the protocol; the message says how."""


TensorRecord = tuple[str, str, tuple[int, ...] | None]
"""Name, dtype (as safetensors spells it) and shape of a checkpoint's tensor; no shape where only an index is known."""


class RehearsedStage(StrEnum):
    """The stages that are rehearsed, in the order vLLM passes through them."""

    ARGPARSE = "argparse"
    """vLLM's own parser and ``validate_parsed_serve_args``."""
    ENGINE_CONFIG = "engine-config"
    """The serve sub-command up to and with ``create_engine_config``."""
    MODEL_INIT = "model-init"
    """The worker takes its GPU; the target model's module tree, on the meta device."""
    DRAFT_INIT = "draft-init"
    """The drafter and its module tree; passes at once without speculative decoding."""
    WEIGHT_LOAD = "weight-load"
    """``load_weights`` of target and draft on a checkpoint's names, shapes and dtypes; no values."""
    KV_CACHE_INIT = "kv-cache-init"
    """Specs, planning, and a real allocation reshaped by the release's own model runner."""
    FLASHMLA = "flashmla-contract"
    """FlashMLA's argument checks (made at warm-up) applied to the tensors of that allocation."""


class Status(StrEnum):
    """How a stage ended."""

    OK = "ok"
    FAILED = "failed"
    """vLLM raised: this is a verdict."""
    NOT_REACHED = "not-reached"
    UNAVAILABLE = "unavailable"
    """The rehearsal could not tell: this is no verdict."""


@dataclass(frozen=True)
class StageResult:
    """What one stage did."""

    stage: RehearsedStage
    status: Status
    seconds: float = 0.0
    exception: str = ""
    """Type of the exception, for a failed stage."""
    message: str = ""
    """What vLLM said, for a failed stage; the reason, for an unavailable one."""
    where: str = ""
    """``file:line:function`` of the deepest vLLM frame, the file relative to the package."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What vLLM decided there (config values, class names, KV-cache tensors)."""


@dataclass(frozen=True)
class SimulatedDevice:
    """The GPU that the child pretends to have."""

    sm: str
    """Compute capability, ``9.0``."""
    name: str = ""
    """As NVML prints it; empty picks a usual GPU of this capability."""
    count: int = 8
    """GPUs of this node."""
    memory_mib: int | None = None
    """Memory of one GPU; None picks that of the usual GPU."""


@dataclass(frozen=True)
class Launch:
    """One launch to rehearse."""

    entrypoint: str
    """``serve`` or ``api_server``."""
    argv: tuple[str, ...]
    """Words after the program. ``{model:N}`` and ``{file:N}`` stand for what the child writes to its own folder."""
    device: SimulatedDevice
    env: Mapping[str, str] = field(default_factory=dict)
    models: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """(name, config.json) of the target and of a separate draft."""
    weights: tuple[tuple[TensorRecord, ...] | None, ...] = ()
    """Per model, what is in its checkpoint; None where that is not known."""
    files: tuple[tuple[str, str], ...] = ()
    """(name, text) of files the command reads (``--config``)."""
    stage_timeout: float = 120.0
    """Seconds one stage may take."""
    trace_weights: bool = False
    """Answer of the weight-load stage with every parameter and every tensor by name."""
    plan_trials: tuple[Mapping[str, Any], ...] = ()
    """Plan the cache with other memory and lengths, too: what ``worker/plan_trials.py`` takes."""
    sample: bool = False
    """Allocate only a few blocks of the planned cache, and describe them: what ``worker/sample.py`` does."""


@dataclass(frozen=True)
class Rehearsal:
    """The answer for one launch."""

    stages: tuple[StageResult, ...]
    """One per :class:`RehearsedStage`, in order."""
    not_simulated: tuple[str, ...] = ()
    """What was stubbed and could hide a failure."""
    vllm: str = ""
    """Version of the vLLM that was run."""
    seconds: float = 0.0
    """Wall-clock time of the launch, the start of a child included."""

    @property
    def failure(self) -> StageResult | None:
        """The stage at which vLLM stopped, if one did."""
        return next((item for item in self.stages if item.status is Status.FAILED), None)

    @property
    def unavailable(self) -> StageResult | None:
        """The stage that could not be rehearsed, if there is one."""
        return next((item for item in self.stages if item.status is Status.UNAVAILABLE), None)

    def result(self, stage: RehearsedStage) -> StageResult:
        """The result of one stage."""
        return next(item for item in self.stages if item.stage is stage)


def complete(
    results: list[StageResult],
    *,
    reason: str = "",
    not_simulated: tuple[str, ...] = (),
    vllm: str = "",
    seconds: float = 0,
) -> Rehearsal:
    """Fill up the stages that have no result: the first is *unavailable* for ``reason``, the rest not reached."""
    by_stage = {item.stage: item for item in results}
    stages = []
    ended = False
    for stage in RehearsedStage:
        known = by_stage.get(stage)
        if known is None:
            blocked = bool(reason) and not ended
            known = StageResult(
                stage, Status.UNAVAILABLE if blocked else Status.NOT_REACHED, message=reason if blocked else ""
            )
        ended = ended or known.status is not Status.OK
        stages.append(known)
    return Rehearsal(tuple(stages), not_simulated, vllm, seconds)


def encode(kind: str, **content: Any) -> bytes:
    """One message as a line of JSON."""
    text = json.dumps({"protocol": PROTOCOL, "type": kind, **content}, default=str, ensure_ascii=True)
    return text.encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """One message. Raises ProtocolError for anything else."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError(f"not a message: {line[:80]!r}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError(f"not a message: {line[:80]!r}")
    if message.get("protocol") != PROTOCOL:
        raise ProtocolError(f"speaks protocol {message.get('protocol')!r}, expected {PROTOCOL}")
    return message


def launch_to_json(launch: Launch) -> dict[str, Any]:
    """The launch as plain data."""
    return asdict(launch)


def launch_from_json(data: Mapping[str, Any]) -> Launch:
    """The launch of a message. Raises ProtocolError when something is missing."""
    try:
        return Launch(
            entrypoint=data["entrypoint"],
            argv=tuple(data["argv"]),
            device=SimulatedDevice(**data["device"]),
            env=dict(data["env"]),
            models=tuple((name, config) for name, config in data["models"]),
            weights=tuple(None if one is None else tuple(map(_tensor, one)) for one in data["weights"]),
            files=tuple((name, text) for name, text in data["files"]),
            stage_timeout=float(data["stage_timeout"]),
            trace_weights=bool(data["trace_weights"]),
            plan_trials=tuple(data["plan_trials"]),
            sample=bool(data["sample"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not a launch: {error!r}") from None


def _tensor(record: Any) -> TensorRecord:
    name, dtype, shape = record
    return str(name), str(dtype), None if shape is None else tuple(int(size) for size in shape)


def result_from_json(message: Mapping[str, Any]) -> StageResult:
    """The stage result of a message. Raises ProtocolError when it is none."""
    try:
        return StageResult(
            stage=RehearsedStage(message["stage"]),
            status=Status(message["status"]),
            seconds=float(message["seconds"]),
            exception=str(message["exception"]),
            message=str(message["message"]),
            where=str(message["where"]),
            detail=dict(message["detail"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not a stage result: {error!r}") from None
