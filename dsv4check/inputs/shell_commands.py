"""The simple commands of a shell text, in order, with what its assignments have set before each of them.

Conditions are judged where they compare what is known (``[ "$MTP" = 1 ]``). What differs between the branches of a
condition that is not known counts as not known afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from dsv4check.inputs.server_program import ASSIGNMENT, assignment
from dsv4check.inputs.shell_branches import Branches, matches_pattern, outcome_of
from dsv4check.inputs.shell_values import Operator, Script, Segment, Value, Word
from dsv4check.inputs.shell_words import Lexer

__all__ = ["Script", "Segment", "simple_commands"]

_ENDING: Final = {"fi": ("if",), "esac": ("case",), "done": ("while", "until", "for", "select"), "}": ("{", "function")}
_SKIPPED: Final = frozenset(("then", "do", "!"))
_DECLARING: Final = frozenset(("export", "declare", "readonly", "local", "typeset", "unset"))
_NAME: Final = re.compile(r"[A-Za-z_][\w.:-]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_]\w*")
_COUNTED: Final = re.compile(r"([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%&|^]?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)")
_ITEM: Final = re.compile(r"([A-Za-z_]\w*)\[.*\]\+?=.*", re.DOTALL)
_PATTERN_ENDS: Final = frozenset((";;", ";&", ";;&"))


def simple_commands(lexer: Lexer, script: Script) -> Iterable[Segment]:
    """Simple commands of the text, in order; assignments and exports between them are applied, not returned."""
    reader = _Reader(script)
    segment = Segment()
    redirect: str | None = None
    array: tuple[str, list[Word]] | None = None
    for item in lexer:
        if isinstance(item, Word):
            if array is not None:
                array[1].append(item)
            elif redirect is not None:
                segment.dropped.append(f"{redirect} {item.text}")
                redirect = None
            elif not reader.keyword(item, segment):
                segment.words.append(item)
            continue
        if array is not None:
            if item.text == ")":
                segment.arrays.append(array)
                array = None
            continue
        if item.text == "(" and segment.words and (match := ASSIGNMENT.fullmatch(segment.words[-1].text)):
            segment.words.pop()
            array = (match.group(), [])
            continue
        if "<" in item.text or ">" in item.text:
            redirect = None if re.search(r"&\d", item.text) else item.text
            if redirect is None:
                segment.dropped.append(item.text)
            continue
        if reader.names_function(item, segment):
            continue
        segment.ended_by = item.text
        reader.apply(segment)
        yield segment
        reader.behind(item)
        segment, redirect = Segment(behind="" if item.text in ("\n", ";") else item.text), None
    if array is not None:
        segment.arrays.append(array)
    reader.apply(segment)
    yield segment
    reader.branches.close_all()


class _Reader:
    """Applies assignments and follows conditions."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.branches = Branches(script)
        self._last: bool | None = None
        """Whether the last command succeeded."""
        self._deciding = False
        """The command that is read is the condition of an ``if`` or a loop."""
        self._function = ""
        """The name in front of the body that is to come."""
        self._patterns: list[Word] | None = None
        """Those of a ``case`` branch, while they are read."""

    def keyword(self, word: Word, segment: Segment) -> bool:
        """Follow a keyword in front of a command; True when it is none of the command's words."""
        if self._patterns is not None:
            return self._pattern(word)
        words = segment.words
        if words and words[0].text == "case" and len(words) == 2 and word.text == "in":
            self.branches.open("case", subject=words[1])
            self._patterns = []
            return False
        if words and words[0].text == "function" and len(words) == 1:
            self._function = word.text.removesuffix("()")
            words.clear()
            return True
        text = word.text
        if words or word.plain < len(text):
            return False
        if text in _SKIPPED:
            return True
        if text in ("if", "while", "until", "for", "select"):
            self.branches.open(text)
            self._deciding = text not in ("for", "select")
            return self._deciding
        if text in ("elif", "else"):
            self.branches.next("if")
            self._deciding = text == "elif"
            if text == "else":
                self.branches.decide(True)
            return True
        if text == "{":
            self.branches.open("function" if self._function else "{", name=self._function)
            self._function = ""
            return True
        if text in _ENDING:
            self.branches.close(_ENDING[text])
            return True
        return False

    def _pattern(self, word: Word) -> bool:
        """A word where the next pattern of a ``case`` is expected."""
        if not self._patterns and word.text == "esac" and word.plain == len(word.text):
            self._patterns = None
            self.branches.close(("case",))
        elif self._patterns is not None:
            self._patterns.append(word)
        return True

    def names_function(self, item: Operator, segment: Segment) -> bool:
        """Take the name and the parentheses of a function's definition."""
        if self._patterns is not None:
            return False
        if item.text == "(" and len(segment.words) == 1 and _NAME.fullmatch(segment.words[0].text):
            self._function = segment.words.pop().text
            return True
        return bool(self._function) and item.text in ("(", ")", "\n") and not segment.words

    def apply(self, segment: Segment) -> None:
        """Take what a command sets, and empty it when it only assigns."""
        if segment.words and segment.words[0].text in ("for", "select"):
            self._forget(segment.words[1:2])
            self.branches.decide(None)
        segment.taken = self.branches.active
        verdict = self._assign(segment)
        if self._deciding and segment.ended_by != "(":
            self._deciding = False
            self.branches.decide(verdict if segment.ended_by in (";", "\n") else None)

    def behind(self, item: Operator) -> None:
        """Follow the operator behind a command."""
        if self._patterns is not None:
            if item.text == ")":
                known = matches_pattern(self.branches.subject, self._patterns)
                self._patterns = None
                self.branches.decide(known)
        elif item.text == "(":
            self.branches.open("(")
            self.branches.decide(True)
        elif item.text == ")":
            self.branches.close(("(",))
        elif item.text in _PATTERN_ENDS and self.branches.next("case"):
            self._patterns = []

    def _runs(self, segment: Segment) -> bool | None:
        """Whether a command behind ``&&`` or ``||`` is run."""
        if segment.behind == "&&":
            return self._last
        if segment.behind == "||":
            return None if self._last is None else not self._last
        return True

    def _assign(self, segment: Segment) -> bool | None:
        """Remember ``X=1``, ``export X=1`` and ``unset X``, and empty the segment; whether the command succeeds."""
        runs = self._runs(segment)
        if runs is False:
            # A command that is skipped leaves the outcome as it was.
            return self._last
        words = segment.words
        verdict: bool | None = None
        only_sets = not words or all(assignment(word.text, word.plain) for word in words)
        builtin = words[0].text if words and words[0].text in _DECLARING else ""
        if builtin or only_sets:
            verdict = True if words or segment.arrays else None
            if runs is None:
                self.branches.open("&&")
                self.branches.decide(None)
            self._set(segment, builtin)
            if runs is None:
                self.branches.close(("&&",))
            segment.words = []
        else:
            verdict = outcome_of(words)
            self._effects(words)
        self._last = None if runs is None or segment.behind == "|" else verdict
        return self._last

    def _effects(self, words: list[Word]) -> None:
        """What the builtins of a shell and its functions change."""
        texts = [word.text for word in words]
        match texts[0]:
            case "set":
                if "-a" in texts or "allexport" in texts:
                    self._script.exports_all = "+o" not in texts
                elif "+a" in texts:
                    self._script.exports_all = False
            case "read" | "mapfile" | "readarray" | "getopts" | "shift":
                self._forget([word for word in words[1:] if not word.text.startswith("-")])
            case "printf" if texts[1:2] == ["-v"]:
                self._forget(words[2:3])
            case "let":
                self._count(" ".join(texts[1:]))
            case first if first.startswith("(("):
                self._count(first)
            case first if (item := _ITEM.fullmatch(first)) is not None:
                self.branches.forget(item[1])
            case first:
                self.branches.call(first)

    def _count(self, arithmetic: str) -> None:
        for match in _COUNTED.finditer(arithmetic):
            self.branches.forget(match[1] or match[2])

    def _forget(self, words: list[Word]) -> None:
        for word in words:
            if word.text.startswith("(("):
                self._count(word.text)
            elif _VARIABLE.fullmatch(word.text):
                self.branches.forget(word.text)

    def _set(self, segment: Segment, builtin: str) -> None:
        words = segment.words
        if words and ((builtin == "unset" and any(word.text == "-f" for word in words)) or words[-1].text == "-p"):
            return
        exports = builtin == "export" or (builtin != "" and any(re.match(r"-\w*x", word.text) for word in words))
        exports = (exports or self._script.exports_all) and not any(word.text in ("-n", "+x") for word in words)
        local = builtin in ("local", "declare", "typeset")
        for written, items in segment.arrays:
            name = written.rstrip("+=")
            self.branches.set_array(name, items, append=written.endswith("+="), local=local)
        for word in words[1:] if builtin else words:
            if builtin == "unset":
                self.branches.unset(word.text)
            elif pair := assignment(word.text, word.plain):
                name, text, append = pair
                at = len(word.text) - len(text)
                value = Value(text, word.offsets[at:], tuple(item for item in word.open[:99] if item in text))
                self.branches.set(name, value, append=append, exports=exports, local=local)
            elif exports and _VARIABLE.fullmatch(word.text):
                self.branches.export(word.text)
            elif local and _VARIABLE.fullmatch(word.text):
                self.branches.declare(word.text)
