"""A command's words changed inside the text they stand in, every other character left as it is.

A word is changed only where the file spells it plainly: as itself, in quotes, or as a part of one variable's value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final

from dsv4check.deployment import Token
from dsv4check.errors import InputError
from dsv4check.gate.rewrite_lists import inserted_items, without_items, without_pair
from dsv4check.gate.spelling import Change, NotPlainError, raw_of, respelled, spelled_like
from dsv4check.inputs.command import read_command
from dsv4check.inputs.shell_quoting import quote
from dsv4check.launchfiles.records import ITEM, SHELL, VALUE, FileWord
from dsv4check.launchfiles.text import Span

__all__ = ["QUOTINGS", "NotPlainError", "rewritten", "spelled_like"]

QUOTINGS: Final = ("", '"', "'")
"""Quotes around the command itself (``bash -c "..."``), whose rules a new word has to follow as well."""


def rewritten(
    text: str,
    words: Sequence[FileWord],
    before: Sequence[Token],
    after: Sequence[Token],
    *,
    place: Span | None = None,
    quoting: str = "",
) -> str:
    """``text`` with the words changed so that they read as ``after``.

    ``before`` are the tokens of ``words`` as the checker had them: an unchanged token of ``after`` is one of them.
    ``place`` is where the command stands, ``quoting`` one of ``QUOTINGS``: whether the outcome reads as it should is
    for the caller to see. Raises NotPlainError where a word cannot be changed in place.
    """
    return _Rewriter(text, words, place, quoting).rewritten(before, after)


class _Rewriter:
    def __init__(self, text: str, words: Sequence[FileWord], place: Span | None, quoting: str) -> None:
        self._text = text
        self._words = words
        self._start = 0 if place is None else place.start
        self._quoting = quoting

    def rewritten(self, before: Sequence[Token], after: Sequence[Token]) -> str:
        changes: list[Change] = []
        for kind, i1, i2, j1, j2 in SequenceMatcher(None, list(before), list(after), autojunk=False).get_opcodes():
            if kind == "equal":
                continue
            new = [token.text for token in after[j1:j2]]
            common = min(i2 - i1, len(new))
            pairs = zip(self._words[i1:i2], new, strict=False)
            changes += [self._changed(word, value) for word, value in pairs if word.text != value]
            if i2 - i1 > common:
                changes += self._removed(self._words[i1 + common : i2])
            elif len(new) > common:
                changes += self._inserted(i1 + common, new[common:])
        result = self._text
        limit = len(result) + 1
        for change in sorted(changes, key=lambda item: (item.span.start, item.span.stop), reverse=True):
            if change.span.stop > limit:
                raise NotPlainError("the words to be changed lie in one another")
            limit = change.span.start
            result = result[: change.span.start] + change.text + result[change.span.stop :]
        return result

    def _changed(self, word: FileWord, value: str) -> Change:
        change = respelled(self._text, word, value)
        raw = raw_of(self._text, word)
        if change is None and word.slot == SHELL and _plain_in_shell(raw, word.text):
            change = Change(word.span, self._in_shell(value))
        if change is not None:
            self._refuse_shared(change.span.start)
            return change
        if word.slot == VALUE and _NAME.fullmatch(value) and raw.strip("'\"").replace("_", "-") == word.text[2:]:
            # A key: the name of the flag with underscores.
            name = value[2:] if "-" in raw else value[2:].replace("-", "_")
            return Change(word.span, raw.replace(raw.strip("'\""), name))
        if word.slot in (ITEM, VALUE) and _spells(raw, word.text):
            return Change(word.span, spelled_like(raw, value, bare=word.slot == VALUE))
        if word.slot == SHELL:
            raise NotPlainError(f"{word.text!r} is put together from other places")
        raise NotPlainError(f"{word.text!r} is not a plain word of the file")

    def _refuse_shared(self, at: int) -> None:
        """Raise NotPlainError for the value of a variable that is used more than once: it may mean something else."""
        line = self._text.rfind("\n", 0, at) + 1
        assigned = _ASSIGNED.search(self._text, line, at) if at < self._start else None
        if assigned is None:
            return
        uses = re.findall(rf"\$\{{?[!#]?{assigned['name']}\b", self._text)
        if len(uses) > 1:
            raise NotPlainError(f"${assigned['name']} is used in more than one place")

    def _in_shell(self, value: str) -> str:
        name, equals, rest = value.partition("=")
        if equals and re.fullmatch(r"--?[A-Za-z][\w.-]*", name):
            spelled = f"{name}={quote(rest) if rest else ''}"
        else:
            spelled = quote(value)
        if self._quoting == '"':
            return re.sub(r'(["\\$`])', r"\\\1", spelled)
        return spelled.replace("'", "'\\''") if self._quoting else spelled

    # -- words that go ---------------------------------------------------------------------------------------

    def _removed(self, words: Sequence[FileWord]) -> list[Change]:
        if all(word.slot == SHELL for word in words):
            return [self._without(span) for span in self._runs(words)]
        if all(word.slot == ITEM for word in words):
            return without_items(self._text, words)
        if all(word.slot == VALUE for word in words) and words[0].text.startswith("--"):
            return [without_pair(self._text, words)]
        raise NotPlainError("words that are to go stand in a mapping")

    def _runs(self, words: Sequence[FileWord]) -> list[Span]:
        """Ranges of words that stand behind one another."""
        found: list[Span] = []
        for word in words:
            raw = raw_of(self._text, word)
            if not _plain_in_shell(raw, word.text):
                raise NotPlainError(f"{word.text!r}, which is to go, is put together from other places")
            last = found[-1].stop if found else word.span.start
            if _BETWEEN.fullmatch(self._text, last, word.span.start):
                found[-1:] = [Span(found[-1].start if found else word.span.start, word.span.stop)]
            elif word.span.start < self._start and (match := _EXPANSION.match(self._text, last)):
                # The value of a variable: what goes is the place where it is used.
                found[-1] = Span(found[-1].start, match.end())
            else:
                found.append(word.span)
        return found

    def _without(self, span: Span) -> Change:
        text = self._text
        start = text.rfind("\n", 0, span.start) + 1
        rest = _LINE_REST.match(text, span.stop)
        if text[start : span.start].strip(" \t") or rest is None:
            return Change(Span(_before_blanks(text, span.start), span.stop), "")
        continued = text[:start].rstrip("\n").rstrip("\r").endswith("\\")
        commented = text[text.rfind("\n", 0, max(start - 1, 0)) + 1 : start].lstrip(" \t").startswith("#")
        if rest["more"] or not continued or commented:
            # Lines of their own: the one in front goes on with the one behind.
            return Change(Span(start, rest.end()), "")
        return Change(Span(_before_blanks(text, span.start), span.stop), "")

    # -- words that come -------------------------------------------------------------------------------------

    def _inserted(self, index: int, values: Sequence[str]) -> list[Change]:
        """New words behind an existing one."""
        if index == 0:
            raise NotPlainError("nothing stands in front of the place where flags are to be added")
        anchor = self._words[index - 1]
        if anchor.slot == SHELL:
            at = self._behind(index - 1)
            return [Change(Span(at, at), "".join(f" {self._in_shell(value)}" for value in values))]
        if anchor.slot == ITEM:
            before = self._words[:index]
            flag = next((word for word in reversed(before) if word.slot == ITEM and word.text[:2] == "--"), anchor)
            return inserted_items(self._text, anchor, values, raw_of(self._text, flag)[:1])
        raise NotPlainError("the flags stand in a mapping: the change has to be made by hand")

    def _behind(self, index: int) -> int:
        """Where new words of a shell command stand that follow a word."""
        word = self._words[index]
        if self._is_own(word) or (
            word.span.start < self._start and index and self._beside(self._words[index - 1], word)
        ):
            return word.span.stop
        # Words of variables, each by itself: the new ones follow the variables in the command.
        own = next((at for at in range(index, -1, -1) if self._is_own(self._words[at])), None)
        end = self._program_end() if own is None else self._words[own].span.stop
        at = end
        while match := _EXPANSION.match(self._text, at):
            at = match.end()
        if at == end:
            raise NotPlainError(f"{word.text!r} stands elsewhere: it is not clear where the command ends")
        return at

    def _is_own(self, word: FileWord) -> bool:
        """True for a word that stands in the command itself, not in a variable or its default."""
        line = self._text.rfind("\n", 0, word.span.start) + 1
        return word.span.start >= self._start and not _DEFAULT.search(self._text, line, word.span.start)

    def _beside(self, first: FileWord, second: FileWord) -> bool:
        """True for two words of one list (an array, a string of flags)."""
        between = self._text[first.span.stop : second.span.start]
        return first.span.stop <= second.span.start and re.fullmatch(r"(?:[ \t\r\n\\]|#[^\n]*\n)+", between) is not None

    def _program_end(self) -> int:
        match = re.compile(r"[^\n;|&]*?\bserve\b|[^\n;|&]*?api_server\b").match(self._text, self._start)
        if match is None:
            raise NotPlainError("it is not clear where the command ends")
        return match.end()


_BETWEEN: Final = re.compile(r"(?:[ \t]|\\\r?\n)*")
_EXPANSION: Final = re.compile(
    r"(?:[ \t]|\\\r?\n)+(?:\$\w+|\$\{\w+[^{}\n]*\}|\"\$\w+\"|\"\$\{\w+[^{}\n]*\}\")(?=[\s;|&<>)'\"]|$)"
)
"""A variable that is a word of its own."""
_NAME: Final = re.compile(r"--[A-Za-z][\w-]*")
_ASSIGNED: Final = re.compile(r"\b(?P<name>[A-Za-z_]\w*)=[\"']?\Z")
_DEFAULT: Final = re.compile(r"\$\{\w+:?[-=+][^{}\n]*\Z")
"""What stands in front of a default: ``${NAME:-``."""
_LINE_REST: Final = re.compile(r"[ \t]*(?P<more>\\)?(?:\r?\n|$(?!\n))")


def _plain_in_shell(raw: str, text: str) -> bool:
    if raw == text:
        return True
    try:
        command = read_command(["vllm", "serve", "x"]) if not raw else read_command(f"vllm serve x {raw}")
    except InputError:
        return False
    return "$" not in raw and [token.text for token in command.tokens[1:]] == [text]


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
