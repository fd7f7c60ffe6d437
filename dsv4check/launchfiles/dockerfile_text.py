"""The instructions of a Dockerfile, continued lines joined, with the place of every character.

After the Dockerfile reference: parser directives, the escape character, comments between continued lines,
here-documents, and the JSON ("exec") form of a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from dsv4check.launchfiles.records import ITEM, FileWord, Stated
from dsv4check.launchfiles.text import Located, SourceText, Span
from dsv4check.records import dataclass

_DIRECTIVE: Final = re.compile(r"#\s*([A-Za-z]\w*)\s*=\s*(\S+)\s*")
_KEYWORD: Final = re.compile(r"\s*([A-Za-z]+)(?=\s|\Z)\s*")
_FLAG: Final = re.compile(r"--[a-z][a-z-]*(?:=\S*)?\s*")
_HEREDOC: Final = re.compile(r"(?<!<)\d*<<(-?)\s*(['\"]?)([A-Za-z_]\w*)\2")
_STRING: Final = re.compile(r'"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*)"')
_VARIABLE: Final = re.compile(
    r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-+])([^{}]*(?:\{[^{}]*\}[^{}]*)*))?\}|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})"
)
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LONGEST: Final = 1 << 16
"""Characters that variables may add to a value: variables made of variables can double with each line."""
_WITH_DOCUMENTS: Final = frozenset(("RUN", "COPY", "ADD"))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction."""

    keyword: str
    """In capitals."""
    text: Located
    """What stands behind the keyword and its ``--flags``."""
    documents: tuple[tuple[str, Located], ...] = ()
    """Its here-documents: name and content."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """Text in which the variables are replaced; those whose value is not known stay as they are written."""

    text: str
    offsets: list[int]
    open: tuple[str, ...] = ()
    only: Stated | None = None
    """The variable's value, where the text is nothing but that variable."""


def instructions(source: SourceText) -> Iterator[Instruction]:
    """The instructions in order."""
    text = source.text
    escape, at = _directives(text)
    while at < len(text):
        characters: list[str] = []
        offsets: list[int] = []
        while True:
            start, at = at, _line_end(text, at)
            line = text[start:at].rstrip("\r\n")
            bare = line.strip()
            if bare.startswith("#") or (characters and not bare):
                if at >= len(text) or not characters:
                    break
                continue
            kept = line.rstrip(" \t")
            continued = kept.endswith(escape)
            kept = kept[:-1] if continued else line
            characters.append(kept)
            offsets += range(start, start + len(kept))
            if not continued or at >= len(text):
                break
        joined = "".join(characters)
        keyword = _KEYWORD.match(joined)
        if keyword is None:
            continue
        begin = keyword.end()
        while flag := _FLAG.match(joined, begin):
            begin = flag.end()
        content = Located(joined, [*offsets, offsets[-1] + 1 if offsets else start])
        name = keyword.group(1).upper()
        documents: list[tuple[str, Located]] = []
        if name in _WITH_DOCUMENTS:
            for announced in _HEREDOC.finditer(joined, begin):
                first = at
                at, stop = _document_end(text, at, announced.group(3), indented=announced.group(1) == "-")
                documents.append((announced.group(3), Located.verbatim(source, first, stop)))
        stop = len(joined.rstrip())
        yield Instruction(name, content.part(min(begin, stop), stop), tuple(documents))


def _line_end(text: str, at: int) -> int:
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline + 1


def _directives(text: str) -> tuple[str, int]:
    """The escape character, and the offset behind the parser directives."""
    escape, at = "\\", 0
    while at < len(text):
        stop = _line_end(text, at)
        match = _DIRECTIVE.fullmatch(text[at:stop].strip())
        if match is None:
            break
        if match.group(1).lower() == "escape" and match.group(2) in ("`", "\\"):
            escape = match.group(2)
        at = stop
    return escape, at


def _document_end(text: str, at: int, name: str, *, indented: bool) -> tuple[int, int]:
    """Offset behind a here-document with its last line, and behind its content."""
    while at < len(text):
        stop = _line_end(text, at)
        line = text[at:stop].rstrip("\r\n")
        if (line.lstrip("\t") if indented else line) == name:
            return stop, at
        at = stop
    return at, at


def exec_form(text: Located) -> list[FileWord] | None:
    """The items of a command in JSON form; None where it is in shell form."""
    content = text.text
    at = _skip(content, 0)
    if content[at : at + 1] != "[":
        return None
    words: list[FileWord] = []
    at = _skip(content, at + 1)
    if content[at : at + 1] == "]":
        return words if not content[at + 1 :].strip() else None
    while match := _STRING.match(content, at):
        words.append(_item(text.part(match.start(), match.end())))
        at = _skip(content, match.end())
        if content[at : at + 1] == "]":
            return words if not content[at + 1 :].strip() else None
        if content[at : at + 1] != ",":
            return None
        at = _skip(content, at + 1)
    return None


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _item(quoted: Located) -> FileWord:
    characters: list[str] = []
    offsets: list[int] = []
    at = 1
    while at < len(quoted.text) - 1:
        char, step = quoted.text[at], 1
        if char == "\\":
            kind = quoted.text[at + 1]
            step = 6 if kind == "u" else 2
            char = chr(int(quoted.text[at + 2 : at + 6], 16)) if kind == "u" else _ESCAPES.get(kind, kind)
        characters.append(char)
        offsets.append(quoted.offsets[at])
        at += step
    return FileWord("".join(characters), quoted.span(), ITEM, (), offsets)


def expanded(text: Located, known: Mapping[str, Stated]) -> Expanded:
    """Quotes taken off and variables replaced, as in FROM and ENV."""
    content = text.text
    characters: list[str] = []
    offsets: list[int] = []
    unknown: list[str] = []
    only: Stated | None = None
    quote = ""
    at = 0
    while at < len(content):
        char, here = content[at], text.offsets[at]
        match = _VARIABLE.match(content, at) if char == "$" and quote != "'" else None
        if match is not None:
            value = _value(match, known)
            if value is None or len(offsets) + len(value.value) > max(_LONGEST, len(content)):
                characters.append(match.group())
                offsets += text.offsets[at : match.end()]
                unknown.append(match.group())
            else:
                characters.append(value.value)
                offsets += [*([here] * (len(value.value) - 1)), text.offsets[match.end() - 1]][-len(value.value) or 1 :]
                only = value if match.group() == content.strip("\"'") and value.span.stop else only
            at = match.end()
        elif char == quote or (not quote and char in "\"'"):
            quote = "" if quote else char
            at += 1
        elif char == "\\" and quote != "'" and at + 1 < len(content):
            characters.append(content[at + 1])
            offsets.append(here)
            at += 2
        else:
            characters.append(char)
            offsets.append(here)
            at += 1
    return Expanded("".join(characters), offsets, tuple(unknown), only)


def _value(match: re.Match[str], known: Mapping[str, Stated]) -> Stated | None:
    """The value of a variable, or the word behind ``:-`` or ``:+``."""
    name = match.group(1) or match.group(2)
    operator, word = match.group(3) or "", match.group(4) or ""
    if not name:
        return None
    stated = known.get(name)
    is_set = stated is not None and bool(stated.value or not operator.startswith(":"))
    if operator.endswith("+"):
        return _default(word, known) if is_set else _default("", known)
    if is_set:
        return stated
    return _default(word, known) if operator else None


def _default(word: str, known: Mapping[str, Stated]) -> Stated | None:
    inner = _VARIABLE.search(word)
    if inner is None:
        return Stated(word, Span(0, 0))
    result = expanded(Located.at(word, 0, 0), known)
    return None if result.open else Stated(result.text, Span(0, 0))
