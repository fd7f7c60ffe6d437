"""``--config FILE.yaml``."""

from __future__ import annotations

import pytest

from dsv4check.errors import InputError
from tests.inputs.flag_reading import codes, problem, read

M = "deepseek-ai/DeepSeek-V4-Flash"


def test_values_and_their_lines() -> None:
    flags = read(
        "0.28.0", M, "--config", "f.yaml", "--max-model-len", "99",
        files={"f.yaml": "tensor-parallel-size: 4\nkv_cache_dtype: fp8\nmax-model-len: 1\nenforce-eager: true\n"
                         "speculative-config:\n  method: mtp\n  num_speculative_tokens: 2\n"
                         "served-model-name: [a, b]\n"},
    )  # fmt: skip
    assert flags.problems == ()
    assert dict(flags.values) == {
        "tensor_parallel_size": 4,
        "kv_cache_dtype": "fp8",
        "max_model_len": 99,
        "enforce_eager": True,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
        "served_model_name": ["a", "b"],
    }
    use = flags.use("kv_cache_dtype")
    assert use is not None
    assert (use.token_span, use.origin.kind, use.origin.line) == ((-1, -1), "yaml", 2)


def test_model_in_the_file() -> None:
    assert read("0.28.0", "--config", "f.yaml", files={"f.yaml": f"model: {M}\n"}).model == M
    assert read("0.28.0", M, "--config", "f.yaml", files={"f.yaml": "model: other/model\n"}).model == M


def test_no_model_anywhere() -> None:
    flags = read("0.28.0", "--config", "f.yaml", files={"f.yaml": "port: 8000\n"})
    assert problem(flags, "model-missing").error.startswith("No model specified!")
    # A model behind other flags is not looked for.
    assert "model-missing" in codes(read("0.28.0", "-tp", "8", M, "--config", "f.yaml", files={"f.yaml": "port: 80\n"}))


@pytest.mark.parametrize("release", ["0.20.0", "0.27.1", "0.28.0", "0.33.0"])
def test_false_is_dropped_under_serve(release: str) -> None:
    flags = read(release, M, "--config", "f.yaml", files={"f.yaml": "enable-prefix-caching: false\n"})
    assert not flags.given("enable_prefix_caching")
    found = problem(flags, "yaml-false-ignored")
    assert found.exception == ""
    assert found.data["yaml"] == "no-enable-prefix-caching"


@pytest.mark.parametrize(("release", "value"), [("0.27.1", None), ("0.28.0", False), ("0.33.0", False)])
def test_false_under_the_api_server_module(release: str, value: bool | None) -> None:
    files = {"f.yaml": "enable-prefix-caching: false\n"}
    flags = read(release, "--model", M, "--config", "f.yaml", files=files, entrypoint="api_server")
    assert flags.values.get("enable_prefix_caching") is value


def test_false_that_changes_nothing_is_no_problem() -> None:
    assert codes(read("0.28.0", M, "--config", "f.yaml", files={"f.yaml": "enforce-eager: false\n"})) == []


def test_false_said_again_on_the_command_line_is_no_problem() -> None:
    files = {"f.yaml": "enable-prefix-caching: false\n"}
    assert codes(read("0.28.0", M, "--config", "f.yaml", "--no-enable-prefix-caching", files=files)) == []


def test_negative_form_in_the_file() -> None:
    flags = read("0.28.0", M, "--config", "f.yaml", files={"f.yaml": "no-enable-prefix-caching: true\n"})
    assert flags.values == {"enable_prefix_caching": False}


@pytest.mark.parametrize(
    ("text", "code", "exception"),
    [
        ("", "yaml-no-mapping", "AttributeError"),
        ("# only a comment\n", "yaml-no-mapping", "AttributeError"),
        ("- a\n", "yaml-no-mapping", "AttributeError"),
        ("text\n", "yaml-no-mapping", "AttributeError"),
        ("a: [1\nb: 2\n", "yaml-invalid", "ParserError"),
        ("1: 2\n", "yaml-invalid", "TypeError"),
        ("a: \0\n", "yaml-invalid", "ReaderError"),
        ("hf-overrides: {a: 2024-01-01}\n", "yaml-invalid", "TypeError"),
        ("swap-space: 4\n", "unknown-flag", "SystemExit"),
        ('enforce-eager: "true"\n', "bool-with-value", "SystemExit"),
        ("max-num-seqs: null\n", "bad-value", "SystemExit"),
        ("attention-config: {foo: 1}\n", "unknown-config-key", "SystemExit"),
    ],
)
def test_what_goes_wrong_in_the_file(text: str, code: str, exception: str) -> None:
    found = problem(read("0.28.0", M, "--config", "f.yaml", files={"f.yaml": text}), code)
    assert found.exception == exception


def test_place_in_a_broken_file() -> None:
    found = problem(read("0.28.0", M, "--config", "f.yaml", files={"f.yaml": "a: 1\nb: [2\nc: 3\n"}), "yaml-invalid")
    assert found.origin is not None
    assert (found.origin.kind, found.origin.line) == ("yaml", 3)


def test_joined_with_equals_is_never_read() -> None:
    flags = read("0.28.0", M, "--config=f.yaml", files={"f.yaml": "tensor-parallel-size: 4\n"})
    assert codes(flags) == ["config-equals-file-ignored"]
    assert not flags.given("tensor_parallel_size")
    assert flags.problems[0].exception == ""


def test_given_twice() -> None:
    found = problem(read("0.28.0", M, "--config", "a.yaml", "--config", "b.yaml"), "yaml-given-twice")
    assert (found.exception, found.error) == ("AssertionError", "More than one config file specified!")


def test_without_a_file() -> None:
    found = problem(read("0.28.0", M, "--config"), "missing-value")
    assert (found.exception, found.error.partition("!")[0]) == ("ValueError", "No config file specified")


def test_extension_and_missing_file() -> None:
    found = problem(read("0.28.0", M, "--config", "f.json"), "yaml-extension")
    assert found.error == "Config file must be of a yaml/yml type. json supplied"
    assert problem(read("0.28.0", M, "--config", "f.yml"), "yaml-not-found").exception == "FileNotFoundError"
    elsewhere = problem(read("0.28.0", M, "--config", "/no/such/folder/f.yml"), "yaml-not-read")
    assert elsewhere.exception == ""


def test_dotted_flags_replace_a_mapping_of_the_file() -> None:
    files = {"f.yaml": "attention-config: {indexer_kv_dtype: fp8}\n"}
    flags = read("0.28.0", M, "--config", "f.yaml", "-ac.sparse_mla_force_mqa=true", files=files)
    assert flags.values["attention_config"] == {"sparse_mla_force_mqa": True}
    assert codes(flags) == ["dotted-replaces-json"]


def test_hostile_files_are_refused() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdef", "bcdefg", strict=True)
    )
    for text, message in ((bomb, "more than"), ("a: &a [*a]\n", "contains itself"), ("x" * (2 << 20), "larger than")):
        with pytest.raises(InputError, match=message):
            read("0.28.0", M, "--config", "f.yaml", files={"f.yaml": text})
    deep = "a: " + "[" * 3000 + "]" * 3000
    # libyaml has a limit of its own, the Python loader runs into the interpreter's.
    outcome: list[str] = []
    try:
        outcome = codes(read("0.28.0", M, "--config", "f.yaml", files={"f.yaml": deep}))
    except InputError as error:
        outcome = [str(error)]
    assert outcome in (["yaml-invalid"], ["f.yaml: nested too deeply; expected a mapping of flags to values"])
