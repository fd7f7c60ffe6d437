"""The ``code:`` of a rule as lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsv4check.engine.code_marks import AnyMark, FingerprintMark, Group, Mark

_LEADS: Final = {"all": "all of:", "any": "any of:", "not": "not:"}


def code_lines(group: Group, depth: int = 0) -> Iterator[tuple[int, str]]:
    """(how far a line is indented, the line) for each mark that must hold, and for what stands inside it."""
    for mark in group.marks:
        yield from _lines(mark, depth)


def _lines(mark: AnyMark, depth: int) -> Iterator[tuple[int, str]]:
    match mark:
        case FingerprintMark():
            yield depth, f"the answer to {mark.name} is {' or '.join(mark.values)}"
        case Group(word="all", marks=(only,)):
            yield from _lines(only, depth)
        case Group():
            yield depth, _LEADS[mark.word]
            yield from code_lines(mark, depth + 1)
        case Mark():
            where = " or ".join(map(str, mark.places))
            if mark.exists is not None:
                yield depth, f"{where} is {'' if mark.exists else 'not '}there"
                return
            yield depth, f"{where}:"
            for test in _tests(mark):
                yield depth + 1, test


def _tests(mark: Mark) -> Iterator[str]:
    yield from (f"has `{piece}`" for piece in mark.has)
    if mark.matches:
        yield f"has what matches `{mark.matches}`"
    yield from (f"has no `{piece}`" for piece in mark.lacks)
