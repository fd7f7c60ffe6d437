"""Edits of a command keep the form the user typed."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4check.deployment import Command
from dsv4check.inputs.flags import edit
from dsv4check.inputs.flags.parser import parse_flags
from dsv4check.releases.flag_table import load_flag_table
from tests.inputs.flag_reading import launch

M = "deepseek-ai/DeepSeek-V4-Flash"
YAML = {"f.yaml": "kv-cache-dtype: auto\nenable-prefix-caching: true\nattention-config: {indexer_kv_dtype: fp8}\n"}


def apply(how: str, words: list[str], *args: Any, release: str = "0.28.0") -> list[str] | None:
    command = launch(M, *words)
    table = load_flag_table(release)
    flags = parse_flags(command, table, read_file=YAML.__getitem__)
    edited = getattr(edit, how)(command, flags, table, *args)
    assert edited is None or isinstance(edited, Command)
    return None if edited is None else [token.text for token in edited.tokens[1:]]


@pytest.mark.parametrize(
    ("words", "dest", "value", "expected"),
    [
        (["-tp", "8"], "kv_cache_dtype", "fp8", ["-tp", "8", "--kv-cache-dtype", "fp8"]),
        (["--kv_cache_dtype", "auto"], "kv_cache_dtype", "fp8", ["--kv_cache_dtype", "fp8"]),
        (["--kv-cache-dtype=auto", "-tp", "8"], "kv_cache_dtype", "fp8", ["--kv-cache-dtype=fp8", "-tp", "8"]),
        (["-tp=8"], "tensor_parallel_size", 4, ["-tp=4"]),
        (["-O3"], "optimization_level", 1, ["-O1"]),
        (["-O", "3"], "optimization_level", 1, ["-O", "1"]),
        (["-tp", "8", "-tp", "4"], "tensor_parallel_size", 2, ["-tp", "2"]),
        ([], "enforce_eager", True, ["--enforce-eager"]),
        ([], "enable_prefix_caching", False, ["--no-enable-prefix-caching"]),
        (["--enable-prefix-caching"], "enable_prefix_caching", False, ["--no-enable-prefix-caching"]),
        (["--enforce-eager", "true"], "enforce_eager", True, ["--enforce-eager"]),
        (["--served-model-name", "a", "b"], "served_model_name", ["c"], ["--served-model-name", "c"]),
        (["--speculative-config", "{bad"], "speculative_config", {"method": "mtp"},
         ["--speculative-config", '{"method":"mtp"}']),
        (["--compilation-config", "{mode:3,", "x:[1]}"], "compilation_config", {"mode": 3},
         ["--compilation-config", '{"mode":3}']),
        (["-ac.backend", "X", "-ac.indexer_kv_dtype=fp8"], "attention_config", {"backend": "Y"},
         ["-ac", '{"backend":"Y"}']),
        (["--disable-log-stats"], "disable_log_stats", False, []),
        (["--config", "f.yaml"], "kv_cache_dtype", "fp8", ["--config", "f.yaml", "--kv-cache-dtype", "fp8"]),
        ([], "kv_cache_dtype", "{closest}", None),
        ([], "no_such_flag", 1, None),
    ],
)  # fmt: skip
def test_set_flag(words: list[str], dest: str, value: Any, expected: list[str] | None) -> None:
    assert apply("set_flag", words, dest, value) == expected


@pytest.mark.parametrize(
    ("words", "dest", "expected"),
    [
        (["-tp", "8", "--block-size", "64", "--enforce-eager"], "block_size", ["-tp", "8", "--enforce-eager"]),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", []),
        (["-ac.backend", "X", "--attention-config", "{}", "-tp", "8"], "attention_config", ["-tp", "8"]),
        (["--swap-space", "4", "-tp", "8"], "--swap-space", ["-tp", "8"]),
        (["--swap-space=4", "-tp", "8"], "--swap-space", ["-tp", "8"]),
        (["--foo", "-tp", "8"], "--foo", ["-tp", "8"]),
        (["-tp", "8"], "block_size", ["-tp", "8"]),
        (["--config", "f.yaml"], "enable_prefix_caching", ["--config", "f.yaml", "--no-enable-prefix-caching"]),
        (["--config", "f.yaml"], "kv_cache_dtype", ["--config", "f.yaml", "--kv-cache-dtype", "auto"]),
        (["--config", "f.yaml"], "attention_config", None),
    ],
)
def test_drop_flag(words: list[str], dest: str, expected: list[str] | None) -> None:
    if dest == "enable_prefix_caching" and expected and "--config" in expected:
        # Its default is undecided (None), which counts as off here.
        assert apply("drop_flag", words, dest) == expected
        return
    assert apply("drop_flag", words, dest) == expected


@pytest.mark.parametrize(
    ("words", "path", "value", "expected"),
    [
        ([], ("backend",), "X", ["--attention-config", '{"backend":"X"}']),
        (["--attention-config", '{"backend":"A","indexer_kv_dtype":"fp8"}'], ("backend",), "B",
         ["--attention-config", '{"backend":"B","indexer_kv_dtype":"fp8"}']),
        (["--attention-config", '{"backend": "A"}'], ("indexer_kv_dtype",), "fp8",
         ["--attention-config", '{"backend": "A", "indexer_kv_dtype": "fp8"}']),
        (['-ac={"backend":"A"}'], ("backend",), "B", ['-ac={"backend":"B"}']),
        (["-ac.backend", "A"], ("backend",), "B", ["-ac.backend", "B"]),
        (["--attention_config.backend=A", "-tp", "8"], ("backend",), "B",
         ["--attention_config.backend=B", "-tp", "8"]),
        (["-ac.backend", "A", "-tp", "8"], ("indexer_kv_dtype",), "fp8",
         ["-ac.backend", "A", "-ac.indexer_kv_dtype", "fp8", "-tp", "8"]),
        (["-ac.backend=A"], ("use_non_causal",), True, ["-ac.backend=A", "-ac.use_non_causal=true"]),
        (["--config", "f.yaml"], ("backend",), "X",
         ["--config", "f.yaml", "--attention-config", '{"indexer_kv_dtype":"fp8","backend":"X"}']),
    ],
)  # fmt: skip
def test_set_key(words: list[str], path: tuple[str, ...], value: Any, expected: list[str]) -> None:
    assert apply("set_key", words, "attention_config", path, value) == expected


@pytest.mark.parametrize(
    ("words", "path", "expected"),
    [
        (["--attention-config", '{"backend":"A","indexer_kv_dtype":"fp8"}'], ("backend",),
         ["--attention-config", '{"indexer_kv_dtype":"fp8"}']),
        (["--attention-config", '{"backend":"A"}', "-tp", "8"], ("backend",), ["-tp", "8"]),
        (["-ac.backend", "A", "-ac.indexer_kv_dtype", "fp8"], ("backend",), ["-ac.indexer_kv_dtype", "fp8"]),
        (["-ac.backend=A", "-tp", "8"], ("backend",), ["-tp", "8"]),
        (["-tp", "8"], ("backend",), ["-tp", "8"]),
        (["--config", "f.yaml"], ("indexer_kv_dtype",), ["--config", "f.yaml", "--attention-config", "{}"]),
    ],
)  # fmt: skip
def test_drop_key(words: list[str], path: tuple[str, ...], expected: list[str]) -> None:
    assert apply("drop_key", words, "attention_config", path) == expected


def test_nested_keys() -> None:
    words = ["--compilation-config", '{"mode":0,"pass_config":{"enable_sp":true}}']
    path = ("pass_config", "enable_sp")
    assert apply("drop_key", words, "compilation_config", path) == ["--compilation-config", '{"mode":0}']
    assert apply("set_key", words, "compilation_config", path, False) == [
        "--compilation-config",
        '{"mode":0,"pass_config":{"enable_sp":false}}',
    ]
    # The key is refused in 0.32.0: it can be dropped all the same.
    assert apply("drop_key", words, "compilation_config", path, release="0.32.0") == [
        "--compilation-config",
        '{"mode":0}',
    ]


def test_speculative_shortcuts() -> None:
    words = ["--spec-method", "mtp", "--spec-tokens", "1"]
    assert apply("set_key", words, "speculative_config", ("num_speculative_tokens",), 2) == [
        "--spec-method",
        "mtp",
        "--spec-tokens",
        "2",
    ]
    assert apply("drop_key", words, "speculative_config", ("method",)) == ["--spec-tokens", "1"]
    assert apply("drop_speculation", [*words, "-sc.draft_sample_method", "greedy", "-tp", "8"]) == ["-tp", "8"]


def test_dashed_keys_of_the_speculative_config() -> None:
    words = ["--speculative-config", '{"method":"mtp","num-speculative-tokens":1}']
    assert apply("set_key", words, "speculative_config", ("num_speculative_tokens",), 2) == [
        "--speculative-config",
        '{"method":"mtp","num-speculative-tokens":2}',
    ]


def test_dotted_text_that_reads_as_a_number_is_quoted() -> None:
    assert apply("set_key", ["--hf-overrides.a", "x"], "hf_overrides", ("a",), "8k") == ["--hf-overrides.a", '"8k"']


def test_rename_flag() -> None:
    command = launch(M, "--kv-cache-type", "fp8", "-tp8", "--foo=1")
    renamed = edit.rename_flag(command, "--kv-cache-type", "--kv-cache-dtype")
    assert renamed is not None
    assert [token.text for token in renamed.tokens[1:3]] == ["--kv-cache-dtype", "fp8"]
    apart = edit.rename_flag(command, "-tp8", "-tp 8")
    assert apart is not None
    assert [token.text for token in apart.tokens][3:5] == ["-tp", "8"]
    joined = edit.rename_flag(command, "--foo", "--bar")
    assert joined is not None
    assert joined.tokens[-1].text == "--bar=1"
    assert edit.rename_flag(command, "--foo", "{closest}") is None
    assert edit.rename_flag(command, "--nope", "--bar") is None


def test_environment_and_model() -> None:
    command = launch(M, "-tp", "8")
    changed = edit.set_env(command, "A", "1")
    assert changed.env == {"A": "1"}
    assert edit.unset_env(changed, "A").env == {}
    flags = parse_flags(command, load_flag_table("0.28.0"))
    other = edit.set_model(command, flags, "other/model")
    assert other is not None
    assert [token.text for token in other.tokens] == ["other/model", "-tp", "8"]
    option = launch("--model", M)
    flags = parse_flags(option, load_flag_table("0.28.0"))
    other = edit.set_model(option, flags, "other/model")
    assert other is not None
    assert [token.text for token in other.tokens] == ["--model", "other/model"]
    behind = launch("--tokenizer", M, M)
    other = edit.set_model(behind, parse_flags(behind, load_flag_table("0.28.0")), "other/model")
    assert other is not None
    assert [token.text for token in other.tokens] == ["--tokenizer", M, "other/model"]


@pytest.mark.parametrize("release", ["0.20.2", "0.28.0", "0.33.0"])
def test_boolean_spellings_parse_back(release: str) -> None:
    table = load_flag_table(release)
    for dest, spec in table.by_dest.items():
        if spec.action != "bool":
            continue
        for value in (True, False):
            flags = parse_flags(launch(M, edit.bare_spelling(table, dest, value)), table)
            assert flags.values == {dest: value}
