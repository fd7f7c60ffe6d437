"""Whether a vLLM tree has the faults that rules describe by their code; every answer quotes file and line."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from dsv4check.engine.code_marks import AnyMark, FingerprintMark, Group, Mark, Place, marks_from_record
from dsv4check.engine.rule import Rule
from dsv4check.learning.source import LearningError, Source
from dsv4check.records import dataclass

if TYPE_CHECKING:
    from dsv4check.installation.fingerprint import Answer

_LONGEST: Final = 100
"""A quoted piece of code is cut after this many characters."""
_BLANK: Final = re.compile(r"\s+")
_UNREADABLE: Final = (LearningError, SyntaxError, ValueError, RecursionError, MemoryError)
"""What reading a file of a fork can raise; UnicodeDecodeError is a ValueError."""


@dataclass(frozen=True, slots=True)
class CodeAnswer:
    """Whether the code shows a fault."""

    verdict: bool | None
    """None where the tree does not tell."""
    evidence: tuple[str, ...] = ()
    """``vllm/config/vllm.py:123 has ...``: what the verdict rests on."""
    why: str = ""
    """Why there is no verdict."""


class TreeCode:
    """The code of one tree, asked by rules."""

    def __init__(self, source: Source, fingerprints: Callable[[Source], Mapping[str, Answer]] | None = None) -> None:
        """``fingerprints`` answers named questions about a tree; by default those of this package."""
        self._source = source
        self._read_fingerprints = fingerprints or _bundled_fingerprints
        self._fingerprints: Mapping[str, Answer] | None = None
        self._stripped: set[str] = set()
        self._texts: dict[Place, str] = {}
        self._answers: dict[Rule, CodeAnswer] = {}

    def answer(self, rule: Rule) -> CodeAnswer:
        """What the tree says about a rule with ``code``; looked at once."""
        if rule not in self._answers:
            self._answers[rule] = self.judge(marks_from_record(rule.code))
        return self._answers[rule]

    def judge(self, mark: AnyMark) -> CodeAnswer:
        """Whether a mark is there."""
        match mark:
            case Group():
                return self._group(mark)
            case FingerprintMark():
                return self._fingerprint(mark)
        try:
            return self._mark(mark)
        except _UNREADABLE as error:
            return CodeAnswer(None, why=f"{mark.places[0]} cannot be read ({_first_line(error)})")

    def _group(self, group: Group) -> CodeAnswer:
        if group.word == "not":
            inner = _settle(map(self.judge, group.marks), False)
            return CodeAnswer(None if inner.verdict is None else not inner.verdict, inner.evidence, inner.why)
        return _settle(map(self.judge, group.marks), group.word == "any")

    def value(self, fingerprint: str) -> str | None:
        """The tree's answer to a named question; None where it does not tell."""
        try:
            answer = self._asked().get(fingerprint)
        except Exception:  # as below
            return None
        return None if answer is None else answer.value

    def _asked(self) -> Mapping[str, Answer]:
        if self._fingerprints is None:
            self._fingerprints = self._read_fingerprints(self._source)
        return self._fingerprints

    def _fingerprint(self, mark: FingerprintMark) -> CodeAnswer:
        try:
            answer = self._asked().get(mark.name)
        except Exception as error:  # a fork's code may be anything; no question about it ends a check
            return CodeAnswer(None, why=f"the fingerprint {mark.name} cannot be read ({_first_line(error)})")
        if answer is None or answer.value is None:
            why = f": {answer.why}" if answer is not None and answer.why else ""
            return CodeAnswer(None, why=f"the tree does not answer the fingerprint {mark.name}{why}")
        value = answer.value
        said = f"{mark.name} is {value}"
        lines = tuple(f"{quote.file}:{quote.line} `{_short(quote.text)}`" for quote in answer.quotes)
        return CodeAnswer(value in mark.values, (": ".join((said, *lines[:1])), *lines[1:]))

    def _mark(self, mark: Mark) -> CodeAnswer:
        place = next((place for place in mark.places if self._there(place)), None)
        if mark.exists is not None:
            what = f"{place} is there" if place is not None else f"{_any_of(mark.places)} is not there"
            return CodeAnswer((place is not None) is mark.exists, (what,))
        if place is None:
            return CodeAnswer(None, why=f"the tree has no {_any_of(mark.places)}")
        text = self._text(place)
        quotes = []
        for piece in mark.has:
            pattern = _piece(piece)
            if pattern.search(text) is None:
                return CodeAnswer(False, (f"{self._at(place)} has no `{_short(piece)}`",))
            quotes.append(f"{self._at(place, pattern)} has `{_short(piece)}`")
        if mark.matches:
            pattern = re.compile(mark.matches)
            found = pattern.search(text)
            if found is None:
                return CodeAnswer(False, (f"{self._at(place)} has nothing like `{_short(mark.matches)}`",))
            quotes.append(f"{self._at(place, pattern)} has `{_short(found[0])}`")
        for piece in mark.lacks:
            pattern = _piece(piece)
            if pattern.search(text) is not None:
                return CodeAnswer(False, (f"{self._at(place, pattern)} has `{_short(piece)}`",))
            quotes.append(f"{self._at(place)} has no `{_short(piece)}`")
        return CodeAnswer(True, tuple(quotes))

    def _there(self, place: Place) -> bool:
        if place.path.endswith("/"):
            return (self._source.package / place.path).is_dir()
        if not self._source.has(place.path):
            return False
        return not place.name or self._source.find(place.path, place.name) is not None

    def _node(self, place: Place) -> ast.AST:
        module = self._source.tree(place.path)
        if place.path not in self._stripped:
            # This reader is the marks' own: nothing else sees its trees without their docstrings.
            _strip_docstrings(module)
            self._stripped.add(place.path)
        return self._source.get(place.path, place.name) if place.name else module

    def _text(self, place: Place) -> str:
        if place not in self._texts:
            self._texts[place] = _flat(self._node(place))
        return self._texts[place]

    def _at(self, place: Place, pattern: re.Pattern[str] | None = None) -> str:
        """File and line of the place, or of the innermost code in it that the pattern is found in."""
        node = self._node(place)
        if pattern is None:
            name = f" ({place.name})" if place.name else ""
            return f"vllm/{place.path}:{getattr(node, 'lineno', 1)}{name}"
        inner: ast.AST | None = node
        while inner is not None:
            node = inner
            inner = next((child for child in _children(node) if pattern.search(_flat(child))), None)
        return f"vllm/{place.path}:{getattr(node, 'lineno', 1)}"


def _settle(answers: Iterable[CodeAnswer], decisive: bool) -> CodeAnswer:
    """The first answer that decides, else the first open one, else all of them together."""
    unknown: CodeAnswer | None = None
    evidence: list[str] = []
    for answer in answers:
        if answer.verdict is decisive:
            return answer
        if answer.verdict is None:
            unknown = unknown or answer
        evidence += answer.evidence
    return unknown or CodeAnswer(not decisive, tuple(dict.fromkeys(evidence)))


def _children(node: ast.AST) -> list[ast.AST]:
    """Statements and expressions right below a node, also those that stand in parts without a line of their own."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        found += [child] if hasattr(child, "lineno") else _children(child)
    return found


def _strip_docstrings(module: ast.Module) -> None:
    for node in ast.walk(module):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            kept = [item for item in node.body if not _is_text(item)]
            node.body = kept or node.body[:1]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _flat(node: ast.AST) -> str:
    """Code in one line, written one way whatever its layout and quotes were."""
    return _BLANK.sub(" ", ast.unparse(node))


@lru_cache(maxsize=1024)
def _piece(text: str) -> re.Pattern[str]:
    """A piece of code as an expression that finds it, whole words only."""
    forms = []
    for form in _written(text.strip()):
        before = r"(?<!\w)" if re.match(r"\w", form) else ""
        behind = r"(?!\w)" if re.search(r"\w\Z", form) else ""
        forms.append(before + re.escape(form) + behind)
    return re.compile("|".join(forms))


def _written(text: str) -> list[str]:
    """The piece as :func:`_flat` writes it; one that is no Python by itself stays as it is.

    ``name=value`` is an assignment or an argument: both are meant.
    """
    expression = _parsed(text, "", "", "eval")
    if expression is not None:
        return [expression]
    forms = [_parsed(text, "f(", ")", "eval"), _parsed(text, "", "", "exec"), _parsed(text, "", " pass", "exec")]
    return [form for form in forms if form is not None] or [_BLANK.sub(" ", text)]


def _parsed(text: str, before: str, behind: str, mode: str) -> str | None:
    try:
        flat = _flat(ast.parse(before + text + behind, mode=mode))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return flat.removeprefix(before).removesuffix(behind)


def _any_of(places: tuple[Place, ...]) -> str:
    return " or ".join(str(place) for place in places)


def _short(text: str) -> str:
    flat = _BLANK.sub(" ", text.strip())
    return flat if len(flat) <= _LONGEST else f"{flat[:_LONGEST]} ..."


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:_LONGEST] or type(error).__name__


def _bundled_fingerprints(source: Source) -> Mapping[str, Answer]:
    # Imported here: most rules are not judged by fingerprints.
    from dsv4check.installation.fingerprint import read_fingerprints

    # A reader of its own: that of the marks has lost its docstrings.
    return read_fingerprints(Source(source.package))
