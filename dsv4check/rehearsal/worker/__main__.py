"""The child's main program: imports vLLM once, then forks a process for every launch so that nothing leaks.

Run as a file, by any interpreter. It loads its package under a name of its own, so that nothing beside it (the
parent's packages, perhaps of another Python) gets onto the path.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import importlib.util
import json
import os
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, BinaryIO

_REHEARSAL = Path(__file__).resolve().parent.parent
_PACKAGE = "dsv4check_rehearsal"


def _load_package() -> None:
    """Make ``rehearsal/`` importable as ``dsv4check_rehearsal``, and only that."""
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, _REHEARSAL / "__init__.py", submodule_search_locations=[str(_REHEARSAL)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    # Running a file puts its folder first on the path: its modules must not shadow anybody's.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]


_load_package()
protocol = importlib.import_module(f"{_PACKAGE}.protocol")
simulated_device = importlib.import_module(f"{_PACKAGE}.worker.simulated_device")
failures = importlib.import_module(f"{_PACKAGE}.worker.failures")
simulation = importlib.import_module(f"{_PACKAGE}.worker.simulation")

_PREFIXES = ("vllm.", "transformers.", "triton.", "torch.", "flashinfer", "tilelang")
"""Modules worth importing once, before the next launch is forked."""


class Worker:
    """Answers launches until its input ends."""

    def __init__(self, channel: BinaryIO, scratch: Path, absent: frozenset[str]) -> None:
        self._channel = channel
        self._scratch = scratch
        self._absent = absent
        self._caches: list[Any] = []
        self._imported: set[str] = set()

    def serve(self, source: BinaryIO) -> None:
        """One launch a line."""
        for line in source:
            message = protocol.decode(line)
            identity = message.get("id")
            try:
                launch = protocol.launch_from_json(message.get("launch") or {})
            except protocol.ProtocolError as error:
                self._write("broken", id=identity, reason=str(error))
                continue
            self._launch(identity, launch)

    def _write(self, kind: str, **content: Any) -> None:
        self._channel.write(protocol.encode(kind, **content))
        self._channel.flush()

    def _launch(self, identity: Any, launch: Any) -> None:
        """Fork, let the launch's process speak, and say how it ended if it could not."""
        for _name, config in launch.models:
            self._import_architectures(config.get("architectures"))
        self._collect_caches()
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reading)
            _leave(self._run(identity, launch, writing))
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            learned = stream.read()
        _, ending = os.waitpid(process, 0)
        if os.WIFSIGNALED(ending):
            number = os.WTERMSIG(ending)
            reason = f"the launch's process was killed by {signal.Signals(number).name}"
            if number == signal.SIGALRM:
                reason = f"a stage took longer than {launch.stage_timeout:g} s"
            self._write("broken", id=identity, reason=reason)
        elif not learned:
            self._write("broken", id=identity, reason="the launch's process ended without an answer")
        else:
            self._import(json.loads(learned))

    def _run(self, identity: Any, launch: Any, learned: int) -> int:
        """In the launch's own process: all stages, then the names of the modules that were imported."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        gc.disable()
        before = set(sys.modules)
        folder = Path(tempfile.mkdtemp(prefix="launch-", dir=self._scratch))
        try:
            stages = importlib.import_module(f"{_PACKAGE}.worker.stages")
            simulated_device.STATE.set(launch.device)
            stages.set_environment(launch)
            for cached in self._caches:
                cached.cache_clear()
            rehearsing = stages.Rehearsing(
                launch, folder, lambda kind, **content: self._write(kind, id=identity, **content), self._absent
            )
            rehearsing.run()
            self._write("done", id=identity, not_simulated=rehearsing.not_simulated())
        except BaseException as error:
            reason = f"the rehearsal itself failed: {type(error).__name__}: {error}"
            traceback.print_exc()
            self._write("broken", id=identity, reason=reason[:500])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        names = [name for name in sys.modules if name not in before and name.startswith(_PREFIXES)]
        os.write(learned, json.dumps(names).encode())
        return 0

    def _import_architectures(self, architectures: Any) -> None:
        wanted = tuple(item for item in architectures or () if isinstance(item, str) and item not in self._imported)
        if wanted:
            self._imported.update(wanted)
            simulation.import_model(wanted)

    def _import(self, names: list[str]) -> None:
        """Import what a launch had to import, so that the next ones need not."""
        for name in names:
            if name not in sys.modules:
                try:
                    importlib.import_module(name)
                except BaseException as error:
                    print(f"not imported ahead: {name}: {error}", file=sys.stderr)

    def _collect_caches(self) -> None:
        """vLLM's memoised functions: what they answered while modules were imported must not reach a launch."""
        gc.collect()
        self._caches = [
            item
            for item in gc.get_objects()
            if type(item) is functools._lru_cache_wrapper and str(getattr(item, "__module__", "")).startswith("vllm")
        ]
        gc.freeze()


def _leave(code: int) -> None:
    """End a forked process without running the parent's exit handlers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> int:
    """Announce readiness and answer launches."""
    options = argparse.ArgumentParser(description="The child of dsv4check's rehearsal.")
    options.add_argument("--sm", required=True)
    options.add_argument("--scratch", required=True, type=Path)
    options.add_argument("--memory-gib", type=float, default=8.0)
    options.add_argument("--script", type=Path, help="call main(words) of this file in the simulation, then end")
    options.add_argument("words", nargs="*", help="for the script")
    arguments = options.parse_args()
    # Whatever vLLM prints goes to stderr; the protocol has the real stdout for itself.
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    limit = int(arguments.memory_gib * (1 << 30))
    # Private writable memory: what is really used. The cache is shared address space and does not count.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    began = time.monotonic()
    try:
        absent = simulation.start(arguments.sm)
        version = sys.modules["vllm"].__version__
    except BaseException as error:
        traceback.print_exc()
        failure = failures.read_failure(error)
        reason = failure.message if not failure.verdict else f"{failure.exception}: {failure.message} ({failure.where})"
        channel.write(protocol.encode("broken", reason=f"vLLM could not be imported: {reason}"[:600]))
        channel.flush()
        return 1
    channel.write(protocol.encode("ready", vllm=version, seconds=round(time.monotonic() - began, 2)))
    channel.flush()
    if arguments.script is not None:
        answer = runpy.run_path(str(arguments.script))["main"](arguments.words)
        channel.write(protocol.encode("answer", value=answer))
        channel.flush()
        return 0
    Worker(channel, arguments.scratch, absent).serve(sys.stdin.buffer)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # torch's and vLLM's exit handlers wait for a device
