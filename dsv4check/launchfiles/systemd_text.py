"""Unit files of systemd: their settings, and values split into words as systemd does it.

After systemd.syntax(7), systemd.service(5) ("Command lines") and systemd.unit(5) ("Specifiers").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dsv4check.launchfiles.text import Located, SourceText, Span
from dsv4check.records import dataclass

_SECTION: Final = re.compile(r"\s*\[([^\]]+)\]\s*")
_SETTING: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=[ \t]*")
_BLANKS: Final = " \t\n\r"
_SIMPLE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
_NUMERIC: Final = re.compile(r"x([0-9A-Fa-f]{2})|([0-7]{3})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
_SPECIFIER: Final = re.compile(r"%([A-Za-z%])")


@dataclass(frozen=True, slots=True)
class Setting:
    """One ``Name=value`` line."""

    section: str
    name: str
    value: Located
    key: Span
    """Where the name stands."""


@dataclass(frozen=True, slots=True)
class UnitWord:
    """One word of a value, quotes and escapes resolved."""

    text: str
    offsets: tuple[int, ...]
    span: Span
    open: tuple[str, ...] = ()
    """Specifiers in it, such as ``%i``."""


def settings(source: SourceText) -> Iterator[Setting]:
    """The settings in order."""
    text, at, section = source.text, 0, ""
    while at < len(text):
        characters: list[str] = []
        offsets: list[int] = []
        start = at
        while at < len(text):
            begin, at = at, _line_end(text, at)
            line = text[begin:at].rstrip("\r\n")
            if line.lstrip(" \t").startswith(("#", ";")):
                # Also between continued lines, where it does not end the value.
                if characters:
                    continue
                break
            continued = line.endswith("\\")
            characters.append(line[:-1] + " " if continued else line)
            offsets += range(begin, begin + len(line))
            if not continued:
                break
        joined = "".join(characters)
        whole = Located(joined, [*offsets, offsets[-1] + 1 if offsets else start])
        header = _SECTION.fullmatch(joined)
        if header is not None:
            section = header.group(1)
            continue
        match = _SETTING.match(joined)
        if match is None:
            continue
        stop = max(match.end(), len(joined.rstrip()))
        yield Setting(section, match.group(1), whole.part(match.end(), stop), whole.span(match.start(1), match.end(1)))


def _line_end(text: str, at: int) -> int:
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline + 1


def words_of(value: Located) -> list[UnitWord] | None:
    """The words of a value; None where a quote is never closed."""
    text = value.text
    words: list[UnitWord] = []
    at = 0
    while True:
        while at < len(text) and text[at] in _BLANKS:
            at += 1
        if at >= len(text):
            return words
        start, quote = at, ""
        characters: list[str] = []
        offsets: list[int] = []
        while at < len(text) and (quote or text[at] not in _BLANKS):
            char, step = text[at], 1
            if char == "\\" and at + 1 < len(text):
                char, step = _unescaped(text, at)
                characters.append(char)
                offsets += [value.offsets[at]] * len(char)
            elif char == quote:
                quote = ""
            elif not quote and char in "'\"":
                quote = char
            else:
                characters.append(char)
                offsets.append(value.offsets[at])
            at += step
        if quote:
            return None
        words.append(_with_specifiers("".join(characters), offsets, value.span(start, at)))


def _unescaped(text: str, at: int) -> tuple[str, int]:
    """What the escape at ``at`` stands for, and how long it is; an unknown one stays as it is."""
    kind = text[at + 1]
    if kind in _SIMPLE:
        return _SIMPLE[kind], 2
    if kind in "\\\"'":
        return kind, 2
    match = _NUMERIC.match(text, at + 1)
    if match is not None:
        code = int(match.group(2), 8) if match.group(2) else int(match.group(1) or match.group(3) or match.group(4), 16)
        if code < 0x110000 and not 0xD800 <= code < 0xE000:
            return chr(code), match.end() - at
    return "\\" + kind, 2


def _with_specifiers(text: str, offsets: list[int], span: Span) -> UnitWord:
    """``%%`` is a percent sign; other specifiers stay, their value is not known here."""
    kept: list[int] = []
    unknown: list[str] = []
    characters: list[str] = []
    at = 0
    for match in _SPECIFIER.finditer(text):
        stop = match.start() + 1 if match.group(1) == "%" else match.end()
        if match.group(1) != "%":
            unknown.append(match.group())
        characters.append(text[at:stop])
        kept += offsets[at:stop]
        at = match.end()
    characters.append(text[at:])
    kept += offsets[at:]
    return UnitWord("".join(characters), tuple(kept), span, tuple(dict.fromkeys(unknown)))
