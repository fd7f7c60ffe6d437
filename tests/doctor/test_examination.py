"""A look at an installation, with fakes in the place of its parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.doctor import DoctorReport, DoctorRequest, examine
from dsv4check.errors import InputError
from dsv4check.host.records import Observation, State
from dsv4check.installation.build_facts import Difference
from dsv4check.installation.tree import VllmTree
from tests.doctor.fakes import FakeLooks, tree_of

FLASH = "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8"
PARTS = {
    "build": ("vLLM's code", "build"),
    "fingerprints": ("fingerprints", "fingerprints"),
    "gpus": ("GPUs", "gpu"),
    "interpreter": ("installed packages", "packages"),
    "packages": ("packages", "packages"),
    "extensions": ("compiled extensions", "extensions"),
    "driver": ("driver", "driver"),
    "limits": ("limits", "limits"),
    "variables": ("variables", "environment"),
}


def looked(looks: FakeLooks, *, env: dict[str, str] | None = None, **asked: object) -> DoctorReport:
    return examine(DoctorRequest(**asked), looks=looks, env=env or {})  # type: ignore[arg-type]


def test_without_a_launch(tmp_path: Path) -> None:
    looks = FakeLooks(tree_of(tmp_path))
    report = looked(looks)
    assert (report.verdict, report.launch, report.report) == ("pass", None, None)
    build = report.build
    assert (build.found, build.version, build.commit, build.nearest) == (True, "0.24.0", "abc1234", "0.24.0")
    assert build.is_release is True
    assert [(item.part, item.why) for item in build.unread] == [("moe", "not by reading")]
    assert {item.id: item.fault for item in report.fingerprints} == {
        "other-question": False,
        "auto-kv-cache-dtype": True,
        "open-question": None,
    }
    areas = [item.area for item in report.observations]
    assert areas == ["gpu", "driver", "packages", "extensions", "limits", "environment"]
    assert {item.state for item in report.observations} == {State.OK}
    assert len(report.machine.gpus) == 8
    assert report.machine.gpus[0] == {"name": "NVIDIA H200", "sm": "9.0", "memory_mib": 143771}
    assert report.machine.packages["torch"] == "2.11.0+cu130"


def test_every_part_knows_what_the_parts_before_it_found(tmp_path: Path) -> None:
    looks = FakeLooks(tree_of(tmp_path))
    looked(looks, env={"VLLM_USE_DEEP_GEMM": "0", "HF_TOKEN": "x", "CUDA_VISIBLE_DEVICES": "0"})
    assert looks.told["gpus"][1] == "0.24.0"
    assert looks.told["interpreter"] == "/py/bin/python"
    assert looks.told["packages"][0]["packages"]["torch"].startswith("==")
    assert looks.told["extensions"] == (9, 0)
    assert looks.told["driver"] == ("13.0", "0.24.0", "libcudart.so.13")
    env = {"VLLM_USE_DEEP_GEMM": "0", "HF_TOKEN": "x", "CUDA_VISIBLE_DEVICES": "0"}
    assert looks.told["variables"] == (env, "0.24.0")
    assert looks.told["limits"] is None
    looked(looks, command=FLASH)
    assert looks.told["limits"] == "deepseek-ai/DeepSeek-V4-Flash"


def test_a_launch_is_judged_by_the_build_and_the_machine(tmp_path: Path) -> None:
    report = looked(FakeLooks(tree_of(tmp_path)), command=FLASH)
    assert report.report is not None
    deployment = report.report.deployment
    assert (deployment.hardware.name, deployment.hardware.gpus_per_node) == ("H200", 8)
    assert deployment.hardware.origin.kind == "nvml"
    assert deployment.vllm.version == "0.24.0"
    assert deployment.vllm.own is not None
    assert deployment.packages == {"torch": "2.11.0+cu130", "flashinfer-python": "0.6.8", "triton": "3.6.0"}
    assert report.verdict == "fail"
    assert report.launch is not None
    assert "KV001" in [finding["rule"] for finding in report.launch["findings"]]
    # The build has a section of its own.
    assert not any("judged by its own code" in note for note in report.report.notes)


def test_what_is_stated_wins(tmp_path: Path) -> None:
    looks = FakeLooks(tree_of(tmp_path))
    report = looked(
        looks,
        command=f"VLLM_USE_DEEP_GEMM=1 {FLASH} --distributed-executor-backend=ray",
        gpu="B200",
        gpus=4,
        packages=("triton=3.5.0",),
        env={"VLLM_USE_DEEP_GEMM": "0", "VLLM_LOGGING_LEVEL": "DEBUG", "CUDA_VISIBLE_DEVICES": "0"},
    )
    assert report.report is not None
    deployment = report.report.deployment
    assert (deployment.hardware.name, deployment.hardware.gpus_per_node) == ("B200", 4)
    assert deployment.packages["triton"] == "3.5.0"
    assert deployment.packages["torch"] == "2.11.0+cu130"
    # CUDA_VISIBLE_DEVICES of this process says nothing of named GPUs.
    assert dict(deployment.env) == {"VLLM_USE_DEEP_GEMM": "1", "VLLM_LOGGING_LEVEL": "DEBUG"}
    assert looks.told["extensions"] == (10, 0)
    assert looks.told["packages"][1] == ("ray",)


def test_options_beside_the_driver(tmp_path: Path) -> None:
    report = looked(FakeLooks(tree_of(tmp_path)), command=FLASH, gpus=2, nodes=3, gpu_memory_gib=100)
    assert report.report is not None
    hardware = report.report.deployment.hardware
    assert (hardware.name, hardware.gpus_per_node, hardware.nodes, hardware.memory_mib) == ("H200", 2, 3, 102400)


def test_visible_devices_of_this_process_count(tmp_path: Path) -> None:
    report = looked(FakeLooks(tree_of(tmp_path)), command=FLASH, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert report.report is not None
    assert report.report.deployment.hardware.gpus_per_node == 2


@pytest.mark.parametrize("command", [None, FLASH])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_breaks_is_not_looked_at_and_the_others_are(tmp_path: Path, part: str, command: str | None) -> None:
    whole = looked(FakeLooks(tree_of(tmp_path)), command=command)
    report = looked(FakeLooks(tree_of(tmp_path), failing=[part]), command=command)
    name, area = PARTS[part]
    (broken,) = report.with_state(State.UNKNOWN)
    assert (broken.what, broken.area) == (name, area)
    assert broken.why == f"internal error (ZeroDivisionError: {part} broke in two lines)"
    missing = {"interpreter": {"packages-one"}, "gpus": {"gpu-0"}, "extensions": {"extensions-cuda-runtime"}}
    gone = {item.id for item in whole.observations} - {item.id for item in report.observations}
    assert gone == missing.get(part, {f"{part}-one"} & {item.id for item in whole.observations})
    assert (report.fingerprints == ()) == (part == "fingerprints")
    assert (report.build.nearest is None) == (part == "build")
    assert (report.report is None) == (command is None)


def test_a_launch_whose_check_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_rest: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr("dsv4check.api.check_request", broken)
    report = looked(FakeLooks(tree_of(tmp_path)), command=FLASH)
    assert report.launch is None
    (item,) = report.with_state(State.UNKNOWN)
    assert (item.id, item.area) == ("internal-launch", "launch")


def test_debugging_shows_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4CHECK_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        looked(FakeLooks(tree_of(tmp_path), failing=["limits"]))


def test_without_vllm_the_rest_is_looked_at() -> None:
    looks = FakeLooks("this Python has no vllm")
    report = looked(looks)
    assert (report.build.found, report.build.why) == (False, "this Python has no vllm")
    assert report.verdict == "pass"
    assert report.fingerprints == ()
    assert [item.id for item in report.observations] == [
        *("gpu-0", "driver-one", "packages-one", "limits-one", "variables-one")
    ]
    # Nothing is known that packages and variables could be compared with.
    assert looks.told["variables"][1] is None
    assert looks.told["packages"][0] == {}
    assert looks.told["interpreter"] is None


def test_without_vllm_a_launch_is_judged_by_the_stated_release() -> None:
    looks = FakeLooks("this Python has no vllm")
    report = looked(looks, command=FLASH, vllm="0.24.0")
    assert report.report is not None
    assert report.report.deployment.vllm.version == "0.24.0"
    assert report.report.deployment.vllm.own is None
    assert looks.told["variables"][1] == "0.24.0"


def test_a_named_path_that_is_wrong_is_unusable() -> None:
    class Nowhere(FakeLooks):
        def tree(self, vllm_path: str | None, python: str | None) -> VllmTree | str:
            raise InputError(f"--vllm-path {vllm_path}: no such folder")

    with pytest.raises(InputError, match="--vllm-path /nowhere: no such folder"):
        looked(Nowhere(""), vllm_path="/nowhere")


def test_looking_for_vllm_may_break_too() -> None:
    report = looked(FakeLooks("", failing=["tree"]))
    assert (report.build.found, report.build.why) == (False, "looking for it failed")
    assert [item.what for item in report.with_state(State.UNKNOWN)] == ["vLLM"]


@pytest.mark.parametrize(
    ("command", "message"), [("vllm serve", "no model"), ("vllm serve nobody/nothing", "no config.json")]
)
def test_an_unusable_launch_is_said_before_anything_is_looked_at(tmp_path: Path, command: str, message: str) -> None:
    looks = FakeLooks(tree_of(tmp_path))
    with pytest.raises(InputError, match=message):
        looked(looks, command=command)
    assert looks.told == {}


def test_a_tree_without_a_python_leaves_packages_open(tmp_path: Path) -> None:
    from dataclasses import replace

    looks = FakeLooks(replace(tree_of(tmp_path), python=None))
    report = looked(looks)
    (item,) = report.with_state(State.UNKNOWN)
    assert (item.id, item.area) == ("packages", "packages")
    assert "--python" in item.advice
    assert "interpreter" not in looks.told
    looked(looks, python="/my/python")
    assert looks.told["interpreter"] == "/my/python"


@pytest.mark.parametrize("version", ["0.24.0-acme-edition", None, "not a version"])
def test_a_build_that_calls_itself_anything(tmp_path: Path, version: str | None) -> None:
    for failing in ((), ("build",)):
        report = looked(FakeLooks(tree_of(tmp_path, version), failing=failing), command=FLASH)
        assert report.report is not None
        assert report.build.version == version


def test_a_stated_version_beside_a_tree_is_told(tmp_path: Path) -> None:
    report = looked(FakeLooks(tree_of(tmp_path)), command=FLASH, vllm="0.25.0")
    assert report.notes == ("--vllm 0.25.0: the tree says that it is 0.24.0; its own code counts",)
    assert looked(FakeLooks(tree_of(tmp_path)), vllm="0.24.0").notes == ()


def test_differences_are_kept(tmp_path: Path) -> None:
    differs = (Difference("kv_cache.auto", '"none"', '"fp8"'),)
    report = looked(FakeLooks(tree_of(tmp_path), differs=differs))
    assert report.build.is_release is False
    (one,) = report.build.differs
    assert (one.path, one.here, one.release) == ("kv_cache.auto", '"fp8"', '"none"')


def test_what_names_this_very_board_is_left_out(tmp_path: Path) -> None:
    report = looked(FakeLooks(tree_of(tmp_path)))
    assert dict(report.observations[0].data) == {"sm": "9.0"}
    assert "GPU-0000" not in str(report.to_dict())


@pytest.mark.parametrize(
    ("state", "verdict"), [(State.ERROR, "fail"), (State.WARNING, "warn"), (State.UNKNOWN, "pass")]
)
def test_the_verdict_is_the_worst(tmp_path: Path, state: State, verdict: str) -> None:
    seen = {"limits": [Observation("limit-x", "limits", state, "x")]}
    assert looked(FakeLooks(tree_of(tmp_path), seen=seen)).verdict == verdict


def test_open_answers_are_counted(tmp_path: Path) -> None:
    # One fingerprint and one section of facts.
    assert looked(FakeLooks(tree_of(tmp_path))).open_answers == 2
    assert looked(FakeLooks(tree_of(tmp_path), failing=["limits"])).open_answers == 3


def test_visible_devices_are_told_once(tmp_path: Path) -> None:
    variable = Observation("variable-cuda-visible-devices", "environment", State.NOTE, "CUDA_VISIBLE_DEVICES", "0")
    gpus = [Observation("gpu-visible", "gpu", State.NOTE, "CUDA_VISIBLE_DEVICES", "0")]
    both = looked(FakeLooks(tree_of(tmp_path), seen={"variables": [variable], "gpus": gpus}))
    assert [item.area for item in both.observations if item.what == "CUDA_VISIBLE_DEVICES"] == ["gpu"]
    alone = looked(FakeLooks(tree_of(tmp_path), seen={"variables": [variable]}))
    assert variable in alone.observations


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    examine(DoctorRequest(), looks=FakeLooks(tree_of(tmp_path)), env={}, say=told.append)
    assert told[:4] == ["vLLM", "vLLM's files", "vLLM's code", "fingerprints"]
    assert "limits" in told
