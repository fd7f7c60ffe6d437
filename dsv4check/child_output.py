"""What a child process writes, taken in the background, and how it is ended with all that it started.

Standard library only: the probe's parent runs on machines that have PyTorch and nothing else of ours.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from typing import IO, Final

_WAITING: Final = 256
"""Lines that are kept for a parent that is busy; then the child waits."""
_STDERR_TAIL: Final = 16 << 10


class ChildOutput:
    """The output of a child that leads a session of its own; its stdin, stdout and stderr are pipes."""

    def __init__(self, process: subprocess.Popen[bytes], longest_line: int) -> None:
        """``longest_line``: bytes after which an endless line is cut."""
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._longest = longest_line
        self._lines: queue.Queue[bytes | None] = queue.Queue(maxsize=_WAITING)
        self._errors = bytearray()
        threading.Thread(target=self._read_lines, args=(process.stdout,), daemon=True).start()
        self._error_reader = threading.Thread(target=self._read_errors, args=(process.stderr,), daemon=True)
        self._error_reader.start()

    def line(self, seconds: float) -> bytes | None:
        """The next line; None when the child has closed its output. Raises TimeoutError."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None

    def ending(self) -> str:
        """How the child ended, with the last thing it wrote to stderr."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        code = self._process.poll()
        if code is not None:
            self._error_reader.join(timeout=2)  # what it wrote last may still be on its way
        if code is None:
            how = "the child closed its output"
        elif code < 0:
            how = f"the child was killed by {_signal_name(-code)}"
        else:
            how = f"the child exited with {code}"
        said = [line.strip() for line in self._errors.decode("utf-8", "replace").splitlines() if line.strip()]
        return f"{how}: {said[-1][:300]}" if said else how

    def end(self) -> None:
        """End the child and everything it started, and let the readers go."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        while True:  # a reader that waits for room in the queue must see the end
            try:
                self._lines.get_nowait()
            except queue.Empty:
                break
        # The reader's own word of the end may have gone with the others, and a thread may be waiting for it in `line`.
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)

    def _read_lines(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := stream.readline(self._longest):
                self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
                self._errors += chunk
                del self._errors[:-_STDERR_TAIL]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
