"""Writes safetensors files and their index without any data: what is there reads as zeros and takes no disk space."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dsv4check.checkpoint.tensors import Tensor
from dsv4check.inputs.checkpoint import INDEX_NAME


def write_shard(path: Path, tensors: Mapping[str, Tensor], *, header_only: bool = False) -> int:
    """Write one safetensors file of zeros; returns the bytes of its tensors.

    The data part is a hole (the file is extended, not written), so that a file of hundreds of GB takes as much disk
    space as its header on any file system with sparse files. ``header_only`` leaves the data part out: a file that
    safetensors refuses, for readers that are told so. Raises ValueError for a tensor whose size cannot be known.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        size = tensor.size
        if size is None or tensor.shape is None:
            raise ValueError(f"{name}: dtype {tensor.dtype!r} or shape is not known")
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    # safetensors pads the header to a multiple of 8, so that the data is aligned.
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        if not header_only:
            stream.truncate(8 + len(text) + end)
    return end


def write_index(folder: Path, files: Mapping[str, str], total_size: int | None) -> Path:
    """Write ``model.safetensors.index.json``: tensor name -> file name, and the bytes of all tensors."""
    path = folder / INDEX_NAME
    metadata = {} if total_size is None else {"total_size": total_size}
    path.write_text(json.dumps({"metadata": metadata, "weight_map": dict(files)}, indent=1), encoding="utf-8")
    return path
