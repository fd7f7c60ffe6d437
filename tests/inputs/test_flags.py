"""Flags as each release's parser reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4check.problems import Stage
from dsv4check.releases.facts import known_releases
from dsv4check.releases.flag_table import load_flag_table
from tests.inputs.flag_reading import codes, problem, read

M = "deepseek-ai/DeepSeek-V4-Flash"
RELEASES = known_releases()


@pytest.mark.parametrize("release", RELEASES)
def test_plain_launch(release: str) -> None:
    flags = read(
        release, M, "-tp", "8", "--kv-cache-dtype", "fp8", "--enable-expert-parallel", "--no-enable-prefix-caching",
        "--speculative-config", '{"method":"mtp","num_speculative_tokens":1}', "--served-model-name", "a", "b",
    )  # fmt: skip
    assert flags.problems == ()
    assert flags.model == M
    assert dict(flags.values) == {
        "tensor_parallel_size": 8,
        "kv_cache_dtype": "fp8",
        "enable_expert_parallel": True,
        "enable_prefix_caching": False,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 1},
        "served_model_name": ["a", "b"],
    }
    assert flags.given("kv_cache_dtype")
    assert not flags.given("dtype")
    assert flags.get("dtype") == "auto"


@pytest.mark.parametrize(
    ("words", "dest", "value"),
    [
        (["-tp=4"], "tensor_parallel_size", 4),
        (["--tensor_parallel_size", "4"], "tensor_parallel_size", 4),
        (["--tensor-parallel-size=4"], "tensor_parallel_size", 4),
        (["--tensor-p", "4"], "tensor_parallel_size", 4),
        (["-n2"], "nnodes", 2),
        (["-O3"], "optimization_level", 3),
        (["-O=1"], "optimization_level", 1),
        (["-O", "2"], "optimization_level", 2),
        (["--max-model-len", "128k"], "max_model_len", 128_000),
        (["--max-model-len", "128K"], "max_model_len", 131_072),
        (["--max-model-len", "25.6k"], "max_model_len", 25_600),
        (["--max-model-len", "auto"], "max_model_len", -1),
        (["--max-model-len", "-1"], "max_model_len", -1),
        (["--max-num-batched-tokens", "8K"], "max_num_batched_tokens", 8192),
        (["--kv-cache-memory-bytes", "30g"], "kv_cache_memory_bytes", 30 * 10**9),
        (["--moe-backend", "Deep-GEMM"], "moe_backend", "deep_gemm"),
        (["--quantization", "None"], "quantization", None),
        (["--hf-overrides", '{"a": 1}'], "hf_overrides", {"a": 1}),
        (["--hf-overrides.a.b", "1"], "hf_overrides", {"a": {"b": 1}}),
        (["--hf-overrides.l+", "x,y", "--hf-overrides.l+", "z"], "hf_overrides", {"l": ["x", "y", "z"]}),
        (["--hf-overrides.n", "4k"], "hf_overrides", {"n": 4000}),
        (["-ac.use_trtllm_attention=True"], "attention_config", {"use_trtllm_attention": True}),
        (["--hf-token"], "hf_token", True),
        (["--cudagraph-capture-sizes", "1", "2", "4"], "cudagraph_capture_sizes", [1, 2, 4]),
        (["--middleware", "a", "--middleware", "b"], "middleware", ["a", "b"]),
        (["--lora-modules", "x=y"], "lora_modules", [{"name": "x", "path": "y"}]),
    ],
)
@pytest.mark.parametrize("release", ["0.20.2", "0.28.0", "0.33.0"])
def test_values(release: str, words: list[str], dest: str, value: Any) -> None:
    flags = read(release, M, *words)
    assert flags.problems == ()
    assert flags.values[dest] == value


@pytest.mark.parametrize(
    ("release", "words", "code", "error"),
    [
        ("0.28.0", ["--max-num-seqs", "1k"], "bad-value", "argument --max-num-seqs: invalid int value: '1k'"),
        (
            "0.28.0",
            ["--max-model-len", "1.5K"],
            "bad-value",
            "argument --max-model-len: Decimals are not allowed with binary suffixes like K. "
            "Did you mean to use 1.5k instead?",
        ),
        (
            "0.28.0",
            ["--max-model-len", "lots"],
            "bad-value",
            "argument --max-model-len: invalid human_readable_int_or_auto value: 'lots'",
        ),
        (
            "0.28.0",
            ["--performance-mode", "fast"],
            "bad-choice",
            "argument --performance-mode: invalid choice: 'fast' "
            "(choose from 'balanced', 'interactivity', 'throughput')",
        ),
        ("0.28.0", ["--enforce-eager=true"], "bool-with-value",
         "argument --enforce-eager/--no-enforce-eager: ignored explicit argument 'true'"),
        ("0.28.0", ["-ep=1"], "bool-with-value",
         "argument --enable-expert-parallel/--no-enable-expert-parallel/-ep: ignored explicit argument '1'"),
        ("0.28.0", ["--max-model-len"], "missing-value", "argument --max-model-len: expected one argument"),
        ("0.28.0", ["--served-model-name"], "missing-value",
         "argument --served-model-name: expected at least one argument"),
        ("0.28.0", ["-tp8"], "unknown-flag", "unrecognized arguments: -tp8"),
        ("0.28.0", ["--swap-space", "4"], "unknown-flag", "unrecognized arguments: --swap-space 4"),
        ("0.28.0", ["-no-enable-prefix-caching"], "bad-value",
         "argument --nnodes/-n: invalid int value: 'o-enable-prefix-caching'"),
        ("0.28.0", ["--max-num", "5"], "ambiguous-flag",
         "ambiguous option: --max-num could match --max-num-batched-tokens, --max-num-scheduled-tokens, "
         "--max-num-seqs"),
        ("0.28.0", ["--kv-cache-dtype", "fp8", "extra"], "positional-extra", "unrecognized arguments: extra"),
        ("0.33.0", ["--disable-prefix-caching=1"], "bool-with-value",
         "argument --enable-prefix-caching/--disable-prefix-caching: ignored explicit argument '1'"),
    ],
)  # fmt: skip
def test_what_argparse_refuses(release: str, words: list[str], code: str, error: str) -> None:
    found = problem(read(release, M, *words), code)
    assert found.error == error
    assert found.exception == "SystemExit"
    assert found.stage is Stage.ARGPARSE


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--max-model-len", "9" * 5000], "bad-value"),
        (["--max-model-len", "9" * 400 + "k"], "bad-value"),
        (["--kv-transfer-config", '{"kv_buffer_size": ' + "9" * 400 + "g}"], "bad-value"),
        (["--kv-transfer-config", '{"kv_buffer_size": ' + "9" * 400 + "}"], "bad-config-value"),
        (["-O²"], "optimization-level"),
        (["-O" + "9" * 5000], "optimization-level"),
    ],
)
def test_numbers_beyond_every_range(words: list[str], code: str) -> None:
    assert codes(read("0.28.0", M, *words)) == [code]


@pytest.mark.parametrize(("text", "level"), [("3", 3), ("+02", 2), ("1.0", 1), ("0.", 0)])
def test_levels_as_the_enumeration_takes_them(text: str, level: int) -> None:
    assert read("0.28.0", M, f"-O{text}").values["optimization_level"] == level


def test_reading_goes_on_behind_an_error() -> None:
    flags = read("0.28.0", M, "--swap-space", "4", "-tp", "x", "--enforce-eager", "--kv-cache-dtype", "fp9")
    assert set(codes(flags)) == {"unknown-flag", "bad-value", "bad-choice"}
    assert flags.model == M
    assert flags.values == {"enforce_eager": True}


@pytest.mark.parametrize(
    ("release", "words", "data"),
    [
        ("0.28.0", ["--enable-hybrid-kv-cache-manager"],
         {"closest": "--no-disable-hybrid-kv-cache-manager", "arrives_in": "0.33.0", "vllm_spec": ">=0.33.0"}),
        ("0.28.0", ["--disable-log-requests"], {"closest": "--no-enable-log-requests", "arrives_in": "0.33.0"}),
        ("0.28.0", ["--calculate-kv-scales"], {"removed_in": "0.28.0", "vllm_spec": "<0.28.0"}),
        ("0.24.0", ["--enable-bf16x3-router-gemm"], {"arrives_in": "0.26.0", "vllm_spec": ">=0.26.0,<=0.29.0"}),
        ("0.24.0", ["--kv-cache-type", "fp8"], {"closest": "--kv-cache-dtype", "value": "fp8"}),
        ("0.24.0", ["--tp", "8"], {"closest": "--tensor-parallel-size"}),
        ("0.24.0", ["--context-length=8192"], {"closest": "--max-model-len", "value": "8192"}),
        ("0.24.0", ["--max_modle_len", "8192"], {"closest": "--max-model-len", "flag": "--max_modle_len"}),
        ("0.24.0", ["-tp8"], {"attached": "-tp 8"}),
    ],
)  # fmt: skip
def test_unknown_flags_are_explained(release: str, words: list[str], data: dict[str, Any]) -> None:
    found = problem(read(release, M, *words), "unknown-flag")
    assert {key: found.data.get(key) for key in data} == data


def test_flags_that_are_config_keys_are_one_problem() -> None:
    found = problem(read("0.20.2", M, "--spec-method", "mtp", "--spec-tokens", "1"), "flag-is-config-key")
    assert found.data["dest"] == "speculative_config"
    assert found.data["merged"] == '{"method": "mtp", "num_speculative_tokens": 1}'
    assert found.data["arrives_in"] == "0.22.0"
    assert codes(read("0.22.0", M, "--spec-method", "mtp", "--spec-tokens", "1")) == []


@pytest.mark.parametrize(
    ("release", "value", "data"),
    [
        ("0.25.1", "deep_gemm_amxf4_mega_moe", {"closest": "deep_gemm_mega_moe", "fallback": "auto"}),
        ("0.20.0", "triton_unfused", {"closest": "triton", "arrives_in": "0.21.0"}),
        ("0.23.0", "b12x", {"arrives_in": "0.29.0", "vllm_spec": ">=0.29.0"}),
        ("0.33.0", "flashinfer_moe_ep_mega_cutedsl", {"removed_in": "0.32.0"}),
    ],
)
def test_choices_are_explained(release: str, value: str, data: dict[str, Any]) -> None:
    found = problem(read(release, M, "--moe-backend", value), "bad-choice")
    assert {key: found.data.get(key) for key in data} == data


def test_kv_cache_dtype_is_checked_until_0_32() -> None:
    assert codes(read("0.32.0", M, "--kv-cache-dtype", "fp9")) == ["bad-choice"]
    assert codes(read("0.33.0", M, "--kv-cache-dtype", "fp9")) == []


def test_disable_forms_exist_from_0_33() -> None:
    flags = read("0.33.0", M, "--disable-prefix-caching", "--enable-sliding-window", "--no-enable-chunked-prefill")
    assert flags.problems == ()
    assert dict(flags.values) == {
        "enable_prefix_caching": False,
        "disable_sliding_window": False,
        "enable_chunked_prefill": False,
    }
    assert codes(read("0.32.0", M, "--disable-prefix-caching")) == ["unknown-flag"]


class TestModel:
    def test_option_moves_to_the_front(self) -> None:
        flags = read("0.28.0", "-tp", "8", "--model", M, "--enforce-eager")
        assert flags.model == M
        assert flags.problems == ()
        assert flags.use("tensor_parallel_size").token_span == (0, 2)  # type: ignore[union-attr]

    def test_positional_and_option_leave_one_over(self) -> None:
        flags = read("0.28.0", "other/model", "--model", M)
        assert flags.model == M
        assert codes(flags) == ["positional-extra"]

    def test_behind_flags(self) -> None:
        assert read("0.28.0", "-tp", "8", M, "--enforce-eager").model == M
        assert read("0.28.0", "--enforce-eager", M).model == M

    def test_served_name_first_is_refused(self) -> None:
        flags = read("0.28.0", "--served-model-name", "x", "-tp", "8", M)
        found = problem(flags, "model-missing")
        assert found.exception == "ValueError"
        assert "first positional argument" in found.error

    def test_value_of_an_unknown_flag_is_no_model(self) -> None:
        flags = read("0.28.0", "--swap-space", "4", M)
        assert flags.model == M
        assert codes(flags) == ["unknown-flag"]
        assert flags.problems[0].error == f"unrecognized arguments: --swap-space {M}"

    def test_without_a_program_the_model_may_be_elsewhere(self) -> None:
        flags = read("0.28.0", "--enforce-eager", "true", "-tp", "8", program=())
        assert flags.model is None
        assert codes(flags) == ["bool-with-value"]

    def test_api_server_takes_the_option(self) -> None:
        flags = read("0.28.0", "--model", M, entrypoint="api_server")
        assert flags.model == M

    def test_missing_after_the_option(self) -> None:
        assert problem(read("0.28.0", "--model"), "missing-value").exception == "IndexError"


class TestJson:
    def test_dotted_replaces_json(self) -> None:
        flags = read(
            "0.28.0", M, "--attention-config.sparse_mla_force_mqa", "true",
            "--attention-config", '{"indexer_kv_dtype":"fp8"}',
        )  # fmt: skip
        assert flags.values["attention_config"] == {"sparse_mla_force_mqa": True}
        found = problem(flags, "dotted-replaces-json")
        assert found.exception == ""
        assert found.data["lost"] == "indexer_kv_dtype"
        assert found.data["merged"] == '{"indexer_kv_dtype": "fp8", "sparse_mla_force_mqa": true}'

    def test_split_by_the_shell(self) -> None:
        flags = read(
            "0.20.0", M, "--compilation-config", "{cudagraph_mode:FULL_AND_PIECEWISE,", "custom_ops:[all]}", "-tp", "8"
        )
        found = problem(flags, "bad-json")
        assert codes(flags) == ["bad-json"]
        assert found.data["rest"] == "custom_ops:[all]}"
        assert found.data["repaired"] == '{"cudagraph_mode": "FULL_AND_PIECEWISE", "custom_ops": ["all"]}'
        assert flags.use("compilation_config").token_span == (1, 4)  # type: ignore[union-attr]
        assert flags.values["tensor_parallel_size"] == 8

    @pytest.mark.parametrize(
        ("text", "reason", "repaired"),
        [
            ("{'method': 'mtp'}", "double quotes", '{"method": "mtp"}'),
            ("{method: mtp}", "quotes inside it are missing", '{"method": "mtp"}'),
            ('{"a": True}', "Python's", '{"a": true}'),
            ('{"a": 1,}', "comma before", '{"a": 1}'),
            ('{"a": 1', "not closed", '{"a": 1}'),
            ("{\u201ca\u201d: 1}", "curly", '{"a": 1}'),
            ('{\\"a\\": 1}', "backslashes", '{"a": 1}'),
            ("mtp", "does not start with a brace", None),
        ],
    )
    def test_broken_json_is_explained_and_repaired(self, text: str, reason: str, repaired: str | None) -> None:
        found = problem(read("0.28.0", M, "--speculative-config", text), "bad-json")
        assert reason in found.data["reason"]
        assert found.data.get("repaired") == repaired

    def test_speculative_config_may_be_empty(self) -> None:
        assert read("0.28.0", M, "--speculative-config", "").values["speculative_config"] is None
        assert read("0.28.0", M, "--speculative-config", "None").values["speculative_config"] is None

    def test_numbers_with_suffix_inside_json(self) -> None:
        text = '{"kv_connector":"X","kv_role":"kv_both","kv_connector_extra_config":{"size": 80g, "name": "1k"}}'
        flags = read("0.28.0", M, "--kv-transfer-config", text)
        assert flags.section("kv_transfer_config")["kv_connector_extra_config"] == {"size": 80 * 10**9, "name": "1k"}


class TestOptimizationLevel:
    @pytest.mark.parametrize("words", [["-O4"], ["-O.mode=3"], ["--optimization-level", "high"]])
    def test_other_levels_fail_in_the_engine_config(self, words: list[str]) -> None:
        found = problem(read("0.28.0", M, *words), "optimization-level")
        assert (found.stage, found.exception) == (Stage.ENGINE_CONFIG, "ValidationError")

    def test_json_behind_it_is_unrecognized(self) -> None:
        assert codes(read("0.28.0", M, "-O", '{"mode":3}'))[0] == "unknown-flag"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--enable-auto-tool-choice"], "tool-choice-without-parser"),
        (["--enable-log-outputs"], "log-outputs-without-requests"),
        (["--enable-per-request-metrics", "--disable-log-stats"], "serve-args-conflict"),
        (["--data-parallel-multi-port-external-lb", "-dp", "4"], "serve-args-conflict"),
    ],
)
def test_checks_before_the_engine_is_configured(words: list[str], code: str) -> None:
    assert codes(read("0.28.0", M, *words)) == [code]


def test_flag_given_twice_takes_the_last() -> None:
    flags = read("0.28.0", M, "--max-model-len", "1", "--max-model-len", "2")
    assert flags.values["max_model_len"] == 2
    assert problem(flags, "duplicate-flag").exception == ""
    assert codes(read("0.28.0", M, "--max-model-len", "2", "--max-model-len", "2")) == []


def test_help_starts_nothing() -> None:
    assert codes(read("0.28.0", M, "--help=all")) == ["help-requested"]


def test_double_dash_ends_the_flags() -> None:
    flags = read("0.28.0", M, "-tp", "8", "--", "--enforce-eager")
    assert not flags.given("enforce_eager")
    assert flags.problems[0].error == "unrecognized arguments: -- --enforce-eager"


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_underscores_and_dashes_mean_the_same(data: st.DataObject) -> None:
    table = load_flag_table("0.33.0")
    option = data.draw(st.sampled_from(sorted(name for name in table.by_option if name.startswith("--"))))
    value = data.draw(st.sampled_from([[], ["1"], ["auto"], ['{"a":1}']]))
    dashed = read("0.33.0", M, option, *value)
    underscored = read("0.33.0", M, "--" + option[2:].replace("-", "_"), *value)
    assert dashed.values == underscored.values
    assert codes(dashed) == codes(underscored)
    assert [item.error for item in dashed.problems] == [item.error for item in underscored.problems]


WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["-tp", "-tp=8", "-ac.backend", "--config", "--config=x", "-O", "-O3", "--", "-", "--speculative-config", "{",
         "1", '{"a":1}', "--hf-overrides.a.b+", "--enforce-eager", "true", "--served-model-name", "--kv-cache", "--.a",
         "-.5"]
    ),
)  # fmt: skip


@given(st.lists(WORDS, max_size=8), st.sampled_from(["0.20.2", "0.28.0", "0.33.0"]))
@settings(max_examples=300, deadline=None)
def test_arbitrary_words_never_raise(words: list[str], release: str) -> None:
    flags = read(release, *words)
    for found in flags.problems:
        assert found.code
    for use in flags.uses:
        assert use.token_span == (-1, -1) or 0 <= use.token_span[0] < use.token_span[1] <= len(words)
