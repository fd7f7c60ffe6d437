"""GPU code in a compiled extension: the targets of its fatbin containers, without unpacking any of it.

A file built by nvcc keeps its GPU code in the sections ``.nv_fatbin`` (linked) and ``__nv_relfatbin`` (relocatable
device code): one container after the other, one for each compiled source file. A container has a header of 16 bytes
(magic, u16 version, u16 header size, u64 size of what follows) and then entries: u16 kind (1 PTX, 2 cubin, others
such as 8 for link-time code), u16 version, u32 header size, u64 payload size, the SM as u32 at byte 28 and flags as
u64 at byte 40. Bit 20 of the flags marks an architecture-specific target (``sm_90a``), bit 21 a family target
(``sm_100f``); seen so in what CUDA 12.4, 13.0 and the published wheels made. Nothing else tells them apart for sure:
the ELF flags of a cubin are the same for all three kinds from CUDA 13 on (CUDA 12 marks ``a`` there), and
``cuobjdump --list-elf`` prints ``sm_100`` for ``sm_100f``. Payloads may be compressed; headers never are.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from dsv4check.records import dataclass

from .elf import Bytes, CannotBeRead, Section, needed_by, opened, read_elf

SECTIONS: Final = (".nv_fatbin", "__nv_relfatbin")
_AMD_SECTIONS: Final = (".hip_fatbin", "__CLANG_OFFLOAD_BUNDLE__hip-amdgcn-amd-amdhsa")
_MAGIC: Final = 0xBA55ED50
_MAGIC_BYTES: Final = _MAGIC.to_bytes(4, "little")
_CONTAINER: Final = struct.Struct("<IHHQ")
_ENTRY: Final = struct.Struct("<HHIQ")
_SM_AT: Final = 28
_FLAGS_AT: Final = 40
_LEAST_HEAD: Final = 48
_PTX: Final = 1
_CUBIN: Final = 2
_SPECIFIC: Final = 1 << 20
_FAMILY: Final = 1 << 21
# The largest extensions have some thousand entries; the bounds end the reading of a file that is made to be endless.
_MOST_ENTRIES: Final = 200_000
_MOST_PADDING: Final = 64 << 20
_LARGEST_STEP: Final = 1 << 20
_EM_CUDA: Final = 190
_NEW_CUBIN_ABI: Final = 8
_NEW_CUBIN_SPECIFIC: Final = 0x8
_OLD_CUBIN_SPECIFIC: Final = 0x800


@dataclass(frozen=True, slots=True)
class Target:
    """What a piece of GPU code was compiled for."""

    sm: int
    """90 for compute capability 9.0, 120 for 12.0."""
    suffix: str = ""
    """``a`` (this capability alone), ``f`` (its family) or nothing."""
    ptx: bool = False
    """PTX, which the driver compiles when the code is loaded; otherwise machine code."""

    @property
    def name(self) -> str:
        """As nvcc writes it: ``sm_90a``, ``compute_80``."""
        return f"{'compute' if self.ptx else 'sm'}_{self.sm}{self.suffix}"

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """True when a GPU of this compute capability can run the code."""
        own = divmod(self.sm, 10)
        if self.suffix == "a" or own == capability:
            return own == capability
        if self.ptx and not self.suffix:
            return own < capability
        # 10.1, which CUDA 13 calls 11.0, is no member of the family of 10.0 and 10.3.
        stranger = self.suffix == "f" and (10, 1) in (own, capability)
        return own[0] == capability[0] and own[1] < capability[1] and not stranger


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """The GPU code of one file."""

    units: Mapping[frozenset[Target], int]
    """The targets of a container, and how many containers have just these."""
    needed: tuple[str, ...] = ()
    """The libraries that the file needs."""
    amd: bool = False
    """True when it holds code for AMD GPUs."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Every target that occurs, machine code first, by SM."""
        found = {target for unit in self.units for target in unit}
        return tuple(sorted(found, key=lambda target: (target.ptx, target.sm, target.suffix)))

    @property
    def count(self) -> int:
        """Number of containers."""
        return sum(self.units.values())

    def usable(self, capability: tuple[int, int]) -> int:
        """Number of containers that hold code a GPU of this capability can run."""
        return sum(n for unit, n in self.units.items() if any(target.runs_on(capability) for target in unit))


def read_device_code(path: Path) -> DeviceCode:
    """Targets and needed libraries of a shared library or object file. Raises CannotBeRead."""
    with opened(path) as data:
        elf = read_elf(data)
        bound = _Bound()
        units = Counter(unit for section in elf.find(*SECTIONS) for unit in _containers(data, section, bound))
        return DeviceCode(units, needed_by(data, elf), bool(elf.find(*_AMD_SECTIONS)))


def read_cubin(path: Path) -> Target:
    """The target of a lone cubin; of CUDA 13 on it has no suffix, whatever it was compiled for. Raises CannotBeRead."""
    with opened(path) as data:
        # A cubin's own section table is of no use here, and thousands of them are read in one go.
        head = data.part(0, 64, "ELF header")
    if head[:4] != b"\x7fELF" or int.from_bytes(head[18:20], "little") != _EM_CUDA:
        raise CannotBeRead("it is no cubin")
    flags = int.from_bytes(head[48:52], "little")
    if head[8] >= _NEW_CUBIN_ABI:
        return Target((flags >> 8) & 0xFF, "a" if flags & _NEW_CUBIN_SPECIFIC else "")
    return Target(flags & 0xFF, "a" if flags & _OLD_CUBIN_SPECIFIC else "")


class _Bound:
    """Counts what was read of one file and ends a file that is made to be endless."""

    def __init__(self) -> None:
        self.left = _MOST_ENTRIES

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise CannotBeRead(f"it has more than {_MOST_ENTRIES} pieces of GPU code")


def _containers(data: Bytes, section: Section, bound: _Bound) -> Iterator[frozenset[Target]]:
    """The targets of every container of a section."""
    at, end = section.offset, section.offset + section.size
    if end > data.size:
        raise CannotBeRead(f"the file ends before its section {section.name} does")
    while (start := _next_magic(data, at, end)) is not None:
        # An empty container counts too: a file of nothing else must end.
        bound.count()
        _magic, version, head, size = _CONTAINER.unpack(data.part(start, _CONTAINER.size, "fatbin container"))
        if version != 1 or head < _CONTAINER.size:
            raise CannotBeRead(f"a fatbin container has the unknown layout {version}")
        at = start + head + size
        if at > end:
            raise CannotBeRead("a fatbin container is longer than its section")
        yield frozenset(_entries(data, start + head, at, bound))


def _next_magic(data: Bytes, at: int, end: int) -> int | None:
    """Where the next container starts; None when only padding follows."""
    limit = at + _MOST_PADDING
    step = 8
    while at + _CONTAINER.size <= end:
        if at >= limit:
            raise CannotBeRead("its fatbin section holds something else than fatbin containers")
        piece = data.part(at, min(step, end - at), "fatbin section")
        found = piece.find(_MAGIC_BYTES)
        if found >= 0:
            return at + found if at + found + _CONTAINER.size <= end else None
        # The magic may lie across two pieces. Small steps first: what is read stays in proportion to the padding.
        at += len(piece) - len(_MAGIC_BYTES) + 1
        step = min(step * 8, _LARGEST_STEP)
    return None


def _entries(data: Bytes, at: int, end: int, bound: _Bound) -> Iterator[Target]:
    """The target of every entry of a container that is PTX or machine code."""
    while at + _LEAST_HEAD <= end:
        bound.count()
        raw = data.part(at, _LEAST_HEAD, "fatbin entry")
        kind, _version, head, size = _ENTRY.unpack_from(raw)
        if head < _LEAST_HEAD or at + head + size > end:
            raise CannotBeRead("a fatbin entry is longer than its container")
        sm = int.from_bytes(raw[_SM_AT : _SM_AT + 4], "little")
        flags = int.from_bytes(raw[_FLAGS_AT : _FLAGS_AT + 8], "little")
        if kind in (_PTX, _CUBIN):
            if not 10 <= sm < 1000:
                raise CannotBeRead(f"a fatbin entry names SM {sm}")
            yield Target(sm, "a" if flags & _SPECIFIC else "f" if flags & _FAMILY else "", kind == _PTX)
        at += head + size
