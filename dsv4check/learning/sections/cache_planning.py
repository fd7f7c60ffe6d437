"""Section ``cache_planning``: how the engine core groups cache layers, sizes their blocks and checks one request.

The release plans a few launches with many sizes of memory and lengths. Of all combinations of the styles that
``dsv4check.memory.cache_plan`` knows, the one is taken that gives every figure the release gave; a release that plans
in a new way fits none. Layers and pages are those that the release's own specs state, so nothing else of it must be
known yet.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsv4check.memory.cache_plan import CacheLayer, UnplannedError, plan_cache
from dsv4check.memory.launch_plan import retained_tokens
from dsv4check.memory.promotion import promoted
from dsv4check.rehearsal.protocol import Launch, Rehearsal, RehearsedStage, Status
from dsv4check.resolution import LayerKind

from ..plan_launches import LAUNCHES, TRIALS, Planned, launch_of, memory_of, stages_of
from ..plan_trials import result_of
from ..release import Release
from ..source import LearningError, Source, names, strings
from ..static_plans import answer

STYLES: Final[Mapping[str, tuple[Any, ...]]] = {
    "grouping": ("padded-tuples", "tuples", "packed", "packed-windows"),
    "stride": ("tuples", "buckets", "widest"),
    "check": ("tuples", "stride"),
    "concurrency": ("weighted", "blocks"),
    "reserved_blocks": (0, 1),
    "retained_tokens": (False, True),
    "override": ("memory", "sizes", "checked"),
}
"""Everything that is found by trying."""
OBSERVED: Final = (
    *("flash-mtp-1", "flash-two-mtp-modules", "flash-odd", "flash-odd-pp2", "flash-pp4", "flash-no-c4-mtp"),
    *("flash-no-c4-block-first", "flash-few-c4"),
    *("flash-mtp-3-sync", "flash-runner-v1", "flash-runner-v2-pp2", "flash-plain-bf16", "flash-plain-fp8-pp2"),
)
"""Launches that tell the styles apart; not every release plans each."""
NEEDED: Final = ("flash-mtp-1", "flash-odd")
HYBRID_OFF: Final = "flash-hybrid-off"
UNEVEN: Final = "flash-pp4-uneven"
"""A launch with a stage that has no layer of one group."""
INTERFACE: Final = "v1/kv_cache_interface.py"
UTILS: Final = "v1/core/kv_cache_utils.py"
_LOGGED: Final = "KV cache size: %s tokens"

Rehearse = Callable[[Launch], Rehearsal]


@dataclass(frozen=True)
class Observed:
    """What the release told about one launch."""

    name: str
    layers: tuple[CacheLayer, ...]
    unpadded: tuple[int, ...]
    """Bytes of each layer's page before it is rounded up."""
    alignments: tuple[int | None, ...]
    stages: int
    retained: int
    in_flight: int
    """Batches in flight."""
    async_scheduling: bool
    runner: str
    results: tuple[Any, ...]
    """One for each trial."""


def learn(release: Release) -> dict[str, Any]:
    """Styles found by planning, and what the source says about log and context ranks."""
    source = release.source
    with release.rehearsals() as rehearse:
        seen = [one for name in OBSERVED if (one := observe(rehearse, name)) is not None]
        missing = set(NEEDED) - {one.name for one in seen}
        if missing:
            raise LearningError(f"the release does not plan {', '.join(sorted(missing))}")
        style = fitting(seen)
        found = {"promotion": _promotion(rehearse, style), "in_flight": in_flight(seen)}
        found["empty_group"] = _empty_group(rehearse)
    return {**style, **found, "log_tokens": log_tokens(source), "context_ranks": context_ranks(source)}


def observe(rehearse: Rehearse, name: str) -> Observed | None:
    """Plan one launch; None where the release stops before its trials are planned."""
    planned = LAUNCHES[name]
    answered = rehearse(launch_of(planned))
    result = answered.result(RehearsedStage.KV_CACHE_INIT)
    if result.status is not Status.OK:
        if answered.unavailable is not None:
            raise LearningError(f"{name}: {answered.unavailable.message[:300]}")
        return None
    return _observed(name, planned, result.detail)


def _observed(name: str, planned: Planned, detail: Mapping[str, Any]) -> Observed:
    told = [(layer, stage) for stage, rank in enumerate(detail["layers"]) for layer in rank]
    basis = detail["basis"]
    return Observed(
        name=name,
        layers=tuple(
            CacheLayer("", layer["page_bytes"], layer["block_size"], layer["sliding_window"], stage)
            for layer, stage in told
        ),
        unpadded=tuple(layer["unpadded_bytes"] for layer, _stage in told),
        alignments=tuple(layer["alignment"] for layer, _stage in told),
        stages=stages_of(planned),
        retained=retained_tokens(dict(planned.changes).get("num_nextn_predict_layers", 1), planned.draft_tokens),
        in_flight=basis["in_flight_tokens"] // basis["max_num_batched_tokens"],
        async_scheduling=basis["async_scheduling"],
        runner=detail["runner"],
        results=tuple(result_of(trial) for trial in detail["trials"]),
    )


def fitting(seen: Sequence[Observed]) -> dict[str, Any]:
    """The one combination of styles that gives what the release planned. Raises LearningError."""
    styles = [dict(zip(STYLES, values, strict=True)) for values in itertools.product(*STYLES.values())]
    styles = [style for style in styles if _used(style)]
    for one in seen:
        left = [style for style in styles if reproduces(one, one.layers, style)]
        if not left:
            raise LearningError(f"{one.name}: planned in no way that is known, after {len(styles)} fitted the others")
        styles = left
    if len(styles) > 1:
        open_keys = [key for key in STYLES if len({str(style[key]) for style in styles}) > 1]
        values = "; ".join(f"{key} {sorted({str(style[key]) for style in styles})}" for key in open_keys)
        raise LearningError(f"the launches do not tell apart: {values}")
    return styles[0]


def _used(style: Mapping[str, Any]) -> bool:
    """With ``tuples`` a block counts alike in pool, check and override unless a pipeline stage lacks a group; releases
    without pipeline parallelism cannot show which it is. Elsewhere the override goes by the pool's own stride.
    """
    if style["stride"] == "tuples":
        return (style["check"], style["override"]) in (("tuples", "memory"), ("tuples", "checked"))
    return bool(style["override"] != "checked")


def reproduces(one: Observed, layers: Sequence[CacheLayer], style: Mapping[str, Any]) -> bool:
    """Whether a style gives all results of one launch."""
    try:
        plan = plan_cache(layers, one.stages, {**style, "log_tokens": "concurrency"}, retained=one.retained)
    except UnplannedError:
        return False
    return all(
        answer(
            plan,
            trial,
            memory_of(trial, one.stages),
            trial["max_num_batched_tokens"] * one.in_flight,
            style["override"],
        )
        == result
        for trial, result in zip(TRIALS, one.results, strict=True)
    )


def _promotion(rehearse: Rehearse, style: Mapping[str, Any]) -> str:
    """How windows are planned with the hybrid manager off."""
    one = observe(rehearse, HYBRID_OFF)
    if one is None:
        return "none"
    if reproduces(one, tuple(_promoted(one)), style):
        return "full-blocks"
    raise LearningError(f"{HYBRID_OFF}: the pages of promoted windows are not those that are known")


def _empty_group(rehearse: Rehearse) -> str:
    """What becomes of a pipeline stage that has no layer of a group: ``stops`` while it allocates, or ``kept``."""
    failure = rehearse(launch_of(LAUNCHES[UNEVEN])).failure
    stopped = failure is not None and failure.stage is RehearsedStage.KV_CACHE_INIT
    return "stops" if stopped and failure is not None and failure.exception == "StopIteration" else "kept"


def _promoted(one: Observed) -> Iterator[CacheLayer]:
    full = next(layer for layer in one.layers if layer.sliding_window is None)
    whole = LayerKind("full", 1, full.block_size, 1, 1, 1, 1, 1, "")
    for layer, unpadded, alignment in zip(one.layers, one.unpadded, one.alignments, strict=True):
        if layer.sliding_window is None:
            yield layer
            continue
        size = layer.block_size
        kind = LayerKind(
            "window", 1, size, 1, size, unpadded // size, unpadded, layer.page_bytes, "", 0, layer.sliding_window
        )
        found = promoted((whole, kind), "full-blocks", alignment)[1]
        yield CacheLayer(layer.kind, found.padded_page_bytes, found.block_size, None, layer.stage)


def in_flight(seen: Sequence[Observed]) -> str:
    """``batches``: windows are sized for all batches in flight; ``step``: for one."""
    if all(one.in_flight == 1 for one in seen):
        return "step"
    for one in seen:
        ahead = one.async_scheduling and (one.runner == "v2" or one.stages == 1)
        if one.in_flight != one.stages + (1 if ahead else 0):
            raise LearningError(f"{one.name}: {one.in_flight} batches in flight, which no known rule gives")
    return "batches"


def log_tokens(source: Source) -> str:
    """How ``GPU KV cache size`` is worked out, from the function that logs it, or the one that it calls for that."""
    functions = [node for node in ast.walk(source.tree(UTILS)) if isinstance(node, ast.FunctionDef)]
    logs = [node for node in functions if any(_LOGGED in text for text in strings(node))]
    if len(logs) != 1:
        raise LearningError(f"{UTILS}: expected one function that logs {_LOGGED!r}, got {len(logs)}")
    used = names(logs[0])
    for node in (logs[0], *(node for node in functions if node.name in used)):
        for item in ast.walk(node):
            if isinstance(item, ast.BinOp):
                operands = names(item)
                if isinstance(item.op, ast.FloorDiv) and {"len", "kv_cache_groups"} <= operands:
                    return "groups"
                if isinstance(item.op, ast.Mult) and {"max_concurrency", "max_model_len"} <= operands:
                    return "concurrency"
    raise LearningError(f"{UTILS} {logs[0].name}: the tokens are worked out in no way that is known")


def context_ranks(source: Source) -> str:
    """Which ranks share the context of full-attention layers: ``dcp``, or ``dcp_pcp``."""
    function = "FullAttentionSpec.max_memory_usage_bytes"
    used = names(source.get(INTERFACE, function))
    if "decode_context_parallel_size" not in used:
        raise LearningError(f"{INTERFACE} {function}: expected decode_context_parallel_size")
    return "dcp_pcp" if "prefill_context_parallel_size" in used else "dcp"
