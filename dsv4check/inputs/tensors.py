"""A checkpoint's tensors: names, dtypes and shapes, from an index, safetensors headers or our catalogue.

Tensors themselves are never read. A safetensors file begins with the length of its header (8 bytes, little endian) and
the header, a JSON object; that is read here, so that no library with an array package behind it is needed.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from dsv4check.data import rules_dir
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import INDEX_NAME, find_published, read_file
from dsv4check.records import dataclass

CATALOGUE_FILE: Final = "tensors.tsv"
_MAX_INDEX: Final = 256 << 20
_MAX_HEADER: Final = 100_000_000
"""Bytes; the limit that safetensors itself has."""
_BRACES: Final = re.compile(r"\{([\d,\-]+)\}")
_EXPERT: Final = re.compile(r"^(.*\.experts\.)(\d+)(\..+)$")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint."""

    dtype: str
    """As safetensors spells it: ``F8_E4M3``, ``BF16``, ``I8``; empty when only the name is known."""
    shape: tuple[int, ...] | None
    """Sizes; None when only the name is known."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything known about a checkpoint's tensors."""

    source: str
    """Where it was read, for people."""
    tensors: Mapping[str, Tensor]
    absent: tuple[str, ...] = ()
    """Files that the index names and that are not there."""

    @property
    def without_shape(self) -> int:
        """Tensors of which only the name is known."""
        return sum(tensor.shape is None for tensor in self.tensors.values())


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Read a folder, an index or one safetensors file; None for a folder that has neither index nor safetensors.

    Shards that are there give dtypes and shapes; for those that are not, the index gives the names.
    Raises InputError for a file that is missing, truncated or not what its name says.
    """
    if path.is_dir():
        index = path / INDEX_NAME
        if index.is_file():
            return _from_index(index)
        shards = sorted(path.glob("*.safetensors"))
        if not shards:
            return None
        tensors: dict[str, Tensor] = {}
        for shard in shards:
            tensors.update(read_header(shard))
        return Checkpoint(f"headers of {len(shards)} safetensors file{'s' * (len(shards) != 1)} in {path}", tensors)
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a checkpoint's folder, {INDEX_NAME} or a .safetensors file")
    if path.suffix == ".safetensors":
        return Checkpoint(f"header of {path}", read_header(path))
    return _from_index(path)


def _from_index(index: Path) -> Checkpoint:
    content = _parse(read_file(index, _MAX_INDEX), index, _MAX_INDEX)
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names or not all(isinstance(file, str) for file in names.values()):
        raise InputError(f"{index}: expected an object 'weight_map' from tensor names to files")
    tensors = dict.fromkeys(names, Tensor("", None))
    absent = []
    for name in sorted(set(names.values())):
        shard = index.parent / name
        if shard.is_file():
            header = read_header(shard)
            tensors.update({key: tensor for key, tensor in header.items() if names.get(key) == name})
        else:
            absent.append(name)
    return Checkpoint(str(index), tensors, tuple(absent))


def read_header(path: Path) -> dict[str, Tensor]:
    """Name -> tensor of one safetensors file. Raises InputError when the header is not whole."""
    try:
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if not 2 <= size <= _MAX_HEADER:
                raise InputError(f"{path}: not a safetensors file (its header would have {size} bytes)")
            data = stream.read(size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(data) < size:
        raise InputError(f"{path}: truncated inside the header ({len(data)} of {size} bytes)")
    content = _parse(data, path, _MAX_HEADER)
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected an object in the safetensors header")
    return {name: _tensor(name, record, path) for name, record in content.items() if name != "__metadata__"}


def _tensor(name: str, record: Any, path: Path) -> Tensor:
    dtype, shape = (record.get("dtype"), record.get("shape")) if isinstance(record, dict) else (None, None)
    sizes_are_whole = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not isinstance(dtype, str) or not sizes_are_whole:
        raise InputError(f"{path}: tensor {name!r} in the header: expected a dtype and a shape")
    assert isinstance(shape, list)
    return Tensor(dtype, tuple(shape))


def _parse(data: bytes, path: Path, limit: int) -> Any:
    if len(data) > limit:
        raise InputError(f"{path}: larger than {limit} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not valid JSON") from None


def published_tensors(name: str) -> Checkpoint | None:
    """The tensors of a published checkpoint, from the catalogue; None when they are not known."""
    entry = find_published(name)
    if entry is None or entry.tensors is None:
        return None
    return Checkpoint(f"the published tensors of {entry.tensors}", _catalogue(entry.tensors))


@cache
def _catalogue(model_id: str) -> Mapping[str, Tensor]:
    text = (rules_dir() / "models" / model_id / CATALOGUE_FILE).read_text(encoding="utf-8")
    tensors = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pattern, dtype, shape = line.split("\t")
            tensor = Tensor(dtype, tuple(int(size) for size in shape.split("x")))
            tensors.update(dict.fromkeys(_expand(pattern), tensor))
    return tensors


def _expand(pattern: str) -> Iterator[str]:
    """``layers.{0-2,5}.x`` as its four names."""
    parts = _BRACES.split(pattern)
    numbers = [list(_numbers(text)) for text in parts[1::2]]
    for chosen in itertools.product(*numbers):
        yield parts[0] + "".join(f"{number}{fixed}" for number, fixed in zip(chosen, parts[2::2], strict=True))


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def fill_shapes(checkpoint: Checkpoint, reference: Checkpoint) -> Checkpoint:
    """The checkpoint with dtypes and shapes of ``reference`` where only a name is known."""
    known = reference.tensors
    tensors = {
        name: known.get(name, tensor) if tensor.shape is None else tensor for name, tensor in checkpoint.tensors.items()
    }
    return Checkpoint(f"{checkpoint.source}, shapes from {reference.source}", tensors, checkpoint.absent)


def few_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without most routed experts: the first two and the last of each layer stand for those like them.

    An expert whose tensors differ from the first one's (names, dtypes or shapes) is kept.
    """
    layers: dict[str, dict[int, dict[str, Tensor]]] = {}
    kept = {}
    for name, tensor in tensors.items():
        found = _EXPERT.match(name)
        if found is None:
            kept[name] = tensor
        else:
            layers.setdefault(found[1], {}).setdefault(int(found[2]), {})[found[3]] = tensor
    for prefix, experts in layers.items():
        first = experts[min(experts)]
        wanted = {*sorted(experts)[:2], max(experts)}
        for number, parts in experts.items():
            if number in wanted or parts != first:
                kept.update({f"{prefix}{number}{suffix}": tensor for suffix, tensor in parts.items()})
    return kept
