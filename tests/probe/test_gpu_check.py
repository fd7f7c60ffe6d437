"""scripts/gpu_check.sh: what it packs, and what it says on a machine without a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.sh"
PYTHON = os.environ.get("DSV4CHECK_VLLM_PYTHON")
WHEEL = {
    "vllm/_flashmla_C.abi3.so": "ELF",
    "vllm/_flashmla_extension_C.abi3.so": "not taken",
    "vllm/_C.abi3.so": "not taken",
    "vllm/__init__.py": "raise ImportError('not taken')",
    "vllm/third_party/flashmla/__init__.py": "",
    "vllm/third_party/flashmla/flash_mla_interface.py": "import vllm._flashmla_C",
}


def run(python: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": python, **variables}
    return subprocess.run(
        ["bash", str(SCRIPT), *words], capture_output=True, text=True, timeout=280, env=environment, check=False
    )


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    wheel = tmp_path / "vllm-0.26.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in WHEEL.items():
            archive.writestr(name, text)
    done = run(sys.executable, "--pack", str(tmp_path / "carry"), "--wheel", str(wheel))
    assert done.returncode == 0, done.stderr
    return tmp_path / "carry"


def test_what_is_packed(carried: Path) -> None:
    assert {str(file.relative_to(carried)) for file in carried.rglob("*") if file.is_file()} == {
        "request.json",
        "vllm/__init__.py",
        "vllm/_flashmla_C.abi3.so",
        "vllm/third_party/__init__.py",
        "vllm/third_party/flashmla/__init__.py",
        "vllm/third_party/flashmla/flash_mla_interface.py",
    }
    assert (carried / "vllm" / "__init__.py").read_text() == ""
    request = json.loads((carried / "request.json").read_text())
    assert request["attention"] == {
        "class": "DeepseekV4FlashMLAAttention",
        "padded_heads": 64,
        "local_heads": 8,
        "topk": 512,
        "capability": [9, 0],
    }
    assert request["detects_format"] is False
    assert request["static"]["release"] == "0.26.0"


def test_a_wheel_without_flashmla(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.26.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
    done = run(sys.executable, "--pack", str(tmp_path / "carry"), "--wheel", str(wheel))
    assert done.returncode == 1
    assert "has no vllm/_flashmla_C*.so" in done.stderr


@pytest.mark.skipif(not PYTHON, reason="needs DSV4CHECK_VLLM_PYTHON, an interpreter with CPU PyTorch")
def test_without_a_gpu_it_ends_with_the_kernel_not_run(carried: Path, tmp_path: Path) -> None:
    assert PYTHON
    done = run(PYTHON, GPU_CHECK_CARRY=str(carried), OUT=str(tmp_path / "out"))
    assert done.returncode == 1
    assert done.stdout.startswith("no-gpu: THE KERNEL WAS NOT RUN")
    assert (tmp_path / "out" / "probe.txt").read_text() == done.stdout
    answer = json.loads((tmp_path / "out" / "probe.json").read_text())
    assert answer["verdict"] == "no-gpu"
    assert answer["kernel_ran"] is False
    statuses = {check["name"]: check["status"] for check in answer["devices"][0]["checks"]}
    assert statuses["bytes: swa"] == statuses["neighbours"] == "ok"


ON_A_GPU = {
    # Runs first in any interpreter that finds the folder: the child becomes one with a GPU.
    "sitecustomize.py": f"""
import sys
sys.path.append({str(SCRIPT.parents[1])!r})
from tests.probe import fake_gpu
fake_gpu.install_gpu()
""",
    # In the place of the compiled library.
    "vllm/_flashmla_C.py": "import torch\nfrom tests.probe import fake_gpu\nDECODE = fake_gpu.kernel(torch, 'right')\n",
    "vllm/third_party/flashmla/flash_mla_interface.py": """
import vllm._flashmla_C
flash_mla_with_kvcache = vllm._flashmla_C.DECODE
def get_mla_metadata(*_args, **_kwargs):
    return object(), None
""",
}


@pytest.mark.skipif(not PYTHON, reason="needs DSV4CHECK_VLLM_PYTHON, an interpreter with CPU PyTorch")
def test_on_a_machine_with_a_gpu(carried: Path, tmp_path: Path) -> None:
    """All that the GPU machine does but for the compiled library: nothing is installed beside PyTorch."""
    assert PYTHON
    (carried / "vllm" / "_flashmla_C.abi3.so").unlink()
    for name, text in ON_A_GPU.items():
        (carried / name).write_text(text)
    done = run(PYTHON, GPU_CHECK_CARRY=os.path.relpath(carried), OUT=str(tmp_path / "a" / "b"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("pass: the kernel ran")
    answer = json.loads((tmp_path / "a" / "b" / "probe.json").read_text())
    statuses = {check["name"]: check["status"] for check in answer["devices"][0]["checks"]}
    assert statuses["kernel: swa"] == statuses["kernel: swa + main_c4"] == statuses["kernel: swa + main_c128"] == "ok"
    assert statuses["512-byte view: the kernel"] == "refused-as-expected"
    assert statuses["vLLM's insert ops"] == "skipped"
    assert answer["verdict"] == "pass"


@pytest.mark.skipif(not PYTHON, reason="needs DSV4CHECK_VLLM_PYTHON, an interpreter with CPU PyTorch")
def test_an_answer_that_cannot_be_written_is_printed_all_the_same(carried: Path, tmp_path: Path) -> None:
    assert PYTHON
    (tmp_path / "file").write_text("")
    done = run(PYTHON, GPU_CHECK_CARRY=str(carried), OUT=str(tmp_path / "file"))
    assert done.returncode == 1
    assert done.stdout.startswith("no-gpu: THE KERNEL WAS NOT RUN")
    assert done.stderr.startswith("gpu_check: no files will be written: ")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="this interpreter has PyTorch")
def test_an_interpreter_without_pytorch_says_so(carried: Path, tmp_path: Path) -> None:
    done = run(sys.executable, GPU_CHECK_CARRY=str(carried), OUT=str(tmp_path / "out"))
    assert done.returncode == 1
    assert done.stdout.startswith("unavailable: THE KERNEL WAS NOT RUN")
    assert "has no working PyTorch" in done.stdout


@pytest.mark.parametrize(
    ("request_", "said"),
    [(None, "is no folder made by --pack"), ("{", "is no folder made by --pack"), ("{}", "is not of this version")],
)
def test_a_folder_that_is_none(tmp_path: Path, request_: str | None, said: str) -> None:
    if request_ is not None:
        (tmp_path / "request.json").write_text(request_)
    done = run(sys.executable, GPU_CHECK_CARRY=str(tmp_path), OUT=str(tmp_path / "out"))
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--wheel", "/nowhere.whl"], "/nowhere.whl cannot be read"),
        (["--gpu", "H2000", "--wheel", "/nowhere.whl"], "gpu_check: "),
        (["--wheel", "/nowhere.whl", "--", "vllm", "serve", "x", "--kv-cache-dtype", "int3"], "gpu_check: "),
    ],
)
def test_what_cannot_be_packed(tmp_path: Path, words: list[str], said: str) -> None:
    done = run(sys.executable, "--pack", str(tmp_path / "carry"), *words)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not PYTHON, reason="needs DSV4CHECK_VLLM_PYTHON, an interpreter with CPU PyTorch")
def test_without_vllm_and_without_a_folder_it_says_what_to_do(tmp_path: Path) -> None:
    assert PYTHON
    done = run(PYTHON, OUT=str(tmp_path / "out"))
    assert done.returncode == 1
    assert "scripts/gpu_check.sh --pack DIR" in done.stderr
