"""The parent's side of a rehearsal: starts the child, feeds it launches, and outlives whatever the child does.

The child may die, hang, flood its output or speak nonsense; each of these becomes *unavailable (reason)* for the
launch at hand, and a new child is started for the next one.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from dsv4check.child_output import ChildOutput
from dsv4check.rehearsal.environment import Environment, RehearsalUnavailable, child_variables
from dsv4check.rehearsal.protocol import (
    MAX_MESSAGE,
    Launch,
    ProtocolError,
    Rehearsal,
    RehearsedStage,
    StageResult,
    complete,
    decode,
    encode,
    launch_to_json,
    result_from_json,
)

WORKER: Final = Path(__file__).parent / "worker" / "__main__.py"
START_SECONDS: Final = 180.0
"""For the imports of torch and vLLM, cold caches included."""
GRACE_SECONDS: Final = 15.0
"""The child ends a stage that takes too long itself and stays usable; after this much more the child is killed."""
MEMORY_GIB: Final = 8.0
"""What the child may allocate. A rehearsal takes about 2 GiB; its KV cache is address space that is never touched."""
_CHILDREN: Final = 2
"""Children kept at a time, one per compute capability: modules read it while they are imported."""


class _Child:
    """One worker process and the threads that drain its output."""

    def __init__(
        self, environment: Environment, sm: str, worker: Path, start_seconds: float, memory_gib: float
    ) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="dsv4check-rehearsal-"))
        variables = child_variables(environment, self._scratch)
        command = [environment.python, str(worker), "--sm", sm, "--memory-gib", f"{memory_gib:g}"]
        command += ["--scratch", str(self._scratch)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=variables,
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise RehearsalUnavailable(f"{environment.python} could not be started ({error})") from None
        assert self._process.stdin is not None
        self._input: IO[bytes] = self._process.stdin
        self._output = ChildOutput(self._process, MAX_MESSAGE)
        self._number = 0
        self._stopped = False
        try:
            self.vllm = self._wait_ready(start_seconds)
        except BaseException:
            self.stop()
            raise

    def _wait_ready(self, seconds: float) -> str:
        try:
            message = self._receive(time.monotonic() + seconds)
        except TimeoutError:
            raise RehearsalUnavailable(f"the child was not ready after {seconds:.0f} s") from None
        except (ProtocolError, EOFError) as error:
            raise RehearsalUnavailable(f"the child did not start: {error}") from None
        if message["type"] == "broken":
            raise RehearsalUnavailable(str(message.get("reason") or "the child gave no reason"))
        if message["type"] != "ready":
            raise RehearsalUnavailable(f"the child began with {message['type']!r} instead of 'ready'")
        return str(message.get("vllm") or "")

    def rehearse(self, launch: Launch) -> Rehearsal:
        """Run one launch. The child is stopped when it can no longer be trusted (see :attr:`alive`)."""
        self._number += 1
        results: list[StageResult] = []
        notes: tuple[str, ...] = ()
        reason = ""
        try:
            self._input.write(encode("launch", id=self._number, launch=launch_to_json(launch)))
            self._input.flush()
            reason, notes = self._collect(launch, results)
        except TimeoutError:
            reason = f"the child did not answer for {launch.stage_timeout + GRACE_SECONDS:.0f} s"
            self.stop()
        except (ProtocolError, EOFError, OSError) as error:
            reason = str(error) if not isinstance(error, BrokenPipeError) else self._output.ending()
            self.stop()
        return complete(results, reason=reason, not_simulated=notes, vllm=self.vllm)

    def _collect(self, launch: Launch, results: list[StageResult]) -> tuple[str, tuple[str, ...]]:
        """Take the child's messages up to ``done``; returns why it broke off, and what it did not simulate."""
        while True:
            message = self._receive(time.monotonic() + launch.stage_timeout + GRACE_SECONDS)
            if message.get("id") != self._number:
                raise ProtocolError(f"the child answered for launch {message.get('id')!r}, not {self._number}")
            match message["type"]:
                case "started":
                    continue
                case "result":
                    if len(results) >= len(RehearsedStage):
                        raise ProtocolError("the child sent more results than there are stages")
                    results.append(result_from_json(message))
                case "done":
                    return "", tuple(str(item) for item in message.get("not_simulated") or ())
                case "broken":
                    return str(message.get("reason") or "no reason given"), ()
                case kind:
                    raise ProtocolError(f"the child sent {kind!r}")

    def _receive(self, deadline: float) -> dict[str, Any]:
        """The next message. Raises TimeoutError, EOFError (child gone) or ProtocolError."""
        line = self._output.line(max(0.0, deadline - time.monotonic()))
        if line is None:
            raise EOFError(self._output.ending())
        return decode(line)

    @property
    def alive(self) -> bool:
        """False when the child has ended or was stopped."""
        return not self._stopped and self._process.poll() is None

    def stop(self) -> None:
        """End the child and everything it started, and remove its files."""
        if self._stopped:
            return
        self._stopped = True
        self._output.end()
        shutil.rmtree(self._scratch, ignore_errors=True)


class RehearsalSession:
    """Rehearses launches one after the other in an environment; children are kept warm between them.

    Use it as a context manager. :meth:`rehearse` never raises for anything the child does.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        worker: Path | None = None,
        start_seconds: float = START_SECONDS,
        memory_gib: float = MEMORY_GIB,
    ) -> None:
        self.environment = environment
        self._worker = worker or WORKER
        self._start_seconds = start_seconds
        self._memory_gib = memory_gib
        self._children: dict[str, _Child] = {}
        self._failed: dict[str, str] = {}

    def __enter__(self) -> RehearsalSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def rehearse(self, launch: Launch) -> Rehearsal:
        """Rehearse one launch; a child is started if there is none for its compute capability."""
        began = time.monotonic()
        sm = launch.device.sm
        if sm in self._failed:
            return complete([], reason=self._failed[sm], vllm=self.environment.vllm)
        try:
            child = self._child(sm)
        except RehearsalUnavailable as error:
            # It would fail in the same way for every further launch of a batch, after the same wait.
            self._failed[sm] = str(error)
            return complete([], reason=str(error), vllm=self.environment.vllm)
        return replace(child.rehearse(launch), seconds=round(time.monotonic() - began, 3))

    def close(self) -> None:
        """Stop all children."""
        for child in self._children.values():
            child.stop()
        self._children.clear()

    def _child(self, sm: str) -> _Child:
        child = self._children.pop(sm, None)
        if child is not None and not child.alive:
            child.stop()
            child = None
        if child is None:
            while len(self._children) >= _CHILDREN:
                self._children.pop(next(iter(self._children))).stop()
            child = _Child(self.environment, sm, self._worker, self._start_seconds, self._memory_gib)
        self._children[sm] = child
        return child
