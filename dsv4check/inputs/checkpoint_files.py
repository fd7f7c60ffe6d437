"""The checkpoint of a model on this machine, read once however often a launch is looked at."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4check.deployment import ServeFlags
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import INDEX_NAME, checkpoint_folders

if TYPE_CHECKING:
    from dsv4check.checkpoint.tensors import Checkpoint


def checkpoint_on_this_machine(name: str, flags: ServeFlags, env: Mapping[str, str]) -> Checkpoint | None:
    """The checkpoint of a model that is on disk or in the cache; None without one."""
    folders = checkpoint_folders(name, flags, env)
    if not folders:
        # Most launches name a model that is not on this machine; they need not import the reader.
        return None
    return _read(str(folders[0]), _changed(folders[0]))


def stated_checkpoint(path: str) -> Checkpoint:
    """The checkpoint at a path that was stated: a folder, an index or a safetensors file.

    Raises InputError where there is none, and for an index that cannot be used.
    """
    place = Path(os.path.expanduser(path))
    found = _read(str(place), _changed(place))
    if found is None:
        raise InputError(f"{path}: no safetensors file or index in it; expected a checkpoint's folder")
    return found


def _changed(folder: Path) -> tuple[int, ...]:
    """When the folder and its index were last written: what was read before counts as long as these stay."""
    times = []
    for path in (folder, folder / INDEX_NAME):
        try:
            times.append(path.stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return tuple(times)


@lru_cache(maxsize=4)
def _read(folder: str, _changed: tuple[int, ...]) -> Checkpoint | None:
    """Read a checkpoint once: the search for fixes asks for the same one again and again."""
    from dsv4check.checkpoint.reading import read_checkpoint

    return read_checkpoint(Path(folder))
