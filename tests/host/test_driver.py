from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsv4check.host.driver import cuda_of_wheel, cuda_version, look_at_driver
from dsv4check.host.records import Observation, State
from dsv4check.releases.facts import known_releases
from tests.host.fake_nvml import DriverNotLoadedError, FakeNvml, LibraryNotFoundError


def looked(
    nvml: FakeNvml, *builds: str | None, env: dict[str, str] | None = None, root: Path = Path("/none")
) -> dict[str, Observation]:
    seen = look_at_driver(nvml, *builds, env=env or {}, root=root)
    assert nvml.open == 0
    assert all(item.area == "driver" and "\n" not in item.why for item in seen)
    return {item.id: item for item in seen}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("13.0", (13, 0)),
        ("12.9", (12, 9)),
        ("12.8.1", (12, 8)),
        ("cu129", (12, 9)),
        ("13", (13, 0)),
        ("libcudart.so.13", (13, 0)),
        ("libcudart.so.11.0", (11, 0)),
        ("cpu", None),
        ("rocm6.4", None),
        ("", None),
        (None, None),
        ("9" * 300, None),
    ],
)
def test_the_forms_of_a_cuda_version(text: str | None, expected: tuple[int, int] | None) -> None:
    assert cuda_version(text) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.26.0+cu129", "12.9"),
        ("0.31.1.dev12+gabc123.cu130", "13.0"),
        ("0.24.0+gabc123.d20260101.cu128", "12.8"),
        ("0.26.0+cpu", None),
        ("0.26.0+gcu129abc", None),
        ("0.99.0", None),
        ("0.31.1.dev12+gabc123", None),
        (None, None),
    ],
)
def test_the_cuda_of_a_wheel_by_its_version(version: str | None, expected: str | None) -> None:
    assert cuda_of_wheel(version)[0] == expected


def test_every_release_is_built_for_the_main_cuda() -> None:
    assert {cuda_of_wheel(version)[0] for version in known_releases()} == {"13.0"}


def test_a_driver_of_the_same_cuda_or_newer() -> None:
    for cuda in (13000, 13020, 14000):
        item = looked(FakeNvml(cuda=cuda), "13.0", "13.0", "libcudart.so.13")["driver-cuda"]
        assert (item.state, item.wanted) == (State.OK, "CUDA 13.0, driver 580.65.06 or newer")
    item = looked(FakeNvml(driver=b"570.10", cuda=12080), "12.8", "12.8")["driver-cuda"]
    assert (item.state, item.found) == (State.OK, "driver 570.10, CUDA 12.8")


def test_a_driver_of_an_older_major_stops_the_launch() -> None:
    item = looked(FakeNvml(driver="550.90.07", cuda=12040), "13.0", "13.0")["driver-cuda"]
    assert (item.state, item.data["rule"]) == (State.ERROR, "HO001")
    assert item.data["cuda"] == "12.4"
    assert item.data["needed_cuda"] == "13.0"
    assert "580.65.06" in item.advice
    assert "cuda-compat" in item.advice


def test_an_older_minor_is_a_hazard_for_ptx() -> None:
    item = looked(FakeNvml(driver="550.90.07", cuda=12040), "12.9", "12.9")["driver-cuda"]
    assert (item.state, item.data["rule"]) == (State.WARNING, "HO001")
    assert "unsupported toolchain" in item.why
    assert "525.60.13" in item.why


def test_the_highest_need_counts() -> None:
    item = looked(FakeNvml(driver="550.90.07", cuda=12040), "12.4", "12.9")["driver-cuda"]
    assert item.state is State.WARNING
    assert item.why.startswith("The vLLM wheel")


def test_a_compatibility_package_in_front_of_the_driver() -> None:
    item = looked(FakeNvml(driver="535.161.08", cuda=13000), "13.0", "13.0")["driver-cuda"]
    assert (item.state, item.data["rule"]) == (State.WARNING, "HO002")
    odd = looked(FakeNvml(driver="535-custom", cuda=13000), "13.0", "13.0")["driver-cuda"]
    assert odd.state is State.OK


def test_nothing_to_compare_with() -> None:
    assert looked(FakeNvml())["driver-cuda"].state is State.NOTE
    silent = looked(FakeNvml(cuda=None), "13.0")["driver-cuda"]
    assert silent.state is State.UNKNOWN


def test_pytorch_and_vllm_for_two_cudas() -> None:
    linked = looked(FakeNvml(), "12.9", "13.0", "libcudart.so.13")["driver-cuda-builds"]
    assert (linked.state, linked.data["rule"]) == (State.ERROR, "HO012")
    assert "libcudart.so.13" in linked.why
    assert looked(FakeNvml(), "12.9", "13.0")["driver-cuda-builds"].state is State.WARNING
    # What the files link wins over what the version says: a build from source.
    assert looked(FakeNvml(), "12.9", "13.0", "libcudart.so.12")["driver-cuda-builds"].state is State.OK
    assert looked(FakeNvml(), "13.2", "13.0")["driver-cuda-builds"].state is State.OK
    assert "driver-cuda-builds" not in looked(FakeNvml(), None, "13.0")


def _absent(root: Path, env: dict[str, str] | None = None, error: Exception | None = None) -> Observation:
    item = looked(FakeNvml(init=error or LibraryNotFoundError()), "13.0", env=env, root=root)["driver-cuda"]
    assert item.state is State.UNKNOWN
    assert item.wanted == "CUDA 13.0, driver 580.65.06 or newer"
    return item


def test_no_driver_on_a_machine(tmp_path: Path) -> None:
    item = _absent(tmp_path, error=DriverNotLoadedError())
    assert "Driver Not Loaded. There is no /dev/nvidia*" in item.why
    assert item.data["container"] is False


def test_no_driver_in_a_container(tmp_path: Path) -> None:
    (tmp_path / ".dockerenv").touch()
    for env in ({}, {"NVIDIA_VISIBLE_DEVICES": "all"}):
        item = _absent(tmp_path, env)
        assert "without `--gpus`" in item.why
        assert "--gpus all" in item.advice
    assert "NVIDIA_VISIBLE_DEVICES=void" in _absent(tmp_path, {"NVIDIA_VISIBLE_DEVICES": "void"}).why


def test_a_pod_is_a_container(tmp_path: Path) -> None:
    item = _absent(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert "nvidia.com/gpu" in item.advice


def test_devices_without_the_library(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    assert _absent(tmp_path).advice == ""
    (tmp_path / ".dockerenv").touch()
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in _absent(tmp_path).advice


def test_an_amd_machine(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert "AMD" in _absent(tmp_path).why


def test_without_pynvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    seen = look_at_driver(None, "12.9", "13.0", env={}, root=tmp_path)
    assert [item.id for item in seen] == ["driver-cuda", "driver-cuda-builds"]
    assert seen[0].advice == "pip install 'dsv4check[gpu]'"
    assert seen[0].why.startswith("The Python package that asks the driver (pynvml) is not installed. There is no")
