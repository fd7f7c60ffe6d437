"""Names, attributes and functions: what they mean where they stand, followed into other files."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..classes import Defined, imported_as, standing
from ..interpret import DEPTH, Made, StopReading
from ..source import LearningError, Source, names
from ..values import Raised, Symbol
from .branches import Branching
from .things import Thing, keywords

_TABLES: Final = (ast.Dict, ast.Attribute, ast.Tuple, ast.List, ast.Call, ast.BinOp, ast.Set)
"""Values of a module's constants that are worked out when they are asked for."""


class Following(Branching):
    """One reading; ``seen`` is told of each call that is reached, with its reading, and may give its value."""

    awaited = frozenset[str]()
    """Calls that ``seen`` has to be told of: a function with one of them must be followed to its end."""

    def __init__(
        self,
        source: Source,
        path: str,
        known: Mapping[str, Any],
        owner: Defined | None = None,
        depth: int = 0,
        seen: Callable[[Following, ast.Call], Any] | None = None,
    ) -> None:
        super().__init__(source, path, known, owner, depth)
        self._seen = seen
        self._local: dict[str, ast.FunctionDef] = {}

    def _name(self, node: ast.Name) -> Any:
        value = super()._name(node)
        if not isinstance(value, Symbol) or node.id in self._local:
            return value
        found = standing(self.source, self.path, node.id)
        if isinstance(found, (ast.Assign, ast.AnnAssign)) and isinstance(found.value, _TABLES):
            # Read apart: a constant of the module sees no names of the function.
            return type(self)(self.source, self.path, self._everywhere()).value(found.value)
        return Symbol(imported_as(self.source, self.path, node.id)) if found is None else value

    def _attribute(self, node: ast.Attribute) -> Any:
        base = self.value(node.value)
        if isinstance(base, Thing):
            return self._of_thing(base, node.attr)
        if isinstance(base, Made):
            given = {item.arg for item in base.node.keywords}
            return keywords(base).get(node.attr, Symbol(ast.unparse(node))) if given else Symbol(ast.unparse(node))
        return super()._attribute(node)

    def _call(self, node: ast.Call) -> Any:
        told = None if self._seen is None else self._seen(self, node)
        return super()._call(node) if told is None else told

    def _function(self, name: str) -> tuple[str, ast.FunctionDef] | None:
        return (self.path, self._local[name]) if name in self._local else super()._function(name)

    def _inner(self, node: ast.Call, function: ast.FunctionDef, path: str, skipped: int) -> Any:
        local = self._local.get(function.name) is function
        arguments = self._arguments(node, function, skipped)
        # A function that stands in this one sees its names; elsewhere only what is given by expression text holds.
        known = dict(self.known) if local else self._everywhere()
        if self._depth > DEPTH:
            raise LearningError(f"{self._where}: {function.name} is nested too deeply")
        owner = self.owner if skipped else None
        reading = type(self)(self.source, path, known | arguments, owner, self._depth + 1, self._seen)
        reading._local = dict(self._local) if local else {}
        try:
            outcome = reading.run(function)
        except LearningError:
            if not self.guards_pass or self.awaited & names(function):
                raise
            return Made(self, node)
        if isinstance(outcome, Raised):
            raise StopReading(outcome)
        return outcome

    def _arguments(self, node: ast.Call, function: ast.FunctionDef, skipped: int) -> dict[str, Any]:
        plain = [item.arg for item in (*function.args.posonlyargs, *function.args.args)][skipped:]
        given = {name: self.value(item) for name, item in zip(plain, node.args, strict=False)}
        for item in node.keywords:
            value = self.value(item.value)
            if item.arg:
                given[item.arg] = value
            elif isinstance(value, dict):
                given |= {str(key): inner for key, inner in value.items()}
        return given
