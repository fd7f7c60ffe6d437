from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsv4check.problems import Stage
from dsv4check.triage.decisions import DECISIONS, decision_facts
from dsv4check.triage.milestones import MILESTONES, stage_reached
from tests.triage.readings import error, log_run

_START = [
    "Automatically detected platform cuda.",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.27.0",
    "non-default args: {'model': 'm'}",
    "Resolved architecture: DeepseekV4ForCausalLM",
    "Initializing a V1 LLM engine (v0.27.0) with config: model='m'",
    "world_size=8 rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:1 backend=nccl",
    "Starting to load model m...",
    "Using 'MARLIN' Mxfp4 MoE backend.",
    "Loading safetensors checkpoint shards:   0% Completed | 0/46",
    "Loading weights took 33.10 seconds",
    "Model loading took 84.2 GiB memory and 40.5 seconds",
    "Dynamo bytecode transform time: 10.00 s",
    "Available KV cache memory: 30.5 GiB",
    "GPU KV cache size: 1,024 tokens",
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%",
    "init engine (profile, create kv cache, warmup model) took 100.00 s",
    "Application startup complete.",
]
_STAGES = [
    Stage.ARGPARSE,
    *[Stage.ENGINE_CONFIG] * 3,
    *[Stage.MODEL_INIT] * 4,
    *[Stage.WEIGHT_LOAD] * 2,
    Stage.KV_CACHE_INIT,
    Stage.WARMUP,
    *[Stage.KV_CACHE_INIT] * 2,
    Stage.CUDAGRAPH,
    *[Stage.RUNTIME] * 2,
]


@pytest.mark.parametrize("count", range(1, len(_START) + 1))
def test_each_line_moves_the_start_on(count: int) -> None:
    assert stage_reached(log_run(_START[:count]), None).stage is _STAGES[count - 1]


def test_the_words_name_the_amounts() -> None:
    found = stage_reached(log_run(_START[:11]), None)
    assert found.reached == "weights loaded (84.2 GiB), KV cache not yet allocated"
    assert found.line is not None
    assert found.line.number == 11


def test_lines_behind_the_error_do_not_count() -> None:
    assert stage_reached(log_run(_START), error(number=4)).stage is Stage.ENGINE_CONFIG


@pytest.mark.parametrize(
    ("places", "stage"),
    [
        (["vllm/engine/arg_utils.py:create_engine_config", "vllm/config/vllm.py:__post_init__"], Stage.ENGINE_CONFIG),
        (["vllm/v1/worker/gpu_worker.py:init_device"], Stage.MODEL_INIT),
        (
            [
                "vllm/v1/worker/gpu_worker.py:load_model",
                "vllm/model_executor/model_loader/utils.py:initialize_model",
                "vllm/models/deepseek_v4/attention.py:__init__",
            ],
            Stage.MODEL_INIT,
        ),
        (
            ["vllm/v1/worker/gpu_worker.py:load_model", "vllm/models/deepseek_v4/nvidia/model.py:load_weights"],
            Stage.WEIGHT_LOAD,
        ),
        (
            [
                "vllm/v1/worker/gpu_model_runner.py:load_model",
                "vllm/v1/spec_decode/llm_base_proposer.py:load_model",
                "vllm/model_executor/model_loader/utils.py:initialize_model",
            ],
            Stage.WEIGHT_LOAD,
        ),
        (
            ["vllm/v1/engine/core.py:_initialize_kv_caches", "vllm/v1/core/kv_cache_utils.py:get_kv_cache_configs"],
            Stage.KV_CACHE_INIT,
        ),
        (["vllm/v1/worker/gpu_worker.py:determine_available_memory"], Stage.KV_CACHE_INIT),
        (
            [
                "vllm/v1/engine/core.py:_initialize_kv_caches",
                "vllm/v1/worker/gpu_worker.py:determine_available_memory",
                "vllm/v1/worker/gpu_model_runner.py:profile_run",
                "vllm/v1/worker/gpu_model_runner.py:_dummy_run",
            ],
            Stage.WARMUP,
        ),
        (
            [
                "vllm/v1/worker/gpu_worker.py:compile_or_warm_up_model",
                "vllm/v1/worker/gpu_model_runner.py:capture_model",
                "vllm/v1/worker/gpu_model_runner.py:_dummy_run",
            ],
            Stage.CUDAGRAPH,
        ),
        (
            [
                "vllm/v1/worker/gpu_worker.py:compile_or_warm_up_model",
                "vllm/v1/worker/gpu/model_runner.py:execute_model",
            ],
            Stage.WARMUP,
        ),
        (["vllm/v1/engine/core.py:run_busy_loop", "vllm/v1/worker/gpu_worker.py:execute_model"], Stage.RUNTIME),
    ],
)
def test_the_tracebacks_functions_decide(places: list[str], stage: Stage) -> None:
    # Another rank is further on: its lines do not count.
    assert stage_reached(log_run(_START), error(*places)).stage is stage
    assert stage_reached(log_run(), error(*places)).stage is stage


def test_a_refused_command_line_is_argparse() -> None:
    assert stage_reached(log_run(_START[:2]), error(kind="argparse")).stage is Stage.ARGPARSE


def test_nothing_shown_is_said() -> None:
    found = stage_reached(log_run(["hello"]), None)
    assert found.line is None
    assert found.reached == "the log does not show how far the start got"


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (
            "Using FLASHMLA_SPARSE attention backend out of potential backends: ['A'].",
            "attention_backend",
            "FLASHMLA_SPARSE",
        ),
        ("Using AttentionBackendEnum.FLASHMLA_SPARSE_DSV4 backend.", "attention_backend", "FLASHMLA_SPARSE_DSV4"),
        ("Using fp8_ds_mla data type to store kv cache. It reduces", "kv_cache_dtype", "fp8_ds_mla"),
        ("Using 'DEEPGEMM_MXFP4' Mxfp4 MoE backend.", "moe_backend", "DEEPGEMM_MXFP4"),
        ("Using DEEPGEMM Fp8 MoE backend out of potential backends: ['A'].", "moe_backend", "DEEPGEMM"),
        ("Using V2 Model Runner", "runner", "V2"),
        ("Setting kv cache block size to 256 for A backend.", "block_size", "256"),
        ("Asynchronous scheduling is enabled.", "async_scheduling", "enabled"),
        ("GPU KV cache size: 1,728,531 tokens, Maximum concurrency for 1,048,576 tokens", "kv_cache_tokens", "1728531"),
        ("DeepSeek V4 expert_dtype resolved to 'fp4'", "expert_dtype", "fp4"),
        ("Using FP8 indexer cache for Lightning Indexer.", "indexer_cache", "FP8"),
    ],
)
def test_decisions(line: str, name: str, value: str) -> None:
    facts = {fact.name: fact.value for fact in decision_facts(log_run([line]))}
    assert facts[name] == value


_TREES = os.environ.get("DSV4CHECK_VLLM_TREES")


@pytest.mark.skipif(_TREES is None, reason="needs the sources of the releases (DSV4CHECK_VLLM_TREES)")
def test_every_text_stands_in_the_code_of_a_release() -> None:
    wanted = {words for _, words, _ in DECISIONS} | {words for words, _, _, _ in MILESTONES if words}
    found: dict[str, list[str]] = {words: [] for words in wanted}
    releases = sorted(Path(str(_TREES)).iterdir())
    for release in releases:
        sources = [path.read_text(encoding="utf-8") for path in sorted(release.glob("vllm/**/*.py"))]
        # The logo colours its version.
        text = "\n".join(sources).replace("${r}  version ${w}%s", "  version ")
        for words in wanted:
            if words in text:
                found[words].append(release.name)
    missing = [words for words, names in found.items() if not names]
    assert not missing
    partly = {words: names for words, names in found.items() if len(names) < len(releases)}
    assert all(names[-1] == releases[-1].name or len(names) > 1 for names in partly.values()), partly
