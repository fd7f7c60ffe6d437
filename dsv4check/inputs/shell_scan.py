"""Where a substitution ends: ``$(...)``, ``${...}`` and backquotes, with everything that may stand in them."""

from __future__ import annotations

import re
from typing import Final

from dsv4check.inputs.shell_quoting import ANSI_QUOTED

COMMAND: Final = "("
ARITHMETIC: Final = "(("
BRACES: Final = "{"
BACKQUOTES: Final = "`"
_DOUBLE: Final = '"'
_LITERAL: Final = "{'"
"""Braces in which a single quote is an ordinary character: ``"${X:-it's}"``."""

_PLAIN: Final = re.compile(r"[^\\'\"`$(){}#<\nce]+")
_WITH_WORD: Final = re.compile(r"\$\{[\w@*#?!$-]*(?:\[[^\]]{0,80}\])?:?[-=+?]")
_COMMAND_POSITION: Final = re.compile(r"(?:^|[;|&(\n{!`]|\b(?:do|then|else|in))[ \t\n]*\Z")
_CASE: Final = re.compile(r"(case|esac)(?![\w=-])")
_DOCUMENT: Final = re.compile(r"<<(-?)[ \t]*(\\?[^\s;&|<>()'\"]+|'[^'\n]*'|\"[^\"\n]*\")")


class _Open:
    """Something that is not closed yet."""

    __slots__ = ("cases", "kind")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.cases = 0


def closing(text: str, at: int, kind: str, *, quoted: bool = False) -> int:
    """Index behind what is opened in front of ``at``; -1 when it is never closed.

    ``quoted`` says that it stands in double quotes.
    """
    if kind == BACKQUOTES:
        return _behind_backquote(text, at)
    stop = _closing(text, at, kind, quoted=quoted)
    if stop < 0 and kind in (COMMAND, ARITHMETIC):
        return _balanced(text, at)
    return stop


def _behind_backquote(text: str, at: int) -> int:
    """The first backquote without a backslash ends it, in whatever quotes it stands."""
    while (close := text.find("`", at)) >= 0:
        slashes = close
        while slashes > at and text[slashes - 1] == "\\":
            slashes -= 1
        if (close - slashes) % 2 == 0:
            return close + 1
        at = close + 1
    return -1


def _balanced(text: str, at: int) -> int:
    """The parenthesis that balances, whatever the text means: a last resort."""
    depth = 1
    for match in re.compile(r"[()]").finditer(text, at):
        depth += 1 if match.group() == "(" else -1
        if depth == 0:
            return match.end()
    return -1


def _closing(text: str, at: int, kind: str, *, quoted: bool) -> int:
    literal = kind == BRACES and quoted and _WITH_WORD.match(text, at - 2) is not None
    stack = [_Open(_LITERAL if literal else kind)]
    documents: list[tuple[str, bool]] = []
    end = len(text)
    while at < end:
        if (match := _PLAIN.match(text, at)) is not None:
            at = match.end()
            continue
        char, top = text[at], stack[-1]
        if char == "\\":
            at += 2
            continue
        if char == "`":
            at = _behind_backquote(text, at + 1)
            if at < 0:
                return -1
            continue
        if top.kind != _DOUBLE and (skip := _aside(text, at, top, documents)) is not None:
            if skip < 0:
                return -1
            at = skip
            continue
        if (opened := _opens(text, at, stack)) is not None:
            kind, width = opened
            stack.append(_Open(kind))
            at += width
            continue
        at += 1
        if _closes(char, top):
            stack.pop()
            if not stack:
                return at
    return -1


def _aside(text: str, at: int, top: _Open, documents: list[tuple[str, bool]]) -> int | None:
    """Index behind a single-quoted string, a comment or a here-document; None where there is none."""
    char = text[at]
    if char == "'" and top.kind != _LITERAL:
        close = text.find("'", at + 1)
        return close + 1 if close >= 0 else -1
    if char == "$" and top.kind != _LITERAL and (match := ANSI_QUOTED.match(text, at)) is not None:
        return match.end()
    if top.kind != COMMAND:
        return None
    if char == "#" and text[at - 1] in " \t\n;|&(":
        newline = text.find("\n", at)
        return newline if newline >= 0 else -1
    if char == "<" and text.startswith("<<", at):
        if text.startswith("<<<", at):
            return at + 3
        if (match := _DOCUMENT.match(text, at)) is not None:
            documents.append((match[2].strip("'\"").removeprefix("\\"), bool(match[1])))
            return match.end()
    if char == "\n" and documents:
        at += 1
        for delimiter, indented in documents:
            at = behind_document(text, at, delimiter, indented=indented)[1]
        documents.clear()
        # The newline in front of what follows the documents, so that a comment there is one.
        return at
    if char in "ce" and (match := _CASE.match(text, at)) is not None and _starts_command(text, at):
        top.cases = max(0, top.cases + (1 if match[1] == "case" else -1))
        return match.end()
    return None


def _starts_command(text: str, at: int) -> bool:
    return _COMMAND_POSITION.search(text[max(0, at - 40) : at]) is not None


def _opens(text: str, at: int, stack: list[_Open]) -> tuple[str, int] | None:
    """What opens here, and how many characters that takes."""
    char, top = text[at], stack[-1]
    if char == "$":
        if text.startswith("$((", at):
            # `$((` may also be a subshell in a substitution: its parentheses are counted one by one.
            return (ARITHMETIC, 2)
        if text.startswith("$(", at):
            return (COMMAND, 2)
        if text.startswith("${", at):
            within = top.kind in (_DOUBLE, _LITERAL)
            return (_LITERAL if within and _WITH_WORD.match(text, at) else BRACES, 2)
        return None
    if char == '"' and top.kind != _DOUBLE:
        return (_DOUBLE, 1)
    if char == "(" and top.kind in (COMMAND, ARITHMETIC):
        return (top.kind, 1)
    return None


def _closes(char: str, top: _Open) -> bool:
    match top.kind:
        case "(":
            # A pattern of `case` ends in a parenthesis that was never opened.
            return char == ")" and top.cases == 0
        case "((":
            return char == ")"
        case "{" | "{'":
            return char == "}"
        case _:
            return char == top.kind


def behind_document(text: str, at: int, delimiter: str, *, indented: bool) -> tuple[int, int]:
    """Where the here-document at ``at`` stops, and the index behind its last line."""
    end = len(text)
    while at < end:
        newline = text.find("\n", at)
        behind = end if newline < 0 else newline + 1
        content = text[at:behind].rstrip("\r\n")
        if (content.lstrip("\t") if indented else content) == delimiter:
            return at, behind
        at = behind
    return end, end
