from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dsv4check.host.cuobjdump import find_cuobjdump, read_with_cuobjdump
from dsv4check.host.extensions import look_at_extensions
from dsv4check.host.records import State
from tests.host.made_elf import cubin, elf, library

GENERIC = ("sm_80", "sm_90", "sm_100", "sm_120")
NO_IMAGE = "no kernel image is available for execution on the device"
WHEEL = {
    "vllm/_C_stable_libtorch.abi3.so": library(GENERIC, ("sm_90a",), GENERIC),
    "vllm/_moe_C_stable_libtorch.abi3.so": library(GENERIC, ("sm_120f", "compute_80")),
    "vllm/_flashmla_C.abi3.so": library(("sm_90a", "sm_100f")),
    "vllm/_flashmla_extension_C.abi3.so": library(("sm_90a", "sm_100f")),
    "vllm/_deepselect_C.abi3.so": library(("sm_100f",)),
    "vllm/cumem_allocator.abi3.so": library(needed=["libcuda.so.1"]),
    "vllm/third_party/deep_gemm/_C_extension.abi3.so": library(needed=["libcudart.so.13"]),
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": library(("sm_90a",)),
}
PACKAGES = {
    "torch/lib/libtorch_cuda.so": library(("sm_80", "sm_90", "sm_100", "sm_120", "compute_120")),
    "torch/lib/libtorch.so": elf(),
    "nvidia/cu13/lib/libcudart.so.13": elf(),
}


def install(site: Path, *groups: dict[str, bytes], without: tuple[str, ...] = ()) -> Path:
    (site / "vllm").mkdir(parents=True)
    for name, content in ((name, content) for group in groups for name, content in group.items()):
        if name not in without:
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_bytes(content)
    return site / "vllm"


def look(package: Path, capability, env=None, root=None):
    found = look_at_extensions(
        package, capability, env={"PATH": "", **(env or {})}, root=root if root is not None else package / "no-root"
    )
    assert len({item.id for item in found}) == len(found)
    assert all(item.area == "extensions" for item in found)
    return {item.id: item for item in found}


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (10, 3)])
def test_a_wheel_on_its_gpus(tmp_path, capability):
    found = look(install(tmp_path, WHEEL, PACKAGES), capability)
    assert {item.state for item in found.values()} <= {State.OK, State.NOTE}
    flashmla = found["extension-flashmla-c"]
    assert (flashmla.state, flashmla.found) == (State.OK, "sm_90a, sm_100f")
    assert flashmla.wanted == f"code for SM {capability[0]}.{capability[1]}"
    assert flashmla.data["usable_parts"] == 1
    assert found["extension-third-party-deep-gemm-c-extension"].state is State.OK
    assert found["extension-moe-c-stable-libtorch"].found == "sm_80, sm_90, sm_100, sm_120, sm_120f; PTX compute_80"
    deepselect = found["extension-deepselect-c"].state
    assert deepselect is (State.OK if capability[0] == 10 else State.NOTE)


def test_sm12x_does_not_need_flashmla(tmp_path):
    found = look(install(tmp_path, WHEEL, PACKAGES), (12, 1))
    assert found["extension-flashmla-c"].state is State.NOTE
    assert "SM 9.0 and 10.x" in found["extension-flashmla-c"].why
    assert found["extension-c-stable-libtorch"].state is State.OK
    without = look(
        install(tmp_path / "two", WHEEL, without=("vllm/_flashmla_C.abi3.so", "vllm/_flashmla_extension_C.abi3.so")),
        (12, 0),
    )
    assert "extension-flashmla-c" not in without


def test_flashmla_built_for_another_gpu_is_an_error(tmp_path):
    found = look(install(tmp_path, WHEEL | {"vllm/_flashmla_C.abi3.so": library(("sm_90a",))}), (10, 0))
    item = found["extension-flashmla-c"]
    assert (item.state, item.found) == (State.ERROR, "sm_90a")
    assert NO_IMAGE in item.why
    assert "TORCH_CUDA_ARCH_LIST=10.0a" in item.advice


@pytest.mark.parametrize("stem", ["_flashmla_C", "_flashmla_extension_C"])
def test_flashmla_that_is_not_there_is_an_error(tmp_path, stem):
    found = look(install(tmp_path, WHEEL, without=(f"vllm/{stem}.abi3.so",)), (9, 0))
    item = found["extension-" + stem.strip("_").lower().replace("_", "-")]
    assert (item.state, item.found) == (State.ERROR, "not there")
    assert f"vllm.{stem} is not available" in item.why


def test_main_extension_without_code_for_the_gpu(tmp_path):
    old = WHEEL | {"vllm/_C_stable_libtorch.abi3.so": library(("sm_80", "sm_90"))}
    item = look(install(tmp_path, old), (12, 0))["extension-c-stable-libtorch"]
    assert item.state is State.ERROR
    assert NO_IMAGE in item.why


def test_ptx_in_some_parts_alone_is_a_warning(tmp_path):
    mixed = WHEEL | {"vllm/_C_stable_libtorch.abi3.so": library(("sm_80", "compute_80"), ("sm_90a",), ("sm_80",))}
    item = look(install(tmp_path, mixed), (11, 0))["extension-c-stable-libtorch"]
    assert item.state is State.WARNING
    assert "PTX in 1 of 3 parts" in item.why
    whole = {"vllm/_C.abi3.so": library(("sm_80", "compute_80"))}
    item = look(install(tmp_path / "two", whole), (11, 0))["extension-c"]
    assert (item.state, item.data["usable_parts"]) == (State.OK, 1)
    assert "PTX" in item.why


def test_an_unknown_gpu_is_judged_nowhere(tmp_path):
    found = look(install(tmp_path, WHEEL, PACKAGES), None)
    item = found["extension-c-stable-libtorch"]
    assert (item.state, item.wanted) == (State.NOTE, "")
    assert "not judged" in item.why
    assert "usable_parts" not in item.data


def test_text_only_package(tmp_path):
    package = install(tmp_path)
    (package / "envs.py").write_text("")
    found = look(package, (9, 0))
    assert list(found) == ["extensions"]
    assert found["extensions"].state is State.UNKNOWN


def test_cpu_and_amd_builds(tmp_path):
    cpu = look(install(tmp_path / "cpu", {"vllm/_C.abi3.so": library(needed=["libtorch.so"])}), (9, 0))
    assert cpu["extension-c"].state is State.ERROR
    assert "without an NVIDIA GPU" in cpu["extension-c"].why
    assert "extension-flashmla-c" not in cpu
    amd = look(install(tmp_path / "amd", {"vllm/_C.abi3.so": elf([(".hip_fatbin", b"x")])}), None)
    assert (amd["extension-c"].state, amd["extension-c"].found) == (State.NOTE, "code for AMD GPUs")


def test_a_package_without_its_main_extension(tmp_path):
    found = look(install(tmp_path, {"vllm/cumem_allocator.abi3.so": library()}), (9, 0))
    assert found["extension-c"].state is State.ERROR
    assert "Failed to infer device type" in found["extension-c"].why


def test_broken_files_are_unknown(tmp_path):
    broken = {
        "vllm/_C_stable_libtorch.abi3.so": WHEEL["vllm/_C_stable_libtorch.abi3.so"][:500],
        "vllm/_flashmla_C.abi3.so": b"version https://git-lfs.github.com/spec/v1\n" * 4,
    }
    found = look(install(tmp_path, WHEEL | broken), (9, 0))
    for name in ("extension-c-stable-libtorch", "extension-flashmla-c"):
        assert found[name].state is State.UNKNOWN
        assert found[name].why.startswith("The file cannot be read: ")
    assert found["extension-moe-c-stable-libtorch"].state is State.OK


def test_two_builds_of_one_module_keep_their_ids_apart(tmp_path):
    names = [f"vllm/third_party/deep_gemm/_C.cpython-3{minor}-x86_64-linux-gnu.so" for minor in (11, 12)]
    found = look(install(tmp_path, WHEEL, dict.fromkeys(names, library())), (9, 0))
    assert {"extension-third-party-deep-gemm-c", "extension-third-party-deep-gemm-c-2"} <= set(found)


def test_libraries_that_are_there(tmp_path):
    found = look(install(tmp_path, WHEEL, PACKAGES), (9, 0))
    runtime = found["extensions-cuda-runtime"]
    assert (runtime.state, runtime.found) == (State.OK, "libcudart.so.13 (7 of 8 extensions)")
    assert runtime.data["cuda_majors"] == [13]
    assert found["extensions-libraries"].state is State.OK


def test_libraries_that_are_nowhere(tmp_path):
    package = install(tmp_path / "site", WHEEL, PACKAGES, without=("nvidia/cu13/lib/libcudart.so.13",))
    item = look(package, (9, 0))["extensions-libraries"]
    assert (item.state, item.data["missing"]) == (State.WARNING, ["libcudart.so.13"])
    assert "cannot open shared object file" in item.why
    root = tmp_path / "root"
    (root / "opt/cuda").mkdir(parents=True)
    (root / "opt/cuda/libcudart.so.13").write_bytes(b"")
    item = look(package, (9, 0), {"LD_LIBRARY_PATH": ":/opt/cuda"}, root)["extensions-libraries"]
    assert item.state is State.OK
    (root / "opt/cuda").rename(root / "opt/else")
    (root / "usr/local/cuda-13.0/lib64").mkdir(parents=True)
    (root / "usr/local/cuda-13.0/lib64/libcudart.so.13").write_bytes(b"")
    assert look(package, (9, 0), {}, root)["extensions-libraries"].state is State.OK


def test_without_pytorch_nothing_is_said_of_libraries(tmp_path):
    item = look(install(tmp_path, WHEEL), (9, 0))["extensions-libraries"]
    assert item.state is State.UNKNOWN


def test_two_cuda_generations_in_one_package(tmp_path):
    mixed = WHEEL | {"vllm/_flashmla_C.abi3.so": library(("sm_90a",), needed=["libcudart.so.12"])}
    item = look(install(tmp_path, mixed, PACKAGES), (9, 0))["extensions-cuda-runtime"]
    assert (item.state, item.data["cuda_majors"]) == (State.WARNING, [12, 13])


def test_packages_beside(tmp_path):
    beside = PACKAGES | {
        "torch/lib/libtorch_cuda.so": library(("sm_80", "sm_90", "compute_90a")),
        "nvidia/nccl/lib/libnccl.so.2": library(("sm_90", "compute_90")),
        "flashinfer_jit_cache/jit_cache/a/a.so": library(("sm_90a",)),
        "flashinfer_jit_cache/jit_cache/b/b.so": library(("sm_100f",)),
        "flashinfer_cubin/cubins/x/fmhaSm100fKernel.cubin": cubin(0x6006402),
        "flashinfer_cubin/cubins/x/gemm_sm90a_x.cubin": cubin(0x6005A04),
        "flashinfer_cubin/cubins/x/broken.cubin": b"\x7fELF",
    }
    package = install(tmp_path, WHEEL, beside)
    found = look(package, (10, 3))
    torch = found["extension-package-torch"]
    assert torch.state is State.ERROR
    assert NO_IMAGE in torch.why
    assert found["extension-package-nccl"].state is State.OK
    cache = found["extension-package-flashinfer-jit-cache"]
    assert (cache.state, cache.found, cache.data["usable_files"]) == (State.OK, "sm_90a, sm_100f (2 files)", 1)
    cubins = found["extension-package-flashinfer-cubin"]
    assert cubins.found == "sm_90a, sm_100f (2 files); 1 cannot be read"
    assert cubins.data["usable_files"] == 1
    other = look(package, (12, 0))
    assert other["extension-package-flashinfer-cubin"].state is State.NOTE
    assert "when they are first used" in other["extension-package-flashinfer-cubin"].why
    assert look(package, None)["extension-package-torch"].state is State.NOTE


def script(folder: Path, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cuobjdump"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


SAID = """cat <<'END'
PTX file    1: _C.abi3.1.sm_80.ptx
ELF file    1: _C.abi3.1.sm_90a.cubin
ELF file    2: _C.abi3.2.sm_100.cubin
END"""


def test_cuobjdump_reads_what_cannot_be_read_here(tmp_path):
    raw = bytearray(WHEEL["vllm/_C_stable_libtorch.abi3.so"])
    at = raw.index(b"\x50\xed\x55\xba")
    raw[at + 4] = 9
    package = install(tmp_path / "site", WHEEL | {"vllm/_C_stable_libtorch.abi3.so": bytes(raw)})
    assert look(package, (9, 0))["extension-c-stable-libtorch"].state is State.UNKNOWN
    tool = script(tmp_path / "bin", SAID)
    for env in ({"PATH": f"{tool.parent}:/usr/bin:/bin"}, {"PATH": "", "CUDA_HOME": str(tmp_path)}):
        item = look(package, (9, 0), env)["extension-c-stable-libtorch"]
        assert (item.state, item.found) == (State.OK, "sm_90a, sm_100; PTX compute_80")
        assert item.data["needed_libraries"] == ["libcudart.so.13"]


@pytest.mark.parametrize("body", ["exit 255", "echo nonsense", "exec sleep 30"])
def test_a_cuobjdump_that_fails_says_nothing(tmp_path, body):
    path = tmp_path / "x.so"
    path.write_bytes(library(("sm_90",)))
    assert read_with_cuobjdump(str(script(tmp_path, body)), path, seconds=0.5) is None


def test_a_cuobjdump_that_finds_no_code(tmp_path):
    path = tmp_path / "x.so"
    path.write_bytes(library())
    said = f"echo \"cuobjdump info    : File '{path}' does not contain device code\" >&2; exit 255"
    code = read_with_cuobjdump(str(script(tmp_path, said)), path)
    assert code is not None
    assert code.count == 0


def test_the_real_cuobjdump_agrees(tmp_path):
    tool = find_cuobjdump(os.environ)
    nvcc = Path(tool).with_name("nvcc") if tool else None
    if tool is None or nvcc is None or not nvcc.exists():
        pytest.skip("no cuobjdump with an nvcc beside it")
    source = tmp_path / "kernel.cu"
    source.write_text("__global__ void nothing() {}\n")
    made = tmp_path / "kernel.fatbin.so"
    codes = ["-gencode=arch=compute_90a,code=sm_90a", "-gencode=arch=compute_80,code=compute_80"]
    subprocess.run([nvcc, *codes, "-shared", "-Xcompiler", "-fPIC", "-o", made, source], check=True)
    code = read_with_cuobjdump(tool, made)
    assert code is not None
    assert {target.name for target in code.targets} >= {"sm_90a", "compute_80"}


def test_a_pipe_and_a_dangling_link_are_unknown(tmp_path):
    package = install(tmp_path, WHEEL)
    os.mkfifo(package / "_pipe_C.abi3.so")
    (package / "_link_C.abi3.so").symlink_to("nowhere")
    found = look(package, (9, 0), {"LD_LIBRARY_PATH": "/a\0b:/" + "x" * 5000})
    assert [found[f"extension-{name}-c"].state for name in ("pipe", "link")] == [State.UNKNOWN] * 2
