"""Folders that a launch writes to: kernels compiled at start, downloaded weights, temporary files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from dsv4check.records import dataclass

from .records import Observation, State

GIB: Final = 1 << 30
_LEAST_FREE: Final = 2 * GIB


@dataclass(frozen=True, slots=True)
class _Folder:
    id: str
    what: str
    variables: tuple[tuple[str, str], ...]
    """Variable and what follows its value, the first that is set counts."""
    default: str
    state: State
    """What it is when the folder cannot be written."""


_FOLDERS: Final = (
    _Folder(
        "vllm",
        "vLLM's cache (compiled graphs, DeepGEMM kernels)",
        (("VLLM_CACHE_ROOT", ""), ("XDG_CACHE_HOME", "vllm")),
        "~/.cache/vllm",
        State.ERROR,
    ),
    _Folder(
        "triton",
        "Triton's kernels",
        (("TRITON_CACHE_DIR", ""), ("TRITON_HOME", ".triton/cache")),
        "~/.triton/cache",
        State.ERROR,
    ),
    _Folder(
        "flashinfer",
        "FlashInfer's kernels",
        (("FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer"),),
        "~/.cache/flashinfer",
        State.ERROR,
    ),
    _Folder("tilelang", "TileLang's kernels", (("TILELANG_CACHE_DIR", ""),), "~/.tilelang/cache", State.ERROR),
    _Folder("temporary", "temporary files", (("TMPDIR", ""),), "/tmp", State.ERROR),
    _Folder(
        "hub",
        "downloaded models",
        (("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")),
        "~/.cache/huggingface/hub",
        State.WARNING,
    ),
)


@dataclass(frozen=True, slots=True)
class Disk:
    """What a file system has, in bytes."""

    total: int
    free: int
    """Free for this user."""


DiskOf = Callable[[Path], Disk]
"""Raises OSError for a path that is not there."""


def disk_of(path: Path) -> Disk:
    """Asks the system. Raises OSError."""
    found = os.statvfs(path)
    return Disk(found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail)


def look_at_folders(
    root: Path,
    env: Mapping[str, str],
    disk: DiskOf,
    can_write: Callable[[Path], bool],
    checkpoint_bytes: int | None,
) -> list[Observation]:
    """One observation a folder; nothing is written."""
    return [_look(folder, root, env, disk, can_write, checkpoint_bytes) for folder in _FOLDERS]


def _look(
    folder: _Folder,
    root: Path,
    env: Mapping[str, str],
    disk: DiskOf,
    can_write: Callable[[Path], bool],
    checkpoint_bytes: int | None,
) -> Observation:
    named, source = _named(folder, env)
    place = root / named.lstrip("/")
    there = _nearest(place)
    writable = can_write(there)
    free = None
    with suppress(OSError):
        free = disk(there).free
    state, why, advice = State.OK, "", ""
    if not there.is_dir():
        state, why = folder.state, f"{there} is no folder."
    elif not writable:
        state = folder.state
        why = f"{_shown(there, root)} cannot be written: what the launch stores there ends with PermissionError."
        advice = f"Set {folder.variables[0][0]} to a folder that this user can write."
    elif free is None:
        state, why = State.UNKNOWN, "The free space of the file system cannot be asked for."
    elif free < _LEAST_FREE:
        state, why = State.WARNING, 'The file system is nearly full: "No space left on device" while kernels are built.'
        advice = f"Free some space or set {folder.variables[0][0]} to another disk."
    elif folder.id == "hub" and checkpoint_bytes is not None and free < checkpoint_bytes:
        state = State.NOTE
        why = f"The checkpoint has {checkpoint_bytes / GIB:.0f} GiB: a download of it does not fit here."
        advice = "Nothing to do where the weights are on this machine already; else set HF_HOME to a larger disk."
    space = f", {free / GIB:.1f} GiB free" if free is not None else ""
    return Observation(
        id=f"limit-folder-{folder.id}",
        area="limits",
        state=state,
        what=f"folder for {folder.what}",
        found=f"{named}{space}{'' if writable else ', not writable'}",
        wanted="writable",
        why=why,
        advice=advice,
        source=source,
        data={"folder": named, "writable": writable, "free_bytes": free},
    )


def _named(folder: _Folder, env: Mapping[str, str]) -> tuple[str, str]:
    """The folder's path and what names it."""
    home = env.get("HOME") or "/root"
    for variable, below in folder.variables:
        value = env.get(variable)
        if value:
            text = f"{home}{value[1:]}" if value == "~" or value.startswith("~/") else value
            return str(PurePosixPath(text, below)), variable
    default = folder.default
    return (
        f"{home}{default[1:]}" if default.startswith("~") else default
    ), f"default ({folder.variables[0][0]} is not set)"


def _nearest(place: Path) -> Path:
    """The folder itself, or the one it would be made in."""
    for candidate in (place, *place.parents):
        # No error for a name that is too long, holds a zero byte or lies in a folder of another user.
        if os.path.exists(candidate):
            return candidate
    return place


def _shown(place: Path, root: Path) -> str:
    return "/" + place.relative_to(root).as_posix() if place.is_relative_to(root) else str(place)
