"""Calls of built-in functions, of methods of strings and tables, and of lambdas."""

from __future__ import annotations

import ast
from typing import Any, Final

from ..classes import imported_as
from ..values import Symbol, Unknown
from .tables import Tabulating
from .things import UNTOLD, Thing

_TEXTS: Final = frozenset({"split", "rsplit", "partition", "rpartition", "isdigit", "join", "format", "replace"})


class Calling(Tabulating):
    """A reading that knows what more of Python's own functions give than the plain one."""

    def _call(self, node: ast.Call) -> Any:
        match node.func:
            case ast.Name(id=name):
                found = self._by_name(name, node)
            case ast.Attribute(attr=method, value=base):
                found = self._by_method(base, method, node)
            case _:
                found = UNTOLD
        return super()._call(node) if found is UNTOLD else found

    # Nothing is settled by a name alone: what these cannot tell is left to the plain reading.

    def _by_name(self, name: str, node: ast.Call) -> Any:
        if name == "isinstance" and len(node.args) == 2:
            thing = self.value(node.args[0])
            if isinstance(thing, (Thing, str, int, tuple, dict)):
                return self._is_a(thing, node.args[1])
        if name == "hasattr" and len(node.args) == 2:
            thing, asked = self.value(node.args[0]), self.value(node.args[1])
            if isinstance(thing, Thing) and asked in thing.attributes:
                return True
        if name == "divmod" and len(node.args) == 2:
            pair = [self.value(item) for item in node.args]
            if all(isinstance(item, int) for item in pair) and pair[1]:
                return divmod(pair[0], pair[1])
        kept = self.known.get(name)
        if isinstance(kept, ast.Lambda):
            return self._lambda_value(kept, node)
        if name == "getattr" and len(node.args) in (2, 3):
            found = self._got(node)
            if found is not UNTOLD:
                return found
        if name in ("any", "all") and len(node.args) == 1:
            items = self.value(node.args[0])
            if isinstance(items, tuple) and not any(isinstance(item, Unknown) for item in items):
                return any(items) if name == "any" else all(items)
        if name in ("frozenset", "set") and len(node.args) == 1:
            return self.value(node.args[0])
        if name == "bool" and len(node.args) == 1:
            met = self._decided(node.args[0])
            return Symbol(ast.unparse(node)) if met is None else met
        if name == "dict":
            made = self._table(node)
            return Symbol(ast.unparse(node)) if made is None else made
        return UNTOLD

    def _by_method(self, base: ast.expr, method: str, node: ast.Call) -> Any:
        if method in _TEXTS:
            made = self._text(method, self.value(base), node)
            if made is not None:
                return made
        if method == "get" and node.args:
            table = self.value(base)
            if isinstance(table, dict):
                default = self.value(node.args[1]) if len(node.args) > 1 else None
                return self._looked_up(table, self.value(node.args[0]), default, node)
        return UNTOLD

    def _text(self, method: str, text: Any, node: ast.Call) -> Any:
        """What a method of a string gives; None where that is not known."""
        values = [self.value(item) for item in node.args]
        if not isinstance(text, str) or node.keywords:
            return None
        parts = values[0] if method == "join" and len(values) == 1 and isinstance(values[0], tuple) else values
        if not all(isinstance(item, str) or (method != "join" and isinstance(item, int)) for item in parts):
            return None
        if method == "format" and "{:" in text:
            return None
        try:
            made = text.join(parts) if method == "join" else getattr(text, method)(*values)
        except (ValueError, TypeError, LookupError, AttributeError):
            return None
        return tuple(made) if isinstance(made, list) else made

    def _lambda(self, node: ast.Lambda) -> Any:
        # Its own value until it is called: only then are its arguments known.
        return node

    def _lambda_value(self, kept: ast.Lambda, node: ast.Call) -> Any:
        before = dict(self.known)
        given = {item.arg: self.value(value) for item, value in zip(kept.args.args, node.args, strict=False)}
        self.known |= given
        value = self.value(kept.body)
        self.known = before
        return value

    def _got(self, node: ast.Call) -> Any:
        base, name = self.value(node.args[0]), self.value(node.args[1])
        if isinstance(base, Thing) and isinstance(name, str):
            return self._of_thing(base, name)
        if isinstance(base, Symbol) and isinstance(name, str) and f"{base.text}.{name}" in self.known:
            return self.known[f"{base.text}.{name}"]
        return UNTOLD

    def _of_thing(self, thing: Thing, name: str) -> Any:
        return thing.attributes.get(name, Symbol(f"{thing.text}.{name}"))

    def _is_a(self, thing: Any, kinds: ast.expr) -> Any:
        items = list(kinds.elts) if isinstance(kinds, ast.Tuple) else [kinds]
        resolved = {imported_as(self.source, self.path, ast.unparse(item).rpartition(".")[2]) for item in items}
        own = thing.kinds if isinstance(thing, Thing) else {item.__name__ for item in type(thing).__mro__}
        return bool(resolved & own)
