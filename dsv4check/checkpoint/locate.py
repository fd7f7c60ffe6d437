"""Finds the checkpoint of a launch where vLLM would load it from, else what is known about it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dsv4check.checkpoint.published import published_tensors
from dsv4check.checkpoint.reading import read_checkpoint
from dsv4check.checkpoint.tensors import Checkpoint
from dsv4check.deployment import ServeFlags
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import checkpoint_folders
from dsv4check.records import dataclass

LOCAL: Final = "local folder"
CACHE: Final = "Hugging Face cache"
HUB: Final = "Hugging Face Hub"
PUBLISHED: Final = "published names"


@dataclass(frozen=True, slots=True)
class Located:
    """A checkpoint and where it was found."""

    checkpoint: Checkpoint
    place: str
    """``local folder``, ``Hugging Face cache``, ``Hugging Face Hub`` or ``published names``."""


def locate_checkpoint(
    name: str, flags: ServeFlags, env: Mapping[str, str], *, online: bool = False, path: Path | None = None
) -> Located | None:
    """Find and read the checkpoint of model ``name``; None when nothing is known about it.

    In this order: ``path`` where one is stated; ``name`` as a folder, index, safetensors file or config.json on disk;
    the cache, in ``--download-dir`` (which vLLM lays out like the cache) and then where the environment says, at
    ``--revision``; with ``online`` the index and the safetensors headers on the Hugging Face Hub (some MB, never a
    tensor); the published tensors that come with this package. ``env`` is the server's environment.

    Raises InputError for a stated path without a checkpoint, an index that cannot be used, and for anything that keeps
    the Hub from answering. Damaged files raise nothing, see ``Checkpoint.defects``.
    """
    if path is not None:
        found = read_checkpoint(path.expanduser())
        if found is None:
            raise InputError(f"{path}: no safetensors file or index in it; expected a checkpoint's folder")
        return Located(found, LOCAL)
    local = Path(os.path.expanduser(name))
    if _on_disk(name, local):
        # config.json and the weights lie in one folder, so that any other file stands for its folder too.
        one_file = local.is_file() and (local.suffix == ".safetensors" or local.name.endswith(".index.json"))
        found = read_checkpoint(local.parent if local.is_file() and not one_file else local)
        if found is not None:
            return Located(found, LOCAL)
    elif name:
        for folder in checkpoint_folders(name, flags, env):
            found = read_checkpoint(folder)
            if found is not None:
                return Located(found, CACHE)
        if online and _is_repository(name):
            from dsv4check.checkpoint.hub import fetch_headers

            revision = flags.get("revision")
            wanted = revision if isinstance(revision, str) and revision else None
            return Located(fetch_headers(name, wanted), HUB)
    published = published_tensors(name)
    return None if published is None else Located(published, PUBLISHED)


def _on_disk(name: str, path: Path) -> bool:
    try:
        return bool(name) and path.exists()
    except (OSError, ValueError):
        return False


def _is_repository(name: str) -> bool:
    """True for what the Hub would take as a repository id: ``owner/name`` and nothing that reads as a path."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and all(name.split("/"))
