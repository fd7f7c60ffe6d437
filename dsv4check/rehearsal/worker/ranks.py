"""The ranks that are built: one for each pipeline stage, the first of its tensor, data and expert group.

Ranks of one pipeline stage differ in the slices they hold, not in what they decide; stages differ in their layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import construction, groups
from .weights import Built


@dataclass
class Rank:
    """One pipeline stage."""

    number: int
    target: Built
    layers: dict[str, Any]
    """vLLM's registry of the layers that have a cache or state (``static_forward_context``)."""
    draft: Built | None = None
    """On the last stage, where a draft is served."""
    specs: dict[str, Any] = field(default_factory=dict)
    """Layer name -> KVCacheSpec, as the layer states it."""


def build(config: Any) -> list[Rank]:
    """The target on every pipeline stage. Raises what its constructors raise."""
    ranks = []
    for number in range(config.parallel_config.pipeline_parallel_size):
        groups.install(config, number)
        config.compilation_config.static_forward_context = {}
        target = construction.build_target(config)
        ranks.append(Rank(number, target, config.compilation_config.static_forward_context))
    return ranks


def enter(config: Any, rank: Rank) -> None:
    """Make process groups and layer registry those of a rank."""
    groups.install(config, rank.number)
    config.compilation_config.static_forward_context = rank.layers


def build_draft(config: Any, ranks: list[Rank]) -> dict[str, Any]:
    """The drafter of the last pipeline stage, described."""
    last = ranks[-1]
    enter(config, last)
    described, last.draft = construction.build_draft(config, last.target.model, uses_v2_runner(config))
    return described


def describe(ranks: list[Rank]) -> dict[str, Any]:
    """The targets of all stages as one model."""
    parts = [construction.describe_target(rank.target.model) for rank in ranks]
    layers: dict[str, int] = {}
    for part in parts:
        for name, count in part["cache_layers"].items():
            layers[name] = layers.get(name, 0) + count
    return {
        "model_class": parts[0]["model_class"],
        "cache_layers": layers,
        "experts": sorted({name for part in parts for name in part["experts"]}),
        "parameter_bytes": [part["parameter_bytes"] for part in parts],
        "buffer_bytes": [part["buffer_bytes"] for part in parts],
    }


def uses_v2_runner(config: Any) -> bool:
    """Which model runner the release selects; 0.20 reads the variable where it creates the runner."""
    if hasattr(type(config), "use_v2_model_runner"):
        return bool(config.use_v2_model_runner)
    import vllm.envs as envs

    return bool(getattr(envs, "VLLM_USE_V2_MODEL_RUNNER", False))
