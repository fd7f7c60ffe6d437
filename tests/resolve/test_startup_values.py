"""Values the parser takes and the config classes refuse, on whole launches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsv4check.problems import Stage
from tests.launches import run_launch

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
DSPARK = "deepseek-ai/DeepSeek-V4-Flash-DSpark"
V41 = "deepseek-ai/DeepSeek-V4.1-Flash"
TP8 = ("-tp", "8", "--kv-cache-dtype", "fp8")


def found(release: str, *args: str, model: str = FLASH, base: tuple[str, ...] = TP8, **more: Any) -> dict[str, Stage]:
    """Rule ids of the errors, with their stage."""
    launch = {"vllm": release, "gpu": "H200", "gpus": 8, "model": model, "args": [*base, *args], **more}
    return {item.rule: item.stage for item in run_launch(launch).errors}


@pytest.mark.parametrize("value", ["[]", '"x"', "5", "true", "0", "false"])
@pytest.mark.parametrize("release", ["0.20.2", "0.24.0", "0.33.0"])
def test_speculative_config_has_to_be_an_object(release: str, value: str) -> None:
    assert found(release, "--speculative-config", value) == {"SD052": Stage.ENGINE_CONFIG}


def test_null_is_no_speculative_config() -> None:
    assert found("0.33.0", "--speculative-config", "null") == {}


@pytest.mark.parametrize("value", ["[]", "5", "", "null", '{"rope_theta": 1', '"x"'])
def test_hf_overrides_have_to_be_an_object(value: str) -> None:
    assert found("0.33.0", "--hf-overrides", value) == {"MC027": Stage.ENGINE_CONFIG}


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (["--config-format", "bogus"], "MC028"),
        (["--config-format", "mistral"], "MC028"),
        (["--config-format", "hf"], None),
        (["--model-class-overrides", '{"A": "b.c"}'], "MC029"),
        (["--model-class-overrides", '{"A": "b:c:d"}'], "MC029"),
        (["--model-class-overrides", '{"A": 5}'], "MC029"),
        (["--model-class-overrides", "[]"], "MC029"),
        (["--model-class-overrides", "{}"], None),
        (["--data-parallel-backend", "Ray"], "PA038"),
        (["--distributed-executor-backend", "Ray"], "PA039"),
        (["--distributed-executor-backend", "my.mod.Executor"], None),
        (["--compilation-config", '{"cudagraph_capture_sizes": []}'], "EN022"),
        (["--compilation-config", '{"cudagraph_capture_sizes": []}', "--enforce-eager"], None),
        (["--max-cudagraph-capture-size", "0"], "EN022"),
        (["--max-cudagraph-capture-size", "0", "-O0"], None),
        (["--load-format", "gguf"], "EN024"),
        (["--load-format", "DUMMY"], None),
        (["--kv-transfer-config", "{}"], "KC023"),
        (["--quantization-config", "{}"], "QN010"),
        (["--quantization-config", '{"linear": "bogus"}'], "FL009"),
        (["--quantization-config", '{"linear": {"weight": "fp8"}}'], "FL009"),
        (["--quantization-config", '{"linear": "int8_per_channel_weight_only"}'], "FL009"),
        (["--quantization-config", '{"linear": "fp8_per_block", "targets": {"a": "mxfp8"}}'], "FL009"),
        (["--quantization-config", '{"moe": "int8_per_channel_weight_only"}'], None),
        (["--grpc-port", "1"], "FL026"),
        (["--quantization", "humming"], "QN009"),
        (["--return-sampling-mask"], "EN025"),
    ],
)
def test_refusals_of_0_33(args: list[str], rule: str | None) -> None:
    assert list(found("0.33.0", *args)) == ([rule] if rule else [])


def test_grpc_port_with_the_rust_frontend() -> None:
    assert found("0.33.0", "--grpc-port", "9000", env={"VLLM_USE_RUST_FRONTEND": "1"}) == {}
    assert "FL026" in found("0.33.0", "--grpc-port", "8000", env={"VLLM_USE_RUST_FRONTEND": "1"})


def test_load_formats_change_with_the_release() -> None:
    assert "EN024" not in found("0.23.0", "--load-format", "bitsandbytes")
    assert found("0.33.0", "--load-format", "bitsandbytes")["EN024"] is Stage.MODEL_INIT


def test_online_config_is_composed_from_0_30_on() -> None:
    assert found("0.28.0", "--quantization-config", '{"ignore": ["a"]}') == {}
    assert "QN010" in found("0.30.0", "--quantization-config", '{"ignore": ["a"]}')


def test_no_visible_gpu_is_an_answer() -> None:
    assert found("0.33.0", env={"CUDA_VISIBLE_DEVICES": ""}) == {"PA003": Stage.ENGINE_CONFIG}
    alone = found("0.33.0", base=("--kv-cache-dtype", "fp8"), env={"CUDA_VISIBLE_DEVICES": "0,0"})
    assert alone["PA004"] is Stage.MODEL_INIT


def test_headless_node_without_engines() -> None:
    args = ("--headless", "-dp", "2", "--data-parallel-size-local", "0")
    assert found("0.33.0", *args, base=("-tp", "2", "--kv-cache-dtype", "fp8")) == {"PA037": Stage.ENGINE_CONFIG}


def spec(model: str = FLASH, **keys: Any) -> tuple[str, str]:
    method = {"method": "mtp", "num_speculative_tokens": 1}
    if model == DSPARK:
        method = {"method": "dspark", "num_speculative_tokens": 5}
    return "--speculative-config", json.dumps({**method, **keys})


@pytest.mark.parametrize("model", [FLASH, DSPARK])
@pytest.mark.parametrize(
    ("keys", "rule", "stage"),
    [
        ({"kv_cache_dtype": "bfloat16"}, "SD053", Stage.WEIGHT_LOAD),
        ({"kv_cache_dtype": "nvfp4"}, "SD053", Stage.WEIGHT_LOAD),
        ({"kv_cache_dtype": "float16"}, "SD053", Stage.WEIGHT_LOAD),
        ({"use_local_argmax_reduction": True}, "SD054", Stage.WEIGHT_LOAD),
        ({"quantization": "awq"}, "SD055", Stage.ENGINE_CONFIG),
        ({"max_model_len": 2097152}, "SD016", Stage.ENGINE_CONFIG),
    ],
)
def test_draft_keys(model: str, keys: dict[str, Any], rule: str, stage: Stage) -> None:
    assert found("0.33.0", *spec(model, **keys), model=model) == {rule: stage}


@pytest.mark.parametrize(
    "keys",
    [{"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "fp8_ds_mla"}, {"quantization": "fp8"}, {"max_model_len": 4096}],
)
def test_draft_keys_that_fit(keys: dict[str, Any]) -> None:
    assert found("0.33.0", *spec(**keys)) == {}


def test_plain_rows_take_bfloat16_drafts() -> None:
    args = (*spec(kv_cache_dtype="bfloat16"), "--attention-backend", "FLASHINFER_MLA_SPARSE_DSV4")
    assert "SD053" not in found("0.33.0", *args, gpu="B200")


def test_routed_experts() -> None:
    flag = "--enable-return-routed-experts"
    assert found("0.33.0", flag) == {}
    assert found("0.33.0", flag, env={"VLLM_USE_V2_MODEL_RUNNER": "0"})["EN023"] is Stage.ENGINE_CONFIG
    assert "EN023" in found("0.33.0", flag, "--no-enable-prefix-caching")
    pipeline = ("-tp", "4", "-pp", "2", "--kv-cache-dtype", "fp8")
    assert "EN023" in found("0.24.0", flag, base=pipeline)
    offload = '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}'
    assert "EN023" in found("0.28.0", flag, "--kv-transfer-config", offload)
    assert "EN023" not in found("0.33.0", flag, "--kv-transfer-config", offload)


def test_routed_experts_of_0_21_go_without_async_scheduling() -> None:
    flag = "--enable-return-routed-experts"
    assert found("0.20.2", flag) == {}
    assert found("0.21.0", flag)["EN023"] is Stage.ENGINE_CONFIG
    assert found("0.21.0", flag, "--no-async-scheduling") == {}
    assert "EN023" not in found("0.21.0", flag, "--distributed-executor-backend", "ray")
    ngram = '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 4}'
    assert "EN023" not in found("0.21.0", flag, "--speculative-config", ngram)
    pipeline = ("-tp", "4", "-pp", "2", "--kv-cache-dtype", "fp8")
    assert "EN023" in found("0.21.0", flag, "--no-async-scheduling", base=pipeline)


def test_v41_has_no_lora_and_few_hash_heads() -> None:
    base = ("-tp", "8")
    assert found("0.33.0", "--enable-lora", model=V41, base=base) == {"VX008": Stage.ENGINE_CONFIG}
    assert found("0.31.0", "--enable-lora", model=V41, base=base) == {"VX008": Stage.WEIGHT_LOAD}
    nodes = ("-tp", "16", "--nnodes", "2", "--master-addr", "10.0.0.1")
    assert found("0.33.0", model=V41, base=nodes, nodes=2)["VX009"] is Stage.MODEL_INIT


@pytest.mark.parametrize(
    ("model", "architecture", "rule"),
    [
        (FLASH, "DeepseekV3ForCausalLM", "MC030"),
        (FLASH, "DeepseekV41ForCausalLM", "MC030"),
        (FLASH, "DeepseekV4Model", "MC006"),
        (FLASH, "Bogus", "MC007"),
        (V41, "DeepseekV4ForCausalLM", "MC030"),
    ],
)
def test_architectures(model: str, architecture: str, rule: str) -> None:
    override = json.dumps({"architectures": [architecture]})
    base = ("-tp", "8") if model == V41 else TP8
    assert rule in found("0.33.0", "--hf-overrides", override, model=model, base=base)


def test_unregistered_suffix_counts_as_the_generation_class() -> None:
    assert found("0.28.0", "--hf-overrides", '{"architectures": ["DeepseekV4ForConditionalGeneration"]}') == {}


@pytest.mark.parametrize(
    ("release", "change", "stage"),
    [
        ("0.33.0", {"num_hidden_layers": "43"}, Stage.ENGINE_CONFIG),
        ("0.24.0", {"num_hidden_layers": "43"}, Stage.MODEL_INIT),
        ("0.28.0", {"swiglu_limit": "10"}, Stage.WARMUP),
        ("0.28.0", {"compress_ratios": "4"}, Stage.MODEL_INIT),
        ("0.28.0", {"vocab_size": "x"}, Stage.ENGINE_CONFIG),
        ("0.24.0", {"torch_dtype": "bogus"}, Stage.ENGINE_CONFIG),
    ],
)
def test_values_of_a_wrong_type_are_findings(release: str, change: dict[str, Any], stage: Stage) -> None:
    assert found(release, config_overrides=change)["MC031"] is stage


def test_a_size_the_config_stage_divides_by() -> None:
    assert found("0.28.0", config_overrides={"hidden_size": None})["MC012"] is Stage.ENGINE_CONFIG


@pytest.mark.parametrize(
    ("name", "value", "args", "stage"),
    [
        ("VLLM_USE_DEEP_GEMM", "junk", (), Stage.MODEL_INIT),
        ("VLLM_BATCH_INVARIANT", "junk", (), Stage.ENGINE_CONFIG),
        ("VLLM_PORT", "x", (), Stage.MODEL_INIT),
        ("VLLM_PORT", "x", ("-dp", "2"), Stage.ENGINE_CONFIG),
    ],
)
def test_stage_at_which_a_variable_is_read(name: str, value: str, args: tuple[str, ...], stage: Stage) -> None:
    base = ("-tp", "4", "--kv-cache-dtype", "fp8")
    assert found("0.33.0", *args, base=base, env={name: value})["EV004"] is stage


def test_sizes_below_one_where_the_field_has_no_bound() -> None:
    assert found("0.20.2", base=("-tp", "-1", "--kv-cache-dtype", "fp8"))["EN014"] is Stage.ENGINE_CONFIG
    assert "EN014" in found("0.20.2", "-dp", "0")


def test_mtp_reads_its_number_of_layers() -> None:
    change = {"num_nextn_predict_layers": None}
    assert found("0.24.0", *spec(), config_overrides=change)["SD056"] is Stage.WEIGHT_LOAD
    assert "SD056" not in found("0.33.0", *spec(), config_overrides=change)


def test_redundant_experts_are_not_counted_before_the_class_takes_part() -> None:
    args = ("--enable-eplb", "--enable-expert-parallel", "--eplb-config", '{"num_redundant_experts": 3}')
    assert found("0.20.2", *args) == {"PA016": Stage.WARMUP}
    assert found("0.28.0", *args)["PA017"] is Stage.MODEL_INIT
