"""Comments that speak to the gate: ``# dsv4check: ignore[KV001] reason``, ``skip reason``, ``vllm=0.25.1 gpus=8``.

A comment behind something covers its own line. One that stands alone covers the next line that is neither blank nor a
comment. Facts and ``skip`` in the first block of comments of a file hold for the whole file.
"""

from __future__ import annotations

import io
import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from dsv4check.gate.own_rules import DIRECTIVE_NOT_UNDERSTOOD, IGNORE_WITHOUT_REASON
from dsv4check.gate.records import Region
from dsv4check.launchfiles.records import Stated
from dsv4check.launchfiles.text import SourceText, Span
from dsv4check.records import dataclass

MARK: Final = "dsv4check:"
FACT_KEYS: Final = ("vllm", "gpu", "gpus", "nodes", "gpu-memory-gib", "model", "model-config")
"""Facts that a comment can state."""

_BEGIN: Final = re.compile(r"(?<![^\s#])#[ \t]*dsv4check:")
_IGNORE: Final = re.compile(r"ignore[ \t]*\[(?P<rules>[^\[\]]*)\](?P<rest>.*)")
_SKIP: Final = re.compile(r"skip(?![\w=\[-])(?P<rest>.*)")
_FACT: Final = re.compile(r"(?P<key>[A-Za-z][\w-]*)=(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"']*)(?=\s|$)")
_RULE: Final = re.compile(r"[A-Za-z0-9][\w-]*")
_COUNT: Final = re.compile(r"[1-9][0-9]{0,5}")
_SIZE: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
# What a file may begin with before its first comment.
_PREAMBLE: Final = re.compile(r"#!|---\s*$|%YAML\b")


@dataclass(frozen=True, slots=True)
class Ignore:
    """``ignore[KV001,ME003] reason``."""

    region: Region
    """The comment."""
    covers: int
    """Line that it covers; 0 where none follows."""
    rules: tuple[str, ...]
    """Ids or names, as they are written; none twice."""
    reason: str
    """Empty where none is given: then it has no effect."""


@dataclass(frozen=True, slots=True)
class StatedFacts:
    """``vllm=0.25.1 gpus=8``, or ``skip reason``."""

    region: Region
    covers: int
    """Line that it covers; 0 where none follows."""
    whole_file: bool
    """True in the first block of comments: every launch of the file."""
    facts: Mapping[str, Stated]
    """By key (``vllm``, ``gpu``, ``gpus``, ``nodes``, ``gpu-memory-gib``, ``model``, ``model-config``)."""
    skip: str = ""
    """Why the launch is not checked; empty for a comment that states facts."""


@dataclass(frozen=True, slots=True)
class BadDirective:
    """A comment that has no effect."""

    region: Region
    rule: str
    """The rule of the gate that reports it."""
    why: str


@dataclass(frozen=True, slots=True)
class Directives:
    """All comments of a file that speak to the gate."""

    ignores: tuple[Ignore, ...] = ()
    facts: tuple[StatedFacts, ...] = ()
    bad: tuple[BadDirective, ...] = ()


def parse_directives(source: SourceText) -> Directives:
    """The comments of a file that speak to the gate. Never fails."""
    if MARK not in source.text:
        return Directives()
    ignores: list[Ignore] = []
    facts: list[StatedFacts] = []
    bad: list[BadDirective] = []
    lines = _Lines(source.text)
    begins = list(_BEGIN.finditer(source.text))
    if source.path.endswith(".py"):
        comments = _python_comments(source.text)
        begins = [begin for begin in begins if comments is None or source.place(begin.start())[0] in comments]
    for index, begin in enumerate(begins):
        line, column = source.place(begin.start())
        end = lines.end(line)
        if index + 1 < len(begins):
            end = min(end, begins[index + 1].start())
        body = source.text[begin.end() : end]
        text = body.strip()
        token = source.text[begin.start() : end].rstrip()
        region = Region(line, column, line, column + len(token), token)
        start = begin.end() + len(body) - len(body.lstrip())
        item = _directive(text, start, region, lines.covered(line), lines.is_header(line))
        if isinstance(item, Ignore):
            ignores.append(item)
        elif isinstance(item, StatedFacts):
            facts.append(item)
        else:
            bad.append(item)
    return Directives(tuple(ignores), tuple(facts), tuple(bad))


def _python_comments(text: str) -> frozenset[int] | None:
    """Lines with a comment; elsewhere a hash stands in a string. None for text that is no Python."""
    import tokenize

    try:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return frozenset(token.start[0] for token in tokens if token.type == tokenize.COMMENT)
    except (tokenize.TokenError, SyntaxError, RecursionError):
        return None


def parse_ignores(source: SourceText) -> list[Ignore]:
    """The ignores of a file."""
    return list(parse_directives(source).ignores)


def parse_facts(source: SourceText) -> list[StatedFacts]:
    """The facts, and the skips, that a file's comments state."""
    return list(parse_directives(source).facts)


def _directive(text: str, start: int, region: Region, covers: int, header: bool) -> Ignore | StatedFacts | BadDirective:
    """What one comment says; ``start`` is the offset of its text behind the mark."""
    ignore = _IGNORE.fullmatch(text)
    if ignore is not None:
        rules = tuple(dict.fromkeys(part.strip() for part in ignore["rules"].split(",")))
        wrong = next((rule for rule in rules if not _RULE.fullmatch(rule)), None)
        if wrong is not None:
            what = f"{wrong!r} is no rule" if wrong else "a rule is missing between the brackets"
            return BadDirective(region, DIRECTIVE_NOT_UNDERSTOOD, f"{what}; expected ignore[KV001] reason")
        return Ignore(region, covers, rules, _reason(ignore["rest"]))
    skip = _SKIP.fullmatch(text)
    if skip is not None:
        reason = _reason(skip["rest"])
        if not reason:
            return BadDirective(region, IGNORE_WITHOUT_REASON, "skip without a reason; expected skip REASON")
        return StatedFacts(region, covers, header, {}, reason)
    facts = _facts(text, start)
    if isinstance(facts, str):
        return BadDirective(region, DIRECTIVE_NOT_UNDERSTOOD, facts)
    return StatedFacts(region, covers, header, facts)


def _facts(text: str, start: int) -> dict[str, Stated] | str:
    """Facts by key, or what is wrong with them."""
    facts: dict[str, Stated] = {}
    at = 0
    # Behind the facts there may be a comment of another kind.
    while at < len(text) and text[at] != "#":
        found = _FACT.match(text, at)
        if found is None:
            word = text[at:].split()[0]
            shown = word if len(word) <= 40 else f"{word[:40]}..."
            return f"{shown!r} is not understood; expected ignore[RULE] reason, skip reason, or KEY=VALUE"
        key, value = found["key"], found["value"]
        begin, stop = found.span("value")
        if value[:1] in ("'", '"'):
            value, begin, stop = value[1:-1], begin + 1, stop - 1
        wrong = _wrong(key, value) or (f"{key} is stated twice" if key in facts else "")
        if wrong:
            return wrong
        facts[key] = Stated(value, Span(start + begin, start + stop))
        at = found.end()
        while at < len(text) and text[at].isspace():
            at += 1
    return facts or "nothing follows; expected ignore[RULE] reason, skip reason, or KEY=VALUE"


def _wrong(key: str, value: str) -> str:
    if key not in FACT_KEYS:
        from difflib import get_close_matches

        close = get_close_matches(key, FACT_KEYS, n=1, cutoff=0.5)
        return f"unknown fact {key!r}; " + (
            f"did you mean {close[0]!r}?" if close else f"known: {', '.join(FACT_KEYS)}"
        )
    if not value.strip():
        return f"{key}: the value is empty"
    if key in ("gpus", "nodes") and not _COUNT.fullmatch(value):
        return f"{key}: expected a number from 1, found {value!r}"
    if key == "gpu-memory-gib" and not (_SIZE.fullmatch(value) and float(value) > 0):
        return f"{key}: expected a number of GiB, found {value!r}"
    return ""


def _reason(text: str) -> str:
    """A reason without the punctuation that people put in front of it; blank or without a word: empty."""
    reason = text.strip().lstrip(":-–—# \t").strip()
    return reason if any(char.isalnum() for char in reason) else ""


class _Lines:
    """The lines of a file as comments see them."""

    __slots__ = ("_content", "_ends", "_header")

    def __init__(self, text: str) -> None:
        self._ends: list[int] = []
        self._content: list[int] = []
        """Lines that are neither blank nor a comment."""
        first = last = stop = at = 0
        for number, line in enumerate(text.split("\n"), 1):
            at += len(line)
            self._ends.append(at - line.endswith("\r"))
            at += 1
            bare = line.strip()
            comment = bare.startswith("#")
            if bare and not comment:
                self._content.append(number)
            if stop or (not first and (not bare or _PREAMBLE.match(bare))):
                continue
            if comment:
                first, last = first or number, number
            else:
                stop = number
        self._header = range(first, last + 1) if first else range(0)

    def end(self, line: int) -> int:
        """Offset of a line's end."""
        return self._ends[line - 1]

    def covered(self, line: int) -> int:
        """The line that a comment on this line covers; 0 for none."""
        index = bisect_left(self._content, line)
        return self._content[index] if index < len(self._content) else 0

    def is_header(self, line: int) -> bool:
        """True for a line of the first block of comments."""
        return line in self._header
