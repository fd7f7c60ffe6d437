"""Values of which a following reading knows a part, and whether two of them are the same."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..interpret import Made
from ..source import LearningError
from ..values import Unknown

UNTOLD: Final = object()
"""Stands for "there is no such value" where None may be one."""


@dataclass(frozen=True)
class Thing(Unknown):
    """An object of which some attributes are known, and the classes it is an instance of."""

    text: str
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    kinds: frozenset[str] = frozenset()


def keywords(made: Made) -> dict[str, Any]:
    """Every keyword argument of a call with its value, also those given by a table, or to what ``replace`` copies.

    Raises LearningError where a table is not known.
    """
    found: dict[str, Any] = {}
    reading, node = made.reading, made.node
    if ast.unparse(node.func).rpartition(".")[2] in ("replace", "replace_as") and node.args:
        base = reading.value(node.args[0])
        if isinstance(base, Made):
            found = keywords(base)
    for item in node.keywords:
        value = reading.value(item.value)
        if item.arg is not None:
            found[item.arg] = value
        elif isinstance(value, dict):
            found |= {str(key): inner for key, inner in value.items()}
        else:
            raise LearningError(f"{reading.path}: what {ast.unparse(item.value)!r} holds is not known")
    return found


def alike(left: Any, right: Any) -> bool:
    """Do two ways leave the same value? What is not known is the same where the same expression named it."""
    if isinstance(left, Made) and isinstance(right, Made):
        return left.node is right.node
    return type(left) is type(right) and bool(left == right)
