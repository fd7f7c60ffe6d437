"""What reports call a file."""

from __future__ import annotations

import os
from pathlib import Path


def shown_path(path: str, root: Path) -> str:
    """A path from the current folder ``root``, with ``/``; absolute where it lies outside."""
    full = os.path.join(root, path)
    # "link/.." leads elsewhere than its text says.
    plain = os.path.realpath(full) if ".." in full.split(os.sep) else os.path.normpath(full)
    for base, target in ((str(root), plain), (os.path.realpath(root), os.path.realpath(plain))):
        relative = os.path.relpath(target, base)
        if relative != ".." and not relative.startswith("../"):
            return printable(relative)
    return printable(plain)


def printable(path: str) -> str:
    """A path that every output can hold: bytes that are no UTF-8 are written as escapes."""
    return path if path.isascii() else os.fsencode(path).decode("utf-8", "backslashreplace")
