"""The parent and children that do what they should not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4check.probe.node import differences
from dsv4check.probe.parent import ChildRequest, run_child, run_on_gpus
from dsv4check.probe.records import CheckStatus, DeviceResult, Verdict, combined
from tests.probe.layouts import ATTENTION, packed_layouts


def child(folder: Path, mode: str) -> Path:
    file = folder / f"{mode}.py"
    shutil.copy(Path(__file__).parent / "fake_child.py", file)
    return file


def request(python: str = sys.executable, check_seconds: float = 20.0, import_seconds: float = 20.0) -> ChildRequest:
    return ChildRequest(python, packed_layouts(), ATTENTION, check_seconds=check_seconds, import_seconds=import_seconds)


def run(folder: Path, mode: str, check_seconds: float = 20.0, import_seconds: float = 20.0) -> DeviceResult:
    asked = request(check_seconds=check_seconds, import_seconds=import_seconds)
    return run_child(asked, child=child(folder, mode))


def last(result: DeviceResult) -> tuple[str, CheckStatus, str]:
    check = result.checks[-1]
    return check.name, check.status, check.message


def test_a_child_that_does_well(tmp_path: Path) -> None:
    result = run(tmp_path, "well")
    assert result.verdict is Verdict.PASS
    assert result.device == "GPU"
    assert [check.name for check in result.checks] == [
        "PyTorch",
        "device",
        "bytes: swa",
        "kernel: swa",
        "512-byte view: the kernel",
    ]


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [("cpu", Verdict.NO_GPU), ("fails", Verdict.FAIL), ("no_torch", Verdict.UNAVAILABLE)],
)
def test_verdicts(tmp_path: Path, mode: str, verdict: Verdict) -> None:
    assert run(tmp_path, mode).verdict is verdict


def test_a_crash_is_a_result_of_its_check_and_the_others_stay(tmp_path: Path) -> None:
    result = run(tmp_path, "crashes")
    assert last(result) == (
        "kernel: swa",
        CheckStatus.CRASHED,
        "the child was killed by SIGSEGV: something in the extension (during: kernel: swa)",
    )
    assert [check.status for check in result.checks[:3]] == [CheckStatus.OK] * 3
    assert result.verdict is Verdict.FAIL
    assert not result.kernel_ran


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("exits", "the child exited with 7: Fatal: no"),
        ("closes_output", "the child closed its output"),
        ("garbage", "the child wrote something that is no answer: b'WARNING: hello"),
        ("nonsense", "the child wrote something that is no answer"),
        ("floods", "the child wrote something that is no answer"),
        ("endless", "the child wrote something that is no answer"),
    ],
)
def test_children_that_speak_nonsense_or_leave(tmp_path: Path, mode: str, said: str) -> None:
    result = run(tmp_path, mode)
    assert result.checks[-1].status is CheckStatus.CRASHED
    assert result.checks[-1].message.startswith(said)
    assert result.verdict is Verdict.FAIL


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


def test_a_child_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    result = run(tmp_path, "hangs", check_seconds=1.5)
    assert time.monotonic() - began < 15
    name, status, message = last(result)
    assert (name, status) == ("kernel: swa", CheckStatus.CRASHED)
    assert message.startswith("the child did not answer within the 2 s for all checks")
    process = int((tmp_path / "hangs.pid").read_text())
    deadline = time.monotonic() + 5
    while not gone(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(process)


def test_imports_have_a_limit_of_their_own(tmp_path: Path) -> None:
    name, status, message = last(run(tmp_path, "hangs_in_import", import_seconds=3))
    assert (name, status) == ("FlashMLA", CheckStatus.CRASHED)
    assert message.startswith("the child did not answer within 3 s")


def test_all_checks_together_have_a_limit(tmp_path: Path) -> None:
    result = run(tmp_path, "drips", check_seconds=1)
    assert result.checks[-1].status is CheckStatus.CRASHED
    assert len(result.checks) < 20
    assert result.seconds <= 1.5


def test_an_interpreter_that_does_not_start() -> None:
    result = run_child(request(python="/nowhere/python"))
    assert result.verdict is Verdict.UNAVAILABLE
    assert result.unavailable.startswith("/nowhere/python could not be started")


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    result = run(tmp_path, "leaves")
    assert result.verdict is Verdict.PASS
    home = Path((tmp_path / "leaves.home").read_text())
    assert home.parent == tmp_path / "scratch"
    assert list((tmp_path / "scratch").iterdir()) == []


STUCK = """
import os, sys, time
sys.path.insert(0, {root!r})
from dsv4check.probe import child
def stuck(*_):
    open({mark!r}, "w").write(f"{{os.getpid()}} {{os.environ['HOME']}}")
    time.sleep(600)
child.run = stuck
child.main()
"""
PARENT = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from dsv4check.probe.parent import run_child, run_on_gpus
from tests.probe.test_parent import request
{call}
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "call", ["run_child(request(), child=Path({child!r}))", "run_on_gpus(request(), ['0'], child=Path({child!r}))"]
)
def test_a_parent_that_is_ended_leaves_nothing(tmp_path: Path, end: signal.Signals, call: str) -> None:
    root, mark, scratch = str(Path(__file__).parents[2]), tmp_path / "mark", tmp_path / "scratch"
    scratch.mkdir()
    stuck = tmp_path / "stuck.py"
    stuck.write_text(STUCK.format(root=root, mark=str(mark)))
    script = PARENT.format(root=root, call=call.format(child=str(stuck)))
    process = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(scratch)}, stderr=subprocess.DEVNULL
    )
    assert eventually(lambda: mark.exists() and " " in mark.read_text())
    child_process, home = mark.read_text().split()
    assert Path(home).parent == scratch
    process.send_signal(end)
    process.wait(timeout=10)
    assert eventually(lambda: gone(int(child_process)))
    assert eventually(lambda: not list(scratch.iterdir()))


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def test_a_user_s_own_pytorch_is_found_though_the_home_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("PYTHONUSERBASE", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    seen = run(tmp_path, "environment").checks[-1].data["seen"]
    assert seen["PYTHONUSERBASE"] == "/home/somebody/.local"
    assert seen["HOME"] != "/home/somebody"
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_child_gets_no_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    result = run(tmp_path, "environment")
    seen = result.checks[-1].data["seen"]
    assert "HF_TOKEN" not in seen
    assert seen["PYTHONPATH"] == ""
    assert seen["NVIDIA_VISIBLE_DEVICES"] == "all"


def test_one_child_for_each_gpu_and_what_differs(tmp_path: Path) -> None:
    results = run_on_gpus(request(), ["0", "1", "2"], child=child(tmp_path, "fails_on_one"))
    assert [result.device for result in results] == ["GPU 0", "GPU 1", "GPU 2"]
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.FAIL, Verdict.PASS]
    assert differences(results) == (
        "name: GPU of 0 on GPU 0, GPU of 1 on GPU 1, GPU of 2 on GPU 2",
        "kernel: swa: ok on GPU 0, failed on GPU 1, ok on GPU 2",
    )
    assert differences(results[:1]) == ()


def test_verdicts_of_several() -> None:
    assert combined([]) is Verdict.UNAVAILABLE
    assert combined([Verdict.PASS, Verdict.PASS]) is Verdict.PASS
    assert combined([Verdict.PASS, Verdict.NO_GPU]) is Verdict.NO_GPU
    assert combined([Verdict.NO_GPU, Verdict.UNAVAILABLE]) is Verdict.UNAVAILABLE
    assert combined([Verdict.UNAVAILABLE, Verdict.FAIL, Verdict.PASS]) is Verdict.FAIL
