"""Opening logs: files, standard input, gzip; bytes come in chunks, whatever their size, as UTF-8 or as they stand."""

from __future__ import annotations

import codecs
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from dsv4check.errors import InputError

CHUNK: Final = 1 << 20
UNPACKED_LIMIT: Final = 8 << 30
"""Bytes of one packed log that are read after decompression."""

_STDIN: Final = "-"
_GZIP: Final = b"\x1f\x8b"
_ARCHIVES: Final = {
    b"PK\x03\x04": "a zip archive",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"\xfd7zXZ\x00": "packed with xz",
    b"\x28\xb5\x2f\xfd": "packed with zstd",
    b"BZh": "packed with bzip2",
}
_WIDE: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NUL_SHARE: Final = 0.2
"""A raw container stream has up to a tenth of NUL bytes (a header in front of each line); programs and images more."""


class Source:
    """One log that is read once, from begin to end.

    Iterating gives non-empty pieces of its bytes, unpacked and, where it was UTF-16 or UTF-32, as UTF-8. ``notes``
    says afterwards what could not be read.
    """

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self.name = name
        self.notes: list[str] = []
        self.limit = UNPACKED_LIMIT
        self._stream = stream

    @property
    def shown(self) -> str:
        """What the source is called in sentences."""
        return "standard input" if self.name == _STDIN else self.name

    def __iter__(self) -> Iterator[bytes]:
        """The pieces. Raises InputError for what is no log."""
        pieces = self._raw()
        first = next(pieces, b"")
        if first.startswith(_GZIP):
            pieces = self._unpacked(first, pieces)
            first = next(pieces, b"")
        self._check_text(first)
        encoding = next((name for mark, name in _WIDE if first.startswith(mark)), None)
        if encoding is None:
            yield from _in_front(first.removeprefix(codecs.BOM_UTF8), pieces)
            return
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        for piece in _in_front(first, pieces):
            yield decoder.decode(piece).encode("utf-8", "replace")

    def _raw(self) -> Iterator[bytes]:
        while True:
            try:
                piece = self._stream.read(CHUNK)
            except (OSError, ValueError) as error:
                self.notes.append(f"{self.shown}: reading stopped: {_reason(error)}.")
                return
            if not piece:
                return
            yield piece

    def _unpacked(self, first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
        """The content of a gzip stream, which may have several members; what stands behind them is ignored."""
        total = 0
        unpack, begun = zlib.decompressobj(wbits=31), False
        for packed in _in_front(first, rest):
            data = packed
            while data:
                begun = True
                try:
                    piece = unpack.decompress(data, CHUNK)
                except zlib.error as error:
                    self.notes.append(f"{self.shown}: the gzip data is broken after {total:,} bytes ({error}).")
                    return
                if piece:
                    total += len(piece)
                    yield piece
                if total >= self.limit:
                    self.notes.append(f"{self.shown}: reading stopped after {total >> 20:,} MiB of unpacked text.")
                    return
                if not unpack.eof:
                    data = unpack.unconsumed_tail
                    continue
                data = unpack.unused_data.lstrip(b"\0")
                if data and not data.startswith(_GZIP[: len(data)]):
                    self.notes.append(f"{self.shown}: what stands behind the gzip data was not read.")
                    return
                unpack, begun = zlib.decompressobj(wbits=31), False
        if begun:
            self.notes.append(f"{self.shown}: the gzip data ends early; {total:,} bytes could be read.")

    def _check_text(self, first: bytes) -> None:
        """Raises InputError for an empty source and for what is no text."""
        if not first.strip():
            raise InputError(f"{self.shown}: is empty; expected a log of vLLM")
        for mark, what in _ARCHIVES.items():
            if first.startswith(mark):
                raise InputError(f"{self.shown}: is {what}; unpack it first")
        if first[257:262] == b"ustar":
            raise InputError(f"{self.shown}: is a tar archive; unpack it first")
        if any(first.startswith(mark) for mark, _ in _WIDE):
            return
        # A log that was truncated while it was written to starts with a hole of NUL bytes.
        sample = first.lstrip(b"\0")[: 1 << 16]
        if sample.count(b"\0") > len(sample) * _NUL_SHARE or not sample:
            raise InputError(f"{self.shown}: is a binary file; expected the text of a log")


def open_source(name: str, stdin: BinaryIO | None = None) -> Source:
    """The log called ``name``; ``-`` is ``stdin`` or, when that is None, standard input.

    Raises InputError when it cannot be opened.
    """
    if name == _STDIN:
        return Source(name, sys.stdin.buffer if stdin is None else stdin)
    path = Path(name)
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            raise InputError(f"{name}: is a folder; expected a log file")
        return Source(name, path.open("rb", buffering=0))
    except FileNotFoundError:
        raise InputError(f"{name}: no such file; expected a log file, or - for standard input") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot be read: {_reason(error)}") from None


def close_source(source: Source) -> None:
    """Closes what ``open_source`` opened; standard input stays open."""
    if source.name != _STDIN:
        source._stream.close()


def _in_front(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
