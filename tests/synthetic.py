"""Small checkpoints for examples and tests, written once for each description."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dsv4check.checkpoint.shards import write_shard
from dsv4check.checkpoint.synthetic import write_checkpoint
from dsv4check.checkpoint.tensors import Tensor
from dsv4check.inputs.checkpoint import INDEX_NAME

_ONE = Tensor("BF16", (1,))


def synthetic_folder(description: Mapping[str, Any]) -> Path:
    """The folder of a checkpoint. ``description`` has the arguments of ``write_checkpoint`` and ``damage``:

    ``remove``, ``truncate``, ``pointer`` with the number of a file; ``add`` (a tensor, listed), ``repeat`` (a tensor
    that another file has, too), ``beside`` (a tensor in a file that the index does not name).
    """
    return _written(json.dumps(description, sort_keys=True))


@cache
def _written(text: str) -> Path:
    description = json.loads(text)
    damage = description.pop("damage", {})
    folder = Path(tempfile.mkdtemp(prefix="dsv4check-example-"))
    written = write_checkpoint(folder, **description)
    for kind, value in damage.items():
        _damage(folder, written.files, kind, value)
    return folder


def _damage(folder: Path, files: tuple[str, ...], kind: str, value: Any) -> None:
    if kind in ("remove", "truncate", "pointer"):
        file = folder / files[value - 1]
        if kind == "remove":
            file.unlink()
        elif kind == "pointer":
            file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", encoding="utf-8")
        else:
            with file.open("r+b") as stream:
                stream.truncate(file.stat().st_size - 1)
        return
    name = "model-extra.safetensors"
    write_shard(folder / name, {value: _ONE})
    if kind != "beside":
        path = folder / INDEX_NAME
        index = json.loads(path.read_text(encoding="utf-8"))
        index["weight_map"]["extra.weight" if kind == "repeat" else value] = name
        if kind == "repeat":
            write_shard(folder / name, {value: _ONE, "extra.weight": _ONE})
        path.write_text(json.dumps(index), encoding="utf-8")
