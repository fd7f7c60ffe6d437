"""Virtual environments with CPU PyTorch and vLLM's requirements, shared by the releases they suit."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from dsv4check.rehearsal.cache import check_disk, read_record, write_record
from dsv4check.rehearsal.environment import RehearsalUnavailable
from dsv4check.rehearsal.pip import Pip

FETCHED_MB: Final = 1000
"""About what the packages take to fetch, and below what they take on disk."""
KEPT_MB: Final = 2600
CUDA_FETCHED_MB: Final = 2500
"""More to fetch where only a CUDA build of PyTorch is offered."""
CUDA_KEPT_MB: Final = 3500
"""More on disk then."""

_ANY_VERSION: Final = frozenset(
    (
        "apache-tvm-ffi",
        "compressed-tensors",
        "humming-kernels",
        "llguidance",
        "lm-format-enforcer",
        "nvidia-cutlass-dsl",
        "nvtx",
        "outlines-core",
        "quack-kernels",
        "tilelang",
        "xgrammar",
    )
)
"""Imported at start-up, at work only on a GPU or when a request is served. Every release pins versions of its own,
but a virtual environment with other ones will do: an import that fails says so, and is not taken for a verdict."""
_HEAVY: Final = frozenset(("torch", "triton", "tilelang"))
"""Fetched first, so that an interrupted build need not fetch them again."""


def suitable(root: Path, wanted: Sequence[Requirement]) -> Path | None:
    """A complete virtual environment where nothing that is installed contradicts ``wanted``."""
    for record in sorted((root / "venvs").glob("*/venv.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        home = record.parent
        known = read_record(record)
        if known is None or known.get("python") != _python() or not (home / "bin" / "python").exists():
            continue
        packages = known.get("packages")
        if isinstance(packages, dict) and all(_agrees(item, packages) for item in wanted):
            return home
    return None


def absent(home: Path, wanted: Sequence[Requirement]) -> list[str]:
    """Requirements of which nothing is installed."""
    record = read_record(home / "venv.json") or {}
    packages = record.get("packages") or {}
    return [str(item) for item in wanted if canonicalize_name(item.name) not in packages]


def build(root: Path, wanted: Sequence[Requirement], pip: Pip, report: Callable[[str], None], large: bool) -> Path:
    """A virtual environment with ``wanted``. It counts as complete once its record is written."""
    lines = sorted(map(str, wanted))
    key = hashlib.sha256("\n".join([_python(), *lines]).encode()).hexdigest()[:12]
    home, wheels = root / "venvs" / key, root / "venvs" / f"{key}.wheels"
    check_disk(root, FETCHED_MB + KEPT_MB + (CUDA_FETCHED_MB + CUDA_KEPT_MB if large else 0))
    if not wheels.is_dir():
        part = wheels.with_name(f"{wheels.name}.part")
        report(f"packages: fetching {len(lines)} and what they require (takes minutes)")
        heavy = [str(item) for item in wanted if canonicalize_name(item.name) in _HEAVY]
        pip.download(heavy, part, "PyTorch and Triton", alone=True)
        pip.download(lines, part, "the packages that vLLM needs")
        part.rename(wheels)
    report(f"packages: installing {len(list(wheels.glob('*.whl')))} into {home}")
    # Whatever an interrupted run left there may be half a package.
    shutil.rmtree(home, ignore_errors=True)
    venv.EnvBuilder(with_pip=False, symlinks=True).create(home)
    try:
        pip.install(home / "bin" / "python", wheels)
        _check(home)
    except RehearsalUnavailable:
        shutil.rmtree(wheels, ignore_errors=True)  # the next run must not fail over the same files
        raise
    write_record(home / "venv.json", python=_python(), packages=_installed(home))
    shutil.rmtree(wheels, ignore_errors=True)
    return home


def add(home: Path, wanted: Sequence[str], target: Path, pip: Pip, report: Callable[[str], None]) -> None:
    """Put what ``home`` lacks into ``target``, which appears only when it is complete. ``home`` stays as it is."""
    report(f"packages: {len(wanted)} more for this release")
    wheels, part = target.with_name(f"{target.name}.wheels"), target.with_name(f"{target.name}.part")
    for folder in (wheels, part):
        shutil.rmtree(folder, ignore_errors=True)
    python = home / "bin" / "python"
    pip.download(pip.missing(python, wanted), wheels, "the packages that vLLM needs", alone=True)
    pip.install(python, wheels, target=part)
    part.rename(target)
    shutil.rmtree(wheels, ignore_errors=True)


def _agrees(item: Requirement, packages: dict[str, str]) -> bool:
    name = canonicalize_name(item.name)
    version = packages.get(name)
    if version is None:
        return name not in _HEAVY
    return name in _ANY_VERSION or item.specifier.contains(Version(version), prereleases=True)


def _installed(home: Path) -> dict[str, str]:
    """Distributions of a virtual environment, from the names of their metadata folders."""
    found: dict[str, str] = {}
    for info in home.glob("lib/python*/site-packages/*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        found[canonicalize_name(name)] = version
    return found


def _check(home: Path) -> None:
    """Raise RehearsalUnavailable unless PyTorch loads: a build for another machine shows only then."""
    words = [str(home / "bin" / "python"), "-c", "import torch"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        raise RehearsalUnavailable("the PyTorch that was installed does not load within 300 s") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise RehearsalUnavailable(f"the PyTorch that was installed does not load: {said[-1][:300]}")


def _python() -> str:
    return ".".join(map(str, sys.version_info[:2]))
