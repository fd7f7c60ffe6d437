"""One release to learn from: its source text, and a way to run its code on a simulated GPU."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsv4check.rehearsal.environment import Environment, child_variables
from dsv4check.rehearsal.parent import WORKER, RehearsalSession
from dsv4check.rehearsal.protocol import Launch, ProtocolError, Rehearsal, decode

from .source import LearningError, Source

SECONDS: Final = 900.0
"""For one script, the imports of torch and vLLM with cold caches included."""
MEMORY_GIB: Final = 12.0


@dataclass(frozen=True)
class Release:
    """What every section learns from."""

    source: Source
    run: Callable[..., Any]
    """``run(script, *words, sm="9.0")``: the JSON-able answer of ``main(words)`` of a Python file, called in a process
    of its own with this release's vLLM on a simulated GPU of that compute capability. Raises LearningError."""
    environment: Environment | None = None
    """Where the release can be run; None when only its text is at hand."""

    @contextlib.contextmanager
    def rehearsals(self) -> Iterator[Callable[[Launch], Rehearsal]]:
        """Rehearse launches with this release, as ``dsv4check rehearse`` does. Raises LearningError without one."""
        if self.environment is None:
            raise LearningError("building models needs an environment that can run vLLM")
        with RehearsalSession(self.environment, memory_gib=MEMORY_GIB) as session:
            yield session.rehearse


def open_release(environment: Environment, seconds: float = SECONDS) -> Release:
    """The release that ``environment`` found."""

    def run(script: Path, *words: str, sm: str = "9.0") -> Any:
        return run_script(environment, script, words, sm, seconds)

    return Release(Source(Path(environment.package)), run, environment)


def source_only(package: Path) -> Release:
    """A release whose code is read but never run: for sections that learn from text alone."""

    def run(script: Path, *_words: str, sm: str = "9.0") -> Any:
        raise LearningError(f"{script.name} needs an environment that can run vLLM (SM {sm})")

    return Release(Source(package), run)


def run_script(
    environment: Environment, script: Path, words: tuple[str, ...] = (), sm: str = "9.0", seconds: float = SECONDS
) -> Any:
    """Answer of ``main(words)`` of ``script`` inside the simulation.

    Raises LearningError when vLLM does not start there, the script fails, or takes longer than ``seconds``.
    """
    scratch = Path(tempfile.mkdtemp(prefix="dsv4check-learning-"))
    command = [environment.python, str(WORKER), "--sm", sm, "--memory-gib", f"{MEMORY_GIB:g}"]
    command += ["--scratch", str(scratch), "--script", str(script.resolve()), "--", *words]
    try:
        output, errors, code = _call(command, child_variables(environment, scratch), seconds)
    except OSError as error:
        raise LearningError(f"{environment.python} could not be started ({error})") from None
    except subprocess.TimeoutExpired:
        raise LearningError(f"{script.name} took longer than {seconds:.0f} s on SM {sm}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for line in output.splitlines():
        try:
            message = decode(line)
        except ProtocolError as error:
            raise LearningError(f"{script.name}: the child wrote {error}") from None
        if message["type"] == "answer":
            return message["value"]
        if message["type"] == "broken":
            raise LearningError(f"{script.name}: {message.get('reason')}")
    said = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    ending = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    raise LearningError(f"{script.name} gave no answer ({ending}): {said[-1][:400] if said else 'it said nothing'}")


def _call(command: list[str], variables: dict[str, str], seconds: float) -> tuple[bytes, bytes, int]:
    """Run a command in a session of its own, so that what it started ends with it."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=variables,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
        return output, errors, process.returncode
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
