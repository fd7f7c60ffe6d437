"""Which rules know the text of an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from dsv4check.engine.literal import required_literal
from dsv4check.engine.rule import Rule
from dsv4check.engine.signature import Signature, compiled
from dsv4check.records import dataclass
from dsv4check.triage.records import ErrorEvent, LogLine, Run

_NO_LITERAL: Final = re.compile(
    r"\(\?(?:[aiLmsux-]+\)|P?<\w+>|<?[:=!])|\\[A-Za-z]|\[[^\]]*\]|\{\d+,?\d*\}|[\\.*+?^$|()]"
)
"""What does not stand for itself in a regular expression."""
_MAX_SAID: Final = 20_000
"""Characters of one error that are searched."""


@dataclass(frozen=True, slots=True)
class TextMatch:
    """A rule whose text was found: by a signature, or (None) by what the checker quotes."""

    rule: Rule
    signature: Signature | None
    line: LogLine
    """Where in the log."""
    specificity: int
    """Letters of the log that the signature asks for: the more, the less it may be a coincidence."""
    frames_below: int | None = None
    """Frames of the traceback below the one that the signature asks for; None when it asks for none."""


def rules_for_event(event: ErrorEvent, rules: Iterable[Rule]) -> list[TextMatch]:
    """The rules with a signature in an error, each once with its most specific one; most specific first."""
    said, places = event.said[:_MAX_SAID], event.places
    return _best(
        TextMatch(rule, signature, event.line, specificity(signature, said), _below(signature, places))
        for rule in rules
        for signature in rule.signatures
        if signature.matches(said, places)
    )


def rules_for_lines(run: Run, rules: Iterable[Rule]) -> list[TextMatch]:
    """The rules with a signature in one of the kept lines; most specific first."""
    found = []
    lines = [(line, line.text[:_MAX_SAID]) for line in run.lines if line.level not in _SAYING_NOTHING]
    everything = "\n".join(text for _line, text in lines)
    patterns = [
        (rule, item)
        for rule in rules
        for item in rule.signatures
        if item.text and not item.frame and required_literal(item.text) in everything
    ]
    for line, text in lines:
        found += [
            TextMatch(rule, item, line, specificity(item, text)) for rule, item in patterns if item.matches_text(text)
        ]
    return _best(found)


_SAYING_NOTHING: Final = frozenset({"DEBUG"})


def specificity(signature: Signature, said: str) -> int:
    """Letters that a signature asks for and finds: of several alternatives only the one that is there counts."""
    found = compiled(signature.text).search(said) if signature.text else None
    return min(len(_NO_LITERAL.sub("", signature.text)), len(found.group()) if found is not None else 0)


def _below(signature: Signature, places: Sequence[str]) -> int | None:
    if not signature.frame:
        return None
    pattern = compiled(signature.frame)
    return next((below for below, place in enumerate(reversed(places)) if pattern.search(place)), None)


def _best(found: Iterable[TextMatch]) -> list[TextMatch]:
    best: dict[str, TextMatch] = {}
    for item in found:
        known = best.get(item.rule.id)
        if known is None or _order(item) < _order(known):
            best[item.rule.id] = item
    return sorted(best.values(), key=lambda item: (*_order(item), item.rule.id))


def _order(item: TextMatch) -> tuple[bool, int]:
    """A text at its place in the traceback first, then the longest."""
    return item.frames_below is None, -item.specificity
