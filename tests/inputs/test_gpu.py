from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.deployment import Hardware
from dsv4check.errors import InputError
from dsv4check.inputs.gpu import apply_visible_devices, find_gpu, gpu_catalogue, resolve_gpu


def one_line(error: InputError) -> None:
    assert "\n" not in str(error)


def test_catalogue_is_consistent() -> None:
    names = [spec.name for spec in gpu_catalogue()]
    assert len(names) == len(set(names))
    for spec in gpu_catalogue():
        assert (spec.capability is not None) == (spec.vendor == "nvidia")
        assert spec.memory_mib is None or 8_000 < spec.memory_mib < 400_000
        assert spec.nvlink in ("all", "rack", "pairs", "none")
        assert spec.trust in ("measured", "nominal", "derived")
        for name in (spec.name, *spec.smi_names, *spec.aliases):
            assert find_gpu(name) is spec, name


@pytest.mark.parametrize(
    ("text", "name", "capability"),
    [
        ("H200", "H200", (9, 0)),
        ("h200", "H200", (9, 0)),
        ("NVIDIA H100 80GB HBM3", "H100", (9, 0)),
        ("rtx pro 6000", "RTX-PRO-6000", (12, 0)),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000", (12, 0)),
        ("RTX4090", "RTX-4090", (8, 9)),
        ("A100-80GB", "A100", (8, 0)),
        ("GB10", "GB10", (12, 1)),
        ("dgx spark", "GB10", (12, 1)),
        ("B300", "B300", (10, 3)),
        ("MI355X", "MI355X", None),
        ("Ascend-A3", "Ascend-A3", None),
    ],
)
def test_names(text: str, name: str, capability: tuple[int, int] | None) -> None:
    hardware = resolve_gpu(text)
    assert hardware.name == name
    assert hardware.capability == capability


@pytest.mark.parametrize(
    ("text", "capability"),
    [
        ("sm90", (9, 0)),
        ("sm_90", (9, 0)),
        ("SM 10.3", (10, 3)),
        ("9.0", (9, 0)),
        ("90", (9, 0)),
        ("sm121", (12, 1)),
        ("sm100a", (10, 0)),
        ("sm_120f", (12, 0)),
        ("compute_89", (8, 9)),
    ],
)
def test_capabilities(text: str, capability: tuple[int, int]) -> None:
    hardware = resolve_gpu(text)
    assert hardware.capability == capability
    assert hardware.vendor == "nvidia"
    assert hardware.memory_mib is None


@pytest.mark.parametrize("text", ["8xH200", "H200:8", "8 x h200"])
def test_a_count_in_the_name(text: str) -> None:
    assert (resolve_gpu(text).name, resolve_gpu(text).gpus_per_node) == ("H200", 8)


def test_stated_count_wins_over_the_name() -> None:
    assert resolve_gpu("8xH200", gpus=4, nodes=2).total_gpus == 8


@pytest.mark.parametrize(("text", "closest"), [("H2000", "H200"), ("RTX-PRO-600", "RTX-PRO-6000"), ("GB2000", "GB200")])
def test_unknown_names_suggest_the_closest(text: str, closest: str) -> None:
    with pytest.raises(InputError, match="unknown GPU") as caught:
        resolve_gpu(text)
    assert closest in str(caught.value)


@pytest.mark.parametrize("text", ["0xH200", "H200:0", "00xsm90"])
def test_no_gpus_at_all_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected a positive number of GPUs"):
        resolve_gpu(text)


@pytest.mark.parametrize("text", ["sm42", "99", "1.0"])
def test_impossible_capabilities(text: str) -> None:
    with pytest.raises(InputError, match="compute capability"):
        resolve_gpu(text)


@pytest.mark.parametrize(
    ("text", "gib", "name", "mib"),
    [
        ("H20", 141, "H20-141GB", 143771),
        ("H20", 96, "H20", 97871),
        ("H100", 94, "H100-NVL", 95830),
        ("RTX4090", 48, "RTX-4090-48GB", 49140),
        ("RTX-A4000", 16, "RTX-A4000", 16376),
        ("H200", 100, "H200", 102400),
    ],
)
def test_stated_memory_picks_the_variant(text: str, gib: float, name: str, mib: int) -> None:
    hardware = resolve_gpu(text, memory_gib=gib)
    assert (hardware.name, hardware.memory_mib) == (name, mib)


@pytest.mark.parametrize(
    "given_counts", [{"gpus": 0}, {"gpus": -1}, {"nodes": 0}, {"memory_gib": 0}, {"memory_gib": float("nan")}]
)
def test_impossible_numbers(given_counts: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected a positive"):
        resolve_gpu("H200", **given_counts)


@pytest.mark.parametrize(
    ("value", "stated", "expected"),
    [
        ("0,1", 8, 2),
        ("4,5,6,7", 8, 4),
        ("4,5,6,7", 4, 4),
        ("0,1,2,3", 2, 2),
        ("0,1,-1,2", 8, 2),
        ("0,0", 8, 0),
        ("", 8, 0),
        ("-1", 8, 0),
        ("GPU-1a,GPU-2b", None, 2),
        ("0, 1", None, 2),
        ("all", 8, 8),
        ("$GPUS", 8, 8),
        ("00,0", 8, 0),
        ("+1,2", 8, 2),
        ("9" * 5000, None, 1),
    ],
)
def test_visible_devices(value: str, stated: int | None, expected: int) -> None:
    hardware = Hardware(vendor="nvidia", gpus_per_node=stated)
    assert apply_visible_devices(hardware, {"CUDA_VISIBLE_DEVICES": value}).gpus_per_node == expected


def test_tiles_of_intel_are_not_counted() -> None:
    hardware = Hardware(vendor="intel", gpus_per_node=4)
    assert apply_visible_devices(hardware, {"ZE_AFFINITY_MASK": "0.0,0.1"}).gpus_per_node == 4
    assert apply_visible_devices(hardware, {"ZE_AFFINITY_MASK": "0,1"}).gpus_per_node == 2


def test_visible_devices_of_amd() -> None:
    hardware = Hardware(vendor="amd", gpus_per_node=8)
    assert apply_visible_devices(hardware, {"HIP_VISIBLE_DEVICES": "0,1,2,3"}).gpus_per_node == 4
    assert (
        apply_visible_devices(hardware, {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "0,1"}).gpus_per_node == 2
    )


def test_without_the_variable_nothing_changes() -> None:
    hardware = resolve_gpu("H200", gpus=8)
    assert apply_visible_devices(hardware, {}) is hardware


def _driver(**changes: Any) -> SimpleNamespace:
    calls: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 4,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: b"NVIDIA H200",
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=143771 * 2**20),
    }
    return SimpleNamespace(**(calls | changes))


def test_the_driver_is_asked_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _driver())
    hardware = resolve_gpu(None)
    assert (hardware.name, hardware.gpus_per_node, hardware.memory_mib) == ("H200", 4, 143771)
    assert hardware.origin.kind == "nvml"


def _broken(*_args: object) -> None:
    raise RuntimeError("no driver")


def test_a_missing_or_broken_driver_leaves_the_gpu_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert resolve_gpu(None) == Hardware()
    for call in ("nvmlInit", "nvmlDeviceGetCount"):
        monkeypatch.setitem(sys.modules, "pynvml", _driver(**{call: _broken}))
        assert resolve_gpu(None).capability is None


def test_unified_memory_keeps_the_catalogue_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = _driver(nvmlDeviceGetName=lambda handle: "NVIDIA GB10", nvmlDeviceGetMemoryInfo=_broken)
    monkeypatch.setitem(sys.modules, "pynvml", spark)
    hardware = resolve_gpu(None)
    assert hardware.unified_memory
    assert hardware.memory_mib == 124621


@given(st.text(max_size=40))
def test_any_text_gives_hardware_or_an_input_error(text: str) -> None:
    try:
        hardware = resolve_gpu(text or "x")
    except InputError as error:
        one_line(error)
    else:
        assert isinstance(hardware, Hardware)


@given(st.text(max_size=30), st.one_of(st.none(), st.integers(1, 16)))
def test_any_visibility_list_is_counted(value: str, stated: int | None) -> None:
    hardware = apply_visible_devices(Hardware(vendor="nvidia", gpus_per_node=stated), {"CUDA_VISIBLE_DEVICES": value})
    assert hardware.gpus_per_node is None or hardware.gpus_per_node >= 0
