"""Names that were recognised in one place, found again in all others: thousands of them in one pass over a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_MOST: Final = 5_000
_MOST_ODD: Final = 200
_LONGEST: Final = 400
_RUN: Final = re.compile("[A-Za-z0-9]+")


class KnownNames:
    """Names and what they are; letters of both cases are the same."""

    def __init__(self, placeholder: str) -> None:
        self._kinds: dict[str, str] = {}
        # By the letters and figures a name begins with: the lengths of those names, longest first.
        self._lengths: dict[str, list[int]] = {}
        # Those that have no such begin, or stand without blanks around them (Chinese).
        self._odd: dict[str, str] = {}
        self._odd_words: re.Pattern[str] | None = None
        self._tokens = re.compile(rf"{placeholder}|{_RUN.pattern}")
        self._placeholder = placeholder

    def note(self, name: str, kind: str) -> None:
        """Remember a name. Past a limit, which no honest log comes near, further ones are not."""
        lower = name.lower()
        begin = _RUN.match(lower)
        if len(name) > _LONGEST or lower in self._kinds or name in self._odd:
            return
        if begin is None or not name.isascii():
            if len(self._odd) < _MOST_ODD:
                self._odd[name] = kind
                self._odd_words = None
        elif len(self._kinds) < _MOST:
            self._kinds[lower] = kind
            lengths = self._lengths.setdefault(begin[0], [])
            if len(name) not in lengths:
                lengths.append(len(name))
                lengths.sort(reverse=True)

    def replaced(self, text: str, shown: Callable[[str, str], str]) -> str:
        """The text with every name replaced by ``shown(name, kind)``; placeholders are no place to look for one."""
        if self._kinds:
            text = self._replaced_words(text, shown)
        if self._odd:
            if self._odd_words is None:
                names = sorted(self._odd, key=len, reverse=True)
                self._odd_words = re.compile("|".join([self._placeholder, *map(re.escape, names)]))
            text = self._odd_words.sub(
                lambda match: shown(match[0], self._odd[match[0]]) if match[0] in self._odd else match[0], text
            )
        return text

    def _replaced_words(self, text: str, shown: Callable[[str, str], str]) -> str:
        parts: list[str] = []
        done = 0
        for match in self._tokens.finditer(text):
            start = match.start()
            if start < done:
                continue
            for length in self._lengths.get(match[0].lower(), ()):
                end = start + length
                kind = self._kinds.get(text[start:end].lower())
                if kind is not None and _RUN.match(text, end) is None:
                    parts += [text[done:start], shown(text[start:end], kind)]
                    done = end
                    break
        return "".join([*parts, text[done:]]) if parts else text
