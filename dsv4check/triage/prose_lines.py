"""Lines of a report that a person wrote: neither log, nor traceback, nor table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_LOG_LINE: Final = re.compile(
    r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[: ]|^\s*File \"|^[\s>]*\||^\s*\([A-Z]\w+ pid=|^\[?\d{4}-\d\d-\d\d[ T]"
)
_LEVELLED: Final = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d|^\s*File \"|^[\s>]*\|")
_LONGEST: Final = 2000
_PROSE: Final = 60_000
"""Characters that are looked through: a report's text, not its log."""


def prose_lines(head: str, pieces: Iterable[str], *, strict: bool = False) -> Iterator[tuple[int, str]]:
    """The lines that hold one of ``pieces`` (in lower case), with where they begin; ``strict`` drops more of a log."""
    text = head[:_PROSE]
    lowered = text.lower()
    if len(lowered) != len(text):
        # A letter that is two in lower case would shift every place behind it.
        text = text.encode("ascii", "replace").decode("ascii")
        lowered = text.lower()
    starts: set[int] = set()
    for piece in pieces:
        at = lowered.find(piece)
        while at >= 0:
            starts.add(lowered.rfind("\n", 0, at) + 1)
            stop = lowered.find("\n", at)
            at = lowered.find(piece, stop) if stop >= 0 else -1
    pattern = _LOG_LINE if strict else _LEVELLED
    for start in sorted(starts):
        stop = text.find("\n", start)
        line = text[start : stop if stop >= 0 else len(text)]
        if len(line) <= _LONGEST and pattern.search(line) is None:
            yield start, line
