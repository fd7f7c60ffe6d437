"""What public logs state about the memory of launches, against the ranges and the planner of the same launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from dsv4check.data import load_yaml
from dsv4check.errors import InputError
from dsv4check.memory import requests
from dsv4check.memory.records import Memory
from tests.conftest import CORPUS
from tests.launches import run_launch

GIB: Final = 1 << 30
LOGS: Final[list[dict[str, Any]]] = load_yaml((CORPUS / "memory_logs.yaml").read_text(encoding="utf-8"))["records"]
COMPARED: Final = ("available_kv_gib", "weights_gib", "kv_tokens", "concurrency", "estimated_max_model_len")
_ROUNDED: Final = 0.005
"""Half of the last digit of a GiB figure in vLLM's log."""


def memory_of(record: dict[str, Any]) -> Memory | None:
    keys = ("vllm", "gpu", "gpus", "nodes", "model", "args", "env")
    launch = {key: record[key] for key in keys} | ({"nodes": 1} if record["nodes"] == 1 else {})
    try:
        return run_launch(launch).resolution.memory
    except InputError:
        return None


def outside(record: dict[str, Any], memory: Memory) -> Iterator[str]:
    """Figures of a record that are not in the range of the launch, in words."""
    figures = record["figures"]
    cache, blocks = memory.cache_bytes, memory.blocks
    if "available_kv_gib" in figures and cache is not None:
        stated = figures["available_kv_gib"]
        if not cache.low / GIB - _ROUNDED <= stated <= cache.high / GIB + _ROUNDED:
            yield f"available KV cache memory {stated} GiB, range {cache.low / GIB:.2f} - {cache.high / GIB:.2f}"
    if "weights_gib" in figures and memory.weights is not None:
        held = max(stage.total for stage in memory.weights.stages) / GIB
        # "Model loading took" has the buffers that are built with the model in it, and what the loader leaves behind.
        extra = sum(cost.size.high for cost in memory.costs if cost.name.startswith("buffers built")) / GIB
        stated = figures["weights_gib"]
        if not held * 0.999 <= stated <= held * 1.01 + extra:
            yield f"model loading took {stated} GiB, range {held:.2f} - {held * 1.01 + extra:.2f}"
    if "kv_tokens" in figures and memory.log_tokens is not None and blocks is not None:
        tokens, stated = memory.log_tokens, figures["kv_tokens"]
        if not tokens.low <= stated <= tokens.high:
            yield f"GPU KV cache size {stated} tokens, range {tokens.low} - {tokens.high}"
    if "concurrency" in figures and memory.concurrency is not None:
        low, high = memory.concurrency
        if not low - _ROUNDED <= figures["concurrency"] <= high + _ROUNDED:
            yield f"maximum concurrency {figures['concurrency']}, range {low:.2f} - {high:.2f}"


def test_public_figures_lie_in_the_ranges(figures: Callable[[str], None]) -> None:
    """Of released wheels whose flags are known; the others are listed with their remark."""
    compared, failures = 0, {}
    for record in LOGS:
        stated = [key for key in COMPARED if key in record["figures"]]
        memory = memory_of(record)
        if not stated or memory is None:
            continue
        found = list(outside(record, memory))
        explained = not record["released"] or record.get("explained")
        if not explained:
            compared += len(stated)
        if found and explained:
            why = record.get("explained") or record.get("remark", "")
            figures(f"  {record['id']}: {'; '.join(found)} ({why})")
        elif found:
            failures[record["id"]] = found
    figures(f"public logs: {compared} figures of released wheels compared, {len(failures)} records outside")
    assert compared >= 12
    assert not failures, failures


def test_the_planner_gives_the_logged_figures_for_the_logged_memory(figures: Callable[[str], None]) -> None:
    """With the cache memory that a log states, tokens and concurrency are the log's own, to its last digit."""
    compared = 0
    for record in LOGS:
        stated = record["figures"]
        if not {"available_kv_gib", "kv_tokens"} <= set(stated) or not record["released"]:
            continue
        memory = memory_of(record)
        assert memory is not None, record["id"]
        plan, length, tokens = memory.plan, memory.max_model_len, memory.in_flight_tokens
        assert plan is not None, record["id"]
        assert length is not None, record["id"]
        assert tokens is not None, record["id"]
        bounds = [int((stated["available_kv_gib"] + rest) * GIB) for rest in (-_ROUNDED, _ROUNDED)]
        low, high = (requests.pool_blocks(plan, [size]) for size in bounds)
        assert (
            requests.log_tokens(plan, low, length, tokens)
            <= stated["kv_tokens"]
            <= requests.log_tokens(plan, high, length, tokens)
        ), record["id"]
        compared += 1
        if "concurrency" in stated:
            least = requests.concurrency(plan, low, length, tokens) - _ROUNDED
            most = requests.concurrency(plan, high, length, tokens) + _ROUNDED
            assert least <= stated["concurrency"] <= most, record["id"]
            compared += 1
    figures(f"planner on logged memory: {compared} figures of public logs, 0 differ")
    assert compared >= 8
