"""The parent against children that die, hang, flood or speak nonsense: never a verdict, never a hang."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4check.rehearsal import parent
from dsv4check.rehearsal.environment import Environment
from dsv4check.rehearsal.parent import RehearsalSession
from dsv4check.rehearsal.protocol import Launch, Rehearsal, RehearsedStage, SimulatedDevice, Status

FAKE = Path(__file__).parent / "fake_worker.py"
HERE = Environment(sys.executable, (), "0.29.0", "/nowhere/vllm")


def launch(sm: str = "9.0", stage_timeout: float = 1.0) -> Launch:
    return Launch("serve", ("{model:0}",), SimulatedDevice(sm), stage_timeout=stage_timeout)


@pytest.fixture
def session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[RehearsalSession]:
    """A session whose child misbehaves as the test's parameter says."""
    monkeypatch.setattr(parent, "GRACE_SECONDS", 0.5)
    worker = tmp_path / f"{request.param}.py"
    shutil.copy(FAKE, worker)
    with RehearsalSession(HERE, worker=worker, start_seconds=3) as made:
        yield made


def reason(rehearsal: Rehearsal) -> str:
    """Why it is unavailable; no stage may have a verdict."""
    assert rehearsal.failure is None
    assert rehearsal.unavailable is not None
    return rehearsal.unavailable.message


@pytest.mark.parametrize("session", ["well", "well_but_noisy"], indirect=True)
def test_a_child_that_works(session: RehearsalSession) -> None:
    for _ in range(3):
        rehearsal = session.rehearse(launch(stage_timeout=20))
        assert [result.status for result in rehearsal.stages] == [Status.OK] * len(RehearsedStage)
        assert rehearsal.not_simulated == ("kernels",)
        assert rehearsal.vllm == "0.29.0"


@pytest.mark.parametrize("session", ["fails"], indirect=True)
def test_a_refusal_of_vllm_is_a_verdict_and_later_stages_are_not_reached(session: RehearsalSession) -> None:
    rehearsal = session.rehearse(launch(stage_timeout=20))
    assert rehearsal.failure is not None
    assert (rehearsal.failure.stage, rehearsal.failure.exception) == (RehearsedStage.ENGINE_CONFIG, "ValueError")
    assert rehearsal.unavailable is None
    assert [result.status for result in rehearsal.stages[2:]] == [Status.NOT_REACHED] * (len(RehearsedStage) - 2)


@pytest.mark.parametrize(
    ("session", "said"),
    [
        ("silent_start", "not ready after 3 s"),
        ("dies_at_start", "exited with 1: ModuleNotFoundError: No module named 'torch'"),
        ("broken_start", "no module named frob"),
        ("other_protocol", "speaks protocol 99"),
        ("garbage_start", "hello from a library"),
    ],
    indirect=["session"],
)
def test_a_child_that_does_not_start(session: RehearsalSession, said: str) -> None:
    rehearsal = session.rehearse(launch())
    assert said in reason(rehearsal)
    assert [result.status for result in rehearsal.stages[1:]] == [Status.NOT_REACHED] * (len(RehearsedStage) - 1)
    began = time.monotonic()
    assert said in reason(session.rehearse(launch()))
    assert time.monotonic() - began < 0.5, "a start that failed is not tried again for every launch of a batch"


@pytest.mark.parametrize(
    ("session", "said"),
    [
        ("dies", "killed by SIGSEGV: Segmentation fault in extension"),
        ("hangs", "did not answer"),
        ("hangs_with_children", "did not answer"),
        ("floods_without_end", "not a message"),
        ("floods_lines", "not a message"),
        ("floods_stderr", "did not answer"),
        ("garbage", "not a message: b'Traceback"),
        ("wrong_id", "answered for launch 2, not 1"),
        ("unknown_stage", "coffee"),
        ("endless_results", "more results than there are stages"),
        ("broken", "init_kv_cache now needs frob"),
        ("closes_output", "closed its output"),
    ],
    indirect=["session"],
)
def test_a_child_that_breaks_off(session: RehearsalSession, said: str) -> None:
    began = time.monotonic()
    rehearsal = session.rehearse(launch())
    assert said in reason(rehearsal)
    assert time.monotonic() - began < 10
    session.close()


@pytest.mark.parametrize("session", ["dies", "broken"], indirect=True)
def test_stages_before_the_break_are_kept(session: RehearsalSession) -> None:
    rehearsal = session.rehearse(launch())
    assert rehearsal.result(RehearsedStage.ARGPARSE).status is Status.OK
    assert rehearsal.result(RehearsedStage.ENGINE_CONFIG).status is Status.UNAVAILABLE
    assert rehearsal.result(RehearsedStage.MODEL_INIT).status is Status.NOT_REACHED


@pytest.mark.parametrize("session", ["dies_once"], indirect=True)
def test_the_next_launch_gets_a_new_child(session: RehearsalSession) -> None:
    assert "exited with 7" in reason(session.rehearse(launch()))
    assert session.rehearse(launch()).unavailable is None


@pytest.mark.parametrize("session", ["hangs_with_children"], indirect=True)
def test_what_the_child_started_is_ended_too(session: RehearsalSession, tmp_path: Path) -> None:
    session.rehearse(launch())
    pid = int((tmp_path / "hangs_with_children.pid").read_text())
    for _ in range(50):
        if not _running(pid):
            break
        time.sleep(0.1)
    assert not _running(pid)


def _running(pid: int) -> bool:
    """True for a live process; one that was killed and not collected yet does not count."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


@pytest.mark.parametrize("session", ["well"], indirect=True)
def test_one_child_per_compute_capability_and_no_more_than_two(session: RehearsalSession) -> None:
    for sm in ("9.0", "10.0", "9.0", "12.0"):
        assert session.rehearse(launch(sm, stage_timeout=20)).unavailable is None
    assert set(session._children) == {"9.0", "12.0"}


def test_an_interpreter_that_is_not_there() -> None:
    with RehearsalSession(Environment("/no/such/python", (), "0.29.0", "/nowhere")) as session:
        assert "could not be started" in reason(session.rehearse(launch()))
