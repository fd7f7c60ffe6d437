"""`dsv4check probe` as a user runs it: with children that are none, and with a real PyTorch where there is one."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner, Result

from dsv4check.cli.main import make_app
from dsv4check.deployment import Hardware
from dsv4check.errors import InputError
from dsv4check.inputs import gpu
from dsv4check.probe import machine, parent
from dsv4check.report.probe_schema import probe_json_schema
from tests.probe import fake_gpu

PYTHON = os.environ.get("DSV4CHECK_VLLM_PYTHON")
TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
COMMAND = ["--gpu", "H200", "--gpus", "8", "--vllm", "0.28.0"]
FLASH = ["--", "vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash", "-tp", "8"]
FP8 = [*FLASH, "--kv-cache-dtype", "fp8"]

needs_torch = pytest.mark.skipif(not PYTHON, reason="needs DSV4CHECK_VLLM_PYTHON, an interpreter with CPU PyTorch")
needs_vllm = pytest.mark.skipif(not (PYTHON and TREES), reason="needs DSV4CHECK_VLLM_PYTHON and DSV4CHECK_VLLM_TREES")


@pytest.fixture(autouse=True)
def _no_built_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4CHECK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The child behaves as the parameter says."""
    file = tmp_path / f"{request.param}.py"
    shutil.copy(Path(__file__).parents[1] / "probe" / "fake_child.py", file)
    monkeypatch.setattr(parent, "CHILD", file)


def run(*words: str) -> Result:
    return CliRunner().invoke(make_app(["probe", "rules"]), ["probe", *words])


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize(
    ("child", "options", "code", "verdict"),
    [
        ("well", [], 0, "pass"),
        ("cpu", [], 1, "no-gpu"),
        ("cpu", ["--allow-no-gpu"], 0, "no-gpu"),
        ("fails", ["--allow-no-gpu"], 1, "fail"),
        ("crashes", ["--allow-no-gpu"], 1, "fail"),
        ("hangs", ["--timeout", "1"], 1, "fail"),
        ("no_torch", ["--allow-no-gpu"], 3, "unavailable"),
    ],
    indirect=["child"],
)
def test_exit_codes(options: list[str], code: int, verdict: str) -> None:
    done = run("--format", "json", *options, *COMMAND, *FP8)
    assert done.exit_code == code, done.output
    document = json.loads(done.stdout)
    jsonschema.validate(document, probe_json_schema())
    assert document["verdict"] == verdict
    assert document["static"]["verdict"] == "pass"
    assert document["layouts"]["by_vllm"] is False
    assert document["caches"]["message"].startswith("vLLM's own allocation was not run")


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("child", ["cpu"], indirect=True)
def test_the_text_says_that_the_kernel_was_not_run() -> None:
    done = run("--allow-no-gpu", *COMMAND, *FP8)
    assert done.stdout.startswith("KERNEL NOT RUN: everything up to the kernel goes through")
    assert "vLLM's own allocation was not run" in done.stdout


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("child", ["crashes"], indirect=True)
def test_a_crash_is_told_in_full() -> None:
    shown = " ".join(run(*COMMAND, *FP8).stdout.split())
    assert shown.startswith("FAIL: kernel: swa crashed on GPU; the kernel was not run")
    assert "killed by SIGSEGV" in shown


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("child", ["well"], indirect=True)
def test_a_launch_that_vllm_refuses_has_no_caches_to_probe() -> None:
    done = run(*COMMAND, *FLASH, "--kv-cache-dtype", "bfloat16")
    assert done.exit_code == 3
    shown = " ".join(done.stdout.split())
    assert "the caches of this launch cannot be worked out: there is nothing to probe" in shown
    assert "Static check: FAIL at model-init" in shown


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("child", ["well"], indirect=True)
@pytest.mark.parametrize("name", ["NVIDIA H200", "Some Other GPU"])
def test_the_gpu_is_the_one_that_pytorch_sees(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Where NVML cannot be asked and no --gpu is given."""
    monkeypatch.setattr(gpu, "_from_driver", Hardware)
    monkeypatch.setattr(machine, "gpus_seen", lambda _python: [(name, "9.0")])
    document = json.loads(run("--format", "json", "--gpus", "8", "--vllm", "0.28.0", *FP8).stdout)
    assert "(SM90)" in document["static"]["subject"]
    assert document["verdict"] == "pass"


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("child", ["fails_on_one"], indirect=True)
def test_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda _python: ["0", "1"])
    done = run("--all-gpus", *COMMAND, *FP8)
    assert done.exit_code == 1
    assert done.stdout.startswith("FAIL: kernel: swa failed on GPU 1")
    assert "- kernel: swa: ok on GPU 0, failed on GPU 1" in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="this interpreter has PyTorch")
def test_without_torch_anywhere() -> None:
    done = run(*COMMAND, *FP8)
    assert done.exit_code == 3
    shown = " ".join(done.stdout.split())
    assert shown.startswith("PROBE UNAVAILABLE")
    assert "no working PyTorch" in shown
    assert "pip install 'dsv4check[probe]'" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--python", "/nowhere", *COMMAND, *FP8], "--python /nowhere: expected a Python interpreter"),
        (["--vllm-path", "/nowhere", *COMMAND, *FP8], "--vllm-path /nowhere: no such folder"),
        (COMMAND, "no command given"),
        (["--ray-address", "head:6379", *COMMAND, *FP8], "--ray-address head:6379: goes with --ray"),
    ],
)
def test_unusable_input(words: list[str], said: str) -> None:
    done = run(*words)
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith(said)


@needs_torch
def test_a_real_child_on_the_cpu() -> None:
    assert PYTHON
    done = run("--cpu", "--format", "json", "--allow-no-gpu", "--python", PYTHON, *COMMAND, *FP8)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    checks = {check["name"]: check for check in document["devices"][0]["checks"]}
    passed = {name for name, check in checks.items() if check["status"] == "ok"}
    assert passed >= {
        "storage arithmetic",
        "allocation",
        "contract: swa",
        "contract: main_c4",
        "contract: main_c128",
        "bytes: swa",
        "bytes: main_c4",
        "bytes: main_c128",
        "bytes: indexer_k",
        "bytes: state_c4",
        "neighbours",
    }
    narrow = checks["512-byte view: argument checks"]
    assert narrow["status"] == "refused-as-expected"
    assert narrow["message"] == "kv must have shape (num_blocks, page_block_size, h_kv, bytes_per_token)"
    assert checks["kernel: sparse decode"]["status"] == "skipped"
    assert document["devices"][0]["seconds"] < 15


@needs_torch
@pytest.mark.parametrize(
    ("mode", "code", "verdict", "said"),
    [
        ("right", 0, "pass", "PASS: the caches went through the kernel, and its numbers are the reference's"),
        ("wrong", 1, "fail", "FAIL: kernel: swa failed on GPU"),
        ("no_numbers", 1, "fail", "FAIL: kernel: swa failed on GPU"),
        ("lenient", 1, "fail", "FAIL: 512-byte view: the kernel failed on GPU"),
        ("illegal_access", 1, "fail", "FAIL: kernel: swa failed on GPU; the kernel was not run"),
        ("dies", 1, "fail", "FAIL: kernel: swa crashed on GPU; the kernel was not run"),
        ("out_of_memory", 1, "no-gpu", "KERNEL NOT RUN: everything up to the kernel goes through"),
        ("no_context", 1, "no-gpu", "KERNEL NOT RUN: everything up to the kernel goes through"),
        ("out_of_memory_when_narrow", 0, "pass", "PASS: the caches went through the kernel"),
    ],
)
def test_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str, code: int, verdict: str, said: str
) -> None:
    """The whole way, child and all, on a GPU whose tensors are the CPU's."""
    assert PYTHON
    monkeypatch.setattr(parent, "CHILD", fake_gpu.child(tmp_path, mode))
    done = run("--format", "json", "--python", PYTHON, *COMMAND, *FP8)
    assert done.exit_code == code, done.output
    document = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    jsonschema.validate(document, probe_json_schema())
    assert document["verdict"] == verdict
    assert headline(document).startswith(said)
    (device,) = document["devices"]
    statuses = {check["name"]: check["status"] for check in device["checks"]}
    if mode == "out_of_memory_when_narrow":
        assert statuses["512-byte view: the kernel"] == "skipped"
    if verdict == "pass":
        assert {"kernel: swa", "kernel: swa + main_c4", "kernel: swa + main_c128"} <= statuses.keys()
        assert document["kernel_ran"] is True
        assert device["seconds"] < 15


def headline(document: dict[str, Any]) -> str:
    """Of the text report."""
    from dsv4check.probe.node import ProbeResult
    from dsv4check.probe.records import DeviceResult, check_from
    from dsv4check.probe.report import headline as of

    devices = tuple(
        DeviceResult(device["device"], tuple(map(check_from, device["checks"]))) for device in document["devices"]
    )
    return of(ProbeResult(document["static"], None, check_from(document["caches"]), devices, ""))


@needs_torch
def test_one_of_two_gpus_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert PYTHON
    monkeypatch.setattr(parent, "CHILD", fake_gpu.child(tmp_path, "one_wrong"))
    monkeypatch.setattr(machine, "visible_gpus", lambda _python: ["0", "1"])
    done = run("--all-gpus", "--python", PYTHON, *COMMAND, *FP8)
    assert done.exit_code == 1
    assert done.stdout.startswith("FAIL: kernel: swa failed on GPU 1")
    assert "- kernel: swa: ok on GPU 0, failed on GPU 1" in done.stdout


@needs_torch
def test_plain_rows_are_probed_on_the_cpu() -> None:
    assert PYTHON
    launch = [*FP8, "--attention-backend", "FLASHINFER_MLA_SPARSE_DSV4"]
    words = ["--cpu", "--format", "json", "--python", PYTHON, "--gpu", "B200", "--gpus", "8", "--vllm", "0.28.0"]
    document = json.loads(run(*words, *launch).stdout)
    assert document["verdict"] == "no-gpu"
    names = {check["name"] for check in document["devices"][0]["checks"] if check["status"] == "ok"}
    assert {"bytes: swa", "bytes: main_c4", "neighbours"} <= names
    assert not any(name.startswith("contract") for name in names)


@needs_vllm
@pytest.mark.parametrize("release", ["0.20.0", "0.24.0", "0.28.0", "0.33.0"])
def test_caches_made_by_the_release_itself(release: str) -> None:
    assert PYTHON
    assert TREES
    if not (Path(TREES) / release / "vllm").is_dir():
        pytest.skip(f"vLLM {release} is not there")
    words = [
        "--format",
        "json",
        "--allow-no-gpu",
        "--cpu",
        "--python",
        PYTHON,
        "--vllm-path",
        str(Path(TREES) / release),
    ]
    done = run(*words, "--gpu", "H200", "--gpus", "8", *FP8)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["layouts"]["by_vllm"] is True
    assert {cache["kind"] for cache in document["layouts"]["caches"]} == {
        "main_c4",
        "main_c128",
        "swa",
        "indexer_k",
        "state_c4",
        "state_c128",
        "state_indexer",
    }
    # Groups overlay each other in one allocation from 0.24 on; before, each page size has its own.
    assert len(document["layouts"]["storages"]) == (3 if release == "0.20.0" else 1)
    assert sum(document["layouts"]["storages"]) < 64 << 20
    statuses = {check["name"]: check["status"] for check in document["devices"][0]["checks"]}
    assert statuses["neighbours"] == "ok"
    if importlib.util.find_spec("triton") is None and "insert: swa" in statuses:
        assert statuses["insert: swa"] == "ok"


@needs_vllm
@pytest.mark.parametrize(("release", "narrow"), [("0.25.1", True), ("0.30.0", False)])
def test_without_the_hybrid_manager(release: str, narrow: bool) -> None:
    """Up to 0.27 vLLM itself allocates views of 512 bytes, which the kernel refuses; then it is right."""
    assert PYTHON
    assert TREES
    if not (Path(TREES) / release / "vllm").is_dir():
        pytest.skip(f"vLLM {release} is not there")
    words = ["--format", "json", "--cpu", "--allow-no-gpu", "--python", PYTHON, "--vllm-path", f"{TREES}/{release}"]
    launch = [*FP8, "--max-model-len", "131072", "--disable-hybrid-kv-cache-manager"]
    done = run(*words, "--gpu", "H200", "--gpus", "8", *launch)
    document = json.loads(done.stdout)
    checks = {check["name"]: check for check in document["devices"][0]["checks"]}
    assert checks["contract: swa"]["data"]["shape"][1:] == [256, 512 if narrow else 584]
    failed = {name for name, check in checks.items() if check["status"] in ("failed", "crashed")}
    if narrow:
        assert done.exit_code == 1
        assert document["caches"]["status"] == "failed"
        assert "kv must have shape" in document["caches"]["message"]
        assert failed == {"contract: swa"}
    else:
        assert done.exit_code == 0, done.output
        assert not failed


@needs_vllm
def test_a_launch_that_vllm_itself_refuses_is_told_in_its_words_and_not_probed() -> None:
    assert PYTHON
    assert TREES
    if not (Path(TREES) / "0.30.0" / "vllm").is_dir():
        pytest.skip("vLLM 0.30.0 is not there")
    words = ["--format", "json", "--cpu", "--python", PYTHON, "--vllm-path", f"{TREES}/0.30.0"]
    document = json.loads(run(*words, "--gpu", "H200", "--gpus", "8", *FP8, "--block-size", "512").stdout)
    assert document["verdict"] == "fail"
    assert "stops at kv-cache-init: ValueError: The resolved KV cache layout" in document["caches"]["message"]
    assert document["layouts"] is None
    assert document["devices"] == []
