"""One launch's cache planned again and again by the engine core, each time with other memory and lengths.

A model is built once for all of them: planning looks at the layers' specs and at a handful of config values only.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from . import kv_cache

_PARTS = ("model_config", "cache_config", "scheduler_config")


def describe_basis(config: Any) -> dict[str, Any]:
    """The values of the config that planning uses, as vLLM resolved them for this launch."""
    scheduler = config.scheduler_config
    return {
        "max_model_len": config.model_config.max_model_len,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "async_scheduling": bool(getattr(scheduler, "async_scheduling", False)),
        "in_flight_tokens": getattr(config, "max_in_flight_tokens", scheduler.max_num_batched_tokens),
        "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
    }


def describe_layers(specs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The layers of each rank in the order in which they are registered, as their own specs state them."""
    return [
        [
            {
                "page_bytes": spec.page_size_bytes,
                "unpadded_bytes": spec.real_page_size_bytes,
                "block_size": spec.block_size,
                "sliding_window": getattr(spec, "sliding_window", None),
                "alignment": getattr(spec, "alignment", None),
            }
            for spec in rank.values()
        ]
        for rank in specs
    ]


def run(config: Any, specs: list[dict[str, Any]], trials: tuple[Mapping[str, Any], ...]) -> list[dict[str, Any]]:
    """One answer for each trial: what was planned, or vLLM's refusal.

    ``specs``: the layers' specs of each rank. A trial may have ``memory`` (bytes for the cache of a rank, or one
    figure for each), ``max_model_len`` (-1: as ``auto``), ``limit`` (up to which ``auto`` searches; by default the
    launch's own length), ``max_num_batched_tokens``, ``num_gpu_blocks_override``.
    """
    with _known_runner(config):
        return [_one(config, specs, trial) for trial in trials]


@contextlib.contextmanager
def _known_runner(config: Any) -> Iterator[None]:
    """The runner does not change between trials; 0.28 to 0.30 look it up thousands of times, a millisecond each."""
    owner, name = type(config), "use_v2_model_runner"
    original = vars(owner).get(name)
    if isinstance(original, property):
        answer = getattr(config, name)
        setattr(owner, name, property(lambda _config: answer))
    try:
        yield
    finally:
        if isinstance(original, property):
            setattr(owner, name, original)


def _one(config: Any, specs: list[dict[str, Any]], trial: Mapping[str, Any]) -> dict[str, Any]:
    memory = trial["memory"]
    given = list(memory) if isinstance(memory, (list, tuple)) else [memory] * len(specs)
    with _restored(config):
        _set(config, trial)
        try:
            plans = kv_cache.plan(config, copy.deepcopy(specs), given)
            concurrency = [_concurrency(config, plan) for plan in plans]
        except (ValueError, AssertionError, NotImplementedError, RuntimeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {
            "blocks": [plan.num_blocks for plan in plans],
            "concurrency": concurrency,
            "max_model_len": config.model_config.max_model_len,
            "groups": [
                [[len(group.layer_names), group.kv_cache_spec.block_size] for group in plan.kv_cache_groups]
                for plan in plans
            ],
        }


def _set(config: Any, trial: Mapping[str, Any]) -> None:
    length = trial.get("max_model_len")
    model = config.model_config
    if length == -1:
        model.original_max_model_len = -1
        model.max_model_len = trial.get("limit") or model.max_model_len
    elif length is not None:
        model.max_model_len = length
        model.original_max_model_len = length
    if trial.get("max_num_batched_tokens") is not None:
        config.scheduler_config.max_num_batched_tokens = trial["max_num_batched_tokens"]
    if trial.get("num_gpu_blocks_override") is not None:
        config.cache_config.num_gpu_blocks_override = trial["num_gpu_blocks_override"]


def _concurrency(config: Any, plan: Any) -> float:
    """``Maximum concurrency`` of vLLM's log, before it is rounded."""
    utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    return float(utils.get_max_concurrency_for_kv_cache_config(config, plan))


@contextlib.contextmanager
def _restored(config: Any) -> Iterator[None]:
    """Planning writes into the config; the next trial must not see it."""
    before = {part: dict(vars(getattr(config, part))) for part in _PARTS}
    try:
        yield
    finally:
        for part, values in before.items():
            current = vars(getattr(config, part))
            current.clear()
            current.update(values)
