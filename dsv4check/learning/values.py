"""Values of the small interpreter: what is known, what is only named, and how they compare."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


class Unknown:
    """Base of the values that no condition can be decided with."""


@dataclass(frozen=True)
class Symbol(Unknown):
    """A value that is only known by the expression that names it (``torch.uint8``)."""

    text: str
    label: str | None = field(default=None, compare=False)
    """What ``.name`` of it gives, for enum members; else the last part of the text."""

    @property
    def constant(self) -> bool:
        """A member of a class (``Enum.MEMBER``): different text means different value."""
        owner, _, name = self.text.rpartition(".")
        return bool(name) and owner.rpartition(".")[2][:1].isupper()


@dataclass(frozen=True)
class Raised:
    """The outcome of a function that raises."""

    exception: str
    message: str


_COMPARE: Final[Mapping[type, Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_BINARY: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def compared(how: ast.cmpop, left: Any, right: Any) -> bool | None:
    """The comparison, None when it cannot be decided."""
    if isinstance(how, (ast.Eq, ast.Is)):
        return _same(left, right)
    if isinstance(how, (ast.NotEq, ast.IsNot)):
        same = _same(left, right)
        return None if same is None else not same
    if isinstance(how, (ast.In, ast.NotIn)):
        if isinstance(left, str) and isinstance(right, str):
            found: bool | None = left in right
        elif isinstance(right, (tuple, list, set, frozenset, dict, range)):
            answers = [_same(left, item) for item in right]
            found = True if True in answers else None if None in answers else False
        else:
            return None
        return found if isinstance(how, ast.In) or found is None else not found
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return None
    try:
        return _COMPARE[type(how)](left, right)
    except TypeError:
        return None


def _same(left: Any, right: Any) -> bool | None:
    symbols = [item for item in (left, right) if isinstance(item, Unknown)]
    if not symbols:
        return bool(left == right)
    if len(symbols) == 2 and isinstance(left, Symbol) and left == right:
        return True
    return False if all(isinstance(item, Symbol) and item.constant for item in symbols) else None


def combined(how: ast.operator, left: Any, right: Any) -> Any:
    """``left how right``; None when it is not known."""
    function = _BINARY.get(type(how))
    if function is None or isinstance(left, Unknown) or isinstance(right, Unknown):
        return None
    try:
        return function(left, right)
    except (TypeError, ZeroDivisionError):
        return None
