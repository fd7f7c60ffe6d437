"""How a changed word is written where the old one stands: with its quotes and escapes."""

from __future__ import annotations

import json
import re
from typing import Final

from dsv4check.launchfiles.records import ITEM, VALUE, FileWord
from dsv4check.launchfiles.text import Span
from dsv4check.records import dataclass


class NotPlainError(Exception):
    """The file does not spell the words in a way that can be changed in place; the text says why."""


@dataclass(frozen=True, slots=True)
class Change:
    """A range of a text and what comes in its place."""

    span: Span
    text: str


def raw_of(text: str, word: FileWord) -> str:
    """What stands for a word in the file."""
    return text[word.span.start : word.span.stop]


def respelled(text: str, word: FileWord, value: str) -> Change | None:
    """The part of a word that differs, changed in place; None where a character's place or spelling is not known."""
    if word.slot in (ITEM, VALUE) and raw_of(text, word) == word.text:
        # Without quotes, what the whole word looks like decides how YAML reads it.
        return None
    start = _shared(word.text, value)
    rest = _shared(word.text[start:][::-1], value[start:][::-1])
    stop = len(word.text) - rest
    first, last = _part(word.text, start, stop)
    places = word.offsets
    if len(places) != len(word.text) or not _in_one_piece(text, word, first, last):
        return None
    begins = _beginnings(text, word, first, last)
    new = [_spelled(text, word.text, char, first, begins) for char in value[start : len(value) - rest]]
    if None in new:
        return None
    return Change(Span(begins[start - first], begins[stop - first]), "".join(char or "" for char in new))


def _shared(first: str, second: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))


def _part(text: str, start: int, stop: int) -> tuple[int, int]:
    """The part of ``--flag=value`` that a change lies in: the value, the flag, or both."""
    behind = text.find("=") + 1 if text.startswith("-") else 0
    if start >= behind:
        return min(behind, max(len(text) - 1, 0)), len(text)
    return (0, behind - 1) if stop < behind else (0, len(text))


def _in_one_piece(text: str, word: FileWord, first: int, last: int) -> bool:
    """True where the characters stand one behind the other, with nothing but escapes between them."""
    places = word.offsets
    for index in range(first, last):
        at, char = places[index], word.text[index]
        if not 0 <= at < len(text) or (text[at] != char and text[at] != "\\"):
            return False
        if index + 1 < last:
            between = text[at + 1 : places[index + 1]]
            if places[index + 1] <= at or between.strip("\\") not in ("", char):
                return False
        elif text[at] != char:
            return False
    # An escape in front of the first character may be its own.
    return first < last and (first > 0 or text[places[0] - 1 : places[0]] != "\\")


def _beginnings(text: str, word: FileWord, first: int, last: int) -> list[int]:
    """Where each character begins, with its escape, and where the last one ends.

    A place is that of the character itself, with its escape in front of it, or that of the escape.
    """
    places = word.offsets
    begins = [places[first]]
    for index in range(first + 1, last):
        previous = places[index - 1]
        plain = text[previous] == word.text[index - 1]
        begins.append(previous + 1 if plain else places[index])
    return [*begins, places[last - 1] + 1]


def _spelled(text: str, word: str, char: str, first: int, begins: list[int]) -> str | None:
    """A character as this word spells it elsewhere; None where that is not known."""
    if _ANYWHERE.fullmatch(char):
        return char
    count = len(begins) - 1
    found = {text[begins[at] : begins[at + 1]] for at in range(count) if word[first + at] == char}
    return found.pop() if len(found) == 1 else None


_ANYWHERE: Final = re.compile(r"[A-Za-z0-9_./:,+-]")
"""Characters that need no quotes in any place."""


def spelled_like(raw: str, value: str, *, bare: bool = False) -> str:
    """A value in the quotes its predecessor had; without any where it reads as the same text."""
    if raw[:1] == '"':
        return json.dumps(value, ensure_ascii=False)
    if raw[:1] == "'":
        return "'" + value.replace("'", "''") + "'"
    if _PLAIN.fullmatch(value) and (bare or not _OTHER_TYPE.fullmatch(value)):
        return value
    if '"' in value:
        return "'" + value.replace("'", "''") + "'"
    return json.dumps(value, ensure_ascii=False)


_PLAIN: Final = re.compile(r"[A-Za-z0-9_./+-][A-Za-z0-9_./:=+-]*")
_OTHER_TYPE: Final = re.compile(
    r"[-+]?[\d_]*\.?\d+(?:e[-+]?\d+)?|[-+]?\d[\d_]*\.|0[xob][0-9a-f_]+|[-+]?\d+(?::\d+)+|\d{4}-\d\d?-\d\d?.*"
    r"|true|false|yes|no|on|off|null|y|n|[-+]?\.inf|\.nan|~|-{1,3}|.*:",
    re.IGNORECASE,
)
"""Text that YAML reads as something else than text."""
