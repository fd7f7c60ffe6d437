"""ELF files read by seeking: section table and needed libraries of 64-bit little-endian files (x86-64, AArch64)."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from dsv4check.records import dataclass

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_SHT_DYNAMIC: Final = 6
_SHT_NOBITS: Final = 8
_DT_NEEDED: Final = 1
# Far above any compiled extension; a file that claims more is broken or made to hurt.
_MOST_SECTIONS: Final = 65_535
_MOST_NAMES: Final = 8 << 20
_MOST_DYNAMIC: Final = 1 << 20
_LONGEST_NAME: Final = 4096


class CannotBeRead(Exception):  # noqa: N818 - says what a file does not tell, which is no fault of the program
    """The file is not what it should be; the message says how, without the file's name."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of an ELF file."""

    name: str
    kind: int
    """``sh_type``."""
    offset: int
    size: int
    """Bytes in the file; 0 for a section that only exists in memory."""
    link: int
    """Number of the section it belongs to (of a dynamic section: its strings)."""


@dataclass(frozen=True, slots=True)
class Elf:
    """The head of an ELF file."""

    machine: int
    """``e_machine``: 62 is x86-64, 183 AArch64, 190 CUDA."""
    abi_version: int
    flags: int
    """``e_flags``."""
    sections: tuple[Section, ...]

    def find(self, *names: str) -> tuple[Section, ...]:
        """The sections with one of these names."""
        return tuple(section for section in self.sections if section.name in names)


class Bytes:
    """Parts of an open file; a part beyond its end is a :class:`CannotBeRead`, not fewer bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = stream.seek(0, os.SEEK_END)

    def part(self, offset: int, size: int, what: str) -> bytes:
        """``size`` bytes from ``offset``; ``what`` names them in the error."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise CannotBeRead(f"the file ends before its {what} does")
        self._stream.seek(offset)
        found = self._stream.read(size)
        if len(found) != size:
            raise CannotBeRead(f"the file ends before its {what} does")
        return found


@contextmanager
def opened(path: Path) -> Iterator[Bytes]:
    """A file to read parts of. Raises CannotBeRead when it cannot be opened or read."""
    try:
        if not path.is_file():
            raise CannotBeRead("it is no file")
        with path.open("rb", buffering=4096) as stream:
            yield Bytes(stream)
    except OSError as error:
        raise CannotBeRead(error.strerror or "it cannot be opened") from None


def read_elf(data: Bytes) -> Elf:
    """Header and section table. Raises CannotBeRead."""
    ident, _kind, machine, _version, _entry, _ph, table, flags, *_sizes, entry_size, count, names_at = _HEADER.unpack(
        data.part(0, _HEADER.size, "ELF header")
    )
    if ident[:4] != b"\x7fELF":
        raise CannotBeRead("it is no ELF file")
    if ident[4] != 2 or ident[5] != 1:
        raise CannotBeRead("it is no 64-bit little-endian ELF file")
    if not table:
        return Elf(machine, ident[8], flags, ())
    if entry_size != _SECTION.size:
        raise CannotBeRead(f"its section table has entries of {entry_size} bytes")
    if count == 0 or names_at == 0xFFFF:
        # Numbers too large for the header stand in the first, otherwise empty section.
        first = _SECTION.unpack(data.part(table, _SECTION.size, "section table"))
        count, names_at = count or first[5], first[6] if names_at == 0xFFFF else names_at
    if not 0 < count <= _MOST_SECTIONS or names_at >= count:
        raise CannotBeRead("its section table makes no sense")
    raw = data.part(table, count * _SECTION.size, "section table")
    rows = list(_SECTION.iter_unpack(raw))
    names = _names(data, rows[names_at])
    return Elf(machine, ident[8], flags, tuple(_section(row, names) for row in rows))


def needed_libraries(path: Path) -> tuple[str, ...]:
    """The libraries that the loader must find for this file (``DT_NEEDED``), in its order. Raises CannotBeRead."""
    with opened(path) as data:
        return needed_by(data, read_elf(data))


def needed_by(data: Bytes, elf: Elf) -> tuple[str, ...]:
    """Like :func:`needed_libraries`, of a file that is open already. Raises CannotBeRead."""
    found = []
    for section in elf.sections:
        if section.kind != _SHT_DYNAMIC:
            continue
        if section.size > _MOST_DYNAMIC or section.link >= len(elf.sections):
            raise CannotBeRead("its dynamic section makes no sense")
        strings = elf.sections[section.link]
        raw = data.part(section.offset, section.size - section.size % _DYNAMIC.size, "dynamic section")
        for tag, value in _DYNAMIC.iter_unpack(raw):
            if tag == 0:
                break
            if tag == _DT_NEEDED:
                found.append(_string(data, strings, value))
    return tuple(found)


def _names(data: Bytes, row: tuple[int, ...]) -> bytes:
    if row[1] == _SHT_NOBITS or row[5] > _MOST_NAMES:
        raise CannotBeRead("its section names make no sense")
    return data.part(row[4], row[5], "section names")


def _section(row: tuple[int, ...], names: bytes) -> Section:
    start = row[0]
    end = names.find(b"\0", start, start + _LONGEST_NAME)
    name = names[start : end if end >= 0 else start].decode("ascii", "replace")
    return Section(name, row[1], row[4], 0 if row[1] == _SHT_NOBITS else row[5], row[6])


def _string(data: Bytes, strings: Section, at: int) -> str:
    """One string of a string table, which may be too large to read as a whole."""
    if at >= strings.size:
        raise CannotBeRead("a needed library has no name")
    raw = data.part(strings.offset + at, min(_LONGEST_NAME, strings.size - at), "dynamic strings")
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")
