"""What a vLLM tree may hold that cannot be read as text without harm: pipes and devices, and files of any size."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LARGEST: Final = 8 << 20
"""The longest file of any release has 0.3 MiB; parsing takes a hundred times a file's size in memory."""


def odd_file(package: Path) -> str | None:
    """Why nothing of a package may be read; None where all of it is ordinary."""
    for path in _files(package):
        try:
            found = path.stat()
        except OSError:
            # Gone, or not to be read: whoever asks for it is told so at once.
            continue
        name = path.relative_to(package.parent).as_posix()
        if not stat.S_ISREG(found.st_mode):
            return f"{name} is no ordinary file, and reading it might never end"
        if found.st_size > _LARGEST:
            size, bound = found.st_size >> 20, _LARGEST >> 20
            return f"{name} has {size:,} MiB; expected Python files of vLLM, which have less than {bound} MiB"
    return None


def _files(package: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(package):
        folders.sort()
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))
    for about in sorted(package.parent.glob("vllm-*.dist-info")):
        yield from (about / "METADATA", about / "RECORD")
