"""The header of a safetensors file, and whether the file is what the header says.

A safetensors file begins with the length of its header (8 bytes, little endian) and the header, a JSON object from
names to dtype, shape and data_offsets; that is read here, so that no library with an array package behind it is
needed. The rules are those of safetensors itself (0.8, ``Metadata::validate`` and ``SafeTensors::read_metadata``):
sorted by offset the tensors begin at 0 and follow each other without hole or overlap, each has the bytes of its shape
and dtype, and the last one ends where the file ends. A file that breaks one of them is refused as a whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from dsv4check.checkpoint.tensors import DTYPE_BITS, Defect, Tensor
from dsv4check.errors import InputError
from dsv4check.records import dataclass, field

MAX_HEADER: Final = 100_000_000
"""Bytes; the limit that safetensors itself has."""
_LFS: Final = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Header:
    """What one safetensors file says about itself."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    defects: tuple[Defect, ...] = ()
    payload: int | None = None
    """Bytes of all tensors by their offsets; None when the header could not be read."""


class _BadHeader(Exception):  # noqa: N818 - a signal inside this module
    """The header cannot be used: kind of the defect, and what is wrong."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def read_header(path: Path) -> dict[str, Tensor]:
    """Name -> tensor of one safetensors file; the data behind the header is not looked at.

    Raises InputError when the header is not whole.
    """
    try:
        content, _, _ = _load(path)
        return {name: _tensor(name, record, {}) for name, record in content.items()}
    except _BadHeader as error:
        raise InputError(f"{path}: {error}") from None


def scan_header(path: Path, *, header_only: bool = False) -> Header:
    """Read one file's header and compare it with the file; whatever is wrong is a defect, nothing is raised.

    ``header_only`` says that the file is known to end after its header, so that this is no defect.
    """
    try:
        content, repeated, data_bytes = _load(path)
        shared: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        tensors = {name: _tensor(name, record, shared) for name, record in content.items()}
        spans = {name: _span(name, record) for name, record in content.items()}
    except _BadHeader as error:
        return Header(defects=(Defect(error.kind, path.name, str(error)),))
    defects = []
    if repeated:
        defects.append(Defect.of("duplicate-name", path.name, "the header has the same name more than once", repeated))
    defects += _tensor_defects(path.name, tensors, spans)
    end = max((stop for _, stop in spans.values()), default=0)
    if not (header_only and data_bytes == 0):
        defects += _length_defects(path.name, data_bytes, end, spans)
    return Header(tensors, tuple(defects), end)


def _tensor_defects(file: str, tensors: Mapping[str, Tensor], spans: Mapping[str, tuple[int, int]]) -> Iterator[Defect]:
    unknown = [name for name, tensor in tensors.items() if tensor.dtype not in DTYPE_BITS]
    if unknown:
        dtypes = ", ".join(sorted({tensors[name].dtype for name in unknown}))
        yield Defect.of("dtype-unknown", file, f"dtype {dtypes} is not one that safetensors 0.8 reads", unknown)
    distinct = {id(tensor): tensor for tensor in tensors.values()}
    sizes = {key: tensor.size if tensor.whole_bytes else -1 for key, tensor in distinct.items()}
    wrong = [
        name
        for name, (start, stop) in spans.items()
        if (size := sizes[id(tensors[name])]) is not None and size != stop - start
    ]
    if wrong:
        first = tensors[wrong[0]]
        start, stop = spans[wrong[0]]
        needs = f"needs {first.size}" if first.whole_bytes else "does not end with a whole byte"
        detail = f"{wrong[0]} has {stop - start} bytes; {first.dtype} {list(first.shape or ())} {needs}"
        yield Defect.of("shape-mismatch", file, detail, wrong)
    expected = 0
    for name, (start, stop) in sorted(spans.items(), key=lambda item: item[1]):
        if start != expected or stop < start:
            detail = f"{name} begins at byte {start} of the data; expected {expected}, where the tensor before it ends"
            yield Defect.of("offsets-invalid", file, detail, [name])
            return
        expected = stop


def _length_defects(file: str, data_bytes: int, end: int, spans: Mapping[str, tuple[int, int]]) -> Iterator[Defect]:
    if data_bytes < end:
        missing = [name for name, (_, stop) in spans.items() if stop > data_bytes]
        detail = f"{data_bytes} of {end} bytes of data are there: an interrupted download or copy"
        yield Defect.of("data-truncated", file, detail, missing)
    elif data_bytes > end:
        yield Defect("data-trailing", file, f"{data_bytes - end} bytes follow the last tensor; safetensors refuses it")


def _load(path: Path) -> tuple[dict[str, Any], list[str], int]:
    """The header's records, names that appear twice, and how many bytes of data follow. Raises _BadHeader."""
    try:
        with path.open("rb") as stream:
            data, data_bytes = _header_bytes(stream)
    except (OSError, ValueError) as error:
        raise _BadHeader("unreadable", f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
    try:
        content, repeated = parse_with_repeats(data)
    except (ValueError, RecursionError):
        raise _BadHeader("header-invalid", "the safetensors header is not valid JSON") from None
    if not isinstance(content, dict):
        raise _BadHeader("header-invalid", "expected an object in the safetensors header")
    metadata = content.pop("__metadata__", None)
    if metadata is not None and not _is_text_map(metadata):
        raise _BadHeader("header-invalid", "__metadata__ in the header: expected an object whose values are text")
    return content, [name for name in repeated if name in content], data_bytes


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _header_bytes(stream: BinaryIO) -> tuple[bytes, int]:
    total = os.fstat(stream.fileno()).st_size
    start = stream.read(len(_LFS))
    if start == _LFS:
        raise _BadHeader("lfs-pointer", "is a git-lfs pointer, not the file itself; run `git lfs pull` or download it")
    if len(start) < 8:
        raise _BadHeader("header-truncated", f"not a safetensors file ({total} bytes; its header alone has more)")
    size = int.from_bytes(start[:8], "little")
    if not 2 <= size <= MAX_HEADER:
        raise _BadHeader("header-invalid", f"not a safetensors file (its header would have {size} bytes)")
    if total - 8 < size:
        raise _BadHeader("header-truncated", f"truncated inside the header ({total - 8} of {size} bytes)")
    stream.seek(8)
    return stream.read(size), total - 8 - size


def parse_with_repeats(data: bytes) -> tuple[Any, list[str]]:
    """JSON, and the keys that any object in it has twice (the last value counts). Raises ValueError, RecursionError."""
    repeated: list[str] = []

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    repeated.append(key)
                seen.add(key)
        return record

    return json.loads(data, object_pairs_hook=made), list(dict.fromkeys(repeated))


def _tensor(name: str, record: Any, shared: dict[tuple[str, tuple[int, ...]], Tensor]) -> Tensor:
    """The tensor of one record; equal ones are one object, because a checkpoint has 70,000 of some hundred sorts."""
    if isinstance(record, dict):
        dtype, sizes = record.get("dtype"), record.get("shape")
        if isinstance(dtype, str) and isinstance(sizes, list):
            shape = tuple(sizes)
            if all(type(size) is int and size >= 0 for size in shape):
                tensor = shared.get((dtype, shape))
                if tensor is None:
                    tensor = shared[dtype, shape] = Tensor(dtype, shape)
                return tensor
    raise _BadHeader("header-invalid", f"tensor {name!r} in the header: expected a dtype and a shape")


def _span(name: str, record: Mapping[str, Any]) -> tuple[int, int]:
    span = record.get("data_offsets")
    if isinstance(span, list) and len(span) == 2:
        start, stop = span
        if type(start) is int and type(stop) is int and start >= 0 and stop >= 0:
            return start, stop
    raise _BadHeader("header-invalid", f"tensor {name!r} in the header: expected data_offsets of two whole numbers")
