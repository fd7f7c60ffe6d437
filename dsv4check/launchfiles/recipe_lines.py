"""Commands in files whose recipes are shell text: a Makefile, a justfile, a Procfile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Final

from dsv4check.launchfiles.records import Stated
from dsv4check.launchfiles.text import Located, SourceText, Span

_MAKE_NAMES: Final = frozenset(("makefile", "gnumakefile"))
_JUST_NAMES: Final = frozenset(("justfile", ".justfile"))
_MAKE_VALUE: Final = re.compile(r"\$\$|\$\((?P<name>[A-Za-z_]\w*)\)")
_MAKE_SET: Final = re.compile(
    r"^(?P<export>export[ \t]+)?(?:override[ \t]+)?(?P<name>[A-Za-z_]\w*)[ \t]*(?P<how>::?:?|\?|\+)?="
    r"[ \t]*(?P<value>[^#\r\n]*)",
    re.MULTILINE,
)
_MAKE_USE: Final = re.compile(r"\$[({](?P<name>[A-Za-z_]\w*)[)}]")
_LONGEST: Final = 10_000
_JUST_VALUE: Final = re.compile(r"\{\{(?!\{)\s*(?P<name>[A-Za-z_][\w-]*)?(?P<rest>[^{}\n]*)\}\}")
_INLINE: Final = re.compile(r"[^\s#=:][^#=:\n]*::?(?!=)[^=;\n]*;[ \t]*")
_PROCESS: Final = re.compile(r"[\w.-]+:[ \t]*")
_MARKS: Final = re.compile(r"[@+-]*[ \t]*")


def recipe_kind(path: str) -> str:
    """``make``, ``just`` or ``procfile``, by a file's name; empty for another file."""
    name = PurePosixPath(path).name.lower()
    if name in _MAKE_NAMES or name.endswith((".mk", ".mak")) or name.startswith("makefile."):
        return "make"
    if name in _JUST_NAMES or name.endswith(".just"):
        return "just"
    return "procfile" if name == "procfile" or name.startswith("procfile.") else ""


def recipe_texts(source: SourceText) -> list[Located]:
    """The texts that such a file hands to a shell, each to one of its own."""
    match recipe_kind(source.path):
        case "make":
            together = re.search(r"^\.ONESHELL\b", source.text, re.MULTILINE) is not None
            return [_replaced(text, _MAKE_VALUE, _make_value) for text in _commands(source, "\t", together)]
        case "just":
            return [_replaced(text, _JUST_VALUE, _just_value) for text in _commands(source, " \t", False)]
        case _:
            return list(_processes(source))


def recipe_variables(source: SourceText) -> tuple[dict[str, str], dict[str, Stated]]:
    """What a Makefile sets: all its variables, and those that its recipes get as environment."""
    values: dict[str, str] = {}
    exported: dict[str, Stated] = {}
    if recipe_kind(source.path) != "make":
        return values, exported
    for match in _MAKE_SET.finditer(source.text):
        name, text = match["name"], match["value"].rstrip()
        if text.endswith("\\"):
            # Goes on on the next line: not a plain value.
            continue
        value = _MAKE_USE.sub(lambda use: values.get(use["name"], use.group()), text).replace("$$", "$")[:_LONGEST]
        if match["how"] == "+" and name in values:
            value = f"{values[name]} {value}"[:_LONGEST]
        values[name] = value
        if match["export"]:
            exported[name] = Stated(value, Span(match.start("value"), match.start("value") + len(text)))
    return values, exported


def _make_value(match: re.Match[str]) -> str:
    """``$$`` is the shell's dollar, ``$(NAME)`` one of make's own variables."""
    return f"${{{match['name']}}}" if match["name"] else "$"


def _just_value(match: re.Match[str]) -> str:
    """An interpolation as a shell's expansion that is not known."""
    name = (match["name"] or "").replace("-", "_")
    return f"${{{name}}}" if name and not match["rest"].strip() else f"$({match.group()[2:-2].strip()})"


def _lines(source: SourceText) -> Iterator[tuple[int, int]]:
    """Start and stop of each line, with those that a backslash continues."""
    text, at = source.text, 0
    while at < len(text):
        stop = at
        while True:
            newline = text.find("\n", stop)
            stop = len(text) if newline < 0 else newline + 1
            if newline < 0 or not text[at:newline].rstrip("\r").endswith("\\"):
                break
        yield at, stop
        at = stop


def _commands(source: SourceText, indent: str, together: bool) -> Iterator[Located]:
    body: list[tuple[int, int]] = []
    text = source.text
    for start, stop in _lines(source):
        if text[start] in indent and text[start:stop].strip():
            body.append((start, stop))
            continue
        if text[start:stop].strip():
            yield from _recipe(source, body, together)
            body = []
        if indent == "\t" and (inline := _INLINE.match(text, start, stop)) is not None:
            yield Located.verbatim(source, inline.end(), stop)
    yield from _recipe(source, body, together)


def _recipe(source: SourceText, body: list[tuple[int, int]], together: bool) -> Iterator[Located]:
    """The texts of one recipe: its lines, or all of them where one program reads them."""
    if not body:
        return
    text = source.text
    first = text[body[0][0] : body[0][1]].strip()
    if first.startswith("#!") or together:
        if not first.startswith("#!") or "sh" in first.partition(" ")[0].rpartition("/")[2] + first.partition(" ")[2]:
            yield Located.verbatim(source, body[0][0], body[-1][1])
        return
    for start, stop in body:
        blanks = len(text[start:stop]) - len(text[start:stop].lstrip())
        mark = _MARKS.match(text, start + blanks, stop)
        yield Located.verbatim(source, start + blanks if mark is None else mark.end(), stop)


def _processes(source: SourceText) -> Iterator[Located]:
    for start, stop in _lines(source):
        if (name := _PROCESS.match(source.text, start, stop)) is not None:
            yield Located.verbatim(source, name.end(), stop)


def _replaced(text: Located, pattern: re.Pattern[str], value: Callable[[re.Match[str]], str]) -> Located:
    """The text with every match replaced; what replaces it stands where the match stood."""
    if pattern.search(text.text) is None:
        return text
    pieces: list[str] = []
    offsets: list[int] = []
    at = 0
    for match in pattern.finditer(text.text):
        new = value(match)
        pieces += text.text[at : match.start()], new
        offsets += text.offsets[at : match.start()]
        first, last = text.offsets[match.start()], text.offsets[match.end() - 1]
        offsets += [first] * (len(new) - 1) + [last] if len(new) > 1 else [first]
        at = match.end()
    pieces.append(text.text[at:])
    return Located("".join(pieces), [*offsets, *text.offsets[at:]])
