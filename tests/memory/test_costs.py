"""Costs of a start: worked examples, directions, every release, and the figures of public logs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsv4check.deployment import Deployment
from dsv4check.memory import activations, costs, graphs
from dsv4check.memory.costs import budgeted, costs_of
from dsv4check.memory.gpu_memory import gpu_memory
from dsv4check.memory.records import Cost, Span
from dsv4check.memory.shapes import GIB, KIB, MIB
from dsv4check.releases.facts import known_releases, load_facts
from dsv4check.request import build_deployment
from dsv4check.resolution import Resolution
from dsv4check.resolve.resolver import resolve
from dsv4check.resolve.scheduler_limits import max_model_len
from dsv4check.resolve.speculative_limits import batch_limits
from tests.launches import launch_request

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
PRO = "deepseek-ai/DeepSeek-V4-Pro"
LOGS: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "corpus" / "memory_logs.yaml").read_text())
SIZES = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")


def resolved(launch: Mapping[str, Any]) -> tuple[Deployment, Resolution]:
    deployment = build_deployment(launch_request({"model": FLASH, "gpu": "H200", "gpus": 8, **launch}))
    return deployment, resolve(deployment, load_facts(deployment.vllm.release))


def cost_list(launch: Mapping[str, Any], **changes: Any) -> tuple[Cost, ...]:
    """Costs of a launch as the resolver settles it; ``changes`` replaces arguments."""
    deployment, resolution = resolved(launch)
    facts = load_facts(deployment.vllm.release)
    assert resolution.parallel is not None
    tokens, seqs = batch_limits(deployment, facts.section("spec_decode"), resolution.parallel)
    known: dict[str, Any] = {
        "parallel": resolution.parallel,
        "attention": resolution.attention,
        "kv_cache": resolution.kv_cache,
        "draft": resolution.draft,
        "runner": resolution.runner,
        "moe": resolution.moe,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "max_model_len": max_model_len(deployment, facts.section("engine_config")),
    }
    return costs_of(deployment, facts, **(known | changes))


def by_name(launch: Mapping[str, Any], **changes: Any) -> dict[str, Cost]:
    found = cost_list(launch, **changes)
    assert len({cost.name for cost in found}) == len(found)
    return {cost.name: cost for cost in found}


ARGS = "-tp 4 --kv-cache-dtype fp8 --max-num-batched-tokens 8192 --max-num-seqs 256 --max-model-len 131072"


def test_model_buffers_by_hand() -> None:
    known = by_name({"vllm": "0.23.0", "args": ARGS})[activations.MODEL_BUFFERS]
    # Two RoPE tables of a million positions: for compressed layers and for the first two.
    tables = 2 * 1048576 * 64 * 4
    indices, streams = 8192 * 512 * 4 + tables, 8192 * 4 * 4096 * 2
    assert known.size == Span(indices, indices + streams)
    pool = by_name({"vllm": "0.28.0", "args": ARGS})[activations.MODEL_BUFFERS]
    query = 8192 * (64 * 512 * 2 + 512 * 4)
    assert pool.size == Span(indices + query, indices + query + streams)


def test_workspace_is_its_largest_user() -> None:
    small = by_name({"vllm": "0.23.0", "args": ARGS})[activations.WORKSPACE]
    # Marlin without expert parallelism: six rows of max(512, 4096) and of max(2 * 512, 4096) values for each token.
    assert small.size == Span(8192 * 6 * 2 * (4096 + 4096), 8192 * 6 * 2 * (4096 + 4096))
    large = by_name({"vllm": "0.23.0", "args": ARGS}, max_model_len=1 << 20)[activations.WORKSPACE]
    keys = (1 << 20) * 40 // 4 * 132 + MIB
    assert large.size == Span(keys, keys)
    # From 0.32.0 on the indexer's buffer has fewer rows for contexts above 256K: FlashMLA's gather is larger.
    newer = by_name({"vllm": "0.32.0", "args": ARGS}, max_model_len=1 << 20)[activations.WORKSPACE]
    gather = 4 * ((1 << 20) // 4 + 128 + 8192) * 512 * 2
    assert newer.size == Span(gather, gather + 8192 * (640 + 1) * 4)


def test_dspark_has_two_lanes_from_the_release_that_has_them() -> None:
    text = '--speculative-config \'{"method":"dspark","num_speculative_tokens":5}\''
    launch = {"model": "deepseek-ai/DeepSeek-V4-Flash-0731", "args": f"{ARGS} {text}"}
    before = by_name({**launch, "vllm": "0.27.0"})[activations.WORKSPACE].size
    after = by_name({**launch, "vllm": "0.28.0"})[activations.WORKSPACE].size
    assert after.high == 2 * before.high
    assert after.low == before.low


def test_peak_by_hand() -> None:
    known = by_name({"vllm": "0.23.0", "args": ARGS}, max_num_seqs=8)[activations.PEAK]
    # Streams, a layer's input, the query, the query padded, the output; latents and compressor inputs.
    low = 4 * 4096 * 2 + 4096 * 2 + 16 * 512 * 2 + 2 * 64 * 512 * 2 + (1024 + 512) * 2 + 4 * 512 * 4
    rest = 64 * (128 * 3 + 4)
    assert known.size == Span(8192 * low * 70 // 100, 8192 * (low + 2 * 4 * 4096 * 2 + rest) + 512 * MIB)
    assert known.budgeted
    # 0.20 and 0.21 pad the query after profiling has returned.
    earlier = by_name({"vllm": "0.21.0", "args": ARGS}, max_num_seqs=8)
    assert known.size.high - earlier[activations.PEAK].size.high == 8192 * 64 * KIB
    assert earlier[costs.UNPROFILED].size.low == 8192 * 64 * KIB
    assert not earlier[costs.UNPROFILED].budgeted


def test_logits_follow_their_variable() -> None:
    usual = by_name({"vllm": "0.23.0", "args": ARGS})[activations.PEAK].size.high
    less = by_name({"vllm": "0.23.0", "args": ARGS, "env": {"VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "256"}})
    assert usual - less[activations.PEAK].size.high == 256 * MIB
    odd = by_name({"vllm": "0.23.0", "args": ARGS, "env": {"VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "many"}})
    assert odd[activations.PEAK].size.high == usual


def test_sampler_can_be_the_peak() -> None:
    rows = by_name({"vllm": "0.23.0", "args": ARGS}, max_num_batched_tokens=1024, max_num_seqs=1024)
    assert rows[activations.PEAK].size.low == (1024 * 129280 * 6 + 1024 * 4096 * 2) * 70 // 100


def test_block_tables_by_hand() -> None:
    first = by_name({"vllm": "0.26.0", "args": ARGS})[costs.BLOCK_TABLES]
    blocks = 131072 // 4 + 131072 // 8 + 131072 // 64 + 131072 // 256
    assert first.size.low == 256 * 4 * blocks
    assert not first.budgeted
    second = by_name({"vllm": "0.28.0", "args": ARGS})[costs.BLOCK_TABLES]
    assert second.size == Span(2 * first.size.low, 2 * first.size.high)


def test_default_context_and_requests_of_a_server_make_large_tables() -> None:
    """The 4 GiB that the V2 runner of 0.28.0 was reported to take more (vllm#54677) are of this size."""
    args = "-tp 4 --kv-cache-dtype fp8 --gpu-memory-utilization 0.92"
    launch = {"gpu": "H800", "gpus": 4, "args": args}
    before = by_name({**launch, "vllm": "0.26.0"})
    after = by_name({**launch, "vllm": "0.28.0"})
    tables = after[costs.BLOCK_TABLES].size
    assert tables.low > 3 * GIB
    more = tables.low - before[costs.BLOCK_TABLES].size.low
    assert before[graphs.GRAPHS].budgeted
    assert not after[graphs.GRAPHS].budgeted
    assert more < 4 * GIB < more + after[graphs.GRAPHS].size.high


def test_graphs_are_in_the_budget_where_the_runner_estimates_them() -> None:
    for version, counted in (("0.20.0", True), ("0.27.0", True), ("0.28.0", False), ("0.29.0", True), ("0.33.0", True)):
        assert by_name({"vllm": version, "args": ARGS})[graphs.GRAPHS].budgeted is counted, version
    off = {"vllm": "0.33.0", "args": ARGS, "env": {graphs.ESTIMATE: "0"}}
    assert not by_name(off)[graphs.GRAPHS].budgeted


def test_graphs_by_hand() -> None:
    args = f"{ARGS} --max-cudagraph-capture-size 16"
    size = by_name({"vllm": "0.26.0", "args": args})[graphs.GRAPHS].size
    # 1, 2, 4, 8, 16: 31 tokens in 43 layers, and five whole graphs.
    assert size == Span(32 * MIB + int(31 * 43 * 2.2 * KIB), 640 * MIB + int(31 * 43 * 7.0 * KIB))


def test_launches_without_graphs() -> None:
    assert graphs.GRAPHS not in by_name({"vllm": "0.33.0", "args": f"{ARGS} --enforce-eager"})
    none = ["-tp", "4", "--compilation-config", '{"cudagraph_mode":"NONE"}']
    assert graphs.GRAPHS not in by_name({"vllm": "0.33.0", "args": none})
    assert graphs.GRAPHS not in by_name({"vllm": "0.33.0", "args": f"{ARGS} -O0"})


def test_fewer_graphs_cost_less() -> None:
    usual = by_name({"vllm": "0.26.0", "args": ARGS})[graphs.GRAPHS]
    few = by_name({"vllm": "0.26.0", "args": [*ARGS.split(), "--max-cudagraph-capture-size", "16"]})[graphs.GRAPHS]
    whole = by_name({"vllm": "0.26.0", "args": ARGS, "env": {"VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}})[graphs.GRAPHS]
    for less in (few, whole):
        assert less.size.low < usual.size.low
        assert less.size.high < usual.size.high
    # 51 sizes up to 512 for mixed batches, 35 of them up to 256 requests.
    assert usual.why.startswith("86 graphs")
    listed = ["-tp", "4", "--compilation-config", '{"cudagraph_capture_sizes":[1,8]}']
    assert by_name({"vllm": "0.26.0", "args": listed})[graphs.GRAPHS].why.startswith("4 graphs")


def test_sizes_up_to_1024_on_blackwell() -> None:
    args = "-tp 4 --kv-cache-dtype fp8 --max-num-seqs 1024"
    old = by_name({"vllm": "0.27.0", "gpu": "B200", "args": args})[graphs.GRAPHS]
    new = by_name({"vllm": "0.28.0", "gpu": "B200", "args": args})[graphs.GRAPHS]
    assert (old.why.split()[0], new.why.split()[0]) == ("102", "166")


def test_buffers_before_the_weights_count_from_the_release_that_measures_all() -> None:
    assert not by_name({"vllm": "0.26.0", "args": ARGS})[costs.RUNNER_BUFFERS].budgeted
    assert by_name({"vllm": "0.27.0", "args": ARGS})[costs.RUNNER_BUFFERS].budgeted


def test_context_is_never_in_the_budget() -> None:
    for version in known_releases():
        assert not by_name({"vllm": version, "args": ARGS})[costs.CONTEXT].budgeted
    assert "cuBLAS" in by_name({"vllm": "0.33.0", "args": ARGS})[costs.CONTEXT].why


def test_autotuning_only_where_flashinfer_runs_the_experts() -> None:
    launch = {"vllm": "0.33.0", "gpu": "B200", "args": ARGS}
    assert costs.WARM_UP in by_name(launch)
    assert costs.WARM_UP not in by_name({**launch, "args": f"{ARGS} --no-enable-flashinfer-autotune"})
    assert costs.WARM_UP not in by_name({**launch, "gpu": "H200"})


def test_media_decoding() -> None:
    launch = {"vllm": "0.33.0", "args": f"{ARGS} --mm-ipc-gpu-memory-gb 2"}
    reserve = by_name(launch)[costs.DECODING]
    assert reserve.size == Span(2 * GIB, 2 * GIB)
    assert reserve.budgeted
    assert costs.DECODING not in by_name({"vllm": "0.33.0", "args": ARGS})


@pytest.mark.parametrize("version", known_releases())
@pytest.mark.parametrize("name", SIZES)
def test_more_of_anything_never_costs_less(version: str, name: str) -> None:
    values = {"max_num_batched_tokens": 4096, "max_num_seqs": 64, "max_model_len": 65536}
    launch = {"vllm": version, "args": "-tp 4 --kv-cache-dtype fp8"}
    less = by_name(launch, **values)
    more = by_name(launch, **(values | {name: 4 * values[name]}))
    assert set(less) == set(more)
    for cost in less.values():
        assert more[cost.name].size.low >= cost.size.low, cost.name
        assert more[cost.name].size.high >= cost.size.high, cost.name


LAUNCHES: tuple[dict[str, Any], ...] = (
    {"args": "-tp 8 --kv-cache-dtype fp8"},
    {"args": "-dp 8 --enable-expert-parallel --kv-cache-dtype fp8", "gpu": "B200"},
    {"model": PRO, "args": "-tp 8 -pp 2 --kv-cache-dtype fp8", "gpu": "H100", "nodes": 2},
    {"args": "-tp 2 --kv-cache-dtype fp8", "gpu": "GB10", "gpus": 1, "nodes": 2},
    {"args": "-tp 4", "gpu": "RTX-PRO-6000", "gpus": 4},
    {"args": ["-tp", "4", "--speculative-config", '{"method":"mtp","num_speculative_tokens":2}']},
    {"model": "deepseek-ai/DeepSeek-V4.1-Flash", "args": "-tp 4", "gpu": "B300"},
    {"args": "--enable-dbo -dp 2 --enable-expert-parallel --all2all-backend deepep_low_latency"},
    {"args": "-tp 8", "gpu": None},
)


@pytest.mark.parametrize("version", known_releases())
def test_every_release_answers(version: str) -> None:
    for launch in LAUNCHES:
        found = cost_list({**launch, "vllm": version})
        assert len({cost.name for cost in found}) == len(found)
        for cost in found:
            assert 0 <= cost.size.low <= cost.size.high
            assert cost.why.endswith(".")
            assert cost.source
        assert 0 < budgeted(found).high < 64 * GIB


@pytest.mark.parametrize("missing", [*SIZES, "attention", "kv_cache", "draft", "runner", "moe"])
def test_what_is_missing_leaves_a_cost_out_or_makes_it_wider(missing: str) -> None:
    launch = {"vllm": "0.33.0", "args": ARGS}
    known, less = by_name(launch), by_name(launch, **{missing: None})
    assert set(less) <= set(known)
    for name, cost in less.items():
        assert cost.size.low <= known[name].size.low, name


def test_odd_config_values_are_no_sizes() -> None:
    deployment, resolution = resolved({"vllm": "0.33.0", "args": ARGS})
    assert resolution.parallel is not None
    for key, value in (("hidden_size", -1), ("vocab_size", "many"), ("head_dim", 0), ("num_hidden_layers", None)):
        model = replace(deployment.model, text={**deployment.model.text, key: value})
        found = costs_of(
            replace(deployment, model=model),
            load_facts("0.33.0"),
            parallel=resolution.parallel,
            max_num_batched_tokens=8192,
            max_num_seqs=-5,
            max_model_len=0,
        )
        assert [cost.name for cost in found] == [costs.CONTEXT, costs.LIBRARIES]


def test_other_platforms_are_not_modelled() -> None:
    assert cost_list({"vllm": "0.33.0", "gpu": "MI300X", "args": ARGS}) == ()


MEASURED = [record for record in LOGS["records"] if {"weights_gib", "available_kv_gib"} <= set(record["figures"])]


@cache
def _torch_totals() -> dict[str, list[float]]:
    return {entry["gpu"]: entry["gib"] for entry in LOGS["torch_memory_gib"]}


@pytest.mark.parametrize("record", MEASURED, ids=lambda record: str(record["id"]))
def test_public_figures_lie_inside(record: dict[str, Any]) -> None:
    """Budget less weights less KV cache, as logged; buffers built with the model are in the logged weights."""
    if not record["released"]:
        pytest.skip("not a release: " + str(record.get("remark")))
    deployment, _resolution = resolved(record)
    total = gpu_memory(deployment)
    assert total is not None
    figures = record["figures"]
    if "torch_total_gib" in figures:
        assert abs(total / GIB - figures["torch_total_gib"]) < 0.02
    share = deployment.flags.get("gpu_memory_utilization")
    rest = math.ceil(total * share) / GIB - figures["weights_gib"] - figures["available_kv_gib"]
    found = budgeted(tuple(cost for cost in cost_list(record) if cost.name != activations.MODEL_BUFFERS))
    assert found.low / GIB <= rest <= found.high / GIB, record["id"]


def test_enough_released_figures_are_compared() -> None:
    assert sum(bool(record["released"]) for record in MEASURED) >= 5


@pytest.mark.parametrize(
    "record",
    [record for record in LOGS["records"] if record["released"] and "graph_estimate_gib" in record["figures"]],
    ids=lambda record: str(record["id"]),
)
def test_logged_graphs_lie_inside(record: dict[str, Any]) -> None:
    size = by_name(record)[graphs.GRAPHS].size
    assert size.low / GIB <= record["figures"]["graph_estimate_gib"] <= size.high / GIB


@pytest.mark.parametrize(
    ("gpu", "gib"),
    [
        ("H200", 139.80),
        ("H200-NVL", 139.80),
        ("B200", 178.35),
        ("B300", 267.69),
        ("RTX-PRO-6000", 94.97),
        ("GB10", 121.7),
    ],
)
def test_memory_that_torch_reports(gpu: str, gib: float) -> None:
    deployment, _resolution = resolved({"vllm": "0.33.0", "gpu": gpu, "args": "-tp 2"})
    total = gpu_memory(deployment)
    assert total is not None
    assert abs(total / GIB - gib) < 0.03


def test_torch_reports_less_than_the_driver() -> None:
    for gpu in ("H100", "H800", "GB300", "H20-141GB", "A100"):
        deployment, _resolution = resolved({"vllm": "0.33.0", "gpu": gpu, "args": "-tp 8"})
        total, smi = gpu_memory(deployment), deployment.hardware.memory_mib
        assert total is not None
        assert smi is not None
        assert 0.985 * smi * MIB < total < smi * MIB


def test_a_stated_size_wins() -> None:
    stated, _resolution = resolved({"vllm": "0.33.0", "gpu": "H200", "gpu_memory_gib": 100, "args": "-tp 8"})
    assert gpu_memory(stated) == int(100 * 1024 * (1 - 0.006)) * MIB
    unknown, _resolution = resolved({"vllm": "0.33.0", "gpu": "sm90", "args": "-tp 8"})
    assert gpu_memory(unknown) is None


def test_catalogue_agrees_with_the_logs() -> None:
    for gpu, gib in _torch_totals().items():
        deployment, _resolution = resolved({"vllm": "0.33.0", "gpu": gpu, "args": "-tp 1"})
        total = gpu_memory(deployment)
        assert total is not None
        # A virtual machine's or WSL's figure may be lower than the usual one.
        assert min(gib) - 0.2 <= total / GIB <= max(gib) + 0.7, gpu
