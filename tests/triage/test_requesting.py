from __future__ import annotations

import sys
import types

import pytest

from dsv4check.errors import InputError
from dsv4check.request import build_deployment
from dsv4check.triage.records import Stated
from dsv4check.triage.requesting import to_request
from dsv4check.triage.said import SaidByUser

_FLASH = "deepseek-ai/DeepSeek-V4-Flash"
_STATED = Stated(
    vllm="0.24.0",
    model=_FLASH,
    words=("--tensor-parallel-size", "8"),
    env={"VLLM_A": "1"},
    gpu="H200",
    gpus=8,
    nodes=2,
    packages={"torch": "2.10.0", "odd": "not a version"},
)


def test_the_request_is_what_the_log_states() -> None:
    request = to_request(_STATED)
    deployment = build_deployment(request)
    assert [token.text for token in request.command.tokens] == [_FLASH, "--tensor-parallel-size", "8"]
    assert deployment.vllm.version == "0.24.0"
    assert (deployment.hardware.name, deployment.hardware.total_gpus) == ("H200", 16)
    assert deployment.env == {"VLLM_A": "1"}
    assert request.packages["torch"] == "2.10.0"
    assert deployment.flags.values["tensor_parallel_size"] == 8


def test_options_win_over_the_log() -> None:
    said = SaidByUser(
        gpu="4xB200",
        nodes=1,
        vllm="0.33.0",
        model="deepseek-ai/DeepSeek-V4-Pro",
        env={"VLLM_A": "2"},
        packages={"torch": "2.11.0"},
    )
    request = to_request(said.over(_STATED))
    deployment = build_deployment(request)
    assert (deployment.hardware.name, deployment.hardware.gpus_per_node, deployment.hardware.nodes) == ("B200", 4, 1)
    assert deployment.vllm.version == "0.33.0"
    assert deployment.model.name == "deepseek-ai/DeepSeek-V4-Pro"
    assert deployment.env == {"VLLM_A": "2"}
    assert request.packages["torch"] == "2.11.0"


def test_without_a_version_every_release_counts() -> None:
    for version in (None, "0.1.dev15830+g8d599d76a", "made up"):
        assert to_request(Stated(vllm=version, model=_FLASH)).vllm.kind == "unstated"


def test_this_machines_gpus_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("NVML was asked")

    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(nvmlInit=refuse))
    hardware = to_request(Stated(vllm="0.24.0", model=_FLASH, gpus=4)).hardware
    assert (hardware.name, hardware.gpus_per_node) == (None, 4)
    assert to_request(SaidByUser(gpus=2).over(Stated(vllm="0.24.0", model=_FLASH))).hardware.gpus_per_node == 2


def test_a_gpu_that_is_not_known_stays_open_and_is_said() -> None:
    request = to_request(Stated(vllm="0.24.0", model=_FLASH, gpu="NVIDIA Nothing 1", gpus=2))
    assert (request.hardware.name, request.hardware.gpus_per_node) == (None, 2)
    assert "unknown GPU" in request.command.notes[0]


def test_the_memory_picks_the_variant() -> None:
    hardware = to_request(Stated(vllm="0.24.0", model=_FLASH, gpu="H20", gpu_memory_gib=139.8)).hardware
    assert hardware.name == "H20-141GB"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("/models/DeepSeek-V4-Flash", _FLASH),
        ("/root/.cache/DeepSeek-V4-Pro-DSpark", "deepseek-ai/DeepSeek-V4-Pro-DSpark"),
        ("/c/models--deepseek-ai--DeepSeek-V4-Flash/snapshots/60d8", _FLASH),
        ("/root/.cache/deepseek_v4_flash_w8a8", _FLASH),
        ("/data/dsv4-flash", _FLASH),
        ("/data/DeepSeek-V4-Flash/weights", _FLASH),
    ],
)
def test_paths_whose_name_tells_the_model(name: str, known: str) -> None:
    deployment = build_deployment(to_request(Stated(vllm="0.33.0", model=name)))
    assert known in deployment.model.source
    assert deployment.model.name == name


def test_the_served_name_tells_the_model() -> None:
    request = to_request(Stated(vllm="0.33.0", model="/m", words=("--served-model-name", "DeepSeek-V4-Pro", "x")))
    assert request.config_like == "deepseek-ai/DeepSeek-V4-Pro"
    assert request.command.notes == (
        "the model is read as deepseek-ai/DeepSeek-V4-Pro: it is served as DeepSeek-V4-Pro",
    )


def test_no_model_is_an_error_in_one_line() -> None:
    with pytest.raises(InputError, match="does not say which model"):
        to_request(Stated(vllm="0.24.0"))


@pytest.mark.parametrize(("option", "value"), [("gpu", "H999"), ("gpus", 0), ("nodes", -1), ("vllm", "abc")])
def test_an_option_that_cannot_be_used_is_refused(option: str, value: object) -> None:
    with pytest.raises(InputError):
        to_request(SaidByUser(**{option: value}).over(Stated(model=_FLASH)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "stated",
    [
        Stated(model=_FLASH, words=("--quantization", "ascend")),
        Stated(model=_FLASH, env={"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}),
        Stated(model=_FLASH, observed={"device": "npu"}),
    ],
)
def test_a_launch_on_ascend_is_not_checked(stated: Stated) -> None:
    with pytest.raises(InputError, match="vLLM-Ascend"):
        to_request(stated)


def test_the_memory_counts_where_the_gpu_has_no_name() -> None:
    assert to_request(Stated(vllm="0.24.0", model=_FLASH, gpu_memory_gib=139.8)).hardware.memory_mib == 143155
    hardware = to_request(Stated(vllm="0.24.0", model=_FLASH, gpu="sm90", gpu_memory_gib=139.8)).hardware
    assert (hardware.capability, hardware.memory_mib) == ((9, 0), 143155)
