"""Finds a model's files: a directory, the Hugging Face cache, or the configs that come with this package."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dsv4check.data import load_data, rules_dir
from dsv4check.deployment import ServeFlags
from dsv4check.errors import InputError
from dsv4check.records import dataclass, field

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """One entry of ``rules/models/index.yaml``."""

    id: str
    trust: str
    """exact, mirrored, reconstructed, derived or assumed: how well its config.json is known."""
    draft: str | None
    """``mtp``, ``dspark``, ``none``; None when not known."""
    like: str | None
    """The entry whose config.json is used."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Merged into that config.json; null deletes a key."""
    tensors: str | None = None
    """The entry whose ``tensors.tsv`` lists this checkpoint's tensors; None when they are not known."""
    unknown: tuple[str, ...] = ()
    """Keys of ``quantization_config`` of which it is not known whether the file has them."""


@cache
def published_models() -> Mapping[str, PublishedModel]:
    """Every known checkpoint, keyed by its id in lower case."""
    content = load_data("models/index")
    entries = [
        PublishedModel(
            id=entry["id"],
            trust=entry["trust"],
            draft=entry.get("draft"),
            like=entry.get("like"),
            changes=entry.get("changes", {}),
            tensors=entry.get("tensors"),
            unknown=tuple(entry.get("unknown", ())),
        )
        for entry in content["models"]
    ]
    return {entry.id.lower(): entry for entry in entries}


@cache
def _by_basename() -> Mapping[str, PublishedModel]:
    """Checkpoints with a config of their own, by the last part of their id.

    Other repacks are left out: the same name under another owner may be quantised differently.
    """
    return {key.rsplit("/", 1)[-1]: entry for key, entry in published_models().items() if entry.like is None}


def find_published(name: str) -> PublishedModel | None:
    """The checkpoint that a model name stands for.

    Matches the id, alone or at the end of a path, the last part of the ids that have a config of their own,
    and the folder names of the Hugging Face cache (``models--org--name``), all without regard to case. None
    when nothing matches.
    """
    parts = name.strip().rstrip("/\\").lower().replace("\\", "/").split("/")
    exact = published_models().get("/".join(parts[-2:]))
    if exact is not None:
        return exact
    for part in parts:
        if part.startswith("models--"):
            cached = published_models().get("/".join(part.split("--")[1:]))
            if cached is not None:
                return cached
    return _by_basename().get(parts[-1])


def guess_sibling(name: str) -> PublishedModel | None:
    """The checkpoint whose name starts the last component of ``name``, longest match first.

    ``community/DeepSeek-V4-Flash-0731-NVFP4`` gives ``deepseek-ai/DeepSeek-V4-Flash-0731``: repacks keep the
    name of what they were made from. A later word that names another checkpoint of the family counts, too:
    ``community/DeepSeek-V4-Flash-NVFP4-DSpark`` has the draft of ``deepseek-ai/DeepSeek-V4-Flash-DSpark``. None when
    the name says nothing.
    """
    last = name.strip().rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1].lower()
    best: PublishedModel | None = None
    for basename, entry in _by_basename().items():
        longer = best is None or len(basename) > len(best.id.rsplit("/", 1)[-1])
        if longer and last.startswith((f"{basename}-", f"{basename}_")):
            best = entry
    if best is None or best.draft == "dspark":
        return best
    return _with_later_word(last) or best


def _with_later_word(last: str) -> PublishedModel | None:
    """The checkpoint with a DSpark draft that the words of a repack's name make together."""
    family, *words = re.split(r"(?:(?<=flash)|(?<=-pro))[-_]", last, maxsplit=1)
    for word in re.split(r"[-_]", words[0]) if words else ():
        entry = _by_basename().get(f"{family}-{word}")
        if entry is not None and entry.draft == "dspark":
            return entry
    return None


@cache
def bundled_config(model_id: str) -> Mapping[str, Any]:
    """config.json of a published checkpoint, as bundled. Callers must not change it."""
    entry = published_models()[model_id.lower()]
    base = entry.like or entry.id
    content = json.loads((rules_dir() / "models" / base / CONFIG_NAME).read_text(encoding="utf-8"))
    return deep_merge(content, entry.changes)


def deep_merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``changes`` laid over ``base``: objects are merged, null deletes a key, anything else replaces."""
    merged = dict(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = deep_merge(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def hub_cache(env: Mapping[str, str]) -> Path:
    """The Hugging Face cache, by the variables in the order huggingface_hub reads them."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(name):
            return Path(os.path.expanduser(env[name]))
    if env.get("HF_HOME"):
        return Path(os.path.expanduser(env["HF_HOME"])) / "hub"
    root = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(os.path.expanduser(root)) / "huggingface" / "hub"


def cached_snapshot(cache_dir: Path, repo: str, revision: str | None) -> Path | None:
    """The snapshot folder of a repository in the cache, None when it is not there.

    ``revision`` is a branch or tag (looked up under ``refs/``) or a commit; None means ``main``.
    """
    if repo.count("/") > 1 or not all(repo.split("/")) or any(part in (".", "..") for part in repo.split("/")):
        return None
    folder = cache_dir / ("models--" + repo.replace("/", "--"))
    wanted = revision or "main"
    if ".." in wanted.split("/"):
        return None
    try:
        ref = folder / "refs" / wanted
        commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else wanted
        snapshot = folder / "snapshots" / commit
        return snapshot if commit and snapshot.is_dir() else None
    except (OSError, ValueError):
        return None


def checkpoint_folders(name: str, flags: ServeFlags, env: Mapping[str, str]) -> list[Path]:
    """Where the checkpoint's index may lie. Unlike config.json, weights do come from ``--download-dir``."""
    path = Path(os.path.expanduser(name))
    try:
        if path.is_dir():
            return [path]
        if path.is_file():
            return [path.parent]
    except OSError:
        # Too long for a path: not one.
        return []
    revision = flags.get("revision")
    wanted = revision if isinstance(revision, str) else None
    download = flags.get("download_dir")
    caches = [Path(download)] if isinstance(download, str) and download else []
    found = [cached_snapshot(cache, name, wanted) for cache in (*caches, hub_cache(env))]
    return [folder for folder in found if folder is not None]


def read_file(path: Path, limit: int) -> bytes:
    """Read a file of at most ``limit`` bytes (one more is read, so that the caller sees it is too large).

    Raises InputError when it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            # In pieces: a single read of so many bytes would reserve them, whatever the size of the file.
            pieces = []
            left = limit + 1
            while left > 0 and (piece := stream.read(min(left, _PIECE))):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
