"""Which files of a folder can hold a launch, by their name."""

from __future__ import annotations

import os
import re
from typing import Final

_ENDINGS: Final = frozenset(
    {".yaml", ".yml", ".json", ".py", ".tpl", ".service", ".container", ".dockerfile", ".containerfile"}
    | {".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch"}
)
_TEMPLATE_ENDINGS: Final = (".tmpl", ".j2", ".gotmpl")
_WHOLE_NAMES: Final = frozenset({"makefile", "gnumakefile", "justfile", "procfile"})
_BEGINNINGS: Final = re.compile(r"(?:dockerfile|containerfile)|(?:docker-)?compose(?:[.-]|$)")
# What lies beside those under the same beginning: README-like texts, pictures, front-end sources, a list of ignores.
_OTHER_ENDINGS: Final = frozenset(
    {".md", ".rst", ".txt", ".html", ".adoc", ".png", ".svg", ".dockerignore", ".containerignore", ".lock"}
    | {".ts", ".tsx", ".js", ".jsx", ".go", ".rs", ".java", ".kt", ".log", ".bak", ".orig"}
)
_DROP_IN_FOLDERS: Final = (".service.d", ".container.d")


def can_hold_launch(name: str, folder: str) -> bool | None:
    """True or False by the name alone; None for a name that does not say: then the first two bytes decide.

    ``folder`` is the name of the folder the file lies in.
    """
    lower = name.lower()
    for ending in _TEMPLATE_ENDINGS:
        if lower.endswith(ending) and len(lower) > len(ending):
            lower = lower[: -len(ending)]
            break
    ending = os.path.splitext(lower)[1]
    if ending in _ENDINGS or lower in _WHOLE_NAMES:
        return True
    if _BEGINNINGS.match(lower):
        return ending not in _OTHER_ENDINGS
    if ending == ".conf":
        return folder.lower().endswith(_DROP_IN_FOLDERS)
    return False if ending else None


def begins_as_script(path: str) -> bool:
    """True for a file that begins with ``#!``; False where that cannot be seen."""
    try:
        # The name may have become a pipe, or a link, since the folder was listed.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return os.read(handle, 2) == b"#!"
    except OSError:
        return False
    finally:
        os.close(handle)
