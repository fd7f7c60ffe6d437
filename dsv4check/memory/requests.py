"""What requests need of a cache plan: blocks for one request, requests at once, the longest context.

Full-attention groups need a block for every ``block_size`` tokens of the context. Windows need blocks for what they
keep plus all tokens that may be scheduled before anything is freed, and one more because a window need not begin at
a block's edge. Source: ``max_memory_usage_bytes`` of the specs in ``v1/kv_cache_interface.py`` and
``get_max_concurrency_for_kv_cache_config``.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsv4check.memory.records import CacheGroup, CachePlan


def group_blocks(plan: CachePlan, group: CacheGroup, length: int, in_flight: int) -> int:
    """Blocks of one group that a request of ``length`` tokens needs at most."""
    if group.sliding_window is None:
        return _up(_up(length, plan.context_ranks), group.block_size)
    kept = group.sliding_window - 1 + plan.retained_tokens + in_flight
    return _up(min(kept, length), group.block_size) + 1


def request_blocks(plan: CachePlan, length: int, in_flight: int) -> int:
    """Blocks of all groups together."""
    return sum(group_blocks(plan, group, length, in_flight) for group in plan.groups)


def pool_blocks(plan: CachePlan, memory: Sequence[int]) -> int:
    """Blocks of the pool for ``memory`` bytes on a GPU of each stage: the fewest of all stages; never below 0."""
    return max(0, min(size // stride for size, stride in zip(memory, plan.strides, strict=True)))


def serves(plan: CachePlan, memory: Sequence[int], length: int, in_flight: int) -> bool:
    """Whether vLLM starts: whether one request of ``length`` tokens passes its check on every stage."""
    return all(
        size - plan.reserved_blocks * stride > 0 and needed_bytes(plan, stage, length, in_flight) <= size
        for stage, (size, stride) in enumerate(zip(memory, plan.strides, strict=True))
    )


def needed_bytes(plan: CachePlan, stage: int, length: int, in_flight: int) -> int:
    """Bytes for the cache from which on a stage passes that check."""
    blocks = request_blocks(plan, length, in_flight)
    return plan.checked_strides[stage] * blocks + plan.reserved_blocks * plan.strides[stage]


def longest_context(plan: CachePlan, memory: Sequence[int], limit: int, in_flight: int) -> int:
    """The longest request in tokens, up to ``limit``, with which vLLM starts; 0 when not even one token does."""
    if serves(plan, memory, limit, in_flight):
        return limit
    low, high = 0, limit - 1
    while low < high:
        middle = (low + high + 1) // 2
        if serves(plan, memory, middle, in_flight):
            low = middle
        else:
            high = middle - 1
    return low


def concurrency(plan: CachePlan, blocks: int, length: int, in_flight: int, stage: int = 0) -> float:
    """``Maximum concurrency`` as the log of a stage's rank says it: requests of ``length`` tokens at once."""
    if not plan.weighted_concurrency:
        return blocks / request_blocks(plan, length, in_flight)
    weight = sum(group_blocks(plan, group, length, in_flight) * group.stage_bytes[stage] for group in plan.groups)
    return blocks / _up(weight, plan.groups[0].stage_bytes[stage])


def log_tokens(plan: CachePlan, blocks: int, length: int, in_flight: int) -> int:
    """``GPU KV cache size`` of the log, in tokens."""
    if plan.tokens_by_group:
        return blocks // len(plan.groups) * min(group.block_size for group in plan.groups)
    return int(concurrency(plan, blocks, length, in_flight) * length)


def _up(value: int, divisor: int) -> int:
    return -(-value // divisor)
