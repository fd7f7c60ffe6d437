"""Conditions that may stay open: met, not met, or None for not known."""

from __future__ import annotations

import ast
from typing import Any, Final

from ..interpret import Reading
from ..values import Symbol, Unknown, compared
from .things import Thing, alike

_QUANT_MODES: Final = "KVQuantMode"
"""The one enumeration whose members are looked at as numbers and as conditions."""


class Deciding(Reading):
    """A reading that carries on with a condition it cannot decide."""

    def _decided(self, test: ast.expr) -> bool | None:
        value = self.value(test)
        if isinstance(value, Thing):
            return True
        if isinstance(value, Symbol) and value.constant and value.text.split(".")[-2] == _QUANT_MODES:
            return not value.text.endswith(".NONE")
        return None if isinstance(value, Unknown) else bool(value)

    def truth(self, node: ast.expr) -> bool:
        """Is the condition met? Raises LearningError when that cannot be decided."""
        met = self._decided(node)
        return super().truth(node) if met is None else met

    def _ifexp(self, node: ast.IfExp) -> Any:
        met = self._decided(node.test)
        if met is not None:
            return self.value(node.body if met else node.orelse)
        values = [self.value(node.body), self.value(node.orelse)]
        return values[0] if alike(*values) else Symbol(ast.unparse(node))

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        met = self._decided(node.operand) if isinstance(node.op, ast.Not) else None
        return super()._unaryop(node) if met is None else not met

    def _boolop(self, node: ast.BoolOp) -> Any:
        stops = isinstance(node.op, ast.Or)
        open_ = False
        value: Any = None
        for item in node.values:
            value = self.value(item)
            met = self._decided(item)
            if met is None:
                open_ = True
            elif met is stops:
                # After an open part the value is that of either, but for a condition only the truth counts.
                return value if not open_ else stops
        return Symbol(ast.unparse(node)) if open_ else value

    def _compared(self, how: ast.cmpop, left: Any, right: Any) -> bool | None:
        for one, other in ((left, right), (right, left)):
            # Members of an IntEnum equal numbers, and a table of them may be looked through.
            if isinstance(one, Symbol) and isinstance(other, int) and not isinstance(other, bool):
                return self._numbered(how, one, other)
            if isinstance(one, Thing) and other is None and isinstance(how, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
                return isinstance(how, (ast.IsNot, ast.NotEq))
        return compared(how, left, right)

    def _numbered(self, how: ast.cmpop, member: Symbol, number: int) -> bool | None:
        """The first member, NONE, of the quantisation modes is 0; no other number is known."""
        known = member.constant and member.text.split(".")[-2] == _QUANT_MODES and number == 0
        if not known or not isinstance(how, (ast.Eq, ast.NotEq)):
            return None
        return member.text.endswith(".NONE") is isinstance(how, ast.Eq)
