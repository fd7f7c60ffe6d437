"""For an error that no rule explains: the rules that look most like it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from math import log
from typing import Final

from dsv4check.engine.rule import Rule
from dsv4check.problems import Stage
from dsv4check.triage.records import ErrorEvent

_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]{3,}")
_COMMON: Final = frozenset(
    [
        "error",
        "errors",
        "failed",
        "with",
        "that",
        "this",
        "from",
        "line",
        "file",
        "must",
        "have",
        "been",
        "should",
        "value",
        "type",
        "none",
    ]
)
_LEAST: Final = 6.0
"""Weight of shared words below which two texts only look alike by chance."""
_SAME_STAGE: Final = 1.25


def nearest_rules(error: ErrorEvent, stage: Stage, rules: Iterable[Rule], most: int = 3) -> tuple[Rule, ...]:
    """Rules that share rare words with an error; those of its stage first among equals."""
    words = {rule: _words(_about(rule)) for rule in rules}
    held = Counter(word for found in words.values() for word in found)
    said = _words(error.said) | _words(" ".join(error.places))
    scored = []
    for rule, found in words.items():
        weight = sum(log(len(words) / held[word]) for word in found & said)
        weight *= _SAME_STAGE if rule.stage is stage else 1.0
        if weight >= _LEAST:
            scored.append((-weight, rule.id, rule))
    return tuple(rule for _weight, _id, rule in sorted(scored, key=lambda item: item[:2])[:most])


def _about(rule: Rule) -> str:
    return " ".join((rule.name, rule.error, *(f"{item.text} {item.frame}" for item in rule.signatures)))


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text[:20_000])} - _COMMON
