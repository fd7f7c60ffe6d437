from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.host.elf import CannotBeRead
from dsv4check.host.fatbin import Target, read_cubin, read_device_code
from tests.host.made_elf import LTO, container, cubin, elf, entry, library

NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def code_of(path: Path, content: bytes):
    path.write_bytes(content)
    return read_device_code(path)


def names(code) -> list[str]:
    return [target.name for target in code.targets]


def test_targets_of_every_container(tmp_path):
    code = code_of(tmp_path / "x.so", library(("sm_90a", "sm_100f"), ("sm_90a",), ("sm_120", "compute_120a")))
    assert names(code) == ["sm_90a", "sm_100f", "sm_120", "compute_120a"]
    assert code.count == 3
    assert code.usable((9, 0)) == 2
    assert code.usable((10, 3)) == 1
    assert code.usable((12, 1)) == 1
    assert code.usable((8, 0)) == 0
    assert code.needed == ("libcudart.so.13",)


def test_relocatable_code_counts_too(tmp_path):
    assert names(code_of(tmp_path / "x.o", library(("sm_80",), section="__nv_relfatbin"))) == ["sm_80"]


def test_padding_between_containers(tmp_path):
    raw = container("sm_90", padding=8) + container("sm_100", padding=4000) + container("sm_120", padding=3)
    code = code_of(tmp_path / "x.so", elf([(".nv_fatbin", raw)]))
    assert names(code) == ["sm_90", "sm_100", "sm_120"]


def test_link_time_code_is_no_target(tmp_path):
    entries = entry("sm_90", kind=LTO) + entry("sm_80")
    raw = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries
    assert names(code_of(tmp_path / "x.so", elf([(".nv_fatbin", raw)]))) == ["sm_80"]


def test_a_library_without_gpu_code(tmp_path):
    code = code_of(tmp_path / "x.so", library())
    assert (code.targets, code.count, code.amd) == ((), 0, False)
    assert code_of(tmp_path / "x.so", elf([(".hip_fatbin", b"x" * 64)])).amd


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (container("sm_90")[:-8], "longer than its section"),
        (struct.pack("<IHHQ", 0xBA55ED50, 2, 16, 0), "unknown layout 2"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 8, 0), "unknown layout"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64) + entry("sm_90")[:64], "longer than its container"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 72) + struct.pack("<HHIQ", 2, 1, 8, 0) + bytes(56), "longer than"),
        (container("sm_5"), "names SM 5"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, raw, message):
    with pytest.raises(CannotBeRead, match=message):
        code_of(tmp_path / "x.so", elf([(".nv_fatbin", raw)]))


def test_endless_containers_end(tmp_path):
    """Empty containers behind each other, and far apart: neither the count nor the reading may run away."""
    empty = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0)
    for raw in (empty * 250_000, (empty + bytes(24)) * 210_000):
        started = time.monotonic()
        with pytest.raises(CannotBeRead, match="more than 200000"):
            code_of(tmp_path / "x.so", elf([(".nv_fatbin", raw)]))
        assert time.monotonic() - started < 20


def test_a_huge_section_of_nothing_ends(tmp_path):
    path = tmp_path / "x.so"
    raw = bytearray(elf([(".nv_fatbin", b"\0" * 8)]))
    table = struct.unpack_from("<Q", raw, 40)[0]
    struct.pack_into("<Q", raw, table + 2 * 64 + 32, 1 << 36)
    path.write_bytes(raw)
    os.truncate(path, 1 << 37)
    with pytest.raises(CannotBeRead, match="something else"):
        read_device_code(path)


RUNS = {
    "sm_80": {(8, 0), (8, 6), (8, 9)},
    "sm_86": {(8, 6), (8, 9)},
    "sm_90": {(9, 0)},
    "sm_90a": {(9, 0)},
    "sm_100": {(10, 0), (10, 1), (10, 3)},
    "sm_100a": {(10, 0)},
    "sm_100f": {(10, 0), (10, 3)},
    "sm_103f": {(10, 3)},
    "sm_101f": {(10, 1)},
    "sm_110f": {(11, 0)},
    "sm_120": {(12, 0), (12, 1)},
    "sm_120f": {(12, 0), (12, 1)},
    "sm_121a": {(12, 1)},
    "compute_90": {(9, 0), (10, 0), (10, 1), (10, 3), (11, 0), (12, 0), (12, 1)},
    "compute_90a": {(9, 0)},
    "compute_100f": {(10, 0), (10, 3)},
    "compute_120": {(12, 0), (12, 1)},
}
GPUS = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 1), (10, 3), (11, 0), (12, 0), (12, 1))


def target_of(name: str) -> Target:
    kind, sm = name.split("_")
    return Target(int(sm.rstrip("af")), sm.lstrip("0123456789"), kind == "compute")


@pytest.mark.parametrize("name", RUNS)
def test_which_gpus_run_it(name):
    target = target_of(name)
    assert target.name == name
    assert {gpu for gpu in GPUS if target.runs_on(gpu)} == RUNS[name]


TARGETS = st.builds(
    Target,
    st.sampled_from([75, 80, 86, 89, 90, 100, 103, 110, 120, 121]),
    st.sampled_from(["", "a", "f"]),
    st.booleans(),
)


@given(st.lists(st.lists(TARGETS, min_size=1, max_size=5), max_size=5))
def test_what_was_written_is_read(tmp_path_factory, units):
    content = library(*[[target.name for target in unit] for unit in units])
    code = code_of(tmp_path_factory.getbasetemp() / "written.so", content)
    assert set(code.targets) == {target for unit in units for target in unit}
    assert code.count == len(units)
    for gpu in GPUS:
        assert code.usable(gpu) == sum(any(target.runs_on(gpu) for target in unit) for unit in units)


@pytest.mark.parametrize(
    ("abi", "flags", "name"),
    [
        (7, 0x5A055A, "sm_90"),  # CUDA 12.8
        (7, 0x5A0D5A, "sm_90a"),
        (8, 0x600640A, "sm_100a"),
        (8, 0x6007802, "sm_120"),
        (8, 0x6006402, "sm_100"),  # CUDA 13.0, for sm_100, sm_100a and sm_100f
    ],
)
def test_a_lone_cubin(tmp_path, abi, flags, name):
    path = tmp_path / "x.cubin"
    path.write_bytes(cubin(flags, abi))
    assert read_cubin(path).name == name


def test_no_cubin(tmp_path):
    path = tmp_path / "x.cubin"
    path.write_bytes(library(("sm_90",)))
    with pytest.raises(CannotBeRead, match="no cubin"):
        read_cubin(path)


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize("compression", [[], ["--no-compress"]])
def test_the_same_as_nvcc_was_asked_for(tmp_path, compression):
    source = tmp_path / "kernel.cu"
    source.write_text("__global__ void twice(float* x) { x[threadIdx.x] *= 2.f; }\n")
    asked = ["90a:sm_90a", "100f:sm_100f", "120:compute_120", "121f:compute_121f"]
    codes = [f"-gencode=arch=compute_{pair.split(':')[0]},code={pair.split(':')[1]}" for pair in asked]
    made = tmp_path / "kernel.so"
    subprocess.run(
        [str(NVCC), *codes, *compression, "-shared", "-Xcompiler", "-fPIC", "-cudart", "shared", "-o", made, source],
        check=True,
        capture_output=True,
        timeout=300,
    )
    code = read_device_code(made)
    # Without compression nvcc 13 keeps the PTX of every target beside its machine code.
    assert {target.name for target in code.targets} >= {pair.split(":")[1] for pair in asked}
    assert {target.sm for target in code.targets if not target.ptx} == {90, 100}
    assert any(library.startswith("libcudart.so.") for library in code.needed)


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
def test_a_lone_cubin_of_nvcc(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("__global__ void nothing() {}\n")
    made = tmp_path / "kernel.cubin"
    subprocess.run([str(NVCC), "-arch=sm_103a", "-cubin", "-o", made, source], check=True, capture_output=True)
    assert read_cubin(made).sm == 103
