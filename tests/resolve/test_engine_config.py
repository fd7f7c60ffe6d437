"""Context length, batches, LoRA, parser names, environment and weights that cannot fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.problems import Stage
from tests.launches import run_launch
from tests.resolve.engine_launches import FLASH, RELEASES, deployment, engine_of

TP8 = {"tensor_parallel_size": 8}


def codes(vllm: str, flags: dict[str, Any], **more: Any) -> set[str]:
    return set(engine_of(deployment(vllm, {**TP8, **flags}, **more)))


@pytest.mark.parametrize("vllm", RELEASES)
def test_a_plain_launch_is_clean(vllm: str) -> None:
    flags = {
        "max_model_len": 1048576,
        "max_num_seqs": 512,
        "max_num_batched_tokens": 512,
        "gpu_memory_utilization": 0.95,
        "tokenizer_mode": "deepseek_v4",
        "tool_call_parser": "deepseek_v4",
        "reasoning_parser": "deepseek_v4",
        "enable_auto_tool_choice": True,
    }
    assert codes(vllm, flags, env={"VLLM_USE_DEEP_GEMM": "1", "CUDA_VISIBLE_DEVICES": "0"}) == set()


@pytest.mark.parametrize(("vllm", "shown"), [("0.29.0", "=1048576 "), ("0.30.0", "=1048576.0 ")])
def test_context_beyond_the_checkpoint(vllm: str, shown: str) -> None:
    problem = engine_of(deployment(vllm, {**TP8, "max_model_len": 2097152}))["max-model-len-too-long"]
    assert problem.error.startswith("User-specified max_model_len (2097152) is greater than")
    assert f"max_position_embeddings{shown}" in problem.error


def test_context_forced_by_the_environment() -> None:
    env = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "true"}
    assert codes("0.28.0", {"max_model_len": 2097152}, env=env) == {"max-model-len-forced"}


def test_yarn_factor_decides_before_0_30_only() -> None:
    rope = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 65536}
    config = {**FLASH, "rope_scaling": rope}
    flags = {"max_model_len": 300000}
    assert codes("0.29.0", flags, config=config) == {"max-model-len-too-long"}
    assert codes("0.30.0", flags, config=config) == set()


def test_the_size_of_an_adapter_pool_counts_only_with_lora() -> None:
    assert codes("0.33.0", {"max_loras": 0}) == set()
    assert "value-out-of-range" in codes("0.33.0", {"max_loras": 0, "enable_lora": True})


@pytest.mark.parametrize("length", [-1, None])
def test_automatic_context_is_fine(length: int | None) -> None:
    assert codes("0.28.0", {} if length is None else {"max_model_len": length}) == set()


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"max_num_batched_tokens": 256, "max_num_seqs": 512}, "batched-tokens-below-seqs"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 8192}, "batched-tokens-below-length"),
        ({"dtype": "float32"}, "dtype-unsupported"),
        ({"dtype": "half"}, "dtype-float16"),
        ({"max_model_len": 0}, "max-model-len-zero"),
        ({"gpu_memory_utilization": 95.0}, "value-out-of-range"),
        ({"gpu_memory_utilization": 0.0}, "value-out-of-range"),
        ({"mamba_block_size": 0}, "value-out-of-range"),
        (
            {"cudagraph_capture_sizes": [1, 2], "compilation_config": {"cudagraph_capture_sizes": [1]}},
            "setting-said-twice",
        ),
        ({"cudagraph_capture_sizes": [1, 2, 4], "max_cudagraph_capture_size": 8}, "capture-sizes-disagree"),
    ],
)
@pytest.mark.parametrize("vllm", RELEASES)
def test_refusals_of_every_release(vllm: str, flags: dict[str, Any], code: str) -> None:
    assert codes(vllm, flags) == {code}


def test_sequences_are_cut_to_the_batch_when_not_given() -> None:
    assert codes("0.28.0", {"max_num_batched_tokens": 256}) == set()


@pytest.mark.parametrize(
    ("vllm", "gpu", "refused"), [("0.27.1", "B200", True), ("0.28.0", "B200", False), ("0.28.0", None, False)]
)
def test_default_batch_by_memory(vllm: str, gpu: str | None, refused: bool) -> None:
    assert ("batched-tokens-below-seqs" in codes(vllm, {"max_num_seqs": 9000}, gpu=gpu)) is refused


@pytest.mark.parametrize(
    ("vllm", "flags", "code"),
    [
        ("0.26.0", {"max_num_partial_prefills": 2}, "partial-prefills"),
        ("0.27.0", {"long_prefill_token_threshold": 2000000}, "long-prefill-above-length"),
        ("0.31.0", {"max_num_active_seqs": 8, "max_num_seqs": 4}, "active-seqs-above-seqs"),
        ("0.33.0", {"disable_sliding_window": True}, "disable-sliding-window"),
        ("0.29.0", {"enable_batch_sharded_sampling": True, "max_num_seqs": 4}, "batch-sharded-sampling"),
        ("0.29.0", {"per_request_spec_decode_metrics": "summary"}, "spec-metrics-without-draft"),
        ("0.28.0", {"enable_lora": True}, "lora-unsupported"),
        ("0.33.0", {"enable_lora": True, "moe_backend": "deep_gemm_mega_moe"}, "lora-mega-moe"),
        ("0.30.0", {"enable_lora": True, "max_loras": 4, "max_cpu_loras": 2}, "lora-cpu-pool"),
        ("0.30.0", {"prefix_cache_retention_interval": 1000}, "retention-interval"),
        ("0.30.0", {"enable_lora": True, "default_mm_loras": {"image": "/lora"}}, "lora-default-mm"),
    ],
)
def test_refusals_of_some_releases(vllm: str, flags: dict[str, Any], code: str) -> None:
    assert codes(vllm, flags) == {code}


@pytest.mark.parametrize(
    ("vllm", "flags"),
    [
        ("0.26.0", {"long_prefill_token_threshold": 2000000}),
        ("0.29.0", {"enable_lora": True}),
        ("0.32.0", {"enable_lora": True, "moe_backend": "deep_gemm_mega_moe"}),
        ("0.30.0", {"prefix_cache_retention_interval": 1024}),
        ("0.30.0", {"prefix_cache_retention_interval": 0}),
    ],
)
def test_what_these_releases_accept(vllm: str, flags: dict[str, Any]) -> None:
    assert codes(vllm, flags) == set()


@pytest.mark.parametrize(("vllm", "stage"), [("0.32.0", Stage.KV_CACHE_INIT), ("0.33.0", Stage.ENGINE_CONFIG)])
def test_where_a_missing_window_stops(vllm: str, stage: Stage) -> None:
    problem = engine_of(deployment(vllm, {**TP8, "disable_sliding_window": True}))["disable-sliding-window"]
    assert problem.stage is stage


def test_lora_stops_after_loading() -> None:
    problem = engine_of(deployment("0.25.0", {**TP8, "enable_lora": True}))["lora-unsupported"]
    assert problem.stage is Stage.WEIGHT_LOAD


@pytest.mark.parametrize(("vllm", "known"), [("0.29.0", False), ("0.30.0", True)])
def test_v41_names_arrive_in_0_30(vllm: str, known: bool) -> None:
    flags = {
        "tokenizer_mode": "deepseek_v41",
        "tool_call_parser": "deepseek_v41",
        "reasoning_parser": "deepseek_v41",
        "enable_auto_tool_choice": True,
    }
    problems = engine_of(deployment(vllm, {**TP8, **flags}))
    if known:
        assert not problems
        return
    assert set(problems) == {"tool-parser-unknown", "reasoning-parser-unknown", "tokenizer-mode-unknown"}
    assert problems["tool-parser-unknown"].stage is Stage.ARGPARSE
    assert problems["tokenizer-mode-unknown"].stage is Stage.MODEL_INIT
    assert {problem.data["closest"] for problem in problems.values()} == {"deepseek_v4"}
    assert {problem.data["dest"] for problem in problems.values()} == set(flags) - {"enable_auto_tool_choice"}


def test_a_release_older_than_the_family_has_no_name_for_it() -> None:
    report = run_launch(
        {
            "vllm": "0.29.0",
            "gpu": "B200",
            "gpus": 8,
            "model": "deepseek-ai/DeepSeek-V4.1-Flash",
            "args": "-tp 8 --tokenizer-mode deepseek_v41 --reasoning-parser deepseek_v41",
        },
        fixes=True,
    )
    found = {finding.rule: finding for finding in report.errors}
    assert set(found) == {"TP002", "MC003", "TP003"}
    assert "The closest name it has is deepseek_v4." in found["TP003"].message
    assert [edit.kind for finding in found.values() for fix in finding.fixes for edit in fix.edits] == ["set_vllm"] * 3


@pytest.mark.parametrize(
    "flags",
    [
        {"tool_call_parser": "mine"},
        {"tool_call_parser": "mine", "enable_auto_tool_choice": True, "tool_parser_plugin": "mine.py"},
        {"reasoning_parser": "mine", "reasoning_parser_plugin": "mine.py"},
        {"reasoning_parser": "mine", "headless": True},
    ],
)
def test_names_vllm_does_not_look_up(flags: dict[str, Any]) -> None:
    assert codes("0.28.0", flags) == set()


@pytest.mark.parametrize(("vllm", "known"), [("0.30.0", True), ("0.31.0", False)])
def test_slow_tokenizer_mode_goes_in_0_31(vllm: str, known: bool) -> None:
    assert ("tokenizer-mode-unknown" not in codes(vllm, {"tokenizer_mode": "slow"})) is known


@pytest.mark.parametrize(
    ("vllm", "env", "code"),
    [
        ("0.20.0", {"VLLM_DISABLE_DEEP_GEMM": "1"}, "env-misnamed"),
        ("0.28.0", {"VLLM_USE_DEEPGEMM": "1"}, "env-misnamed"),
        ("0.28.0", {"VLLM_MY_OWN_SWITCH": "1"}, "env-unknown"),
        ("0.28.0", {"VLLM_ATTENTION_BACKEND": "FLASHMLA_SPARSE"}, "env-attention-backend"),
        ("0.24.0", {"VLLM_USE_FLASHINFER_MOE_FP8": "1"}, "env-unknown"),
        ("0.28.0", {"VLLM_USE_DEEP_GEMM": "yes"}, "env-bad-value"),
        ("0.28.0", {"VLLM_WORKER_MULTIPROC_METHOD": "thread"}, "env-bad-value"),
        ("0.28.0", {"VLLM_KV_CACHE_LAYOUT": "BLHNC"}, "env-bad-value"),
        ("0.29.0", {"VLLM_KV_CACHE_LAYOUT": "HND"}, "kv-layout-unusable"),
        ("0.28.0", {"VLLM_PORT": "tcp://10.0.0.1:8000"}, "env-port-uri"),
        ("0.25.0", {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "100"}, "retention-interval"),
    ],
)
def test_environment(vllm: str, env: dict[str, str], code: str) -> None:
    assert codes(vllm, {}, env=env) == {code}


@pytest.mark.parametrize(
    ("vllm", "env"),
    [
        ("0.23.0", {"VLLM_USE_FLASHINFER_MOE_FP8": "1"}),
        ("0.28.0", {"VLLM_KV_CACHE_LAYOUT": "HND"}),
        ("0.29.0", {"VLLM_KV_CACHE_LAYOUT": "BLHNC"}),
        ("0.28.0", {"NCCL_DEBUG": "INFO", "HF_TOKEN": "x"}),
    ],
)
def test_environment_that_is_fine(vllm: str, env: dict[str, str]) -> None:
    assert codes(vllm, {}, env=env) == set()


def test_a_switch_said_the_other_way_round_is_turned() -> None:
    problem = engine_of(deployment("0.28.0", TP8, env={"VLLM_DISABLE_DEEP_GEMM": "1"}))["env-misnamed"]
    assert (problem.data["meant"], problem.data["meant_value"]) == ("VLLM_USE_DEEP_GEMM", "0")


def test_attention_backend_variable_names_the_value() -> None:
    env = {"VLLM_ATTENTION_BACKEND": "FLASHMLA_SPARSE"}
    problem = engine_of(deployment("0.28.0", TP8, env=env))["env-attention-backend"]
    assert problem.data["backend"] == "FLASHMLA_SPARSE"


@pytest.mark.parametrize(("vllm", "hint"), [("0.22.1", ""), ("0.33.0", "; use --prefix-cache-retention-interval")])
def test_a_flag_takes_the_place_of_a_variable_once_it_exists(vllm: str, hint: str) -> None:
    launch = {"vllm": vllm, "gpu": "B200", "gpus": 8, "model": "deepseek-ai/DeepSeek-V4-Flash"}
    launch |= {"args": "-tp 8 --kv-cache-dtype fp8", "env": {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "32768"}}
    [finding] = run_launch(launch).findings
    assert finding.rule == "EV001"
    assert finding.message.endswith(f"it is ignored with a warning{hint}.")


def test_unknown_variable_is_fatal_on_request() -> None:
    env = {"VLLM_NO_SUCH_THING": "1"}
    problems = engine_of(deployment("0.28.0", {**TP8, "fail_on_environ_validation": True}, env=env))
    assert problems["env-unknown-fatal"].exception == "ValueError"


@given(st.dictionaries(st.text("VLLM_ABCDEPORT", min_size=1, max_size=12), st.text(max_size=12), max_size=4))
def test_any_environment_is_survived(env: dict[str, str]) -> None:
    engine_of(deployment("0.33.0", TP8, env=env))
