"""Three-valued evaluation of a rule's ``when``: yes, no, or not known and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from dsv4check.engine.fields import Unknown

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

Verdict = bool | Unknown


class Values(Protocol):
    """Where conditions get their values from: ``engine/fields.py``, or what a log states."""

    def get(self, name: str) -> Any:
        """The value, None when it is known to be absent, or :class:`Unknown`."""

    def given(self, name: str) -> Verdict:
        """True when it was given at all."""


@lru_cache(maxsize=512)
def specifier(text: str) -> SpecifierSet:
    """A PEP 440 specifier set, parsed once."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(text)


@lru_cache(maxsize=4096)
def version_in(version: str, spec: str) -> bool:
    """True when ``version`` satisfies ``spec``; pre-releases count like any version, junk never does."""
    from packaging.version import InvalidVersion, Version

    try:
        return specifier(spec).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


@lru_cache(maxsize=512)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def evaluate(when: Mapping[str, Any], fields: Values) -> Verdict:
    """True when all conditions hold, False as soon as one does not, else the first Unknown met."""
    return _settle((_condition(name, condition, fields) for name, condition in when.items()), False)


def _condition(name: str, condition: Any, fields: Values) -> Verdict:
    if name in {"any", "all"}:
        return _settle((evaluate(branch, fields) for branch in condition), name == "any")
    if name == "not":
        inner = evaluate(condition, fields)
        return inner if isinstance(inner, Unknown) else not inner
    return _test(name, condition, fields)


def _settle(verdicts: Iterable[Verdict], decisive: bool) -> Verdict:
    """``decisive`` as soon as one verdict is that, else the first Unknown met, else the opposite."""
    unknown: Unknown | None = None
    for verdict in verdicts:
        if verdict is decisive:
            return decisive
        if isinstance(verdict, Unknown):
            unknown = unknown or verdict
    return unknown if unknown is not None else not decisive


def _test(name: str, condition: Any, fields: Values) -> Verdict:
    operators = condition if isinstance(condition, Mapping) else None
    if operators is not None and set(operators) == {"given"}:
        given = fields.given(name)
        return given if isinstance(given, Unknown) else given is bool(operators["given"])
    value = fields.get(name)
    if isinstance(value, Unknown):
        return value
    if operators is None:
        return _equal(value, condition) if not isinstance(condition, list) else _one_of(value, condition)
    for operator, operand in operators.items():
        if operator == "given":
            given = fields.given(name)
            if given is not bool(operand):
                return given if isinstance(given, Unknown) else False
            continue
        if isinstance(operand, Mapping) and "field" in operand:
            operand = fields.get(operand["field"])
            if isinstance(operand, Unknown):
                return operand
        if not _OPERATORS[operator](value, operand):
            return False
    return True


def _equal(value: Any, operand: Any) -> bool:
    if isinstance(operand, bool) or isinstance(value, bool):
        return bool(value is operand)
    if isinstance(value, str) and isinstance(operand, str):
        return value == operand
    return bool(value == operand)


def _one_of(value: Any, options: Any) -> bool:
    return isinstance(options, (list, tuple, set, frozenset)) and any(_equal(value, option) for option in options)


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _compare(test: Callable[[float, float], bool]) -> Callable[[Any, Any], bool]:
    def run(value: Any, operand: Any) -> bool:
        left, right = _number(value), _number(operand)
        return left is not None and right is not None and test(left, right)

    return run


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _contains(value: Any, operand: Any) -> bool:
    if isinstance(value, str):
        return isinstance(operand, str) and operand in value
    return isinstance(value, (list, tuple, set, Mapping)) and operand in value


def _matches(value: Any, operand: Any) -> bool:
    text = _text(value)
    return text is not None and _pattern(operand).search(text) is not None


_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "eq": _equal,
    "ne": lambda value, operand: not _equal(value, operand),
    "in": _one_of,
    "not_in": lambda value, operand: not _one_of(value, operand),
    "lt": _compare(lambda a, b: a < b),
    "le": _compare(lambda a, b: a <= b),
    "gt": _compare(lambda a, b: a > b),
    "ge": _compare(lambda a, b: a >= b),
    "multiple_of": _compare(lambda a, b: b != 0 and a % b == 0),
    "not_multiple_of": _compare(lambda a, b: b != 0 and a % b != 0),
    "matches": _matches,
    "contains": _contains,
    "version": lambda value, operand: isinstance(value, str) and version_in(value, operand),
}

OPERATORS: Final = frozenset(_OPERATORS) | {"given"}
"""Operator names a rule may use."""
