"""Which model a launch serves, as far as the file and what stands around it say."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.gate.model_choice import ModelChoice, choose_model
from dsv4check.gate.settings import Facts
from dsv4check.inputs.command import read_command
from dsv4check.inputs.flags.parser import parse_flags
from dsv4check.launchfiles.records import Launch, Server
from dsv4check.launchfiles.text import Span
from dsv4check.releases.flag_table import load_flag_table
from tests.gate.fixing import MODEL, result

PRO = "deepseek-ai/DeepSeek-V4-Pro"


def choice(
    command: str,
    *,
    options: Facts | None = None,
    configured: Facts | None = None,
    open_model: bool = False,
    **mounts: str,
) -> ModelChoice:
    flags = parse_flags(read_command(f"vllm serve {command}"), load_flag_table("0.24.0"))
    launch = Launch(
        "shell", "x", Server(("vllm", "serve"), (), Span(0, 0), mounts={f"/{k}": v for k, v in mounts.items()})
    )
    return choose_model(launch, flags, options or Facts(), configured or Facts(), open_model)


@pytest.mark.parametrize(
    "name", [MODEL, PRO, MODEL.lower(), "nvidia/DeepSeek-V4-Pro-NVFP4", "RedHatAI/DeepSeek-V4-Flash-FP8"]
)
def test_published_ids_and_their_siblings(name: str) -> None:
    assert choice(name) == ModelChoice(name)


@pytest.mark.parametrize(
    ("command", "mounts", "stands_for"),
    [
        ("/models/DeepSeek-V4-Flash", {}, None),
        ("/model", {"model": "/srv/DeepSeek-V4-Flash"}, MODEL),
        ("/model/", {"model": "/srv/DeepSeek-V4-Pro/"}, PRO),
        ("/data/DS4", {"data": "/srv"}, ""),
        ("/data/flash/x", {"data": "/srv/other", "data/flash": "/srv/DeepSeek-V4-Flash"}, MODEL),
        (f"/model --served-model-name {MODEL}", {}, MODEL),
        ("/model --served-model-name DeepSeek-V4-Pro other", {}, PRO),
        ("/data/DeepSeek-V4-Pro/v1", {}, PRO),
        ("/modelx", {"model": "/srv/DeepSeek-V4-Flash"}, ""),
    ],
)
def test_local_paths(command: str, mounts: dict[str, str], stands_for: str | None) -> None:
    found = choice(command, **mounts)
    assert found.unknown == ""
    if stands_for is None:
        assert (found.config_like, found.other) == (None, "")
    elif stands_for:
        assert (found.config_like, found.other) == (stands_for, "")
        assert f"read as {stands_for}" in found.note
    else:
        assert "is no DeepSeek-V4 model by its name" in found.other


def test_a_mount_wins_over_the_served_name() -> None:
    found = choice(f"/model --served-model-name {MODEL}", model="/srv/DeepSeek-V4-Pro")
    assert (found.config_like, found.note) == (PRO, f"/model is mounted from /srv/DeepSeek-V4-Pro: read as {PRO}")


@pytest.mark.parametrize(
    "flags",
    [
        "--tokenizer-mode deepseek_v4",
        "--reasoning-parser deepseek_v4",
        "--tool-call-parser deepseek_v4",
        "--served-model-name dsv4",
    ],
)
def test_a_sign_of_the_family_alone_leaves_the_model_open(flags: str) -> None:
    found = choice(f"/model {flags}")
    assert "cannot be told" in found.unknown
    assert (found.other, found.config_like) == ("", None)


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B-Instruct",
        "Qwen/Qwen3-235B-A22B",
        "deepseek-ai/DeepSeek-V3",
        "deepseek-ai/DeepSeek-R1",
        "/models/llama",
        "/model",
        "gpt2",
    ],
)
def test_other_models(name: str) -> None:
    found = choice(name)
    assert found.other
    assert found.unknown == ""
    assert result(f"vllm serve {name}\n").other_model


def test_an_unknown_variable() -> None:
    assert choice("'$MODEL'", open_model=True).unknown == "the model $MODEL is not set in this file"
    found = choice("'$MODEL' --tokenizer-mode deepseek_v4", open_model=True)
    assert (found.unknown, found.other) == ("the model $MODEL is not set in this file", "")
    assert choice("'$HOME/DeepSeek-V4-Flash'", open_model=True).unknown


@pytest.mark.parametrize("stated", [MODEL, PRO])
@pytest.mark.parametrize("where", ["options", "configured"])
def test_a_stated_model_stands_in_for_a_path_or_a_variable(stated: str, where: str) -> None:
    facts = Facts(model=stated)
    assert choice("/model", **{where: facts}).config_like == stated  # type: ignore[arg-type]
    assert choice("'$MODEL'", open_model=True, **{where: facts}).config_like == stated  # type: ignore[arg-type]
    assert choice("--port 80", **{where: facts}).config_like == stated  # type: ignore[arg-type]


def test_a_stated_model_does_not_replace_one_that_is_named() -> None:
    assert choice(PRO, options=Facts(model=MODEL)) == ModelChoice(PRO)
    assert choice("meta-llama/Llama-3.1-8B", options=Facts(model=MODEL)).other


def test_options_win_over_the_configuration() -> None:
    found = choice("/model", options=Facts(model=PRO), configured=Facts(model=MODEL))
    assert found.config_like == PRO


def test_a_config_that_is_given(tmp_path: Path) -> None:
    facts = Facts(model_config=tmp_path)
    assert choice("/model", configured=facts).model_config == str(tmp_path)
    assert choice("--port 80", configured=facts).model_config == str(tmp_path)
    assert choice(MODEL, options=facts).model_config == str(tmp_path)
    assert choice("Qwen/Qwen3-8B", configured=facts).other


def test_a_folder_of_this_machine_counts_only_with_a_config(tmp_path: Path) -> None:
    assert choice(str(tmp_path)).other
    (tmp_path / "config.json").write_text("{}")
    assert choice(str(tmp_path)) == ModelChoice(str(tmp_path))


def test_no_model() -> None:
    assert choice("--port 80").other == "the command names no model"
    assert choice("--tokenizer-mode deepseek_v4").unknown == "the command names no model"


def test_a_comment_states_the_model() -> None:
    text = f"vllm serve /model -tp 8 --kv-cache-dtype fp8 # dsv4check: model={MODEL}\n"
    answer = result(text)
    assert (answer.verdict, answer.model, answer.other_model) == ("pass", "/model", False)
    bad = result(text.replace("fp8", "bfloat16"))
    assert bad.verdict == "fail"


def test_a_comment_states_the_config(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    text = "# dsv4check: model-config=config.json\nvllm serve /model -tp 8 --kv-cache-dtype fp8\n"
    answer = result(text, path=script)
    assert "config.json" in answer.not_checked
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    assert result(text, path=script).not_checked
