"""The output of a child that is ended while somebody waits for its next line."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from dsv4check.child_output import ChildOutput

SILENT = "import time; time.sleep(600)"
FLOOD = "while True: print('x' * 60)"


def started(script: str) -> ChildOutput:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    return ChildOutput(process, 1 << 10)


@pytest.mark.parametrize("script", [SILENT, FLOOD])
@pytest.mark.parametrize("repeat", range(10))
def test_after_the_end_whoever_waits_is_told(script: str, repeat: int) -> None:
    output = started(script)
    output.end()
    lines = 0
    while output.line(5) is not None:
        lines += 1
        assert lines < 10_000


@pytest.mark.parametrize("repeat", range(10))
def test_a_thread_that_waits_when_another_ends_the_child_is_let_go(repeat: int) -> None:
    output = started(SILENT)
    seen: list[bytes | None] = []
    waiting = threading.Thread(target=lambda: seen.append(output.line(60)))
    waiting.start()
    time.sleep(0.05)
    output.end()
    waiting.join(timeout=10)
    assert not waiting.is_alive()
    assert seen == [None]
