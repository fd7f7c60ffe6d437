"""Interpolation of a compose file: ``${NAME:-default}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dsv4check.launchfiles.expansion import Expanded
from dsv4check.launchfiles.records import FileWord

_EXPANSION: Final = re.compile(r"\$(?:(?P<escaped>\$)|(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*))")
_OPERATORS: Final = (":-", ":?", ":+", "-", "?", "+")
_MAX_DEPTH: Final = 8


def interpolated(word: FileWord, variables: Mapping[str, str]) -> FileWord:
    """A string of the file as compose reads it; what is not set and has no default stays as it is written."""
    if "$" not in word.text:
        return word
    pieces = Expanded(word)
    single = _Filler(pieces, word.text, variables).fill(0, len(word.text), 0)
    return pieces.word(single=single)


class _Filler:
    """Replaces the expansions of one text."""

    def __init__(self, pieces: Expanded, text: str, variables: Mapping[str, str]) -> None:
        self._pieces = pieces
        self._text = text
        self._variables = variables
        self._closing = _braces(text)

    def fill(self, start: int, stop: int, depth: int) -> bool:
        """Put the piece from ``start`` to ``stop``; True when it is nothing but one expansion."""
        pieces, at = self._pieces, start
        while (match := _EXPANSION.search(self._text, at, stop)) is not None:
            pieces.keep(at, match.start())
            end = match.end()
            if match["escaped"]:
                pieces.keep(match.start(), match.start() + 1)
            elif match["name"]:
                self._value(match["name"], match.start(), end)
            else:
                end = self._braced(match, stop, depth)
            if match.start() == start and end == stop:
                return not match["escaped"]
            at = end
        pieces.keep(at, stop)
        return False

    def _value(self, name: str, start: int, end: int) -> None:
        if name in self._variables:
            self._pieces.outside(self._variables[name], start)
        else:
            self._pieces.unknown(start, end)

    def _braced(self, match: re.Match[str], stop: int, depth: int) -> int:
        """``${NAME...}``; returns the index behind it."""
        start, inner, name = match.start(), match.end(), match["braced"]
        close = self._closing.get(start + 1, stop)
        operator = next((item for item in _OPERATORS if self._text.startswith(item, inner)), "")
        if close >= stop or depth > _MAX_DEPTH or (not operator and inner != close):
            # Compose refuses such a text.
            self._pieces.unknown(start, start + 2)
            return start + 2
        known = name in self._variables and (self._variables[name] != "" or not operator.startswith(":"))
        inner += len(operator)
        if operator.endswith("+"):
            if known:
                self.fill(inner, close, depth + 1)
        elif operator.endswith("-") and not known:
            if "$" in self._text[inner:close]:
                self.fill(inner, close, depth + 1)
            else:
                self._pieces.default(inner, close)
        else:
            self._value(name, start, close + 1)
        return close + 1


def _braces(text: str) -> dict[int, int]:
    """Index of each opening brace -> that of the one that closes it."""
    found = {}
    inside = []
    for match in re.finditer("[{}]", text):
        if match.group() == "{":
            inside.append(match.start())
        elif inside:
            found[inside.pop()] = match.start()
    return found
