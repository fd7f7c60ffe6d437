"""Finds the checkpoint of a launch where vLLM would load it from, else what is known about it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsv4check.checkpoint.published import published_tensors
from dsv4check.checkpoint.reading import read_checkpoint
from dsv4check.checkpoint.tensors import UNKNOWN, Checkpoint, Defect, Tensor
from dsv4check.deployment import ServeFlags
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import cached_snapshot, hub_cache
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
    try:
        on_disk = bool(name) and local.exists()
    except (OSError, ValueError):
        on_disk = False
    if on_disk:
        # config.json and the weights lie in one folder; a file of any other name stands for its folder too.
        one_file = local.is_file() and (local.suffix == ".safetensors" or local.name.endswith(".index.json"))
        found = read_checkpoint(local.parent if local.is_file() and not one_file else local)
        return None if found is None else Located(found, LOCAL)
    stated = flags.get("revision")
    revision = stated if isinstance(stated, str) and stated else None
    download = flags.get("download_dir")
    caches = [Path(os.path.expanduser(download))] if isinstance(download, str) and download else []
    for cache in (*caches, hub_cache(env)):
        snapshot = cached_snapshot(cache, name, revision)
        found = read_checkpoint(snapshot) if snapshot is not None else None
        if found is not None:
            return Located(found, CACHE)
    if online and _is_repository(name):
        return Located(fetch_headers(name, revision), HUB)
    published = published_tensors(name)
    return None if published is None else Located(published, PUBLISHED)


def _is_repository(name: str) -> bool:
    """True for what the Hub would take as a repository id: ``owner/name`` and nothing that reads as a path."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and all(name.split("/"))


def fetch_headers(repo: str, revision: str | None = None) -> Checkpoint:
    """Read a repository's index and safetensors headers from the Hub through huggingface_hub (extra ``hub``).

    It reads the first bytes of each shard, no tensors. Raises InputError with the next step when that does not work.
    """
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise InputError("--online needs the package huggingface-hub (pip install 'dsv4check[hub]')") from None
    try:
        metadata = hub.HfApi().get_safetensors_metadata(repo, revision=revision)
        return _from_metadata(repo, revision, metadata)
    except Exception as error:
        raise InputError(_why(repo, revision, error)) from None


def _from_metadata(repo: str, revision: str | None, metadata: Any) -> Checkpoint:
    """The answer (``SafetensorsRepoMetadata``) as a checkpoint."""
    listed: Mapping[str, str] = metadata.weight_map
    tensors: dict[str, Tensor] = {}
    files: dict[str, str] = {}
    shared: dict[tuple[str, tuple[int, ...]], Tensor] = {}
    defects: list[Defect] = []
    payload = 0
    for file, header in sorted(metadata.files_metadata.items()):
        again = [name for name in header.tensors if name in files]
        if again:
            defects.append(Defect.of("duplicate-name", file, f"{again[0]} is also in {files[again[0]]}", again))
        for name, info in header.tensors.items():
            shape = tuple(info.shape)
            tensor = shared.setdefault((info.dtype, shape), Tensor(info.dtype, shape))
            payload += tensor.size or 0
            if name not in files or listed.get(name) == file:
                tensors[name] = tensor
                files[name] = file
        unlisted = [name for name in header.tensors if name not in listed]
        if unlisted:
            detail = "holds tensors that the index does not list; vLLM loads them all the same"
            defects.append(Defect.of("not-in-index", file, detail, unlisted))
    lacking: dict[str, list[str]] = {}
    for name, file in listed.items():
        header = metadata.files_metadata.get(file)
        if header is None:
            tensors.setdefault(name, UNKNOWN)
        if header is None or name not in header.tensors:
            lacking.setdefault(file, []).append(name)
    for file, names in sorted(lacking.items()):
        gone = file not in metadata.files_metadata
        kind = "shard-missing" if gone else "not-in-shard"
        detail = "is not in the repository" if gone else f"lacks {len(names)} tensors that the index says it holds"
        defects.append(Defect.of(kind, file, detail, names))
    stated = (metadata.metadata or {}).get("total_size")
    total = stated if type(stated) is int and stated >= 0 else None
    absent = tuple(defect.file for defect in defects if defect.kind == "shard-missing")
    if total is not None and total != payload and not absent:
        detail = f"metadata.total_size is {total}; the files hold {payload} bytes of tensors"
        defects.append(Defect("size-mismatch", "model.safetensors.index.json", detail))
    source = f"{repo} on the Hugging Face Hub" + (f", revision {revision}" if revision else "")
    return Checkpoint(source, tensors, absent, files, total, tuple(defects))


_REASONS: Final = (
    # The first class in this list that the error is an instance of; names, because they moved between modules.
    (
        "GatedRepoError",
        "access is restricted: accept its terms on its page, then log in (hf auth login) or set HF_TOKEN",
    ),
    ("RevisionNotFoundError", "there is no such revision: check --revision"),
    ("RepositoryNotFoundError", "no such repository, or a private one: check the name, or log in (hf auth login)"),
    ("NotASafetensorsRepoError", "it has no safetensors checkpoint"),
    ("SafetensorsParsingError", "one of its safetensors headers cannot be read: the upload is damaged"),
    ("EntryNotFoundError", "a file that the index names is not in it: the upload is incomplete"),
    ("HFValidationError", "not the name of a repository; expected owner/name"),
    ("OfflineModeIsEnabled", "HF_HUB_OFFLINE is set: unset it to use --online"),
)
_NO_NETWORK: Final = frozenset(
    {
        "ConnectionError",
        "ConnectError",
        "ConnectTimeout",
        "TimeoutException",
        "Timeout",
        "ReadTimeout",
        "TransportError",
    }
    | {"SSLError", "ProxyError", "gaierror"}
)


def _why(repo: str, revision: str | None, error: Exception) -> str:
    classes = {kind.__name__ for kind in type(error).__mro__}
    where = repo + (f" at revision {revision}" if revision else "")
    for name, text in _REASONS:
        if name in classes:
            return f"{where} on the Hugging Face Hub: {text}"
    if classes & _NO_NETWORK or isinstance(error, TimeoutError):
        step = "check the network (or HF_ENDPOINT, HTTPS_PROXY), or leave --online out"
        return f"{where}: the Hugging Face Hub cannot be reached: {step}"
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"{where}: its headers could not be read from the Hugging Face Hub ({reason})"
