"""Where each character of a YAML scalar stands in the text it was written in.

A scalar's value is decoded once more, with places, and compared with what the loader made of it: where the two
differ, no place is claimed but that of the whole scalar.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_PROPERTIES: Final = re.compile(
    r"(?:[&!][^\s]*(?:[ \t]+|[ \t]*(?:#[^\r\n]*)?(?:\r\n|\r|\n)[ \t]*)|#[^\r\n]*[\r\n]+[ \t]*)+"
)
"""An anchor and a tag in front of the scalar."""
_BREAK: Final = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_BLANK_RUN: Final = re.compile("[ \t\r\n\x85\u2028\u2029]+")
_HEADER: Final = re.compile("[|>]([-+1-9]*)[ \t]*(?:#[^\r\n]*)?(?:\r\n|[\r\n\x85]|$)")
_ESCAPES: Final = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip
_WIDTHS: Final = {"x": 2, "u": 4, "U": 8}

Decoded = tuple[list[str], list[int]]


def scalar_places(text: str, start: int, stop: int, style: str, value: str) -> tuple[int, int, Sequence[int] | None]:
    """Start and end of a scalar in ``text`` without anchor, tag and what follows it, and its characters' indices.

    ``start`` and ``stop`` are the loader's marks, ``style`` is ``'``, ``"``, ``|``, ``>`` or empty for a plain
    scalar. The indices are None where the value cannot be traced back.
    """
    if text[start : start + 1] in ("&", "!") and (match := _PROPERTIES.match(text, start, stop)):
        start = match.end()
    elif text[start : start + 1] in ("&", "!") and not style:
        # An anchor or a tag with nothing behind it.
        return start, stop, ()
    at = start + 1 if style in ("'", '"') else start
    if style not in ("|", ">") and text[at : at + len(value)] == value and stop - at - len(value) == at - start:
        return start, stop, range(at, at + len(value))
    try:
        if style in ("|", ">"):
            return _block_places(text, start, stop, style, value)
        chars, places = _flow(text, at, stop - (at - start), style)
    except (ValueError, IndexError, KeyError):
        return start, stop, None
    return start, stop, places if "".join(chars) == value else None


def _flow(text: str, at: int, stop: int, style: str) -> Decoded:
    """A plain or quoted scalar: line breaks are folded, escapes replaced."""
    chars: list[str] = []
    places: list[int] = []
    while at < stop:
        char = text[at]
        if match := _BLANK_RUN.match(text, at, stop):
            _fold(text, at, match.end(), chars, places)
            at = match.end()
        elif style == "'" and char == "'":
            chars.append("'")
            places.append(at)
            at += 2
        elif style == '"' and char == "\\":
            at = _escape(text, at, stop, chars, places)
        else:
            chars.append(char)
            places.append(at)
            at += 1
    return chars, places


def _fold(text: str, at: int, stop: int, chars: list[str], places: list[int], *, joined: bool = False) -> None:
    """Blanks and line breaks between two pieces of text; ``joined`` behind a line break that was escaped."""
    breaks = list(_BREAK.finditer(text, at, stop))
    if not breaks and not joined:
        chars += text[at:stop]
        places += range(at, stop)
        return
    if not joined and breaks:
        first = breaks[0]
        if _normal(first.group()) != "\n":
            chars.append(first.group())
            places.append(first.start())
        elif len(breaks) == 1:
            chars.append(" ")
            places.append(first.start())
        breaks = breaks[1:]
    for match in breaks:
        chars.append(_normal(match.group()))
        places.append(match.start())


def _normal(line_break: str) -> str:
    return line_break if line_break in ("\u2028", "\u2029") else "\n"


def _escape(text: str, at: int, stop: int, chars: list[str], places: list[int]) -> int:
    code = text[at + 1]
    if match := _BREAK.match(text, at + 1, stop):
        run = _BLANK_RUN.match(text, match.end(), stop)
        end = run.end() if run else match.end()
        _fold(text, match.end(), end, chars, places, joined=True)
        return end
    width = _WIDTHS.get(code, 0)
    chars.append(chr(int(text[at + 2 : at + 2 + width], 16)) if width else _ESCAPES[code])
    places.append(at)
    return at + 2 + width


def _block_places(text: str, start: int, stop: int, style: str, value: str) -> tuple[int, int, Sequence[int] | None]:
    header = _HEADER.match(text, start, stop)
    if header is None:
        return start, stop, None
    lines = []
    at = header.end()
    while at < stop:
        match = _BREAK.search(text, at, stop)
        end, behind = (match.start(), match.end()) if match else (stop, stop)
        lines.append((at, end, behind))
        at = behind
    indent = _indent(text, lines, header.group(1), value)
    chars, places = _block(text, lines, indent, style, header.group(1))
    if "".join(chars) == value:
        return start, places[-1] + 1 if places else header.start() + 1, places
    return start, stop, None


def _indent(text: str, lines: list[tuple[int, int, int]], header: str, value: str) -> int:
    """How far the text is indented: as its first line, less the blanks that the header leaves to the value."""
    width = next((_blanks(text[at:end]) for at, end, _behind in lines if text[at:end].strip(" ")), None)
    own = 0
    if any(char.isdigit() for char in header):
        own = next((_blanks(line) for line in value.split("\n") if line.strip(" ")), -1)
    if width is None or own < 0:
        longest = max((end - at for at, end, _behind in lines), default=0)
        return longest - max(len(line) for line in value.split("\n"))
    return width - own


def _blanks(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _block(text: str, lines: list[tuple[int, int, int]], indent: int, style: str, header: str) -> Decoded:
    chars: list[str] = []
    places: list[int] = []
    lead: tuple[str, int] | None = None
    blank_lines: list[tuple[str, int]] = []
    after_indented = False

    def put(parts: list[tuple[str, int]]) -> None:
        chars.extend(char for char, _place in parts)
        places.extend(place for _char, place in parts)

    for at, end, behind in lines:
        content = min(at + indent, end)
        if text[at:content].strip(" "):
            # Less indented: a comment behind the scalar.
            break
        line_break = (_normal(text[end:behind]), end)
        if content == end:
            if behind > end:
                blank_lines.append(line_break)
            continue
        indented = text[content] in " \t"
        if style == ">" and lead is not None and lead[0] == "\n" and not after_indented and not indented:
            put([] if blank_lines else [(" ", lead[1])])
        elif lead is not None:
            put([lead])
        put(blank_lines)
        chars += text[content:end]
        places += range(content, end)
        lead = line_break if behind > end else None
        blank_lines = []
        after_indented = indented
    if "-" not in header and lead is not None:
        put([lead])
    if "+" in header:
        put(blank_lines)
    return chars, places
