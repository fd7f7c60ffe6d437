"""Python values as ``repr`` prints them, read without evaluating anything.

vLLM logs its arguments and its configuration as reprs. Besides literals they hold records (``KVTransferConfig(...)``),
enum members (``<CUDAGraphMode.PIECEWISE: 1>``), types (``torch.bfloat16``) and objects that say nothing
(``<function f at 0x7f>``); and what was pasted into a report may end anywhere.
"""

from __future__ import annotations

import re
from typing import Any, Final

from dsv4check.records import dataclass, field

MAX_TEXT: Final = 400_000
"""Characters of one repr that are read; the rest counts as cut off."""
_MAX_DEPTH: Final = 40
_MAX_ITEMS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Record:
    """``Name(field=value, ...)``."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    arguments: tuple[Any, ...] = ()
    """Values without a name: ``PosixPath('/x')``."""


@dataclass(frozen=True, slots=True)
class Member:
    """``<Enum.NAME: value>``."""

    enum: str
    name: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something whose repr says no value: an object with its address, a type."""

    text: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text begins with."""

    value: Any
    stop: int
    """Where it ends."""
    cut: bool = False
    """True where the text ends (or stops making sense) before the value does; ``value`` holds what came before."""


class _CutError(Exception):
    """The text ends inside a value."""


def read_repr(text: str, start: int = 0) -> Reading:
    """Read the value that stands at ``start``; never raises. Without any value there, ``value`` is None and cut."""
    reader = _Reader(text, min(len(text), start + MAX_TEXT))
    reader.at = start
    try:
        value = reader.value(0)
    except _CutError:
        return Reading(None, reader.at, cut=True)
    return Reading(value, reader.at, cut=reader.cut)


_STRING: Final = re.compile(r"[bu]?(?:'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\")", re.DOTALL)
_NUMBER: Final = re.compile(r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|inf|nan)(?![\w.])")
_NAME: Final = re.compile(r"[A-Za-z_][\w.]{0,200}+")
_FIELD: Final = re.compile(r"([A-Za-z_]\w{0,200}+)\s{0,20}=(?!=)")
_MEMBER: Final = re.compile(r"<([A-Za-z_]\w{0,100}+)\.(\w{1,100}+): ")
_ANGLE: Final = re.compile(r"<[^<>\n]{0,400}+>")
_BLANK: Final = re.compile(r"\s*+")
_WORDS: Final = {"None": None, "True": True, "False": False}
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}


class _Reader:
    """Reads one value by descent; ``at`` is where it stands, ``cut`` whether something was missing."""

    def __init__(self, text: str, stop: int) -> None:
        self.text = text
        self.stop = stop
        self.at = 0
        self.cut = False
        self._items = 0

    def value(self, depth: int) -> Any:
        self._items += 1
        if depth > _MAX_DEPTH or self._items > _MAX_ITEMS:
            raise _CutError
        self._skip()
        char = self.text[self.at : self.at + 1] if self.at < self.stop else ""
        if not char:
            raise _CutError
        if char in _CLOSING:
            return self._mapping(depth) if char == "{" else self._sequence(char, depth)
        if char == "<":
            return self._angle(depth)
        for pattern, convert in ((_STRING, _unquoted), (_NUMBER, _number)):
            match = pattern.match(self.text, self.at, self.stop)
            if match is not None:
                self.at = match.end()
                return convert(match.group())
        match = _NAME.match(self.text, self.at, self.stop)
        if match is None:
            raise _CutError
        self.at = match.end()
        if self.text[self.at : self.at + 1] == "(" and self.at < self.stop:
            return self._record(match.group(), depth)
        name = match.group()
        return _WORDS[name] if name in _WORDS else Opaque(name)

    def _skip(self) -> None:
        match = _BLANK.match(self.text, self.at, self.stop)
        self.at = match.end() if match is not None else self.at

    def _next(self, closing: str) -> bool:
        """True where another item follows, behind a comma or at the beginning; False behind ``closing``."""
        self._skip()
        if self.at < self.stop and self.text[self.at] == ",":
            self.at += 1
            self._skip()
        if self.at >= self.stop:
            raise _CutError
        if self.text[self.at] == closing:
            self.at += 1
            return False
        return True

    def _sequence(self, opening: str, depth: int) -> Any:
        self.at += 1
        items: list[Any] = []
        try:
            while self._next(_CLOSING[opening]):
                items.append(self.value(depth + 1))
                if self.cut:
                    break
        except _CutError:
            self.cut = True
        return items

    def _mapping(self, depth: int) -> Any:
        self.at += 1
        found: dict[Any, Any] = {}
        loose: list[Any] = []
        try:
            while self._next("}"):
                key = self.value(depth + 1)
                if self.cut:
                    break
                self._skip()
                if self.text[self.at : self.at + 1] != ":":
                    loose.append(key)
                    continue
                self.at += 1
                value = self.value(depth + 1)
                found[key if isinstance(key, str | int | float) else str(key)] = value
                if self.cut:
                    break
        except _CutError:
            self.cut = True
        return loose if loose and not found else found

    def _record(self, name: str, depth: int) -> Any:
        self.at += 1
        fields: dict[str, Any] = {}
        arguments: list[Any] = []
        try:
            while self._next(")"):
                match = _FIELD.match(self.text, self.at, self.stop)
                if match is None:
                    arguments.append(self.value(depth + 1))
                else:
                    self.at = match.end()
                    fields[match[1]] = self.value(depth + 1)
                if self.cut:
                    break
        except _CutError:
            self.cut = True
        if arguments and not fields and name.endswith("Path") and isinstance(arguments[0], str):
            return arguments[0]
        return Record(name, fields, tuple(arguments))

    def _angle(self, depth: int) -> Any:
        match = _MEMBER.match(self.text, self.at, self.stop)
        if match is not None:
            self.at = match.end()
            value = self.value(depth + 1)
            self._skip()
            if self.text[self.at : self.at + 1] == ">":
                self.at += 1
                return Member(match[1], match[2], value)
            raise _CutError
        match = _ANGLE.match(self.text, self.at, self.stop)
        if match is None:
            raise _CutError
        self.at = match.end()
        return Opaque(match.group())


_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "\n": ""}


def _unquoted(text: str) -> str:
    inner = text[2:-1] if text[0] in "bu" else text[1:-1]
    return _ESCAPE.sub(_unescaped, inner) if "\\" in inner else inner


def _unescaped(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits is None:
        return _ESCAPED.get(match[4], match[4])
    code = int(digits, 16)
    return chr(code) if code < 0x110000 else match[0]


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


_KEY: Final = re.compile(r"(?:^|, )([a-z_][a-z0-9_]{1,60})=")


def read_fields(text: str) -> tuple[dict[str, Any], bool]:
    """The ``key=value, key=value`` of a summary whose plain texts stand without quotes (``dtype=torch.bfloat16``).

    Returns the values and whether the text ends inside one. A value without quotes ends at the next key.
    """
    text = text[:MAX_TEXT]
    found: dict[str, Any] = {}
    match = _KEY.match(text)
    cut = match is None
    while match is not None and len(found) < 500:
        at = match.end()
        if text[at : at + 1] in ("'", '"', "{", "[", "<") or re.compile(r"[A-Z]\w*\(").match(text, at):
            reading = read_repr(text, at)
            found[match[1]] = reading.value
            if reading.cut:
                cut = True
                break
            stop = reading.stop
        else:
            following = _KEY.search(text, at)
            stop = following.start() if following is not None else len(text)
            found[match[1]] = _plain(text[at:stop].strip())
        match = _KEY.match(text, stop)
    return found, cut


def _plain(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    return _number(text) if _NUMBER.fullmatch(text) else text
