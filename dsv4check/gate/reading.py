"""A file's text, or one line that says why there is none.

Files come from trees that nobody vetted: a FIFO would block for ever, a device never ends, an image is not text.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from dsv4check.gate.records import FileProblem
from dsv4check.launchfiles.text import SourceText

MAX_BYTES: Final = 8 * 1024 * 1024
"""Larger files hold no launch: no deployment file comes near it, data sets and lock files do."""

_PIECE: Final = 1024 * 1024
_BOM: Final = b"\xef\xbb\xbf"
# UTF-32 first: its little-endian mark begins with that of UTF-16.
_OTHER_MARKS: Final = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_source(path: Path, shown: str, *, limit: int = MAX_BYTES) -> SourceText | FileProblem:
    """The text of a file, which reports call ``shown``; at most ``limit`` bytes of it are read."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return FileProblem(shown, 0, f"{_kind(found.st_mode)}; expected a file")
        if found.st_size > limit:
            return _too_large(shown, found.st_size, limit)
        data = _content(path, limit)
    except OSError as error:
        return FileProblem(shown, 0, why_unreadable(error))
    except ValueError:
        return FileProblem(shown, 0, "cannot be read: a NUL character in its name")
    if isinstance(data, int):
        return FileProblem(shown, 0, f"{_kind(data)}; expected a file")
    if len(data) > limit:
        # A file that grew since, or one of a kind that states no size (/proc).
        return _too_large(shown, None, limit)
    return source_from_bytes(data, shown)


def source_from_bytes(data: bytes, shown: str) -> SourceText | FileProblem:
    """The text of bytes that are at hand already (standard input)."""
    for mark, name in _OTHER_MARKS:
        if data.startswith(mark):
            return FileProblem(shown, 0, f"{name} text (it begins with the byte order mark of {name}); expected UTF-8")
    zero = data.find(b"\x00")
    if zero >= 0:
        return FileProblem(shown, 0, f"a binary file (NUL byte at offset {zero}); expected text")
    bom = data.startswith(_BOM)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        why = f"not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start} (line {line})"
        return FileProblem(shown, line, why)
    return SourceText(shown, text[1:] if bom else text, bom=bom)


def why_unreadable(error: OSError) -> str:
    """What stands in the way of reading a file or a folder, for people."""
    if error.errno == errno.ELOOP:
        return "a symbolic link that leads back to itself"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "no such file or folder"
    reason = error.strerror or type(error).__name__
    return f"cannot be read ({reason[0].lower()}{reason[1:]})"


def _content(path: Path, limit: int) -> bytes | int:
    """Up to ``limit`` + 1 bytes; the mode of what lies there by now, where that is no file any more."""
    # Without O_NONBLOCK a pipe that took the file's place since it was looked at would block.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            return mode
        pieces = []
        left = limit + 1
        while left > 0 and (piece := os.read(handle, min(_PIECE, left))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(handle)


def _kind(mode: int) -> str:
    return next((name for test, name in _KINDS if test(mode)), "no regular file")


def _too_large(shown: str, size: int | None, limit: int) -> FileProblem:
    stated = "" if size is None else f" ({_size(size)})"
    return FileProblem(shown, 0, f"larger than {_size(limit)}{stated}; not read")


def _size(count: int) -> str:
    mib = count / (1024 * 1024)
    if count < 1024 * 1024:
        return f"{count} bytes"
    return f"{mib:.0f} MiB" if mib == int(mib) else f"{mib:.1f} MiB"
