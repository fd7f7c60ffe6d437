"""What is installed in a Python: asked in a process of its own, without importing any of it."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from dsv4check.records import dataclass, field

TIMEOUT_S: Final = 20.0
"""A Python on a cold network disk takes seconds to start; longer is taken for a hang."""
_MARK: Final = "dsv4check-facts:"
_MOST_OUTPUT: Final = 4 * 2**20
_MODULES: Final = ("vllm", "torch", "deep_gemm", "flash_mla", "flashinfer")
"""Modules whose folder is wanted; none of them is imported."""

_SCRIPT: Final = """
import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import json, os
from importlib import metadata
from importlib.util import find_spec
asked = json.loads(sys.argv[1])
found = {}
for name in asked["names"]:
    seen = {}
    for dist in metadata.distributions(name=name):
        try:
            place = os.path.realpath(str(getattr(dist, "_path", None) or dist.locate_file("")))
            if place not in seen:
                wants = list(dist.requires or ()) if name == "torch" else []
                seen[place] = [str(dist.version or ""), place, wants]
        except Exception:
            continue
    if seen:
        found[name] = list(seen.values())
modules = {}
for name in asked["modules"]:
    try:
        spec = find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec else []
        if places or (spec and spec.origin):
            modules[name] = places[0] if places else spec.origin
    except Exception:
        continue
answer = {
    "version": "%d.%d.%d" % sys.version_info[:3],
    "implementation": sys.implementation.name,
    "executable": sys.executable or "",
    "prefix": sys.prefix,
    "distributions": found,
    "modules": modules,
}
sys.stdout.write("\\n" + asked["mark"] + json.dumps(answer) + "\\n")
sys.stdout.flush()
"""


@dataclass(frozen=True, slots=True)
class Distribution:
    """One installed package, as its metadata folder says."""

    name: str
    version: str
    """Empty where the metadata has none (left over from a removal)."""
    location: str
    """The metadata folder."""
    requires: tuple[str, ...] = ()
    """Its requirements; of torch only."""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What ``torch/version.py`` says of the build, read as text."""

    version: str | None
    cuda: str | None
    """The CUDA it is built with; None in a build for the CPU or for ROCm."""
    hip: str | None
    git: str | None
    source: str
    """The file."""

    @property
    def kind(self) -> str:
        """``cuda``, ``rocm`` or ``cpu`` (which here means: neither of the two)."""
        return "cuda" if self.cuda else "rocm" if self.hip else "cpu"


@dataclass(frozen=True, slots=True)
class InterpreterFacts:
    """A Python and the packages in it that were asked for."""

    version: str
    """``3.12.3``."""
    implementation: str
    """``cpython``."""
    executable: str
    prefix: str
    distributions: Mapping[str, tuple[Distribution, ...]] = field(default_factory=dict)
    """By the name that was asked for; several where a package is installed more than once, the imported one first."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Folder of vllm, torch, deep_gemm, flash_mla and flashinfer, where an import would find them."""
    torch: TorchBuild | None = None

    def installed(self, name: str) -> str | None:
        """Version of a package; None where it is not installed or says none."""
        found = self.distributions.get(name)
        return (found[0].version or None) if found else None


def ask_interpreter(
    python: str | None, names: Iterable[str], *, timeout_s: float = TIMEOUT_S
) -> InterpreterFacts | str:
    """What a Python has of the packages ``names``; a sentence that says why not, where it cannot be asked.

    ``python`` is a path, a name on PATH or the folder of a virtual environment; None is the Python that runs
    this. User packages and PYTHONPATH count, as they do for a server that is started the same way; the
    working folder does not.
    """
    program = _program(python)
    if program is None:
        return f"{python}: no such Python; expected an interpreter or the folder of a virtual environment"
    question = json.dumps({"names": sorted(set(names)), "modules": _MODULES, "mark": _MARK})
    output = _run([program, "-B", "-c", _SCRIPT, question], timeout_s)
    if isinstance(output, str):
        return f"{program}: {output}"
    status, text = output
    for line in reversed(text.splitlines()):
        if line.startswith(_MARK):
            try:
                return _facts(json.loads(line.removeprefix(_MARK)))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                break
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    last = "".join(char if char.isprintable() else "?" for char in last[:200])
    said = f"; it said: {last}" if last else ""
    if status != 0:
        return f"{program}: ended with status {status} instead of an answer{said}"
    return f"{program}: gave no answer that a Python gives{said}"


def torch_build(folder: Path) -> TorchBuild | None:
    """The build of the torch package in ``folder``; None without a readable ``version.py``."""
    path = folder / "version.py"
    if not path.is_file():
        return None
    try:
        with path.open("rb") as stream:
            text = stream.read(64 * 1024).decode("utf-8", errors="replace")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    values: dict[str, str] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            values[target.id] = value.value
    return TorchBuild(
        version=values.get("__version__"),
        cuda=values.get("cuda"),
        hip=values.get("hip"),
        git=values.get("git_version"),
        source=str(path),
    )


def _program(python: str | None) -> str | None:
    """The interpreter to start; None where there is none."""
    if python is None:
        return sys.executable or shutil.which("python3")
    if not python.strip() or "\0" in python:
        return None
    path = Path(python).expanduser()
    for candidate in (path, path / "bin" / "python", path / "bin" / "python3", path / "Scripts" / "python.exe"):
        if candidate.is_file() and (os.sep in python or candidate != path):
            return str(candidate.absolute())
    return shutil.which(python)


def _run(command: list[str], timeout_s: float) -> tuple[int, str] | str:
    """Exit status and output of a program, or why there is none; never more output than is read here."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"cannot be started ({getattr(error, 'strerror', None) or error})"
    late, done = threading.Event(), threading.Event()

    def stop() -> None:
        if not done.is_set():
            late.set()
            _end(child)

    # The child may have ended and left its output open with another process, so the group is ended by the clock.
    timer = threading.Timer(timeout_s, stop)
    timer.daemon = True
    timer.start()
    try:
        assert child.stdout is not None
        output = child.stdout.read(_MOST_OUTPUT)
        more = len(output) == _MOST_OUTPUT
        if more:
            _end(child)
        status = child.wait()
        done.set()
    finally:
        timer.cancel()
        if child.poll() is None:
            _end(child)
        if child.stdout is not None:
            child.stdout.close()
    if late.is_set():
        return f"did not answer within {timeout_s:g} s"
    if more:
        return "wrote more than any answer is long"
    return status, output.decode("utf-8", errors="replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a program with all that it started, so that nothing holds its output open."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()


def _facts(answer: Any) -> InterpreterFacts:
    modules = {str(name): str(place) for name, place in answer["modules"].items()}
    return InterpreterFacts(
        version=str(answer["version"]),
        implementation=str(answer["implementation"]),
        executable=str(answer["executable"]),
        prefix=str(answer["prefix"]),
        distributions={
            str(name): tuple(
                Distribution(str(name), str(version), str(place), tuple(str(item) for item in wants))
                for version, place, wants in found
            )
            for name, found in answer["distributions"].items()
        },
        modules=modules,
        torch=torch_build(Path(modules["torch"])) if "torch" in modules else None,
    )
