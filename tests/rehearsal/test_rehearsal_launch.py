"""From a command to what the child runs: models and files become markers, the GPU becomes a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsv4check.api import read_request
from dsv4check.errors import InputError
from dsv4check.rehearsal.environment import RehearsalUnavailable
from dsv4check.rehearsal.launch import build_launch, for_environment
from dsv4check.rehearsal.protocol import Launch
from dsv4check.request import build_deployment

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
DSPARK = "deepseek-ai/DeepSeek-V4-Flash-DSpark"


def made(command: str, draft: str | None = None, checkpoint: str | None = None, **options: object) -> Launch:
    request = read_request(command, **{"gpu": "H200", "gpus": 8, "vllm": "0.29.0", **options})  # type: ignore[arg-type]
    deployment = build_deployment(request)
    return build_launch(request, deployment, draft=draft, stage_timeout=10, checkpoint=checkpoint)


def test_the_positional_model_becomes_a_marker_and_its_config_goes_along() -> None:
    launch = made(f"vllm serve {FLASH} -tp 8 --served-model-name x")
    assert launch.argv == ("{model:0}", "-tp", "8", "--served-model-name", "x")
    assert launch.models[0][0] == FLASH
    assert launch.models[0][1]["num_hidden_layers"] == 43
    assert launch.entrypoint == "serve"


def test_hf_overrides_are_left_to_vllm() -> None:
    launch = made(f"vllm serve {FLASH} --hf-overrides '{{\"num_hidden_layers\": 4}}'")
    assert launch.models[0][1]["num_hidden_layers"] == 43
    assert launch.argv[-1] == '{"num_hidden_layers": 4}'


def test_a_draft_of_its_own_is_put_into_the_json() -> None:
    launch = made(
        f'vllm serve {FLASH} --speculative-config \'{{"method":"dspark","model":"{DSPARK}"}}\'',
        draft=DSPARK,
    )
    assert [name for name, _config in launch.models] == [FLASH, DSPARK]
    assert launch.argv[-1] == '{"method":"dspark","model":"{model:1}"}'


def test_a_draft_that_is_not_at_hand_is_left_to_vllm() -> None:
    assert len(made(f"vllm serve {FLASH}", draft="nobody/has-this").models) == 1


def test_the_module_takes_model_as_a_flag() -> None:
    launch = made(f"python -m vllm.entrypoints.openai.api_server --model={FLASH}")
    assert (launch.entrypoint, launch.argv) == ("api_server", ("--model={model:0}",))


def test_a_config_file_goes_along_with_the_model_replaced(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(f"model: {FLASH}\ntensor-parallel-size: 8\n", encoding="utf-8")
    launch = made(f"vllm serve --config {file}")
    assert launch.argv == ("--config", "{file:0}")
    assert launch.files == ((str(file), "model: '{model:0}'\ntensor-parallel-size: 8\n"),)


def weights_of(command: str, **options: object) -> tuple[int | None, ...]:
    return tuple(None if one is None else len(one) for one in made(command, **options).weights)


def test_published_tensors_go_along_with_a_few_experts() -> None:
    launch = made(f"vllm serve {FLASH}")
    assert launch.weights[0] is not None
    names = {name for name, _dtype, _shape in launch.weights[0]}
    assert {"embed.weight", "mtp.0.e_proj.weight", "layers.42.ffn.experts.255.w2.scale"} <= names
    assert "layers.42.ffn.experts.100.w2.scale" not in names


def test_a_config_that_is_not_the_checkpoint_s_own_says_nothing_about_tensors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(made(f"vllm serve {FLASH}").models[0][1])), encoding="utf-8")
    assert weights_of(f"vllm serve {FLASH}", model_config=str(tmp_path)) == (None,)
    assert weights_of(f"vllm serve {tmp_path}") == (None,)


def test_the_checkpoint_on_disk_goes_before_the_published_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(made(f"vllm serve {FLASH}").models[0][1])), encoding="utf-8")
    header = b'{"norm.weight":{"dtype":"BF16","shape":[4096],"data_offsets":[0,8192]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert made(f"vllm serve {tmp_path}").weights == ((("norm.weight", "BF16", (4096,)),),)
    assert made(f"vllm serve {FLASH}", checkpoint=str(tmp_path)).weights == ((("norm.weight", "BF16", (4096,)),),)
    assert made(f"vllm serve {tmp_path}", checkpoint="none").weights == (None,)
    with pytest.raises(InputError, match="no such file"):
        made(f"vllm serve {FLASH}", checkpoint=str(tmp_path / "nothing"))


def test_a_damaged_shard_is_unusable_input(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(made(f"vllm serve {FLASH}").models[0][1])), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(InputError, match=r"model\.safetensors: is a git-lfs pointer"):
        made(f"vllm serve {tmp_path}")


def test_the_device_is_the_catalogue_entry() -> None:
    device = made(f"vllm serve {FLASH}", gpu="B300", gpus=4).device
    assert (device.sm, device.name, device.count, device.memory_mib) == ("10.3", "NVIDIA B300 SXM6 AC", 4, 275040)


def test_the_environment_of_the_launch_goes_along() -> None:
    assert made(f"A=1 vllm serve {FLASH}", env={"B": "2"}).env == {"A": "1", "B": "2"}


def test_what_cannot_be_simulated() -> None:
    with pytest.raises(RehearsalUnavailable, match="not simulated"):
        made(f"vllm serve {FLASH}", gpu="MI300X")


def test_no_gpu_is_unusable_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dsv4check.inputs.gpu._from_driver", lambda: __import__("dsv4check.deployment").deployment.Hardware()
    )
    with pytest.raises(InputError, match="--gpu"):
        made(f"vllm serve {FLASH}", gpu=None, gpus=None)


def test_the_release_is_that_of_the_environment() -> None:
    request = read_request(f"vllm serve {FLASH}", gpu="H200")
    assert for_environment(request, "0.24.0").vllm.release == "0.24.0"
    stated = read_request(f"vllm serve {FLASH}", gpu="H200", vllm="0.30.0")
    assert for_environment(stated, "0.30.0").vllm.version == "0.30.0"
    with pytest.raises(InputError, match=r"0\.30\.0.*0\.24\.0"):
        for_environment(stated, "0.24.0")


def test_an_unknown_newer_release_is_compared_with_the_newest_known_facts() -> None:
    request = for_environment(read_request(f"vllm serve {FLASH}", gpu="H200"), "0.99.0")
    assert request.vllm.version == "0.99.0"
    assert request.vllm.release != "0.99.0"
