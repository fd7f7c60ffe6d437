"""Replacing in long texts: an expression is only tried on lines that hold a word without which it cannot match."""

from __future__ import annotations

import re
from collections.abc import Callable


def sub_in_lines(
    pattern: re.Pattern[str], change: Callable[[re.Match[str]], str], text: str, marks: tuple[str, ...]
) -> str:
    """``pattern.sub(change, text)``, many times faster where few lines hold one of ``marks``.

    Args:
        pattern: Never matches beyond the end of a line.
        change: Gives the replacement of a match.
        text: Any text.
        marks: Case-folded words; every match holds one of them, in letters of any case.
    """
    folded = text.casefold()
    present = [mark for mark in marks if mark in folded]
    if not present:
        return text
    lines = text.split("\n")
    if len(lines) == 1:
        return pattern.sub(change, text)
    for number, line in enumerate(folded.split("\n")):
        if any(mark in line for mark in present):
            lines[number] = pattern.sub(change, lines[number])
    return "\n".join(lines)
