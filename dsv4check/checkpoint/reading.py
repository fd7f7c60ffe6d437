"""Reads a checkpoint's tensors - names, dtypes and shapes - from its index and its safetensors headers.

Tensors themselves are never read. What is reported follows vLLM's loader (``DefaultModelLoader`` and
``filter_duplicate_safetensors_files``): it takes the ``*.safetensors`` files of the folder, of these the ones that the
index names, and from each of them every tensor, whatever the index says about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dsv4check.checkpoint.headers import Header, parse_with_repeats, scan_header
from dsv4check.checkpoint.tensors import NO_HEADER, UNKNOWN, Checkpoint, Defect, Tensor
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import INDEX_NAME, read_file
from dsv4check.records import dataclass

MAX_INDEX: Final = 256 << 20
"""Bytes; the largest published index (Pro with a draft, 150,000 tensors) has 13 MB."""
_SUFFIX: Final = ".safetensors"


@dataclass(frozen=True, slots=True)
class Index:
    """A ``model.safetensors.index.json``."""

    path: Path
    files: Mapping[str, str]
    """Tensor name -> file name, ``weight_map``."""
    total_size: int | None
    """Bytes, ``metadata.total_size``; None when it is not there or no number."""
    repeated: tuple[str, ...] = ()
    """Names that the file has twice."""


def read_index(path: Path) -> Index:
    """Read an index file. Raises InputError when it is not JSON, too large or has no usable ``weight_map``."""
    data = read_file(path, MAX_INDEX)
    if len(data) > MAX_INDEX:
        raise InputError(f"{path}: larger than {MAX_INDEX} bytes; expected a safetensors index")
    try:
        content, repeated = parse_with_repeats(data)
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not valid JSON; expected a safetensors index") from None
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names:
        raise InputError(f"{path}: expected an object 'weight_map' from tensor names to files")
    for name, file in names.items():
        if not isinstance(file, str):
            raise InputError(f"{path}: weight_map: {name!r}: expected the name of a file")
    return Index(path, names, total_size(content.get("metadata")), tuple(name for name in repeated if name in names))


def total_size(metadata: Any) -> int | None:
    """``total_size`` of an index's metadata in bytes; None when there is none that makes sense."""
    value = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(value, float) and value.is_integer():
        # Tools that add sizes up as floats write 1.6e11.
        value = int(value)
    return value if type(value) is int and value >= 0 else None


def read_checkpoint(path: Path, *, header_only: bool = False) -> Checkpoint | None:
    """Read a folder, an index or one safetensors file; None for a folder that has neither index nor safetensors.

    Shards that are there give dtypes and shapes; for those that are not, the index gives the names. Whatever is wrong
    with single files is among the checkpoint's ``defects``. ``header_only`` says that files may end after their header
    (test files without data). Raises InputError for a path that is not there and for an index that cannot be used.
    """
    if path.is_dir():
        index = path / INDEX_NAME
        if index.is_file():
            return _from_index(read_index(index), header_only)
        shards = sorted(path.glob(f"*{_SUFFIX}"))
        if not shards:
            return None
        source = f"headers of {len(shards)} safetensors file{'s' * (len(shards) != 1)} in {path}"
        return _from_files(source, shards, header_only)
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a checkpoint's folder, {INDEX_NAME} or a {_SUFFIX} file")
    if path.suffix == _SUFFIX:
        return _from_files(f"header of {path}", [path], header_only)
    return _from_index(read_index(path), header_only)


def _from_files(source: str, shards: list[Path], header_only: bool) -> Checkpoint:
    """Files without an index: vLLM loads all of them."""
    headers = {
        shard.name: scan_header(shard, header_only=header_only) if shard.is_file() else _missing(shard, [])
        for shard in shards
    }
    tensors: dict[str, Tensor] = {}
    files: dict[str, str] = {}
    for file, header in headers.items():
        for name, tensor in header.tensors.items():
            tensors.setdefault(name, tensor)
            files.setdefault(name, file)
    defects = [defect for header in headers.values() for defect in header.defects]
    return Checkpoint(source, tensors, files=files, defects=(*defects, *_in_two_files(headers, files)))


def _missing(shard: Path, names: list[str]) -> Header:
    if shard.is_symlink():
        detail = "is a link to a file that is not there: the download of this shard did not finish, or was cleaned up"
    elif shard.exists():
        detail = "is not a file"
    else:
        detail = "is not there; expected a safetensors file beside the index"
    return Header(defects=(Defect.of("shard-missing", shard.name, detail, names),))


def _from_index(index: Index, header_only: bool) -> Checkpoint:
    folder = index.path.parent
    listed = _by_file(index.files)
    headers = {file: _scan_listed(folder, file, names, header_only) for file, names in sorted(listed.items())}
    return combine(str(index.path), index, headers, _extra_files(folder, listed))


def _by_file(files: Mapping[str, str]) -> dict[str, list[str]]:
    listed: dict[str, list[str]] = {}
    for name, file in files.items():
        listed.setdefault(file, []).append(name)
    return listed


def combine(source: str, index: Index, headers: Mapping[str, Header], further: Sequence[Defect] = ()) -> Checkpoint:
    """An index and the headers of all files that it names (with a defect for one that is not to be had)."""
    unread = {file for file, header in headers.items() if any(defect.kind in NO_HEADER for defect in header.defects)}
    found = {name: file for file, header in headers.items() for name in header.tensors}
    tensors: dict[str, Tensor] = {name: UNKNOWN for name, file in index.files.items() if file in unread}
    files = dict(index.files)
    defects: list[Defect] = []
    if index.repeated:
        detail = "the index lists the same tensor more than once; the last entry counts"
        defects.append(Defect.of("duplicate-name", index.path.name, detail, index.repeated))
    for file, header in headers.items():
        defects += header.defects
        for name, tensor in header.tensors.items():
            # Of a name in two files the one that the index means is shown.
            if index.files.get(name, file) == file or name not in tensors:
                tensors[name] = tensor
                files[name] = file
        unlisted = [name for name in header.tensors if name not in index.files]
        if unlisted:
            detail = "holds tensors that the index does not list; vLLM loads them all the same"
            defects.append(Defect.of("not-in-index", file, detail, unlisted))
    for file, names in sorted(_by_file(index.files).items()):
        lacking = [name for name in names if name not in headers[file].tensors] if file not in unread else []
        defects += _not_in_shard(file, lacking, found)
        for name in lacking:
            if name not in found:
                del files[name]
    defects += [*_in_two_files(headers, files), *further]
    if not unread and index.total_size is not None:
        payload = sum(header.payload or 0 for header in headers.values())
        if payload != index.total_size:
            detail = f"metadata.total_size is {index.total_size}; the files hold {payload} bytes of tensors"
            defects.append(Defect("size-mismatch", index.path.name, detail))
    absent = tuple(
        file for file, header in headers.items() if any(defect.kind == "shard-missing" for defect in header.defects)
    )
    return Checkpoint(source, tensors, absent, files, index.total_size, tuple(defects))


def _scan_listed(folder: Path, file: str, names: list[str], header_only: bool) -> Header:
    if file != Path(file).name or not file.endswith(_SUFFIX):
        # vLLM compares the index with the *.safetensors files right beside it, and finds no such file among them.
        detail = f"is not the name of a {_SUFFIX} file beside the index, and vLLM looks nowhere else"
        return Header(defects=(Defect.of("shard-missing", file, detail, names),))
    shard = folder / file
    if not shard.is_file():
        return _missing(shard, names)
    header = scan_header(shard, header_only=header_only)
    if header.payload is None:
        # Nothing of this file is known but what the index says.
        return Header(defects=tuple(Defect.of(item.kind, file, item.detail, names) for item in header.defects))
    return header


def _not_in_shard(file: str, lacking: list[str], found: Mapping[str, str]) -> list[Defect]:
    if not lacking:
        return []
    elsewhere = [name for name in lacking if name in found]
    detail = f"lacks {len(lacking)} tensors that the index says it holds"
    if elsewhere:
        detail += f"; {len(elsewhere)} of them are in another file ({elsewhere[0]} in {found[elsewhere[0]]})"
    return [Defect.of("not-in-shard", file, detail, lacking)]


def _in_two_files(headers: Mapping[str, Header], files: Mapping[str, str]) -> list[Defect]:
    """Names that more than one file has; vLLM loads each of them, and the last one stays."""
    return [
        Defect.of("duplicate-name", file, f"{again[0]} is also in {files[again[0]]}", again)
        for file, header in headers.items()
        if (again := [name for name in header.tensors if files[name] != file])
    ]


def _extra_files(folder: Path, listed: Mapping[str, object]) -> list[Defect]:
    return [
        Defect("extra-file", shard.name, "the index does not name this file, so vLLM leaves it out")
        for shard in sorted(folder.glob(f"*{_SUFFIX}"))
        if shard.name not in listed
    ]
