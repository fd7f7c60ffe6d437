"""The static plan of a launch, and what it answers to the trials with which the release was rehearsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dsv4check.memory.cache_plan import CacheLayer, UnplannedError
from dsv4check.memory.launch_plan import plan_of, planned_layers
from dsv4check.memory.records import CachePlan
from dsv4check.memory.requests import concurrency, longest_context, pool_blocks, serves
from dsv4check.releases.facts import load_facts
from dsv4check.report.model import Report

Answer = list[Any] | int
"""``[blocks, concurrency, max_model_len]``, or the longest request of a refused one."""


def static_plan(report: Report) -> CachePlan:
    """The plan that the rules work out for a checked launch. Raises UnplannedError."""
    resolution = report.resolution
    parallel, draft, cache = resolution.parallel, resolution.draft, resolution.kv_cache
    if parallel is None or draft is None or cache is None:
        raise UnplannedError("the caches of this launch are not known")
    hybrid = not resolution.facts.get("hybrid_manager_disabled")
    return plan_of(report.deployment, load_facts(resolution.release), parallel, draft, cache, hybrid=hybrid)


def layers_of(report: Report, *, hybrid: bool | None = None) -> tuple[CacheLayer, ...]:
    """Every cache layer as it is planned; ``hybrid``: with the hybrid manager or not, whatever the launch says.

    Raises UnplannedError.
    """
    resolution = report.resolution
    parallel, cache = resolution.parallel, resolution.kv_cache
    if parallel is None or cache is None:
        raise UnplannedError("the caches of this launch are not known")
    chosen = hybrid if hybrid is not None else not resolution.facts.get("hybrid_manager_disabled")
    return planned_layers(report.deployment, load_facts(resolution.release), parallel, cache, hybrid=chosen)


def answer(plan: CachePlan, trial: Mapping[str, Any], memory: Sequence[int], in_flight: int, override: str) -> Answer:
    """What vLLM says to a trial by the static plan; ``override``: fact of that name."""
    blocks, length = trial.get("num_gpu_blocks_override"), trial["max_model_len"]
    if blocks is not None and override != "memory":
        memory = [blocks * size for size in (plan.checked_strides if override == "checked" else plan.strides)]
    if length == -1:
        length = longest_context(plan, memory, trial["limit"], in_flight)
        if length == 0:
            return 0
    elif not serves(plan, memory, length, in_flight):
        return _estimate(plan, memory, length, in_flight)
    held = pool_blocks(plan, memory) if blocks is None else blocks
    stages = [concurrency(plan, held, length, in_flight, stage) for stage in range(len(memory))]
    return [held, stages[0] if len(set(stages)) == 1 else stages, length]


def _estimate(plan: CachePlan, memory: Sequence[int], length: int, in_flight: int) -> int:
    """vLLM checks one stage after the other and estimates for the first that fails, up to the length asked for."""
    for size, stride, checked in zip(memory, plan.strides, plan.checked_strides, strict=True):
        alone = replace(plan, strides=(stride,), checked_strides=(checked,))
        if not serves(alone, [size], length, in_flight):
            return longest_context(alone, [size], length, in_flight)
    raise AssertionError("no stage refuses this length")


def groups_of(plan: CachePlan) -> list[tuple[int, int]]:
    """(layers, block size) of every group, sorted."""
    return sorted((sum(count for _kind, count in group.kinds), group.block_size) for group in plan.groups)
