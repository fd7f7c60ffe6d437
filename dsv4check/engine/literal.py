"""The literal text that every match of a regular expression holds.

Compiling the expressions of all rules takes longer than reading a short log, and nearly none of them matches. Looking
for such a piece of text first leaves a handful to compile.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_SPECIAL_ESCAPES: Final = frozenset("AbBdDsSwWZ0123456789afnrtvxuUN")
"""What a backslash in front does not make an ordinary character."""
_NUMBER_OF_ESCAPE: Final = re.compile(r"(?<=x)..|(?<=u).{4}|(?<=U).{8}|(?<=[0-9])[0-9]{1,2}", re.DOTALL)
_REPEAT: Final = re.compile(r"\{(?:\d+,?\d*|,\d*)\}")
_CHANGES_READING: Final = re.compile(r"^\(\?[A-Za-z]|\(\?#|\(\?[A-Za-z]*x")
"""Flags for the whole expression, comments, and flags that allow comments."""


@cache
def required_literal(pattern: str) -> str:
    """The longest run of plain characters outside groups; empty where none is certain (alternatives, flags)."""
    if _CHANGES_READING.search(pattern):
        return ""
    runs = [""]
    position = 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "|":
            return ""
        if char == "(":
            position = _behind_group(pattern, position)
            runs.append("")
        elif char == "[":
            position = _behind_class(pattern, position)
            runs.append("")
        elif char in "*?" or (char == "{" and _REPEAT.match(pattern, position - 1)):
            # The character in front may be missing; behind a class or a group there is none to drop.
            runs[-1] = runs[-1][:-1]
            runs.append("")
            if char == "{":
                position = pattern.index("}", position) + 1
        elif char in ".^$+)":
            runs.append("")
        elif char == "\\":
            escaped = pattern[position : position + 1]
            position += 1
            if escaped in _SPECIAL_ESCAPES or not escaped:
                runs.append("")
                number = _NUMBER_OF_ESCAPE.match(pattern, position)
                position = position if number is None else number.end()
            else:
                runs[-1] += escaped
        else:
            runs[-1] += char
    return max(runs, key=len)


def _behind_group(pattern: str, position: int) -> int:
    depth = 1
    while position < len(pattern) and depth:
        char = pattern[position]
        position += 1
        if char == "\\":
            position += 1
        elif char == "[":
            position = _behind_class(pattern, position)
        elif char in "()":
            depth += 1 if char == "(" else -1
    return position


def _behind_class(pattern: str, position: int) -> int:
    if pattern[position : position + 1] == "^":
        position += 1
    if pattern[position : position + 1] == "]":
        position += 1
    while position < len(pattern) and pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    return position + 1
