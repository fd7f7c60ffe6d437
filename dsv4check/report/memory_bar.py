"""One GPU's memory as a stacked bar, and whether its parts fit into it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from dsv4check.memory.records import Memory, Span, StageWeights
from dsv4check.report.bar import Bar, BarPart, Mark
from dsv4check.report.figures import gib, gib_range

_MIB: Final = 2**20
_NOTHING: Final = Span(0, 0)
_WEIGHTS: Final = (
    ("experts", "E", "routed experts"),
    ("cut", "C", "weights cut by TP"),
    ("whole", "W", "weights held whole"),
    ("draft", "D", "draft"),
)
_SHORT: Final = {
    "experts": "experts",
    "cut": "cut by TP",
    "whole": "whole",
    "before": "costs before",
    "after": "costs after",
    "free": "left free",
}
"""Labels of the short legend, where it has others."""


def costs_before(memory: Memory) -> Span:
    """What vLLM measures before it sizes the cache."""
    return sum((cost.size for cost in memory.costs if cost.budgeted), _NOTHING)


def costs_after(memory: Memory) -> Span:
    """What is taken after the cache was sized, out of what is left free."""
    return sum((cost.size for cost in memory.costs if not cost.budgeted), _NOTHING)


def stage_weights(memory: Memory) -> StageWeights | None:
    """The weights of the stage that the figures are about."""
    if memory.weights is None or not 0 <= memory.stage < len(memory.weights.stages):
        return None
    return memory.weights.stages[memory.stage]


def memory_bar(memory: Memory, *, compact: bool) -> Bar:
    """The parts of one GPU's memory, ranges drawn at their middle; compact without what is not there."""
    parts = list(_parts(memory))
    needed = sum(part.size for part in parts)
    free = max(memory.gpu_bytes - needed, 0)
    parts.append(_left_free(memory, free))
    if compact:
        parts = [
            replace(part, label=_SHORT.get(part.style, part.label))
            for part in parts
            if part.size or part.style in ("cache", "free")
        ]
        return Bar(tuple(parts), "GiB", compact=True)
    marks = [Mark(memory.budget_bytes, f"{gib(memory.budget_bytes)} GiB for vLLM")]
    if needed > memory.gpu_bytes:
        marks.append(Mark(memory.gpu_bytes, f"{gib(memory.gpu_bytes)} GiB: end of the GPU"))
    return Bar(tuple(parts), "GiB", marks=tuple(marks))


def overflow(memory: Memory) -> str | None:
    """What is said when the parts exceed the GPU: surely, or at the high bound of the costs; None when they fit."""
    weights, cache = stage_weights(memory), memory.cache_bytes
    if weights is None:
        return None
    before, after = costs_before(memory), costs_after(memory)
    # The cache takes what the costs leave: where these are high, it is small.
    held = _NOTHING if cache is None else Span(max(cache.high, 0), max(cache.low, 0))
    low = weights.total + before.low + held.low + after.low - memory.gpu_bytes
    high = weights.total + before.high + held.high + after.high - memory.gpu_bytes
    if low > 0:
        by = gib_range(Span(*sorted((low, high))))
        return f"over by {by} GiB: together more than the {gib(memory.gpu_bytes)} GiB of the GPU"
    if high > 0:
        return f"over by up to {gib(high)} GiB where all costs are as high as they may be"
    return None


def _parts(memory: Memory) -> Iterator[BarPart]:
    weights, before, after = stage_weights(memory), costs_before(memory), costs_after(memory)
    spent = _middle(before)
    if weights is not None:
        for name, letter, label in _WEIGHTS:
            size = getattr(weights, name)
            if size or name != "draft":
                spent += size
                yield BarPart(letter, label, size, gib(size), name)
    yield BarPart("B", "costs counted before the cache", _middle(before), gib_range(before), "before")
    cache = memory.cache_bytes
    if cache is not None:
        # How much is short is said beside the bar; in it there is none.
        held = Span(max(cache.low, 0), max(cache.high, 0))
        yield BarPart("K", "KV cache", _middle(held), gib_range(held), "cache")
    else:
        label = "KV cache, not known" if weights is not None else "weights and KV cache, not known"
        rest = max(memory.budget_bytes - spent, 0)
        yield BarPart("?", label, rest, gib(rest), "unknown")
    if after.high:
        yield BarPart("A", "costs after the cache", _middle(after), gib_range(after), "after")


def _left_free(memory: Memory, size: int) -> BarPart:
    """What --gpu-memory-utilization leaves, less what is taken of it."""
    label = "left free"
    if abs(memory.gpu_bytes * memory.utilization - memory.budget_bytes) < _MIB:
        # Otherwise --kv-cache-memory-bytes decides, and the other flag has no say.
        label += f" by --gpu-memory-utilization {memory.utilization:g}"
    after = costs_after(memory)
    beyond = max(memory.gpu_bytes - memory.budget_bytes, 0)
    left = Span(max(beyond - after.high, 0), max(beyond - after.low, 0))
    # Where the budget is exceeded the free part is not what the flag leaves.
    said = gib_range(left) if left.low <= size <= left.high else gib(size)
    return BarPart(".", label, size, said, "free")


def _middle(span: Span) -> int:
    return (span.low + span.high) // 2
