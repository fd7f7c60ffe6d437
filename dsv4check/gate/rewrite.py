"""A command's words changed inside the text they stand in, every other character left as it is.

A word is changed only where the file spells it plainly: as itself, in one pair of quotes, or as the JSON string of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final

from dsv4check.deployment import Token
from dsv4check.errors import InputError
from dsv4check.inputs.command import read_command
from dsv4check.inputs.shell_quoting import quote
from dsv4check.launchfiles.records import ITEM, SHELL, VALUE, FileWord
from dsv4check.launchfiles.text import Span
from dsv4check.records import dataclass


class NotPlainError(Exception):
    """The file does not spell the words in a way that can be changed in place; the text says why."""


@dataclass(frozen=True, slots=True)
class _Change:
    span: Span
    text: str


def rewritten(text: str, words: Sequence[FileWord], before: Sequence[Token], after: Sequence[Token]) -> str:
    """``text`` with the words changed so that they read as ``after``.

    ``before`` are the tokens of ``words`` as the checker had them: an unchanged token of ``after`` is one of them.
    Raises NotPlainError where a word cannot be changed in place.
    """
    changes: list[_Change] = []
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, list(before), list(after), autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        old, new = words[i1:i2], [token.text for token in after[j1:j2]]
        common = min(len(old), len(new))
        changes += [_changed(text, word, value) for word, value in zip(old, new, strict=False) if word.text != value]
        if len(old) > common:
            changes += _removed(text, old[common:])
        elif len(new) > common:
            at = i1 + common
            if at == 0:
                raise NotPlainError("nothing stands in front of the place where flags are to be added")
            changes.append(_inserted(text, words[at - 1], new[common:]))
    result = text
    for change in sorted(changes, key=lambda item: (item.span.start, item.span.stop), reverse=True):
        result = result[: change.span.start] + change.text + result[change.span.stop :]
    return result


def _changed(text: str, word: FileWord, value: str) -> _Change:
    raw = text[word.span.start : word.span.stop]
    if word.slot == SHELL:
        if not _plain_in_shell(raw, word.text):
            raise NotPlainError(f"{word.text!r} is put together from other places")
        return _Change(word.span, _in_shell(value))
    if word.slot in (ITEM, VALUE) and _spells(raw, word.text):
        return _Change(word.span, spelled_like(raw, value, bare=word.slot == VALUE))
    raise NotPlainError(f"{word.text!r} is not a plain word of the file")


def _plain_in_shell(raw: str, text: str) -> bool:
    if raw == text:
        return True
    try:
        command = read_command(["vllm", "serve", "x"]) if not raw else read_command(f"vllm serve x {raw}")
    except InputError:
        return False
    return "$" not in raw and [token.text for token in command.tokens[1:]] == [text]


def _in_shell(value: str) -> str:
    name, equals, rest = value.partition("=")
    if equals and re.fullmatch(r"--?[A-Za-z][\w.-]*", name):
        return f"{name}={quote(rest) if rest else ''}"
    return quote(value)


def _spells(raw: str, text: str) -> bool:
    if raw == text:
        return True
    if len(raw) > 1 and raw[0] == raw[-1] == "'":
        return raw[1:-1].replace("''", "'") == text
    if len(raw) > 1 and raw[0] == raw[-1] == '"':
        try:
            return bool(json.loads(raw) == text)
        except ValueError:
            return False
    return False


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
    r"[-+]?[\d_]*\.?\d+(?:e[-+]?\d+)?|0x[0-9a-f]+|true|false|yes|no|on|off|null|y|n|\.inf|\.nan|~|.*:", re.IGNORECASE
)
"""Text that YAML reads as something else than text."""


def _removed(text: str, words: Sequence[FileWord]) -> list[_Change]:
    if all(word.slot == SHELL for word in words):
        if any(not _plain_in_shell(text[w.span.start : w.span.stop], w.text) for w in words):
            raise NotPlainError("a word that is to go is put together from other places")
        return [_Change(Span(_before_blanks(text, word.span.start), word.span.stop), "") for word in words]
    if all(word.slot == ITEM for word in words):
        return [_without_item(text, word) for word in words]
    raise NotPlainError("words that are to go stand in a mapping")


def _before_blanks(text: str, at: int) -> int:
    """The start of the blanks, and of the continued lines, in front of a word."""
    while at > 0:
        if text[at - 1] in " \t":
            at -= 1
        elif text.endswith("\\\r\n", 0, at):
            at -= 3
        elif text.endswith("\\\n", 0, at):
            at -= 2
        else:
            break
    return at


def _without_item(text: str, word: FileWord) -> _Change:
    start, stop = _line(text, word.span)
    before, after = text[start : word.span.start], text[word.span.stop : stop]
    if _DASH.fullmatch(before) and _REST.fullmatch(after):
        return _Change(Span(start, stop), "")
    following = re.match(r"[ \t\r\n]*,[ \t]*", text[word.span.stop :])
    if following:
        return _Change(Span(word.span.start, word.span.stop + following.end()), "")
    leading = re.search(r",[ \t\r\n]*$", text[: word.span.start])
    if leading:
        return _Change(Span(leading.start(), word.span.stop), "")
    raise NotPlainError(f"{word.text!r} stands alone in its list")


_DASH: Final = re.compile(r"[ \t]*-[ \t]+")
_REST: Final = re.compile(r"[ \t]*\r?\n?")


def _line(text: str, span: Span) -> tuple[int, int]:
    """The line a range lies on, with its end."""
    start = text.rfind("\n", 0, span.start) + 1
    end = text.find("\n", span.stop)
    return start, len(text) if end < 0 else end + 1


def _inserted(text: str, anchor: FileWord, values: Sequence[str]) -> _Change:
    """New words behind an existing one."""
    at = anchor.span.stop
    if anchor.slot == SHELL:
        return _Change(Span(at, at), "".join(f" {_in_shell(value)}" for value in values))
    if anchor.slot != ITEM:
        raise NotPlainError("the flags stand in a mapping: the change has to be made by hand")
    raw = text[anchor.span.start : at]
    start, stop = _line(text, anchor.span)
    prefix = text[start : anchor.span.start]
    # Behind a comment on the line of the anchor, too.
    rest = text[at:stop]
    if _DASH.fullmatch(prefix) and re.fullmatch(r"[ \t]*(?:#.*)?\r?\n?", rest):
        end = "\r\n" if rest.endswith("\r\n") or (not rest.endswith("\n") and "\r\n" in text) else "\n"
        lines = "".join(f"{prefix}{spelled_like(_quotes_of(raw), value)}{end}" for value in values)
        if not rest.endswith("\n"):
            return _Change(Span(stop, stop), end + lines.removesuffix(end))
        return _Change(Span(stop, stop), lines)
    style = _quotes_of(raw)
    return _Change(Span(at, at), "".join(f", {spelled_like(style, value)}" for value in values))


def _quotes_of(raw: str) -> str:
    # A JSON value in single quotes says nothing about how flags are written beside it.
    return raw[:1] if raw[:1] == '"' else ""
