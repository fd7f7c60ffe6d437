"""Where vLLM's code for a rehearsal comes from: an interpreter and, optionally, an unpacked tree.

Nothing is imported here. The interpreter is asked in a process of its own what it can find.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsv4check.errors import InputError

_VERSION = re.compile(r"^__version__ = version = ['\"]([^'\"]+)['\"]", re.MULTILINE)
_NEEDED: Final = ("torch", "transformers", "pydantic", "numpy", "triton")
"""What vLLM's start-up code cannot do without. vLLM's own check of the rest is part of the rehearsal."""

_PROBE: Final = """
import importlib.util, json, sys
def version(name):
    try:
        import importlib.metadata as m
        return m.version(name)
    except Exception:
        return None
found = {}
for name in sys.argv[1:]:
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        spec = None
    found[name] = None if spec is None else (spec.origin or "?")
print(json.dumps({"python": sys.version.split()[0], "found": found, "vllm": version("vllm"),
                  "torch": version("torch"), "transformers": version("transformers")}))
"""


_HINT: Final = (
    "name one that has it (--python) or an unpacked wheel (--vllm-path), or let an environment be built (--provision)"
)


class RehearsalUnavailable(Exception):
    """There is nothing to rehearse with; the message says what is missing. Exit code 3, never a verdict."""


@dataclass(frozen=True)
class Environment:
    """An interpreter that can run vLLM's code."""

    python: str
    folders: tuple[str, ...]
    """Put first on the interpreter's path: the unpacked vLLM tree, and packages that belong to it."""
    vllm: str
    """Version of the vLLM found."""
    package: str
    """Folder of the ``vllm`` package."""
    torch: str = ""
    python_version: str = ""
    notes: tuple[str, ...] = ()
    """Where it comes from, and how it differs from the release's own requirements."""

    @property
    def description(self) -> str:
        """One line for people."""
        said = f"vLLM {self.vllm} ({self.package}), Python {self.python_version}, PyTorch {self.torch}"
        return "; ".join((said, *self.notes))


def find_environment(python: str | None = None, vllm_path: str | None = None) -> Environment:
    """Look at what ``--python`` and ``--vllm-path`` name (default: this interpreter).

    ``vllm_path`` is a folder that holds the package ``vllm``, or several, separated as in ``PATH``: further ones
    hold packages of that release (FlashInfer).

    Raises InputError when a path is wrong, RehearsalUnavailable when vLLM or something it needs is missing.
    """
    interpreter = interpreter_path(python)
    folders = _folders(vllm_path)
    found = _ask(interpreter, folders)
    missing = [name for name in _NEEDED if not found["found"].get(name)]
    origin = found["found"].get("vllm")
    if not origin or origin == "?":
        hint = (
            ""
            if vllm_path
            else "; name one that has it (--python) or an unpacked wheel (--vllm-path), or have one built (--provision)"
        )
        raise RehearsalUnavailable(f"{interpreter} has no vllm{hint}")
    if missing:
        raise RehearsalUnavailable(f"{interpreter} lacks {', '.join(missing)}, which vLLM's start-up code needs")
    package = Path(origin).parent
    return Environment(
        python=interpreter,
        folders=folders,
        vllm=_tree_version(package) or str(found["vllm"] or "unknown"),
        package=str(package),
        torch=str(found["torch"] or "unknown"),
        python_version=str(found["python"]),
    )


def child_variables(environment: Environment, scratch: Path) -> dict[str, str]:
    """The child's whole environment: no tokens, no network, its own caches.

    Variables of the launch are set later, in the process of that launch.
    """
    kept = {
        name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ
    }
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(environment.folders),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "" if os.access(environment.package, os.W_OK) else "1",
        "HOME": str(scratch),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "XDG_CONFIG_HOME": str(scratch / "config"),
        "VLLM_CACHE_ROOT": str(scratch / "cache" / "vllm"),
        "VLLM_CONFIG_ROOT": str(scratch / "config" / "vllm"),
        "TRITON_CACHE_DIR": str(scratch / "cache" / "triton"),
        "TILELANG_CACHE_DIR": str(scratch / "cache" / "tilelang"),
        "FLASHINFER_WORKSPACE_BASE": str(scratch / "cache"),
        "HF_HOME": str(scratch / "hf"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }


def interpreter_path(python: str | None) -> str:
    """The interpreter that ``--python`` names (default: this one). Raises InputError when there is none."""
    if python is None:
        return sys.executable
    path = Path(python).expanduser()
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InputError(f"--python {python}: expected a Python interpreter or the folder of a virtual environment")
    return str(path)


def _folders(vllm_path: str | None) -> tuple[str, ...]:
    if not vllm_path:
        return ()
    folders = []
    for text in vllm_path.split(os.pathsep):
        folder = Path(text).expanduser().resolve()
        if folder.name == "vllm" and (folder / "engine").is_dir():
            folder = folder.parent
        if not folder.is_dir():
            raise InputError(f"--vllm-path {text}: no such folder")
        folders.append(str(folder))
    if not any((Path(folder) / "vllm" / "engine").is_dir() for folder in folders):
        raise InputError(f"--vllm-path {vllm_path}: expected a folder with the package vllm (an unpacked wheel)")
    return tuple(folders)


def _ask(interpreter: str, folders: tuple[str, ...]) -> dict[str, dict[str, str | None]]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    try:
        done = subprocess.run(
            [interpreter, "-c", _PROBE, "vllm", *_NEEDED],
            capture_output=True,
            text=True,
            timeout=60,
            env=variables,
            check=False,
        )
        answer: dict[str, dict[str, str | None]] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise RehearsalUnavailable(f"{interpreter} does not run as a Python interpreter ({error})") from None
    return answer


def _tree_version(package: Path) -> str | None:
    """The version written into the package itself; metadata beside it may be of another install."""
    try:
        text = (package / "_version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _VERSION.search(text)
    return found[1] if found else None
