"""``--provision``: an environment to rehearse a release in, built with pip in the user's cache directory.

    rehearsal/<release>/tree            vLLM's wheel without its binaries
    rehearsal/<release>/flashinfer      FlashInfer's wheel without sources for a compiler
    rehearsal/<release>/packages-<key>  packages that a shared virtual environment lacks, where there are any
    rehearsal/<release>/manifest.json   written last: a release without it is not used
    rehearsal/venvs/<key>               CPU PyTorch and vLLM's requirements; venv.json is written last

Folders appear under their names only when they are complete, so an interrupted build goes on where it stopped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from dsv4check.errors import InputError
from dsv4check.rehearsal import packages, wheel
from dsv4check.rehearsal.cache import (
    cache_root,
    check_disk,
    locked,
    megabytes,
    read_record,
    release_folder,
    write_record,
)
from dsv4check.rehearsal.environment import Environment, RehearsalUnavailable, find_environment
from dsv4check.rehearsal.pip import Pip, Runner, run_command
from dsv4check.rehearsal.torch_build import choose_torch

_WHEELS_MB: Final = (300, 600)
"""What the wheels of vLLM and FlashInfer take to fetch."""
_TREES_MB: Final = (80, 250)
"""What is kept of them."""
_WARM_UP: Final = "deepseek-ai/DeepSeek-V4-Flash -tp 8 --kv-cache-dtype fp8"
_WARM_UP_SECONDS: Final = 900.0


def provisioned(version: str) -> Environment | None:
    """The environment that was built for a release, where it is complete and still there."""
    root = cache_root()
    folder = release_folder(root, version)
    manifest = read_record(folder / "manifest.json")
    if manifest is None:
        return None
    try:
        home = root / "venvs" / str(manifest["venv"])
        if read_record(home / "venv.json") is None:
            return None
        folders = os.pathsep.join(str(folder / name) for name in manifest["folders"])
        found = find_environment(str(home / "bin" / "python"), folders)
        return replace(found, notes=("built by --provision", *map(str, manifest["notes"])))
    except (KeyError, TypeError, InputError, RehearsalUnavailable):
        return None


def provision(
    version: str,
    *,
    offline: bool,
    confirm: Callable[[str], bool],
    report: Callable[[str], None],
    run: Runner | None = None,
) -> Environment:
    """The environment of a release, built where it is not there yet.

    ``confirm`` is asked before anything is fetched, ``report`` is told what is done; ``run`` runs pip.
    Raises RehearsalUnavailable when something cannot be had, InputError for text that names no release.
    """
    found = provisioned(version)
    if found is not None:
        return found
    try:
        Version(version)
    except InvalidVersion:
        raise InputError(f"--provision: {version!r} is no release (expected one like 0.24.0)") from None
    root = cache_root()
    if not confirm(_question(version, root, offline)):
        raise RehearsalUnavailable(f"the environment for vLLM {version} was declined, so nothing was built")
    try:
        with locked(root / "lock", report):
            found = provisioned(version)
            if found is None:
                pip = Pip(root, offline=offline, report=report, run=run or run_command)
                _Build(version, root, pip, confirm, report).build()
                found = provisioned(version)
                if found is not None:
                    warm_up(found, report)
    except OSError as error:
        raise RehearsalUnavailable(f"the environment could not be built in {root}: {error}") from None
    if found is None:
        raise RehearsalUnavailable(f"an environment was built in {root}, but vLLM {version} does not work from it")
    return found


def warm_up(environment: Environment, report: Callable[[str], None]) -> None:
    """Rehearse a launch without a limit on time, so that no later one waits while Python compiles its modules.

    What comes of it does not matter here: a later launch meets the same, and its report says so.
    """
    from dsv4check.api import check_request, read_request
    from dsv4check.rehearsal.launch import build_launch, for_environment
    from dsv4check.rehearsal.parent import RehearsalSession

    report("first start: Python compiles what it imports (a minute or two)")
    request = read_request(f"vllm serve {_WARM_UP}", gpu="H200", gpus=8)
    request = for_environment(request, environment.vllm)
    deployment = check_request(request, (), fixes=False).deployment
    with RehearsalSession(environment, start_seconds=_WARM_UP_SECONDS) as session:
        session.rehearse(build_launch(request, deployment, draft=None, stage_timeout=_WARM_UP_SECONDS))


def _question(version: str, root: Path, offline: bool) -> str:
    known = any(read_record(path) is not None for path in root.glob("venvs/*/venv.json"))
    fetched, kept = packages.FETCHED_MB, packages.KEPT_MB
    sharing = "; those built for another release are shared where they suit" if known else ""
    source = "local folders only (--offline)" if offline else "the sources that pip is configured for"
    return (
        f"An environment to rehearse vLLM {version} in will be built with pip in {root}, from {source}:\n"
        f"  vLLM's and FlashInfer's wheels: {_WHEELS_MB[0]} - {_WHEELS_MB[1]} MB to fetch, "
        f"{_TREES_MB[0]} - {_TREES_MB[1]} MB kept (without their compiled code)\n"
        f"  PyTorch for the CPU and what vLLM requires: about {fetched} MB to fetch, {kept} MB kept{sharing}"
    )


class _Build:
    """The steps of one build; each is passed over where it was completed before."""

    def __init__(
        self, version: str, root: Path, pip: Pip, confirm: Callable[[str], bool], report: Callable[[str], None]
    ) -> None:
        self._version = version
        self._root = root
        self._folder = release_folder(root, version)
        self._pip = pip
        self._confirm = confirm
        self._report = report

    def build(self) -> None:
        """All steps; the manifest is the last."""
        check_disk(self._root, _WHEELS_MB[1] + _TREES_MB[1])
        folders = ["tree"]
        self._tree("vllm", self._version, "tree")
        stated = wheel.requirements(self._folder / "tree", "vllm")
        flashinfer = wheel.pin(stated, "flashinfer-python")
        if flashinfer is not None:
            # vLLM decides by its presence. What it requires in turn stands in its own metadata.
            folders.append("flashinfer")
            self._tree("flashinfer-python", flashinfer, "flashinfer")
            stated += wheel.requirements(self._folder / "flashinfer", "flashinfer-python")
        home, extra, notes = self._packages(stated)
        folders += extra
        manifest = self._folder / "manifest.json"
        write_record(manifest, vllm=self._version, venv=home.name, folders=folders, notes=notes)
        shutil.rmtree(self._folder / "wheels", ignore_errors=True)
        kept = f"{megabytes(self._folder)} MB for the release, {megabytes(home)} MB of packages in {home}"
        self._report(f"vLLM {self._version} can be rehearsed: {kept}")

    def _tree(self, distribution: str, version: str, name: str) -> None:
        target = self._folder / name
        if target.is_dir():
            return
        wheels = self._folder / "wheels"
        pattern = f"{distribution.replace('-', '_')}-{version}-*.whl"
        if not any(wheels.glob(pattern)):
            self._report(f"{distribution} {version}: fetching the wheel")
            wanted = [f"{distribution}=={version}"]
            self._pip.download(wanted, wheels, f"{distribution} {version}", alone=True, text_only=True)
        found = next(wheels.glob(pattern), None) or next(wheels.glob(f"{distribution.replace('-', '_')}-*.whl"), None)
        if found is None:
            raise RehearsalUnavailable(f"{distribution} {version} could not be fetched: pip left no wheel of it")
        size = round(found.stat().st_size / 1_000_000)
        kept = wheel.unpack(found, target)
        self._report(f"{distribution} {version}: {kept // 1_000_000} MB of text kept of a wheel of {size} MB")
        found.unlink()

    def _packages(self, stated: list[Requirement]) -> tuple[Path, list[str], list[str]]:
        """A virtual environment that suits, the folders to use beside it, and what people should know of it."""
        self._report("PyTorch: asking pip for a CPU build")
        torch = choose_torch(wheel.pin(stated, "torch"), self._pip.versions("torch"))
        lines = dict.fromkeys([*torch.requirements, *map(str, wheel.for_startup(stated))])
        wanted = [Requirement(line) for line in lines]
        home = packages.suitable(self._root, wanted)
        notes = [torch.note] if torch.note else []
        if home is None:
            if torch.large and not self._confirm(
                "pip offers no CPU build of PyTorch here. The CUDA build takes about "
                f"{packages.CUDA_FETCHED_MB} MB more to fetch and {packages.CUDA_KEPT_MB} MB more on disk. With a CPU "
                "build within pip's reach (PyTorch's own index of CPU wheels as extra-index-url, or a wheel in a "
                "find-links folder) that is not needed."
            ):
                raise RehearsalUnavailable("pip offers no CPU build of PyTorch, and the CUDA build was declined")
            return packages.build(self._root, wanted, self._pip, self._report, torch.large), [], notes
        self._report(f"packages: those in {home} suit")
        missing = packages.absent(home, wanted)
        if not missing:
            return home, [], notes
        extra = self._folder / f"packages-{home.name}"
        if not extra.is_dir():
            packages.add(home, missing, extra, self._pip, self._report)
        return home, [extra.name], notes
