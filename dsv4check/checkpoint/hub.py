"""Reads the safetensors headers of a repository on the Hugging Face Hub; used with ``--online`` only."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsv4check.checkpoint.headers import Header
from dsv4check.checkpoint.reading import Index, combine, total_size
from dsv4check.checkpoint.tensors import Checkpoint, Defect, Tensor
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import INDEX_NAME


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
    files: Mapping[str, str] = metadata.weight_map
    shared: dict[tuple[str, tuple[int, ...]], Tensor] = {}
    headers: dict[str, Header] = {}
    for file, header in sorted(metadata.files_metadata.items()):
        tensors = {}
        for name, info in header.tensors.items():
            shape = tuple(info.shape)
            tensors[name] = shared.setdefault((info.dtype, shape), Tensor(info.dtype, shape))
        headers[file] = Header(tensors, payload=sum(tensor.size or 0 for tensor in tensors.values()))
    for file in sorted(set(files.values()) - set(headers)):
        names = [name for name, place in files.items() if place == file]
        headers[file] = Header(defects=(Defect.of("shard-missing", file, "is not in the repository", names),))
    source = f"{repo} on the Hugging Face Hub" + (f", revision {revision}" if revision else "")
    return combine(source, Index(Path(INDEX_NAME), files, total_size(metadata.metadata)), headers)


_REASONS: Final = (
    # The first class in this list that the error is an instance of; names, because they moved between modules.
    (
        "GatedRepoError",
        "access is restricted: accept its terms on its page, log in (hf auth login) or set HF_TOKEN",
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
    {"ConnectionError", "Timeout", "TransportError", "TimeoutException", "SSLError", "ProxyError", "gaierror"}
    | {"LocalEntryNotFoundError"}
)
"""Of requests (huggingface_hub before 1.0), httpx (since then) and the standard library; the last one is raised when
a file was to be fetched, could not, and is not in the cache."""


def _why(repo: str, revision: str | None, error: Exception) -> str:
    classes = {kind.__name__ for kind in type(error).__mro__}
    where = repo + (f" at revision {revision}" if revision else "")
    for name, text in _REASONS:
        if name in classes and "LocalEntryNotFoundError" not in classes:
            return f"{where} on the Hugging Face Hub: {text}"
    if classes & _NO_NETWORK or isinstance(error, TimeoutError):
        step = "check the network (or HF_ENDPOINT, HTTPS_PROXY), or leave --online out"
        return f"{where}: the Hugging Face Hub cannot be reached: {step}"
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"{where}: its headers could not be read from the Hugging Face Hub ({reason})"
