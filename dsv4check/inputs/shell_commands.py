"""The simple commands of a shell text, in order, with what its assignments have set before each of them.

Conditions are judged where they compare what is known (``[ "$MTP" = 1 ]``). What is set under a condition that is
not known, or in a loop, counts as not known afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from dsv4check.inputs.server_program import ASSIGNMENT, assignment
from dsv4check.inputs.shell_values import Value, Variables, Word
from dsv4check.inputs.shell_words import Lexer
from dsv4check.records import dataclass, field

_CLOSING: Final = frozenset(("fi", "esac", "done"))
_KEYWORDS: Final = frozenset(
    ("then", "do", "else", "{", "!", "if", "while", "until", "elif", "fi", "done", "}", "esac")
)
_DECLARING: Final = frozenset(("export", "declare", "readonly", "local", "typeset", "unset"))


@dataclass(slots=True)
class Segment:
    """One simple command of the text."""

    words: list[Word] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """Redirections."""
    ended_by: str = ""
    taken: bool | None = True
    """False in a branch that is not taken, None where that is not known."""
    behind: str = ""
    """The operator in front of it: ``&&``, ``||``, ``|``, ..."""


@dataclass(slots=True)
class Script:
    """The state of a script while it is read."""

    variables: Variables = field(default_factory=Variables)
    exported: dict[str, Value] = field(default_factory=dict)
    exports_all: bool = False
    """``set -a``."""


@dataclass(slots=True)
class _Frame:
    """An open ``if``, ``case`` or loop."""

    keyword: str
    before: dict[str, Value]
    arrays: dict[str, list[Word]]
    taken: bool | None = None
    """Whether the branch that is being read is taken."""
    decided: bool | None = False
    """Whether an earlier branch was taken."""
    unsure: bool = False
    conditions: int = 0


def simple_commands(lexer: Lexer, script: Script) -> Iterable[Segment]:
    """Simple commands of the text, in order; assignments and exports between them are applied, not returned."""
    reader = _Reader(script)
    segment = Segment()
    redirect: str | None = None
    array: tuple[str, list[Word]] | None = None
    variables = script.variables
    for item in lexer:
        if isinstance(item, Word):
            if array is not None:
                array[1].append(item)
            elif redirect is not None:
                segment.dropped.append(f"{redirect} {item.text}")
                redirect = None
            else:
                segment.words.append(item)
            continue
        if array is not None:
            if item.text == ")":
                name = array[0]
                if reader.active is not False:
                    earlier = variables.arrays.get(name, []) if name.endswith("+") else []
                    variables.arrays[name] = [*earlier, *array[1]]
                    variables.unsure.discard(name)
                array = None
            continue
        if item.text == "(" and segment.words and (match := ASSIGNMENT.fullmatch(segment.words[-1].text)):
            segment.words.pop()
            name = match.group(1)
            array = (name, list(variables.arrays.get(name, [])) if match.group(2) else [])
            continue
        if "<" in item.text or ">" in item.text:
            redirect = None if re.search(r"&\d", item.text) else item.text
            if redirect is None:
                segment.dropped.append(item.text)
            continue
        segment.ended_by = item.text
        reader.apply(segment)
        yield segment
        segment, redirect = Segment(behind="" if item.text in ("\n", ";") else item.text), None
    reader.apply(segment)
    yield segment
    reader.close_all()


class _Reader:
    """Applies assignments and follows conditions."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._frames: list[_Frame] = []
        self._last_test: bool | None = None

    @property
    def active(self) -> bool | None:
        """Whether the text at this place is run; None where that is not known."""
        answer: bool | None = True
        for frame in self._frames:
            if frame.taken is False:
                return False
            if frame.taken is None:
                answer = None
        return answer

    def apply(self, segment: Segment) -> None:
        """Take the keywords off a command, follow them, and empty it when it only assigns."""
        self._keywords(segment)
        segment.taken = self.active
        self._assign(segment)

    def close_all(self) -> None:
        """The end of the text."""
        while self._frames:
            self._close()

    def _keywords(self, segment: Segment) -> None:
        words = segment.words
        while words:
            word = words[0].text
            if words[0].plain < len(word):
                return
            if word in ("for", "select", "case"):
                self._open(word)
                self._frames[-1].unsure = True
                self._frames[-1].taken = None
                return
            if word not in _KEYWORDS:
                return
            words.pop(0)
            if word in ("if", "while", "until"):
                self._open(word)
                self._condition(segment)
            elif word == "elif" and self._frames:
                self._condition(segment)
            elif word == "else" and self._frames:
                frame = self._frames[-1]
                frame.taken = None if frame.decided is None else not frame.decided
            elif word in _CLOSING and self._frames:
                self._close()

    def _open(self, keyword: str) -> None:
        variables = self._script.variables
        self._frames.append(_Frame(keyword, dict(variables.values), dict(variables.arrays)))

    def _condition(self, segment: Segment) -> None:
        frame = self._frames[-1]
        loop = frame.keyword != "if"
        single = segment.ended_by in (";", "\n")
        verdict = _test(segment.words) if single and not loop else None
        if frame.decided is True:
            frame.taken = False
            return
        frame.taken = None if frame.decided is None and verdict is not False else verdict
        if verdict is None:
            frame.unsure = True
            frame.decided = None
        elif verdict:
            frame.decided = True if frame.decided is False else None

    def _close(self) -> None:
        """What was set under a condition that is not known is not known from here on."""
        frame = self._frames.pop()
        if not frame.unsure:
            return
        variables = self._script.variables
        for name in {*variables.values, *frame.before}:
            if variables.values.get(name) != frame.before.get(name):
                variables.unsure.add(name)
        for name in {*variables.arrays, *frame.arrays}:
            if variables.arrays.get(name) != frame.arrays.get(name):
                variables.unsure.add(name)

    def _assign(self, segment: Segment) -> None:
        """``X=1``, ``export X=1`` and ``unset X`` on their own: remember them and empty the segment."""
        words = segment.words
        if not words:
            return
        conditional = self._conditional(segment)
        if words[0].text in ("[", "[[", "test"):
            self._last_test = _test(words)
            return
        if words[0].text == "set" and any(word.text in ("-a", "+a", "-o") for word in words[1:]):
            texts = [word.text for word in words[1:]]
            if "-a" in texts or "allexport" in texts:
                self._script.exports_all = True
            elif "+a" in texts:
                self._script.exports_all = False
            return
        builtin = words[0].text if words[0].text in _DECLARING else ""
        if not builtin and not all(assignment(word.text, word.plain) for word in words):
            return
        if self.active is not False and conditional is not False:
            self._set(words, builtin, unsure=conditional is None)
        segment.words = []

    def _conditional(self, segment: Segment) -> bool | None:
        """Whether a command behind ``&&`` or ``||`` is run."""
        if segment.behind == "&&":
            return self._last_test
        if segment.behind == "||":
            return None if self._last_test is None else not self._last_test
        self._last_test = None
        return True

    def _set(self, words: list[Word], builtin: str, *, unsure: bool) -> None:
        variables, exported = self._script.variables, self._script.exported
        exports = builtin == "export" or (builtin != "" and any(word.text == "-x" for word in words))
        exports = exports or self._script.exports_all
        for word in words[1:] if builtin else words:
            if builtin == "unset":
                variables.values.pop(word.text, None)
                exported.pop(word.text, None)
            elif pair := assignment(word.text, word.plain):
                name, text, append = pair
                at = len(word.text) - len(text)
                value = Value(text, word.offsets[at:], tuple(item for item in word.open if item in text))
                if append and (earlier := variables.values.get(name)) is not None:
                    value = _joined(earlier, value)
                variables.values[name] = value
                if unsure:
                    variables.unsure.add(name)
                elif not append:
                    variables.unsure.discard(name)
                if exports or name in exported:
                    exported[name] = value
            elif exports and word.text in variables.values:
                exported[word.text] = variables.values[word.text]


def _joined(first: Value, second: Value) -> Value:
    places = [*(first.offsets or [-1] * len(first.text)), *(second.offsets or [-1] * len(second.text))]
    return Value(first.text + second.text, places, (*first.open, *second.open))


def _test(words: list[Word]) -> bool | None:
    """The outcome of ``[ ... ]``, ``[[ ... ]]`` or ``test ...`` on known values; None for anything else."""
    texts = [word.text for word in words]
    if any(word.open for word in words) or not texts:
        return None
    if (texts[0] == "[" and texts[-1] == "]") or (texts[0] == "[[" and texts[-1] == "]]"):
        texts = texts[1:-1]
    elif texts[0] == "test":
        texts = texts[1:]
    elif texts in (["true"], ["false"]):
        return texts == ["true"]
    else:
        return None
    negated = texts[:1] == ["!"]
    outcome = _outcome(texts[1:] if negated else texts)
    return outcome if outcome is None or not negated else not outcome


def _outcome(texts: list[str]) -> bool | None:
    match texts:
        case [operator, value] if operator in ("-n", "-z"):
            return (value != "") == (operator == "-n")
        case [left, "=" | "==", right] if not any(char in right for char in "*?["):
            return left == right
        case [left, "!=", right] if not any(char in right for char in "*?["):
            return left != right
        case [left, operator, right] if operator in _NUMERIC and left.isdigit() and right.isdigit():
            a, b = int(left), int(right)
            return {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-ge": a >= b, "-lt": a < b, "-le": a <= b}[operator]
    return None


_NUMERIC: Final = ("-eq", "-ne", "-gt", "-ge", "-lt", "-le")
