from __future__ import annotations

import sys

import pytest

from dsv4check.deployment import Hardware
from dsv4check.host.gpus import hardware_seen, look_at_gpus, visible_indexes
from dsv4check.host.records import Observation, State
from dsv4check.inputs.gpu import apply_visible_devices, resolve_gpu
from tests.host.fake_nvml import DriverNotLoadedError, FakeNvml, LibraryNotFoundError, NoPermissionError, gpu


def looked(nvml: FakeNvml, **rest: object) -> dict[str, Observation]:
    rest.setdefault("env", {})
    seen, _ = look_at_gpus(nvml, **rest)  # type: ignore[arg-type]
    assert nvml.open == 0, "NVML was left open"
    assert all(item.area == "gpu" and "\n" not in item.why for item in seen)
    ids = [item.id for item in seen]
    assert len(ids) == len(set(ids))
    return {item.id: item for item in seen}


def test_a_whole_machine_is_clean() -> None:
    nvml = FakeNvml([gpu() for _ in range(8)])
    seen, gpus = look_at_gpus(nvml, env={})
    assert [item.id for item in seen] == [f"gpu-{index}" for index in range(8)] + ["gpu-links"]
    assert {item.state for item in seen} == {State.OK}
    assert seen[0].found == "NVIDIA H200, SM 9.0, 143,771 MiB"
    assert seen[0].data["catalogue"] == "H200"
    assert seen[-1].found == "28 of 28 pairs connected"
    assert gpus[7].index == 7
    assert gpus[7].capability == (9, 0)
    assert gpus[7].memory_mib == 143771
    assert gpus[7].free_mib == 143171
    assert gpus[7].visible is True
    assert gpus[7].mig is False


def test_the_uuid_is_for_programs_only() -> None:
    item = looked(FakeNvml([gpu()]))["gpu-0"]
    assert item.data["uuid"] == "GPU-00000000-1111-2222-3333-444444444444"
    assert "1111" not in item.found + item.why + item.what


@pytest.mark.parametrize(
    "error", [LibraryNotFoundError(), DriverNotLoadedError(), NoPermissionError(), OSError("broken\nlibrary")]
)
def test_a_driver_that_cannot_be_asked_is_unknown_in_its_own_words(error: Exception) -> None:
    seen, gpus = look_at_gpus(FakeNvml([gpu()], init=error), env={})
    assert gpus == []
    assert [(item.id, item.state) for item in seen] == [("gpus", State.UNKNOWN)]
    assert " ".join(str(error).split()) in seen[0].why


def test_without_pynvml_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    seen, gpus = look_at_gpus()
    assert gpus == []
    assert seen[0].state is State.UNKNOWN
    assert seen[0].advice == "pip install 'dsv4check[gpu]'"


def test_no_gpu_at_all() -> None:
    seen, gpus = look_at_gpus(FakeNvml([]), env={})
    assert gpus == []
    assert (seen[0].id, seen[0].state, seen[0].data["rule"]) == ("gpus", State.ERROR, "HO004")
    seen, gpus = look_at_gpus(FakeNvml([], count=NoPermissionError()), env={})
    assert (seen[0].state, gpus) == (State.UNKNOWN, [])
    assert "Insufficient Permissions" in seen[0].why


def test_a_gpu_that_may_not_be_read_does_not_hide_the_others() -> None:
    nvml = FakeNvml([gpu(), gpu(handle=NoPermissionError), gpu(name=NoPermissionError), gpu()])
    seen = looked(nvml)
    for index in (1, 2):
        assert seen[f"gpu-{index}"].state is State.UNKNOWN
        assert "Insufficient Permissions" in seen[f"gpu-{index}"].why
    assert seen["gpu-3"].state is State.OK
    _, gpus = look_at_gpus(nvml, env={})
    assert [item.name for item in gpus] == ["NVIDIA H200", None, None, "NVIDIA H200"]


def test_unified_memory_takes_the_catalogue() -> None:
    seen, gpus = look_at_gpus(FakeNvml([gpu("NVIDIA GB10", (12, 1), None)]), env={})
    assert [item.id for item in seen] == ["gpu-0"]
    assert seen[0].state is State.NOTE
    assert gpus[0].free_mib is None
    assert gpus[0].memory_mib is not None
    assert gpus[0].memory_mib > 100_000
    assert hardware_seen(gpus).unified_memory


def test_a_name_outside_the_catalogue_keeps_its_figures() -> None:
    seen, gpus = look_at_gpus(FakeNvml([gpu("NVIDIA H999", (9, 0), 90_000)]), env={})
    assert seen[0].state is State.NOTE
    assert seen[0].data["catalogue"] is None
    assert hardware_seen(gpus).name == "NVIDIA H999"


def test_mixed_gpus_are_warned_of() -> None:
    nvml = FakeNvml([gpu("NVIDIA H100 80GB HBM3", (9, 0), 81559), gpu(), gpu()])
    item = looked(nvml)["gpu-mixed"]
    assert item.state is State.WARNING
    assert item.found == "1x NVIDIA H100 80GB HBM3 (81,559 MiB), 2x NVIDIA H200 (143,771 MiB)"
    assert "least memory" in item.why
    assert "fastest first" in item.why
    assert "fastest first" not in looked(nvml, env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})["gpu-mixed"].why
    assert "gpu-mixed" not in looked(nvml, env={"CUDA_VISIBLE_DEVICES": "1,2"})
    other = FakeNvml([gpu(), gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 97887)])
    assert "first visible GPU" in looked(other)["gpu-mixed"].why


def test_memory_in_use_is_measured_against_the_launch() -> None:
    nvml = FakeNvml([gpu(used_mib=43771, processes=[1, 2]), gpu()])
    item = looked(nvml)["gpu-0-memory"]
    assert item.state is State.WARNING
    assert item.found.endswith("143,771 MiB free, 2 processes")
    assert "--gpu-memory-utilization 0.69 or less" in item.advice
    assert item.data["processes"] == 2
    assert "gpu-1-memory" not in looked(nvml)
    assert "gpu-0-memory" not in looked(nvml, utilization=0.69)
    assert "gpu-0-memory" not in looked(nvml, env={"CUDA_VISIBLE_DEVICES": "1"})
    full = looked(FakeNvml([gpu(used_mib=143771)]))["gpu-0-memory"]
    assert "or less" not in full.advice


def test_a_little_in_use_is_nothing() -> None:
    assert "gpu-0-memory" not in looked(FakeNvml([gpu(used_mib=11000)]))
    assert "gpu-0-memory" in looked(FakeNvml([gpu(used_mib=12000)]))


def test_mig() -> None:
    nvml = FakeNvml([gpu(mig=[1, 1], used_mib=143771), gpu(mig=[0, 1])])
    seen, gpus = look_at_gpus(nvml, env={})
    found = {item.id: item for item in seen}
    assert found["gpu-0-mig"].state is State.WARNING
    assert "gpu-0-memory" not in found
    assert "gpu-1-mig" not in found
    assert "gpu-links" not in found
    assert [item.mig for item in gpus] == [True, False]


@pytest.mark.parametrize(("mode", "state"), [(3, State.WARNING), (2, State.ERROR)])
def test_compute_modes(mode: int, state: State) -> None:
    assert looked(FakeNvml([gpu(mode=mode)]))["gpu-0-compute-mode"].state is state
    assert "gpu-0-compute-mode" not in looked(FakeNvml([gpu(mode=0)]))


def test_rows_that_wait_for_a_reset() -> None:
    assert "pending" in looked(FakeNvml([gpu(rows=(3, 1, 1, 0))]))["gpu-0-rows"].found
    assert "failed" in looked(FakeNvml([gpu(rows=(0, 1, 0, 1))]))["gpu-0-rows"].found
    assert "gpu-0-rows" not in looked(FakeNvml([gpu(rows=(3, 1, 0, 0))]))


def test_links() -> None:
    pairs = looked(FakeNvml([gpu() for _ in range(4)], nvlink={(0, 1), (2, 3)}))["gpu-links"]
    assert (pairs.state, pairs.data["linked_pairs"]) == (State.NOTE, [[0, 1], [2, 3]])
    assert "custom all-reduce is off" in pairs.why
    two = looked(FakeNvml([gpu(), gpu()], nvlink=set()))["gpu-links"]
    assert "custom all-reduce" not in two.why
    assert "gpu-links" not in looked(FakeNvml([gpu(), gpu()], nvlink=None))
    seen = looked(FakeNvml([gpu() for _ in range(4)], nvlink={(0, 1)}), env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert (seen["gpu-links"].state, seen["gpu-links"].found) == (State.OK, "1 of 1 pairs connected")


@pytest.mark.parametrize(
    "value", ["0", "0,1", "1,0", "2,3,0", "0,0", "", "-1", "0,-1,1", " 0 , 1", "+1", "01", "NoDevFiles", "x", "1x,2"]
)
def test_visible_gpus_are_as_many_as_the_launch_counts(value: str) -> None:
    counted = apply_visible_devices(Hardware(vendor="nvidia", gpus_per_node=4), {"CUDA_VISIBLE_DEVICES": value})
    found = visible_indexes(value, [f"GPU-{index}" for index in range(4)])
    assert found is not None
    assert len(found) == counted.gpus_per_node


def test_visible_gpus_by_uuid_and_beyond_the_machine() -> None:
    uuids = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]
    assert visible_indexes(None, uuids) == {0, 1, 2}
    assert visible_indexes("GPU-cccc-3,GPU-aab", uuids) == {1, 2}
    assert visible_indexes("GPU-aa", uuids) == frozenset()
    assert visible_indexes("1,7,0", uuids) == {1}
    assert visible_indexes("${GPUS}", uuids) is None
    assert visible_indexes("MIG-aaaa", uuids) is None
    assert visible_indexes("9" * 5000, uuids) == frozenset()


def test_the_variable_is_reported() -> None:
    nvml = FakeNvml([gpu(), gpu(), gpu()])
    some = looked(nvml, env={"CUDA_VISIBLE_DEVICES": "2,0"})
    assert (some["gpu-visible"].state, some["gpu-visible"].data["visible"]) == (State.NOTE, [0, 2])
    assert some["gpu-1"].data["visible"] is False
    none = looked(nvml, env={"CUDA_VISIBLE_DEVICES": ""})["gpu-visible"]
    assert (none.state, none.found, none.data["rule"]) == (State.ERROR, "(empty)", "HO004")
    unknown = looked(nvml, env={"CUDA_VISIBLE_DEVICES": "$GPUS"})
    assert (unknown["gpu-visible"].state, unknown["gpu-0"].data["visible"]) == (State.UNKNOWN, None)
    assert "gpu-visible" not in looked(nvml)


def test_what_each_release_makes_of_uuids() -> None:
    nvml = FakeNvml([gpu(), gpu()])
    whole = {"CUDA_VISIBLE_DEVICES": "GPU-00000001-1111-2222-3333-444444444444"}
    old = looked(nvml, env=whole, release="0.23.0")["gpu-visible-uuid"]
    assert old.state is State.ERROR
    assert "invalid literal for int()" in old.why
    assert "4444" not in old.found
    assert "gpu-visible-uuid" not in looked(nvml, env=whole, release="0.24.0")
    assert "gpu-visible-uuid" not in looked(nvml, env=whole)
    assert "gpu-visible-uuid" not in looked(nvml, env=whole, release="0.1.dev7+gabc123")
    short = looked(nvml, env={"CUDA_VISIBLE_DEVICES": "GPU-00000001"}, release="0.33.0")
    assert short["gpu-visible-uuid"].state is State.WARNING
    assert short["gpu-visible"].data["visible"] == [1]
    mig = looked(nvml, env={"CUDA_VISIBLE_DEVICES": "MIG-1234abcd-0000"}, release="0.33.0")
    assert mig["gpu-visible-uuid"].state is State.WARNING
    assert mig["gpu-visible"].state is State.UNKNOWN


@pytest.mark.parametrize(
    "gpus",
    [
        [gpu() for _ in range(8)],
        [gpu("NVIDIA H100 80GB HBM3", (9, 0), 81559), gpu()],
        [gpu("NVIDIA GB10", (12, 1), None)],
        [gpu("NVIDIA H999", (9, 0), 90_000)],
        [gpu(name=NoPermissionError)],
        [],
    ],
)
def test_the_hardware_is_what_a_check_without_gpu_takes(
    gpus: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(gpus))
    _, seen = look_at_gpus(env={})
    assert hardware_seen(seen) == resolve_gpu(None)
