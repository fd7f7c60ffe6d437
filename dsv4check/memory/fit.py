"""Weights, costs and cache plan of a launch together: what the KV cache gets, and what it holds.

Every pipeline stage has its own weights and its own stride; all of them get the blocks of the stage that has room for
the fewest. Source: ``Worker.determine_available_memory`` (``v1/worker/gpu_worker.py``), ``request_memory``
(``v1/worker/utils.py``) and ``get_kv_cache_configs`` (``v1/core/kv_cache_utils.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dsv4check.deployment import Deployment
from dsv4check.memory import requests
from dsv4check.memory.cache_plan import UnplannedError
from dsv4check.memory.costs import budgeted, costs_of
from dsv4check.memory.gpu_memory import gpu_memory
from dsv4check.memory.launch_plan import plan_of
from dsv4check.memory.records import CachePlan, ContextRow, InFlightRow, Memory, Span, Weights
from dsv4check.memory.weights import weights_of
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Attention, Draft, KvCache, Moe, NotEvaluated, Parallelism, Runner
from dsv4check.resolve.async_scheduling import batches_in_flight
from dsv4check.resolve.flag_values import integer
from dsv4check.resolve.mega_moe import uses_mega_moe
from dsv4check.resolve.scheduler_limits import derived_length, max_model_len
from dsv4check.resolve.speculative_limits import batch_limits

GIB: Final = 1 << 30
_CONTEXTS: Final = (4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
_UTILIZATION: Final = 0.92
"""Every release's default of --gpu-memory-utilization."""
_MOST_GPUS: Final = 1 << 20
"""More are a slip of the pen, which is reported elsewhere; their figures would not fit a float."""
_IN_FLIGHT: Final = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_ALL: Final = 1 << 50
"""More bytes than any model has."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is decided before memory is looked at."""

    parallel: Parallelism
    draft: Draft
    runner: Runner
    attention: Attention | None
    kv_cache: KvCache | None
    moe: Moe | None
    hybrid_manager: bool
    """False: all layers are planned as if they kept the whole context."""


def memory_of(
    deployment: Deployment, facts: ReleaseFacts, decided: Decisions
) -> tuple[Memory | None, tuple[NotEvaluated, ...]]:
    """The memory of the launch, as far as it can be told; what cannot, and why.

    None without the memory of the GPU, and where vLLM does not take its CUDA path.
    """
    total = gpu_memory(deployment)
    if total is None or deployment.hardware.vendor != "nvidia" or decided.parallel.total > _MOST_GPUS:
        return None, ()
    weights = weights_of(
        deployment,
        facts,
        decided.parallel,
        decided.draft,
        mega_moe=uses_mega_moe(decided.moe, decided.parallel),
        kernel=decided.moe.backend if decided.moe is not None else None,
    )
    plan, why = _plan(deployment, facts, decided)
    notes = [] if why is None else [NotEvaluated("memory: blocks of the KV cache", why, "start it and read its log")]
    if weights is None:
        known = "give --checkpoint PATH, with the files' headers"
        notes.append(
            NotEvaluated("memory: weights of a GPU", "config.json does not tell what the tensors look like", known)
        )
    elif weights.draft_bytes is None:
        known = "look at its files, or start it and read `Model loading took` in its log"
        notes.append(NotEvaluated("memory: weights of the draft", "nothing is known about its tensors", known))
    return _Fitting(deployment, facts, decided, total, weights, plan).memory(), tuple(notes)


def _plan(deployment: Deployment, facts: ReleaseFacts, decided: Decisions) -> tuple[CachePlan | None, str | None]:
    cache = decided.kv_cache
    if cache is None or not cache.layers:
        # Said elsewhere: V4.1, a refused dtype, a GPU that was not named.
        return None, None
    try:
        return plan_of(deployment, facts, decided.parallel, decided.draft, cache, hybrid=decided.hybrid_manager), None
    except UnplannedError as error:
        return None, str(error)


class _Fitting:
    """One launch's figures on their way to a :class:`Memory`."""

    def __init__(
        self,
        deployment: Deployment,
        facts: ReleaseFacts,
        decided: Decisions,
        total: int,
        weights: Weights | None,
        plan: CachePlan | None,
    ) -> None:
        self._deployment, self._decided = deployment, decided
        self._total, self._weights, self._plan = total, weights, plan
        self._utilization = _fraction(deployment.flags.get("gpu_memory_utilization"))
        self._fixed = integer(deployment, "kv_cache_memory_bytes")
        section = facts.section("engine_config")
        self._offloaded = _offloaded(deployment) if offloads_weights(facts, decided.runner) else 0
        self._override = facts.section("cache_planning").get("override")
        tokens, seqs = batch_limits(deployment, facts.section("spec_decode"), decided.parallel)
        self._length = max_model_len(deployment, section)
        limit = derived_length(deployment, section)
        self._limit = None if limit is None else int(limit)
        batches = batches_in_flight(deployment, facts, decided.draft, decided.runner, decided.parallel)
        self._batches = batches or 2
        # Up to 0.25 the engine core reckons with one step, however many are in flight.
        counted = batches if facts.section("cache_planning").get("in_flight") == "batches" else 1
        self._in_flight = None if tokens is None or counted is None else counted * tokens
        self._costs = costs_of(
            deployment,
            facts,
            parallel=decided.parallel,
            attention=decided.attention,
            kv_cache=decided.kv_cache,
            draft=decided.draft,
            runner=decided.runner,
            moe=decided.moe,
            max_num_batched_tokens=tokens,
            max_num_seqs=seqs,
            max_model_len=self._length,
        )

    def memory(self) -> Memory:
        """All of it; what depends on something unknown is None."""
        caches = self._caches()
        common: dict[str, Any] = {
            "gpu_bytes": self._total,
            "utilization": self._utilization,
            "budget_bytes": self._budget,
            "weights": self._weights,
            "costs": self._costs,
            "plan": self._plan,
            "max_model_len": self._length,
            "in_flight_tokens": self._in_flight,
            "notes": tuple(self._notes()),
        }
        plan, length, tokens = self._plan, self._length, self._in_flight
        if caches is None:
            return Memory(**common, **_UNKNOWN)
        if plan is None or length is None or tokens is None:
            stage = min(range(len(caches)), key=lambda number: caches[number].low)
            fits = False if caches[stage].high <= 0 else None
            return Memory(**common, **{**_UNKNOWN, "stage": stage, "cache_bytes": caches[stage], "fits": fits})
        low, high = [cache.low for cache in caches], [cache.high for cache in caches]
        stage = min(range(len(caches)), key=lambda number: low[number] // plan.strides[number])
        blocks = self._blocks(plan, low, high)
        limit = self._limit or length
        return Memory(
            **common,
            stage=stage,
            cache_bytes=caches[stage],
            blocks=blocks,
            request_blocks=requests.request_blocks(plan, length, tokens),
            concurrency=_both(plan, blocks, length, tokens),
            log_tokens=Span(*(requests.log_tokens(plan, size, length, tokens) for size in (blocks.low, blocks.high))),
            longest_context=Span(*(requests.longest_context(plan, sizes, limit, tokens) for sizes in (low, high))),
            trade_off=tuple(self._rows(plan, blocks, stage, length, limit, tokens)),
            in_flight=tuple(self._in_flight_rows(plan, stage, limit)),
            fits=self._fits(plan, low, high, length, tokens),
        )

    @property
    def _budget(self) -> int:
        """``request_memory``; with a fixed size of the cache nothing else is limited."""
        return self._total if self._fixed else math.ceil(self._total * self._utilization)

    def _caches(self) -> list[Span] | None:
        """Bytes for the KV cache on each stage."""
        if self._fixed and self._plan is not None:
            return [Span(self._fixed, self._fixed)] * len(self._plan.strides)
        if self._weights is None or self._weights.draft_bytes is None:
            return None
        offloaded = self._offloaded
        costs = budgeted(self._costs)
        caches = []
        for stage in self._weights.stages:
            held = Span(max(0, stage.total - offloaded), stage.total) if offloaded else Span(stage.total, stage.total)
            caches.append(self._budget - (held + costs))
        return caches

    def _blocks(self, plan: CachePlan, low: Sequence[int], high: Sequence[int]) -> Span:
        override = integer(self._deployment, "num_gpu_blocks_override")
        if override is not None:
            return Span(override, override)
        return Span(requests.pool_blocks(plan, low), requests.pool_blocks(plan, high))

    def _fits(self, plan: CachePlan, low: Sequence[int], high: Sequence[int], length: int, tokens: int) -> bool | None:
        """Whether one request of max_model_len passes vLLM's check; with ``auto`` any length will do."""
        asked = self._deployment.flags.values.get("max_model_len")
        if asked is not None and not (isinstance(asked, int) and asked > 0):
            length = 1
        override = integer(self._deployment, "num_gpu_blocks_override")
        if override is not None and self._override != "memory":
            sizes = plan.checked_strides if self._override == "checked" else plan.strides
            low = high = [override * size for size in sizes]
        if requests.serves(plan, low, length, tokens):
            return True
        return None if requests.serves(plan, high, length, tokens) else False

    def _rows(
        self, plan: CachePlan, blocks: Span, stage: int, length: int, limit: int, tokens: int
    ) -> Iterator[ContextRow]:
        stride = plan.strides[stage]
        for context in sorted({length, *(size for size in _CONTEXTS if size <= limit)}):
            most = requests.request_blocks(plan, context, tokens)
            decoding = requests.request_blocks(plan, context, min(self._step, tokens))
            yield ContextRow(
                context=context,
                blocks=most,
                request_bytes=most * stride,
                concurrency=(blocks.low / most, blocks.high / most),
                decode_blocks=decoding,
                decode_bytes=decoding * stride,
                decode_concurrency=(blocks.low / decoding, blocks.high / decoding),
            )

    def _in_flight_rows(self, plan: CachePlan, stage: int, limit: int) -> Iterator[InFlightRow]:
        least = requests.request_blocks(plan, limit, self._step)
        for tokens in _IN_FLIGHT:
            blocks = requests.request_blocks(plan, limit, max(tokens, self._step)) - least
            yield InFlightRow(tokens, blocks, blocks * plan.strides[stage])

    @property
    def _step(self) -> int:
        """Tokens of a decoding request that are in flight: every batch has one of it, and its drafts."""
        return (1 + (self._decided.draft.num_speculative_tokens or 0)) * self._batches

    def _notes(self) -> Iterator[str]:
        if self._deployment.hardware.unified_memory:
            yield (
                "CPU and GPU share this memory: what the operating system and other programs hold is missing here, and "
                "vLLM refuses to start when less than the requested share is free."
            )
        if self._decided.parallel.data > 1:
            yield f"Each of the {self._decided.parallel.data} data-parallel engines has a KV cache of its own."
        if self._offloaded:
            yield "Weights are offloaded to host memory: how much stays on the GPU is only known in bounds."
        if self._fixed:
            yield "--kv-cache-memory-bytes fixes the KV cache; --gpu-memory-utilization has no effect on its size."


_UNKNOWN: Final[dict[str, Any]] = {
    "stage": 0,
    "cache_bytes": None,
    "blocks": None,
    "request_blocks": None,
    "concurrency": None,
    "log_tokens": None,
    "longest_context": None,
}


def _both(plan: CachePlan, blocks: Span, length: int, tokens: int) -> tuple[float, float]:
    low, high = (requests.concurrency(plan, size, length, tokens) for size in (blocks.low, blocks.high))
    return low, high


def _fraction(value: Any) -> float:
    """The share that may be used; a value that vLLM refuses says nothing about memory, so the default stands for it."""
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1
    return float(value) if valid else _UTILIZATION


def offloads_weights(facts: ReleaseFacts, runner: Runner) -> bool:
    """Whether this runner heeds the flags that keep weights in host memory; where it is not known, it may."""
    return bool(facts.section("memory").get("weight_offload", {}).get(runner.name, True))


def _offloaded(deployment: Deployment) -> int:
    """Bytes of weights that may be in host memory instead: all of them where groups of layers are fetched in turn."""
    flags = deployment.flags
    if integer(deployment, "offload_group_size"):
        return _ALL
    size = flags.get("cpu_offload_gb", 0)
    number = isinstance(size, (int, float)) and not isinstance(size, bool) and size > 0
    return int(min(size, _ALL / GIB) * GIB) if number else 0
