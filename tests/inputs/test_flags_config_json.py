"""JSON-valued flags: what the config classes of each release accept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.inputs.flag_reading import codes, problem, read

M = "deepseek-ai/DeepSeek-V4-Flash"


def config(release: str, flag: str, value: Any) -> Any:
    return read(release, M, flag, value if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize(
    ("release", "flag", "given", "accepted"),
    [
        ("0.28.0", "--attention-config", {"backend": "flashmla_sparse_dsv4"}, {"backend": "FLASHMLA_SPARSE_DSV4"}),
        ("0.28.0", "--attention-config", {"backend": "auto"}, {"backend": None}),
        ("0.28.0", "--attention-config", {"flash_attn_version": 3}, {"flash_attn_version": 3}),
        ("0.24.0", "--attention-config", {"use_fp4_indexer_cache": "yes"}, {"use_fp4_indexer_cache": True}),
        ("0.28.0", "--compilation-config", {"cudagraph_mode": "full"}, {"cudagraph_mode": "FULL"}),
        ("0.28.0", "--compilation-config", {"mode": 3}, {"mode": 3}),
        ("0.28.0", "--compilation-config", {"mode": "vllm_compile"}, {"mode": 3}),
        ("0.28.0", "--compilation-config", {"cudagraph_capture_sizes": ["1", 2.0]},
         {"cudagraph_capture_sizes": [1, 2]}),
        ("0.28.0", "--compilation-config", {"pass_config": {"fuse_norm_quant": None}},
         {"pass_config": {"fuse_norm_quant": None}}),
        ("0.28.0", "--kernel-config", {"moe_backend": "DEEP-GEMM"}, {"moe_backend": "deep_gemm"}),
        ("0.28.0", "--eplb-config", {"window_size": "5", "num_redundant_experts": 2.0},
         {"window_size": 5, "num_redundant_experts": 2}),
        ("0.31.0", "--kv-transfer-config", {"kv_connector": "X", "kv_role": "kv_both", "kv_rank": 0},
         {"kv_connector": "X", "kv_role": "kv_both", "kv_rank": 0}),
        ("0.28.0", "--kernel-config", {"enable_flashinfer_autotune": None}, {"enable_flashinfer_autotune": None}),
        ("0.28.0", "--reasoning-config", {"reasoning_start_str": "", "reasoning_end_str": ""},
         {"reasoning_start_str": "", "reasoning_end_str": ""}),
    ],
)  # fmt: skip
def test_accepted(release: str, flag: str, given: Any, accepted: Any) -> None:
    flags = config(release, flag, given)
    assert flags.problems == ()
    assert flags.values[flag[2:].replace("-", "_")] == accepted


@pytest.mark.parametrize(
    ("release", "flag", "given", "code", "line"),
    [
        ("0.30.0", "--attention-config", {"use_fp4_indexer_cache": True}, "config-key-renamed",
         "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=True, input_type=bool]"),
        ("0.23.0", "--attention-config", {"indexer_kv_dtype": "mxfp4"}, "config-key-renamed",
         "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value='mxfp4', input_type=str]"),
        ("0.32.0", "--kv-transfer-config", {"kv_role": "kv_both", "kv_rank": 0}, "unknown-config-key",
         "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=0, input_type=int]"),
        ("0.32.0", "--compilation-config", {"pass_config": {"enable_sp": True}}, "unknown-config-key",
         "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=True, input_type=bool]"),
        ("0.28.0", "--compilation-config", {"traced_files": "x"}, "unknown-config-key",
         "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value='x', input_type=str]"),
        ("0.28.0", "--kv-transfer-config", {"kv_role": "both"}, "bad-config-value",
         "  Input should be 'kv_producer', 'kv_both' or 'kv_consumer' "
         "[type=literal_error, input_value='both', input_type=str]"),
        ("0.28.0", "--eplb-config", {"policy": "other"}, "bad-config-value",
         "  Input should be 'default' [type=literal_error, input_value='other', input_type=str]"),
        ("0.28.0", "--eplb-config", {"window_size": 5.5}, "bad-config-value",
         "  Input should be a valid integer, got a number with a fractional part "
         "[type=int_from_float, input_value=5.5, input_type=float]"),
        ("0.28.0", "--attention-config", {"flash_attn_version": "3"}, "bad-config-value",
         "  Input should be 2, 3 or 4 [type=literal_error, input_value='3', input_type=str]"),
        ("0.28.0", "--attention-config", [1], "bad-config-value",
         "  Input should be an object [type=dataclass_type, input_value=[1], input_type=list]"),
    ],
)  # fmt: skip
def test_refused(release: str, flag: str, given: Any, code: str, line: str) -> None:
    found = problem(config(release, flag, given), code)
    assert found.exception == "SystemExit"
    assert found.error.splitlines()[0].startswith("argument " + flag)
    assert found.error.splitlines()[0].endswith("Config")
    assert found.error.splitlines()[-1] == line


def test_unknown_cudagraph_mode_is_a_raw_key_error() -> None:
    found = problem(
        config("0.28.0", "--compilation-config", {"cudagraph_mode": "FULL_AND_PIECEWIZE"}), "bad-config-value"
    )
    assert (found.exception, found.error) == ("KeyError", "'FULL_AND_PIECEWIZE'")
    assert found.data["closest"] == "FULL_AND_PIECEWISE"


def test_unknown_backend_in_json_ends_the_parser_and_as_a_flag_does_not() -> None:
    found = problem(config("0.28.0", "--attention-config", {"backend": "nope"}), "bad-config-value")
    assert "Value error, Unknown attention backend: 'NOPE'. Valid options are: FLASH_ATTN," in found.error
    assert codes(read("0.28.0", M, "--attention-backend", "nope")) == []


@pytest.mark.parametrize("release", ["0.20.0", "0.33.0"])
def test_connector_needs_a_role(release: str) -> None:
    flags = config(release, "--kv-transfer-config", {"kv_connector": "NixlConnector"})
    found = problem(flags, "bad-config-value")
    assert "Please specify kv_role when kv_connector is set" in found.error
    assert (found.data["missing_key"], found.data["missing_value"]) == ("kv_role", "kv_both")
    assert not flags.given("kv_transfer_config")


@pytest.mark.parametrize(
    ("release", "given", "ok"),
    [
        ("0.22.1", {"use_async": True, "communicator": "pynccl"}, True),
        ("0.24.0", {"communicator": "pynccl"}, False),
        ("0.24.0", {"communicator": "pynccl", "use_async": False}, True),
        ("0.24.0", {"communicator": "torch_gloo"}, True),
    ],
)
def test_async_eplb_refuses_nccl_communicators(release: str, given: Any, ok: bool) -> None:
    assert (codes(config(release, "--eplb-config", given)) == []) is ok


@pytest.mark.parametrize(("release", "ok"), [("0.27.1", True), ("0.28.0", False), ("0.29.0", False)])
def test_both_names_of_the_indexer_dtype_conflict(release: str, ok: bool) -> None:
    flags = config(release, "--attention-config", {"use_fp4_indexer_cache": True, "indexer_kv_dtype": "fp8"})
    assert (codes(flags) == []) is ok


@pytest.mark.parametrize(
    ("release", "ops", "ok"),
    [
        ("0.28.0", ["all"], True),
        ("0.28.0", ["none", "+rms_norm"], True),
        ("0.28.0", ["rms_norm"], False),
        ("0.28.0", ["all", "none"], False),
        ("0.20.0", ["all", "none"], False),
        ("0.28.0", ["+a", "-a"], False),
        ("0.20.0", ["+a", "-a"], True),
    ],
)
def test_custom_ops(release: str, ops: list[str], ok: bool) -> None:
    assert (codes(config(release, "--compilation-config", {"custom_ops": ops})) == []) is ok


def test_valid_keys_beside_a_refused_one_are_kept() -> None:
    flags = config("0.30.0", "--attention-config", {"use_fp4_indexer_cache": True, "backend": "FLASHMLA_SPARSE_DSV4"})
    assert flags.values["attention_config"] == {"backend": "FLASHMLA_SPARSE_DSV4"}


@pytest.mark.parametrize(
    ("release", "value", "new_path", "new_value"),
    [("0.33.0", True, "indexer_kv_dtype", "mxfp4"), ("0.33.0", False, None, False)],
)
def test_replacement_of_a_removed_key(release: str, value: Any, new_path: str | None, new_value: Any) -> None:
    flags = config(release, "--attention-config", {"use_fp4_indexer_cache": value})
    found = flags.problems[0]
    assert (found.data.get("new_path"), found.data.get("new_value")) == (new_path, new_value)
    assert found.data["removed_in"] == "0.30.0"


def test_dotted_key_is_blamed_where_it_stands() -> None:
    flags = read("0.30.0", M, "-tp", "8", "--attention_config.use_fp4_indexer_cache=True")
    found = problem(flags, "config-key-renamed")
    assert found.origin is not None
    assert found.origin.text == "--attention_config.use_fp4_indexer_cache=True"
