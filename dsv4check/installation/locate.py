"""Finding the vLLM package of an installation, and what it says of its version and commit; nothing is imported."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from dsv4check.errors import InputError
from dsv4check.rehearsal.environment import interpreter_path

from .checkout import head_commit
from .tree import VllmTree

_SECONDS: Final = 30.0
_MOST_BYTES: Final = 1 << 20
_VERSION: Final = re.compile(r"^(?:__version__ = )?(?:__version__|version) = ['\"]([\w.+!-]{1,100})['\"]")
_COMMIT: Final = re.compile(r"^(?:__commit_id__ = )?(?:__)?commit(?:_id)?(?:__)? = ['\"]g?([0-9a-f]{7,40})['\"]")
_LOCAL_COMMIT: Final = re.compile(r"\+(?:[a-z0-9]+\.)*g([0-9a-f]{7,40})(?:\.|$)")
_METADATA_VERSION: Final = re.compile(r"^Version: ([\w.+!-]{1,100})\s*$")

_ASK: Final = """
import importlib.util, json, sys
sys.path[:] = [folder for folder in sys.path if folder]
try:
    spec = importlib.util.find_spec("vllm")
except Exception:
    spec = None
try:
    from importlib.metadata import distribution
    about = getattr(distribution("vllm"), "_path", None)
except Exception:
    about = None
print(json.dumps({"origin": spec and spec.origin, "about": about and str(about)}))
"""
"""A top-level package is found without being imported. The working directory is no installation."""


def find_tree(vllm_path: str | None, python: str | None) -> VllmTree | str:
    """The tree that ``--vllm-path`` or ``--python`` names, else that of this interpreter; or why there is none.

    Raises InputError for a path that is wrong.
    """
    if vllm_path:
        return _described(_named_package(vllm_path), found_by="--vllm-path")
    if python:
        return _asked(interpreter_path(python), python)
    return _own()


def _named_package(vllm_path: str) -> Path:
    """The package in a folder, a checkout or a list of folders as in ``PATH``; or the package itself."""
    for text in vllm_path.split(os.pathsep):
        folder = Path(text).expanduser()
        if not folder.is_dir():
            raise InputError(f"--vllm-path {text}: no such folder")
        folder = folder.resolve()
        for package in (folder / "vllm", folder):
            if package.name == "vllm" and (package / "__init__.py").is_file():
                return package
    raise InputError(f"--vllm-path {vllm_path}: expected the package vllm, or a folder with it (a checkout, a wheel)")


def _asked(interpreter: str, python: str) -> VllmTree | str:
    try:
        done = subprocess.run([interpreter, "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, check=False)
        answer: Any = json.loads(done.stdout.strip().rpartition("\n")[2])
        origin, about = answer["origin"], answer["about"]
    except subprocess.TimeoutExpired:
        return f"{interpreter} did not answer within {_SECONDS:.0f} s"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{interpreter} does not run as a Python interpreter"
    package = _package_of(origin)
    if package is None:
        return f"{interpreter} has no vLLM installed"
    metadata = Path(about) if isinstance(about, str) else None
    return _described(package, found_by=f"--python {python}", python=interpreter, metadata=metadata)


def _own() -> VllmTree | str:
    from importlib.metadata import PackageNotFoundError, distribution

    with _installed_path():
        try:
            spec = importlib.util.find_spec("vllm")
        except (ImportError, ValueError, AttributeError):
            spec = None
        try:
            about = getattr(distribution("vllm"), "_path", None)
        except (PackageNotFoundError, OSError, ValueError):
            about = None
    package = _package_of(None if spec is None else spec.origin)
    if package is None:
        return "this Python has no vLLM installed; name one that has (--python) or a vLLM tree (--vllm-path)"
    metadata = None if about is None else Path(str(about))
    return _described(package, found_by="this Python", python=sys.executable, metadata=metadata)


@contextmanager
def _installed_path() -> Iterator[None]:
    """Python's path as ``vllm serve`` has it: ``python -m dsv4check`` puts the working directory in front."""
    before = list(sys.path)
    with suppress(OSError):
        if before[:1] in ([""], [os.getcwd()]):
            del sys.path[0]
    try:
        yield
    finally:
        sys.path[:] = before


def _package_of(origin: object) -> Path | None:
    """The package's folder; None for a folder of that name without code, which Python finds, too."""
    if not isinstance(origin, str) or not origin.endswith("__init__.py") or not Path(origin).is_file():
        return None
    return Path(origin).resolve().parent


def _described(package: Path, found_by: str, python: str | None = None, metadata: Path | None = None) -> VllmTree:
    version, version_from = next(_versions(package, metadata), (None, ""))
    commit, commit_from = next(_commits(package, metadata, version, version_from), (None, ""))
    return VllmTree(package, version, version_from, commit, commit_from, found_by, python)


def _versions(package: Path, metadata: Path | None) -> Iterator[tuple[str, str]]:
    yield from _matches(package / "_version.py", _VERSION, "vllm/_version.py")
    for folder in _metadata(package, metadata):
        for name in ("METADATA", "PKG-INFO"):
            yield from (
                (value, where.rpartition(":")[0])
                for value, where in _matches(folder / name, _METADATA_VERSION, f"{folder.name}/{name}")
            )


def _commits(package: Path, metadata: Path | None, version: str | None, version_from: str) -> Iterator[tuple[str, str]]:
    yield from _matches(package / "_version.py", _COMMIT, "vllm/_version.py")
    found = _LOCAL_COMMIT.search(version or "")
    if found:
        yield found[1], version_from
    for folder in _metadata(package, metadata):
        commit = _installed_commit(folder / "direct_url.json")
        if commit:
            yield commit, f"{folder.name}/direct_url.json"
    yield from _matches(package / "commit_id.py", _COMMIT, "vllm/commit_id.py")
    commit = head_commit(package.parent)
    if commit:
        yield commit, ".git/HEAD"


def _metadata(package: Path, metadata: Path | None) -> list[Path]:
    """Folders with the metadata of the installation: beside the package; for editable ones where Python found it."""
    beside = [
        folder for pattern in ("vllm-*.dist-info", "vllm.egg-info") for folder in sorted(package.parent.glob(pattern))
    ]
    return beside or ([] if metadata is None else [metadata])


def _matches(path: Path, pattern: re.Pattern[str], name: str) -> Iterator[tuple[str, str]]:
    """(what the pattern finds, place) for each line of a small text file that has it; indented lines are skipped."""
    for number, line in enumerate(_text(path).split("\n"), start=1):
        found = None if line[:1].isspace() else pattern.search(line)
        if found:
            yield found[1], f"{name}:{number}"


def _installed_commit(path: Path) -> str | None:
    try:
        told = json.loads(_text(path) or "null")
        commit = told["vcs_info"]["commit_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return commit if isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{7,40}", commit) else None


def _text(path: Path) -> str:
    """Text of a small file; empty when there is none."""
    try:
        if not path.is_file():
            return ""
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return ""
