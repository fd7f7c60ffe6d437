"""The commit of a git checkout, from its files: git itself need not be there, and is not run in a strange folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 1 << 24
_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REFERENCE: Final = re.compile(r"refs/[\w.+@/-]+")


def head_commit(folder: Path) -> str | None:
    """The commit that ``.git/HEAD`` of a checkout stands at; None where that cannot be told."""
    git = _git_folder(folder)
    if git is None:
        return None
    head = _text(git / "HEAD").strip()
    if _COMMIT.fullmatch(head):
        return head
    reference = head.removeprefix("ref:").strip()
    if not _REFERENCE.fullmatch(reference) or ".." in reference:
        return None
    shared = _text(git / "commondir").strip()
    for place in (git, git / shared):
        found = _text(place / reference).strip()
        if _COMMIT.fullmatch(found):
            return found
    for place in (git, git / shared):
        for line in _text(place / "packed-refs").splitlines():
            commit, _, name = line.partition(" ")
            if name == reference and _COMMIT.fullmatch(commit):
                return commit
    return None


def _git_folder(folder: Path) -> Path | None:
    """``.git``, or the folder that the file ``.git`` of a worktree or submodule names."""
    place = folder / ".git"
    if place.is_dir():
        return place
    named = _text(place).strip()
    if not named.startswith("gitdir:"):
        return None
    return folder / named.removeprefix("gitdir:").strip()


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            return ""
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES)
    except (OSError, ValueError):
        return ""
