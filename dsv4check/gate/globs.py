"""Globs over paths, with the meaning they have in ``.gitignore``."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from dsv4check.records import dataclass

_ANY_DEPTH: Final = "**"


@dataclass(frozen=True, slots=True)
class _Glob:
    segments: tuple[str, ...]
    below: bool
    """True where only what lies in a matching folder is meant, not the folder's own path."""
    rooted: bool
    """True for one that begins with ``/``: the only kind with inner slashes that can name an absolute path."""


def matches(path: str, glob: str) -> bool:
    """True when a glob names a path (with ``/``) or a folder that it lies in.

    ``*``, ``?`` and ``[...]`` stay within one name, ``**`` between slashes stands for any number of folders. A glob
    without a slash (one at its end aside) matches at any depth, any other from the start of the path. A slash at the
    end, and ``/**``, mean what lies in the folder. A character is taken literally as ``[*]``; there is no negation.
    """
    parsed = _parse(glob)
    names = [name for name in path.split("/") if name not in ("", ".")]
    if not parsed.segments or not names:
        return False
    if path.startswith("/") and not parsed.rooted and parsed.segments[0] != _ANY_DEPTH:
        return False
    return _follow(names, parsed)


def _follow(names: list[str], glob: _Glob) -> bool:
    """True when the glob matches the names or, as a folder, the first of them.

    The states are positions in the glob, all followed at once: no glob makes this slower than the number of names
    times the number of its parts.
    """
    segments = glob.segments
    states = _with_skips({0}, segments)
    for depth, name in enumerate(names, 1):
        reached = set()
        for state in states:
            if state == len(segments):
                continue
            if segments[state] == _ANY_DEPTH:
                reached.add(state)
            elif fnmatchcase(name, segments[state]):
                reached.add(state + 1)
        states = _with_skips(reached, segments)
        if len(segments) in states and (depth < len(names) or not glob.below):
            return True
        if not states:
            return False
    return False


def _with_skips(states: set[int], segments: tuple[str, ...]) -> set[int]:
    """The states, and those reached when a ``**`` stands for no folder at all."""
    return states | {state + 1 for state in states if state < len(segments) and segments[state] == _ANY_DEPTH}


@lru_cache(maxsize=1024)
def _parse(glob: str) -> _Glob:
    below = glob.endswith("/")
    anchored = "/" in glob.rstrip("/")
    segments: list[str] = []
    for part in glob.split("/"):
        if part not in ("", ".") and not (part == _ANY_DEPTH and segments[-1:] == [_ANY_DEPTH]):
            segments.append(part)
    if len(segments) > 1 and segments[-1] == _ANY_DEPTH:
        segments.pop()
        below = True
    if segments and not anchored and segments != [_ANY_DEPTH]:
        segments.insert(0, _ANY_DEPTH)
    return _Glob(tuple(segments), below, glob.startswith("/"))
