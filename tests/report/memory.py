"""Memory records made by hand, as the resolution would fill them, and reports that hold them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from dsv4check.memory.records import (
    CacheGroup,
    CachePlan,
    ContextRow,
    Cost,
    InFlightRow,
    Memory,
    Span,
    StageWeights,
    Weights,
)
from dsv4check.report.model import Report
from tests.launches import run_launch

MIB, GIB = 2**20, 2**30
GPU = 143_156 * MIB
"""An H200 as torch reports it."""
BUDGET = GPU * 92 // 100
WEIGHTS = StageWeights(17_600 * MIB, 820 * MIB, 2_150 * MIB, 640 * MIB)
COSTS = (
    Cost("CUDA context and libraries", Span(500 * MIB, 1_100 * MIB), True, "NCCL over 8 ranks.", "vllm/a.py:1"),
    Cost("peak activations", Span(1_400 * MIB, 2_600 * MIB), True, "8,192 tokens at once.", "vllm/b.py:2"),
    Cost("CUDA graphs", Span(900 * MIB, 2_000 * MIB), False, "51 sizes are captured.", "https://example.org/3"),
)
PLAN = CachePlan(
    groups=(
        CacheGroup((("main_c4", 21), ("main_c128", 20), ("indexer_k", 21)), 256, None, (1_002_240,), (62,)),
        CacheGroup((("swa", 44),), 64, 128, (1_647_360,), (44,)),
        CacheGroup((("state_c4", 21), ("state_indexer", 21)), 4, 8, (870_912,), (42,)),
        CacheGroup((("state_c128", 20),), 8, 128, (656_640,), (20,)),
    ),
    strides=(1_647_360,),
    checked_strides=(1_647_360,),
    reserved_blocks=1,
    weighted_concurrency=False,
    tokens_by_group=False,
)


def memory(**changes: Any) -> Memory:
    """V4-Flash with an MTP draft on eight H200, changed where a test wants it."""
    cache_bytes = BUDGET - WEIGHTS.total - sum((cost.size for cost in COSTS if cost.budgeted), Span(0, 0))
    blocks = Span(cache_bytes.low // 1_647_360, cache_bytes.high // 1_647_360)
    need = 4_363
    concurrency = (blocks.low / need, blocks.high / need)
    made = Memory(
        gpu_bytes=GPU,
        utilization=0.92,
        budget_bytes=BUDGET,
        weights=Weights("published", 156_000_000_000, 3_400_000_000, (WEIGHTS,)),
        costs=COSTS,
        plan=PLAN,
        stage=0,
        cache_bytes=cache_bytes,
        blocks=blocks,
        max_model_len=1_048_576,
        in_flight_tokens=16_384,
        request_blocks=need,
        concurrency=concurrency,
        log_tokens=Span(int(concurrency[0] * 1_048_576), int(concurrency[1] * 1_048_576)),
        longest_context=Span(17_214_464, 17_510_144),
        trade_off=tuple(
            ContextRow(
                tokens,
                held,
                held * 1_647_360,
                (blocks.low / held, blocks.high / held),
                kept,
                kept * 1_647_360,
                (blocks.low / kept, blocks.high / kept),
            )
            for tokens, held, kept in ((8_192, 299, 44), (131_072, 779, 524), (1_048_576, need, 4_108))
        ),
        in_flight=(InFlightRow(8_192, 3_360, 3_360 * 1_647_360),),
        fits=True,
        notes=("CPU offloading is not part of these figures.",),
    )
    return replace(made, **changes)


def too_large() -> Memory:
    """Weights that leave nothing for the KV cache."""
    weights = StageWeights(120 * GIB, 6 * GIB, 2 * GIB)
    return memory(
        weights=Weights("config", 8 * weights.total, 0, (weights,)),
        cache_bytes=BUDGET - weights.total - Span(1_900 * MIB, 3_700 * MIB),
        blocks=Span(0, 0),
        concurrency=(0.0, 0.0),
        log_tokens=Span(0, 0),
        longest_context=Span(0, 0),
        trade_off=(),
        fits=False,
    )


@cache
def _launch(vllm: str, gpu: str, args: str) -> Report:
    launch = {"vllm": vllm, "gpu": gpu, "gpus": 8, "model": "deepseek-ai/DeepSeek-V4-Flash", "args": args}
    return run_launch(launch)


def report(
    record: Memory | None, *, vllm: str = "0.33.0", gpu: str = "H200", args: str = "-tp 8 --kv-cache-dtype fp8"
) -> Report:
    """A checked launch whose memory is ``record``."""
    made = _launch(vllm, gpu, args)
    return replace(made, resolution=replace(made.resolution, memory=record))
