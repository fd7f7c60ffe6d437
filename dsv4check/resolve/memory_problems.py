"""What the memory of a launch stops or spoils: weights that do not fit, contexts for which no blocks are left.

An error needs even the favourable bound of every estimate to fail; where only the bounds disagree, the problem says how
much of the range would do. Words of vLLM from ``request_memory`` (``v1/worker/utils.py``) and
``_check_enough_kv_cache_memory`` (``v1/core/kv_cache_utils.py``, 0.33: ``kv_cache_planning.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from dsv4check.deployment import Deployment
from dsv4check.memory import requests
from dsv4check.memory.costs import CONTEXT
from dsv4check.memory.fit import Decisions, memory_of, runner_offloads
from dsv4check.memory.records import Memory, Span
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Parallelism
from dsv4check.resolve.flag_values import integer, where
from dsv4check.resolve.late_data import LateData

_GIB: Final = 1 << 30
_UNLIKELY: Final = 0.02
"""Share of the range below which a launch is said not to fit, probably."""
_BATCHES: Final = (16384, 8192, 4096, 2048, 1024, 512)
_SMALL_BATCH: Final = 2048
"""The batch that is tried together with a shorter context."""
_SHARED: Final = 4 / 3
"""How much of an AMD APU's memory may become the GPU's, against the share that its firmware gives (96 of 128 GB)."""
_MOST_UTILIZATION: Final = 0.97
_FIXED: Final = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
"""Flags that fix the size of the KV cache."""
_LENGTH_STEP: Final = 1024
_MUCH_PADDING: Final = 1.1
"""Factor from which on the padding of experts is worth a word."""
_REMEDIES: Final = ("fit_length", "fit_tokens", "fit_utilization", "both_tokens", "both_length", "both_utilization")
"""What :func:`_remedies` works out: most of the work on a launch that does not fit, and only fixes need it."""
_MISLEADING: Final = 2.0
"""Factor between the log's token count and the longest request from which on it is worth a word."""


def memory_problems(deployment: Deployment, facts: ReleaseFacts, memory: Memory, decided: Decisions) -> list[Problem]:
    """Problems of a launch's memory, the one that vLLM meets first in front."""
    parallel = decided.parallel
    refused = _free_memory(deployment, facts, memory)
    if refused is not None:
        return [refused]
    offloads = _offloads(deployment) and runner_offloads(facts, decided.runner)
    weights = None if offloads else _weights(deployment, memory, parallel)
    if weights is not None:
        return [weights]
    found = [
        _empty_stage(deployment, facts, memory),
        None if offloads else _fixed_cache(deployment, memory),
        _cache(deployment, facts, memory, decided),
        _padding(deployment, memory, parallel),
    ]
    if memory.fits is not False:
        found += [_chunk(deployment, memory), _log(deployment, memory), _after(deployment, memory)]
    found.append(_unified(deployment, memory))
    return [problem for problem in found if problem is not None]


def weight_problems(deployment: Deployment, memory: Memory, decided: Decisions) -> list[Problem]:
    """What the weights alone rule out, where neither the costs beside them nor the caches are modelled (ROCm).

    vLLM needs more than is counted here, so that a launch which passes may still not fit.
    """
    shared = deployment.hardware.unified_memory
    if shared:
        memory = replace(memory, gpu_bytes=int(memory.gpu_bytes * _SHARED))
    if _offloads(deployment):
        return []
    weights = _weights(deployment, memory, decided.parallel)
    if weights is not None:
        return [weights]
    cache = memory.cache_bytes
    if shared or cache is None or cache.high > 0:
        return []
    data = _base(memory, decided.parallel)
    error = "No available memory for the cache blocks."
    origin = where(deployment, "gpu_memory_utilization")
    return [Problem("no-memory-for-cache", Stage.KV_CACHE_INIT, "ValueError", error, data, origin)]


def _free_memory(deployment: Deployment, facts: ReleaseFacts, memory: Memory) -> Problem | None:
    """``request_memory``: as much must be free at the start as the utilisation asks for."""
    words = facts.section("memory").get("free_check")
    if words is None or deployment.hardware.unified_memory:
        return None
    free = memory.gpu_bytes - _context(memory)
    asked = int(memory.gpu_bytes * memory.utilization)
    if free >= asked:
        return None
    data = {
        "free_gib": _gib(free),
        "asked_gib": _gib(asked),
        "total_gib": _gib(memory.gpu_bytes),
        "utilization": f"{memory.utilization:g}",
    }
    error = words.format(
        device="cuda:0",
        free=_gib(free),
        total=_gib(memory.gpu_bytes),
        utilization=memory.utilization,
        requested=_gib(asked),
    )
    origin = where(deployment, "gpu_memory_utilization")
    return Problem("less-memory-free-than-asked", Stage.MODEL_INIT, "ValueError", error, data, origin)


def _weights(deployment: Deployment, memory: Memory, parallel: Parallelism) -> Problem | None:
    """Weights that do not fit the GPU, whatever is left for a cache."""
    weights = memory.weights
    if weights is None:
        return None
    held = max(stage.total for stage in weights.stages)
    if held <= memory.gpu_bytes - _context(memory):
        return None
    data = {
        "need_gib": _gib(held),
        "memory_gib": _gib(memory.gpu_bytes),
        "whole_gib": _gib(weights.checkpoint_bytes + (weights.draft_bytes or 0)),
        "gpus": parallel.total,
        "tp": _larger_tensor(memory, parallel),
    }
    origin = where(deployment, "tensor_parallel_size")
    error = "CUDA out of memory."
    return Problem("weights-exceed-gpu", Stage.WEIGHT_LOAD, "torch.OutOfMemoryError", error, data, origin)


def _cache(deployment: Deployment, facts: ReleaseFacts, memory: Memory, decided: Decisions) -> Problem | None:
    """Too little for one request, or for any."""
    cache, plan = memory.cache_bytes, memory.plan
    if cache is None:
        return None
    stage = Stage.KV_CACHE_INIT
    data = _base(memory, decided.parallel)
    origin = where(deployment, "max_model_len", "gpu_memory_utilization")
    if cache.high <= (plan.reserved_blocks * plan.strides[memory.stage] if plan is not None else 0):
        error = "No available memory for the cache blocks."
        return Problem("no-memory-for-cache", stage, "ValueError", error, data, origin)
    length, tokens = memory.max_model_len, memory.in_flight_tokens
    if plan is None or length is None or tokens is None or memory.fits is True:
        return None
    need = requests.needed_bytes(plan, memory.stage, length, tokens)
    share = (cache.high - need) / max(cache.high - cache.low, 1)
    data |= {"need_gib": _gib(need), "share": round(100 * share)}
    told = LateData(data, _REMEDIES, lambda: _remedies(deployment, facts, memory, decided))
    if memory.fits is False:
        error = f"To serve at least one request with the model's max seq len ({length})"
        return Problem("request-exceeds-cache", stage, "ValueError", error, told, origin)
    code = "request-probably-exceeds-cache" if share < _UNLIKELY else "request-may-exceed-cache"
    return Problem(code, stage, "", "", told, origin)


def _fixed_cache(deployment: Deployment, memory: Memory) -> Problem | None:
    """A KV cache whose size a flag fixes, and that does not fit beside the weights: nothing checks it before."""
    weights, plan = memory.weights, memory.plan
    dest = next((name for name in _FIXED if integer(deployment, name)), None)
    if dest is None or weights is None or plan is None or memory.blocks is None:
        return None
    cache = memory.blocks.low * plan.strides[memory.stage]
    held = weights.stages[memory.stage].total
    # Activations are over by then, and their memory is used again.
    others = sum(cost.size.low for cost in memory.costs if cost.budgeted and "peak" not in cost.name)
    room = memory.gpu_bytes - held - others - _context(memory)
    if cache <= room:
        return None
    data = {
        "flag": f"--{dest.replace('_', '-')}",
        "dest": dest,
        "cache_gib": _gib(cache),
        "weights_gib": _gib(held),
        "gpu_gib": _gib(memory.gpu_bytes),
        "room_gib": _gib(max(room, 0)),
    }
    error = "CUDA out of memory."
    origin = where(deployment, dest)
    return Problem("fixed-cache-exceeds-gpu", Stage.KV_CACHE_INIT, "torch.OutOfMemoryError", error, data, origin)


def _empty_stage(deployment: Deployment, facts: ReleaseFacts, memory: Memory) -> Problem | None:
    """A stage without any layer of a group, whose worker then finds no tensor for it (``allocate_kv_cache``)."""
    if memory.plan is None or facts.section("cache_planning").get("empty_group") != "stops":
        return None
    for group in memory.plan.groups:
        if 0 in group.stage_layers:
            kinds = " and ".join(kind for kind, _count in group.kinds)
            data = {"stage": group.stage_layers.index(0), "stages": len(group.stage_layers), "kinds": kinds}
            origin = where(deployment, "pipeline_parallel_size")
            return Problem("stage-without-cache-group", Stage.KV_CACHE_INIT, "StopIteration", "", data, origin)
    return None


def _base(memory: Memory, parallel: Parallelism) -> dict[str, Any]:
    weights = memory.weights
    cache = memory.cache_bytes or Span(0, 0)
    held = weights.stages[memory.stage].total if weights is not None and memory.stage < len(weights.stages) else 0
    return {
        "gpu_gib": _gib(memory.gpu_bytes),
        "budget_gib": _gib(memory.budget_bytes),
        "weights_gib": _gib(held),
        "cache": _range(cache),
        "length": memory.max_model_len,
        "in_flight": memory.in_flight_tokens,
        "stage": memory.stage,
        "need_gib": None,
        "longest": memory.longest_context.high if memory.longest_context else None,
        "tp": _larger_tensor(memory, parallel),
        **dict.fromkeys(_REMEDIES),
    }


def _remedies(deployment: Deployment, facts: ReleaseFacts, memory: Memory, decided: Decisions) -> dict[str, Any]:
    """The smallest change of each kind with which even the low bound serves one request; None where there is none."""
    length, in_flight = memory.max_model_len or 0, memory.in_flight_tokens or 0
    found: dict[str, Any] = {"fit_length": _shorter(memory, length), "fit_utilization": _more(memory)}
    for tokens in (size for size in _BATCHES if size < in_flight):
        smaller, _notes = memory_of(_with_flag(deployment, "max_num_batched_tokens", tokens), facts, decided)
        if smaller is None or smaller.in_flight_tokens is None or smaller.in_flight_tokens >= in_flight:
            continue
        if smaller.fits is True:
            return found | {"fit_tokens": tokens}
        if tokens == _SMALL_BATCH:
            found |= {"both_tokens": tokens, "both_length": _shorter(smaller, length)}
            found |= {"both_utilization": _more(smaller)}
    return found


def _shorter(memory: Memory, length: int) -> int | None:
    """A round context that fits at the low bound, shorter than ``length``."""
    longest = memory.longest_context.low if memory.longest_context is not None else 0
    if not 0 < longest < length:
        return None
    return longest if longest < _LENGTH_STEP else longest // _LENGTH_STEP * _LENGTH_STEP


def _more(memory: Memory) -> float | None:
    """The utilisation with which the low bound is enough; None where it would be too much."""
    cache, plan, length, tokens = memory.cache_bytes, memory.plan, memory.max_model_len, memory.in_flight_tokens
    if cache is None or plan is None or length is None or tokens is None:
        return None
    missing = requests.needed_bytes(plan, memory.stage, length, tokens) - cache.low
    share = int((memory.budget_bytes + missing) / memory.gpu_bytes * 100 + 1) / 100
    return share if memory.utilization < share <= _MOST_UTILIZATION else None


def _with_flag(deployment: Deployment, dest: str, value: Any) -> Deployment:
    flags = replace(deployment.flags, values={**deployment.flags.values, dest: value})
    return replace(deployment, flags=flags)


def _chunk(deployment: Deployment, memory: Memory) -> Problem | None:
    """Tokens in flight that take more than half of the cache: windows and states hold all of them until a step ends."""
    plan, length, tokens, blocks = memory.plan, memory.max_model_len, memory.in_flight_tokens, memory.blocks
    if plan is None or length is None or tokens is None or blocks is None or memory.request_blocks is None:
        return None
    in_flight = memory.request_blocks - requests.request_blocks(plan, length, 1)
    if blocks.high <= 0 or 2 * in_flight <= blocks.high:
        return None
    stride = plan.strides[memory.stage]
    data = {
        "tokens": tokens,
        "share": min(100, round(100 * in_flight / blocks.high)),
        "chunk_gib": _gib(in_flight * stride),
        "cache": _range(memory.cache_bytes or Span(0, 0)),
        "length": length,
        "concurrency": _times(memory.concurrency),
        "smaller": next((size for size in _BATCHES if 4 * size <= tokens), 512),
    }
    origin = where(deployment, "max_num_batched_tokens")
    return Problem("batched-tokens-fill-cache", Stage.KV_CACHE_INIT, "", "", data, origin)


def _padding(deployment: Deployment, memory: Memory, parallel: Parallelism) -> Problem | None:
    """Slices of routed experts that the kernel's tiles make much larger than what is stored."""
    weights = memory.weights
    if weights is None or weights.padding < _MUCH_PADDING:
        return None
    held = weights.stages[memory.stage].experts if memory.stage < len(weights.stages) else weights.stages[-1].experts
    stored = held / weights.padding
    data = {
        "percent": round(100 * (weights.padding - 1)),
        "padding_gib": _gib(held - stored),
        "held_gib": _gib(held),
        "tp": parallel.tensor,
        "slices": parallel.tensor * parallel.data,
    }
    origin = where(deployment, "tensor_parallel_size")
    return Problem("expert-slices-padded", Stage.WEIGHT_LOAD, "", "", data, origin)


def _log(deployment: Deployment, memory: Memory) -> Problem | None:
    """vLLM's token count is concurrency x max_model_len: far from what one request, or short ones, can have."""
    log, longest, length = memory.log_tokens, memory.longest_context, memory.max_model_len
    if log is None or longest is None or length is None or not deployment.flags.given("max_model_len"):
        return None
    if log.high <= 0 or longest.low < _MISLEADING * log.high:
        return None
    data = {
        "printed": f"{log.low:,} - {log.high:,}" if not log.exact else f"{log.low:,}",
        "concurrency": _times(memory.concurrency),
        "length": f"{length:,}",
        "longest": f"{longest.low:,}",
    }
    return Problem("log-tokens-no-capacity", Stage.KV_CACHE_INIT, "", "", data, where(deployment, "max_model_len"))


def _after(deployment: Deployment, memory: Memory) -> Problem | None:
    """Costs that come after the cache was sized, and are more than what is left even at their low bounds."""
    if deployment.hardware.unified_memory or memory.cache_bytes is None:
        return None
    after = sum(cost.size.low for cost in memory.costs if not cost.budgeted)
    # Peak activations are over when the rest comes: their memory is used again.
    spare = max((cost.size.high for cost in memory.costs if cost.budgeted and "peak" in cost.name), default=0)
    left = memory.gpu_bytes - memory.budget_bytes + spare
    if after <= left:
        return None
    largest = max((cost for cost in memory.costs if not cost.budgeted), key=lambda cost: cost.size.low)
    data = {
        "after_gib": _gib(after),
        "left_gib": _gib(memory.gpu_bytes - memory.budget_bytes),
        "utilization": f"{memory.utilization:g}",
        "largest": largest.name,
        "largest_gib": _gib(largest.size.low),
        "fit_utilization": max(0.5, int((memory.gpu_bytes - after) / memory.gpu_bytes * 100) / 100),
        "seqs": max(1, (integer(deployment, "max_num_seqs") or 1024) // 4),
    }
    origin = where(deployment, "gpu_memory_utilization", "max_num_seqs")
    return Problem("costs-after-cache", Stage.WARMUP, "torch.OutOfMemoryError", "CUDA out of memory.", data, origin)


def _unified(deployment: Deployment, memory: Memory) -> Problem | None:
    """CPU and GPU share the memory: the share that is asked for must be free of everything else on the machine."""
    if not deployment.hardware.unified_memory:
        return None
    asked = int(memory.gpu_bytes * memory.utilization)
    data = {
        "asked_gib": _gib(asked),
        "total_gib": _gib(memory.gpu_bytes),
        "rest_gib": _gib(memory.gpu_bytes - asked),
        "utilization": f"{memory.utilization:g}",
    }
    origin: Origin | None = where(deployment, "gpu_memory_utilization")
    return Problem("unified-memory-share", Stage.MODEL_INIT, "", "", data, origin)


def _larger_tensor(memory: Memory, parallel: Parallelism) -> int:
    """The next doubled tensor-parallel size whose weights leave a tenth of the budget free."""
    weights = memory.weights
    size = parallel.tensor * 2
    if weights is None:
        return size
    while size < 8 * parallel.tensor:
        part = parallel.tensor / size
        held = max((stage.experts + stage.cut) * part + stage.whole + stage.draft * part for stage in weights.stages)
        if held <= 0.9 * memory.budget_bytes:
            break
        size *= 2
    return size


def _context(memory: Memory) -> int:
    """Bytes that the CUDA context and NCCL hold at least, before vLLM looks at the memory."""
    return next((cost.size.low for cost in memory.costs if cost.name == CONTEXT), 0)


def _offloads(deployment: Deployment) -> bool:
    flags: Mapping[str, Any] = deployment.flags.values
    return any(flags.get(dest) for dest in ("cpu_offload_gb", "offload_backend", "offload_group_size"))


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f}"


def _range(size: Span) -> str:
    return f"{_gib(size.low)} - {_gib(size.high)}" if not size.exact else _gib(size.low)


def _times(concurrency: tuple[float, float] | None) -> str:
    if concurrency is None:
        return "?"
    low, high = concurrency
    return f"{low:.2f}" if low == high else f"{low:.2f} - {high:.2f}"
