"""Tables, sequences and sets: what people put in the place of an ``if``."""

from __future__ import annotations

import ast
from typing import Any

from ..interpret import Made
from ..values import Symbol, Unknown
from .conditions import Deciding
from .things import UNTOLD, Thing


class Tabulating(Deciding):
    """A reading that builds tables and sequences and looks things up in them. Lists and sets are tuples to it."""

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Subscript):
            text = ast.unparse(target.value)
            table, key = self.known.get(text), self.value(target.slice)
            if isinstance(table, dict) and not isinstance(key, (Made, Thing)):
                self.known[text] = table | {key: value}
                return
        super()._assign(target, value)

    def _dict(self, node: ast.Dict) -> Any:
        made: dict[Any, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.value(item)
            if key is None:
                if not isinstance(value, dict):
                    return Symbol(ast.unparse(node))
                made |= value
                continue
            name = self.value(key)
            if isinstance(name, Unknown) and not (isinstance(name, Symbol) and name.constant):
                return Symbol(ast.unparse(node))
            made[name] = value
        return made

    def _generatorexp(self, node: ast.GeneratorExp | ast.ListComp | ast.SetComp) -> Any:
        """All items, where there is one loop over what is known."""
        first = node.generators[0]
        items = self.value(first.iter)
        if len(node.generators) != 1 or not isinstance(items, (tuple, list, range)):
            return Symbol(ast.unparse(node))
        before, found = dict(self.known), []
        for item in items:
            self._assign(first.target, item)
            met = [self._decided(test) for test in first.ifs]
            if None in met:
                self.known = before
                return Symbol(ast.unparse(node))
            if False not in met:
                found.append(self.value(node.elt))
        # The loop's names end with it.
        self.known = before
        return tuple(found)

    _listcomp = _setcomp = _generatorexp

    def _tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Any:
        found: list[Any] = []
        for item in node.elts:
            value = self.value(item.value if isinstance(item, ast.Starred) else item)
            if not isinstance(item, ast.Starred):
                found.append(value)
            elif isinstance(value, (tuple, list)):
                found += value
            else:
                return Symbol(ast.unparse(node))
        return tuple(found)

    _list = _set = _tuple

    def _binop(self, node: ast.BinOp) -> Any:
        if isinstance(node.op, (ast.BitOr, ast.Sub, ast.BitAnd)):
            left, right = self.value(node.left), self.value(node.right)
            if isinstance(left, dict) and isinstance(right, dict) and isinstance(node.op, ast.BitOr):
                return left | right
            if isinstance(left, tuple) and isinstance(right, tuple):
                return _as_sets(node.op, left, right)
        return super()._binop(node)

    def _subscript(self, node: ast.Subscript) -> Any:
        base = self.value(node.value)
        if isinstance(base, dict):
            return self._looked_up(base, self.value(node.slice), UNTOLD, node)
        if isinstance(base, Thing):
            return base.attributes.get(f"[{self.value(node.slice)}]", Symbol(ast.unparse(node)))
        return super()._subscript(node)

    def _looked_up(self, table: dict[Any, Any], key: Any, default: Any, node: ast.expr) -> Any:
        if isinstance(key, Unknown) and not (isinstance(key, Symbol) and key.constant):
            return Symbol(ast.unparse(node))
        answers = {name: self._compared(ast.Eq(), name, key) for name in table}
        found = next((name for name, met in answers.items() if met), UNTOLD)
        if found is not UNTOLD:
            return table[found]
        return Symbol(ast.unparse(node)) if None in answers.values() or default is UNTOLD else default

    def _table(self, call: ast.Call) -> dict[Any, Any] | None:
        """What ``dict(...)`` and ``update(...)`` are given; None where it is not known."""
        made: dict[Any, Any] = {}
        for given in [*call.args, *(item.value for item in call.keywords if item.arg is None)]:
            more = self.value(given)
            if not isinstance(more, dict):
                return None
            made |= more
        return made | {item.arg: self.value(item.value) for item in call.keywords if item.arg}


def _as_sets(how: ast.operator, left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(how, ast.BitOr):
        return (*left, *(item for item in right if item not in left))
    return tuple(item for item in left if (item in right) is isinstance(how, ast.BitAnd))
