"""What is wrong with text that should have been JSON, and what was probably meant.

Most broken JSON on command lines comes from the shell: quotes lost because the value was not quoted, or the
value split at a blank. The rest is Python notation, single or curly quotes, and trailing commas.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

_LITERALS: Final = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_OPEN: Final = "\"'\u201c\u201d\u2018\u2019\u201e`"
_CLOSERS: Final = {"\u201c": "\u201d\u201c", "\u201d": "\u201d\u201c", "\u201e": "\u201c\u201d"}
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\Z")
_MAX_DEPTH: Final = 50


class _UnreadableError(Exception):
    pass


class _Reader:
    """A forgiving JSON reader: bare words, any quotes, trailing commas, missing closing brackets."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def blank(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n\u00a0":
            self.at += 1

    def peek(self) -> str:
        self.blank()
        return self.text[self.at : self.at + 1]

    def value(self, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise _UnreadableError
        char = self.peek()
        if char == "{":
            return self.object(depth)
        if char == "[":
            return self.array(depth)
        if not char or char in ",:}]":
            raise _UnreadableError
        if char in _OPEN or self.text.startswith('\\"', self.at):
            return self.string()
        return self.bare(",}]")

    def object(self, depth: int) -> dict[str, Any]:
        self.at += 1
        result: dict[str, Any] = {}
        while (char := self.peek()) != "}":
            if not char:
                return result
            if char == ",":
                self.at += 1
                continue
            quoted = char in _OPEN or self.text.startswith('\\"', self.at)
            key = self.string() if quoted else self.bare(":", key=True)
            if self.peek() not in (":", "="):
                raise _UnreadableError
            self.at += 1
            result[str(key)] = self.value(depth + 1)
            if self.peek() not in (",", "}", ""):
                raise _UnreadableError
        self.at += 1
        return result

    def array(self, depth: int) -> list[Any]:
        self.at += 1
        result: list[Any] = []
        while (char := self.peek()) != "]":
            if not char:
                return result
            if char == ",":
                self.at += 1
                continue
            result.append(self.value(depth + 1))
            if self.peek() not in (",", "]", ""):
                raise _UnreadableError
        self.at += 1
        return result

    def string(self) -> str:
        if self.text.startswith('\\"', self.at):
            close = self.text.find('\\"', self.at + 2)
            if close < 0:
                raise _UnreadableError
            found = self.text[self.at + 2 : close]
            self.at = close + 2
            return found
        opened = self.text[self.at]
        closers = _CLOSERS.get(opened, opened + "\u2019" if opened in "\u2018\u2019" else opened)
        out: list[str] = []
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in closers:
                self.at += 1
                return "".join(out)
            if char == "\\" and self.at + 1 < len(self.text):
                self.at += 1
                char = self.text[self.at]
            out.append(char)
            self.at += 1
        raise _UnreadableError

    def bare(self, stops: str, *, key: bool = False) -> Any:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in stops:
            self.at += 1
        word = self.text[start : self.at].strip()
        if not word or any(char in '{}[]"' for char in word) or (key and re.search(r"\s", word)):
            raise _UnreadableError
        if key:
            return word
        if word in _LITERALS:
            return _LITERALS[word]
        if _NUMBER.match(word):
            return json.loads(word)
        return word


def repair_json(text: str) -> Any:
    """The object or list that broken JSON most likely stands for; None when it cannot be told."""
    text = text.strip()
    for quote in ("'", '"'):
        if len(text) > 2 and text[0] == quote == text[-1] and text[1] in "{[":
            text = text[1:-1].strip()
    if text[:1] not in ("{", "["):
        if ":" not in text or not re.match(r"[\w\"'“‘]", text) or "//" in text:
            return None
        text = "{" + text
    reader = _Reader(text)
    try:
        value = reader.value()
    except (_UnreadableError, ValueError):
        return None
    reader.blank()
    if reader.text[reader.at :].strip(" }]'\"") or not value:
        return None
    return value


def explain_json(text: str, stray: str = "") -> str:
    """Why a text is no JSON, in words; ``stray`` is what the shell split off behind it."""
    whole = f"{text} {stray}".strip()
    if stray and whole.count("{") == whole.count("}") and text.count("{") != text.count("}"):
        lost = "" if '"' in whole else " and took its quotes"
        return f"the shell split the value at a blank{lost}: put the whole value into single quotes"
    if re.search("[\u201c\u201d\u2018\u2019]", text):
        return "it has curly quotes, pasted from formatted text, instead of straight ones"
    if not text.strip():
        return "it is empty"
    if text.lstrip()[0] not in "{[":
        return "it is no JSON object: it does not start with a brace"
    if '\\"' in text:
        return "the quotes inside it are escaped with backslashes that reach vLLM"
    if re.search(r"[{,]\s*'", text):
        return "JSON wants double quotes, not single ones"
    if '"' not in text and re.search(r"[{,]\s*[A-Za-z_]", text):
        return "the quotes inside it are missing: the shell took them, as no single quotes surround the value"
    if re.search(r"[:,\[]\s*(True|False|None)\b", text):
        return "it has Python's True, False or None; JSON writes true, false and null"
    if re.search(r",\s*[}\]]", text):
        return "it has a comma before a closing bracket"
    if text.count("{") != text.count("}") or text.count("[") != text.count("]"):
        return "a bracket is not closed"
    if re.search(r"[{,]\s*[A-Za-z_]\w*\s*:", text):
        return "a key stands without double quotes"
    return "it is not valid JSON"
