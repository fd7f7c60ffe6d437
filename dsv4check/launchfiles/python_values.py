"""What expressions of a Python module stand for, as far as literals say it."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from typing import Any, Final

from dsv4check.launchfiles.python_scan import Module, Scope
from dsv4check.records import dataclass

MAX_DEPTH: Final = 40
_CONVERTERS: Final = {"int": int, "str": str, "float": float, "bool": bool}
_GETTERS: Final = frozenset(("os.environ.get", "os.getenv"))
_PER_STEP: Final = 16
"""Characters of text that cost as much as one expression."""


@dataclass(frozen=True, slots=True)
class Known:
    """The value of an expression."""

    value: Any
    """A literal's value; a part that is not known is its source text."""
    open: tuple[str, ...] = ()
    """Source text of the parts that are not known."""
    node: ast.expr | None = None
    """The literal that it comes from."""
    notes: tuple[str, ...] = ()


def value_of(node: ast.expr, scope: Scope, module: Module, depth: int = 0) -> Known:
    """The value of an expression; its source text, marked as open, where it is not known."""
    return _Evaluation(scope, module).value(node, depth)


def elements(node: ast.expr, scope: Scope, module: Module) -> tuple[list[ast.expr], tuple[str, ...]] | None:
    """The items of a list, and notes on what was left out; None where the expression is no list that is known."""
    return _Evaluation(scope, module).elements(node, 0)


def _opens(parts: Sequence[Known]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in parts for name in part.open))


def _notes(parts: Sequence[Known]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for part in parts for note in part.notes))


class _Evaluation:
    def __init__(self, scope: Scope, module: Module) -> None:
        self._scope = scope
        self._module = module

    def value(self, node: ast.expr, depth: int) -> Known:
        module = self._module
        module.budget -= 1
        if depth > MAX_DEPTH or module.budget < 0:
            return self._unknown(node)
        match node:
            case ast.Constant(value=str() as text):
                module.budget -= len(text) // _PER_STEP
                return Known(text, (), node)
            case ast.Constant(value=bool() | None | int() | float() as value):
                return Known(value, (), node)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return Known(-number, (), node)
            case ast.Name(id=name):
                return self._named(node, name, depth)
            case ast.List() | ast.Tuple() | ast.Set():
                return self._list(node, depth)
            case ast.Dict(keys=keys, values=values):
                return self._mapping(node, list(zip(keys, values, strict=True)), depth)
            case ast.Call():
                return self._call(node, depth)
            case ast.Attribute(attr=attribute):
                name = module.full_name(node)
                if name == "sys.executable":
                    return Known("python3", (), node)
                if name.endswith(f"CUDAGraphMode.{attribute}"):
                    return Known(attribute, (), node)
            case ast.JoinedStr(values=values):
                return self._joined(node, values, depth)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                both = [self.value(left, depth + 1), self.value(right, depth + 1)]
                if all(isinstance(item.value, str) for item in both):
                    if not both[0].open and not both[1].open:
                        return Known(both[0].value + both[1].value, (), node, _notes(both))
                elif all(isinstance(item.value, list) for item in both):
                    return self._list(node, depth)
        return self._unknown(node)

    def elements(self, node: ast.expr, depth: int) -> tuple[list[ast.expr], tuple[str, ...]] | None:
        self._module.budget -= 1
        if depth > MAX_DEPTH or self._module.budget < 0:
            return None
        notes: tuple[str, ...] = ()
        found: list[ast.expr] = []
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                for part in parts:
                    inner = self.elements(part.value, depth + 1) if isinstance(part, ast.Starred) else None
                    if inner is not None:
                        found += inner[0]
                        notes += inner[1]
                    else:
                        found.append(part)
                return found, notes
            case ast.Name(id=name):
                owner = self._scope.owner(name)
                assigned = None if owner is None else owner.names[name]
                base = None if assigned is None else self.elements(assigned, depth + 1)
                if base is None or owner is None:
                    return None
                return self._with_additions(base, owner, name, node, depth)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                first, second = self.elements(left, depth + 1), self.elements(right, depth + 1)
                if first is None or second is None:
                    return None
                return [*first[0], *second[0]], (*first[1], *second[1])
            case ast.Call(args=[inside]) if self._module.full_name(node.func) == "list":
                return self.elements(inside, depth + 1)
        return None

    def _with_additions(
        self, base: tuple[list[ast.expr], tuple[str, ...]], owner: Scope, name: str, node: ast.expr, depth: int
    ) -> tuple[list[ast.expr], tuple[str, ...]]:
        """What is put behind a list before it is used."""
        found, notes = list(base[0]), base[1]
        for addition in owner.additions.get(name, ()):
            if addition.value.lineno > node.lineno:
                continue
            inner = self.elements(addition.value, depth + 1) if addition.several else ([addition.value], ())
            if addition.conditional or inner is None:
                line = addition.value.lineno
                notes += (f"line {line}: what is added to {name} there depends on a condition: left out",)
            else:
                found += inner[0]
                notes += inner[1]
        return found, notes

    def _unknown(self, node: ast.expr) -> Known:
        text = self._module.segment(node) if hasattr(node, "lineno") else ""
        return Known(text, (text,))

    def _named(self, node: ast.expr, name: str, depth: int) -> Known:
        owner = self._scope.owner(name)
        assigned = None if owner is None else owner.names[name]
        if assigned is None or owner is None:
            return self._unknown(node)
        if name in owner.additions:
            return self._list(node, depth)
        found = self.value(assigned, depth + 1)
        return self._unknown(node) if found.open and not isinstance(found.value, (dict, list)) else found

    def _list(self, node: ast.expr, depth: int) -> Known:
        parts = self.elements(node, depth + 1)
        if parts is None or any(isinstance(part, ast.Starred) for part in parts[0]):
            return self._unknown(node)
        inner = [self.value(part, depth + 1) for part in parts[0]]
        return Known([item.value for item in inner], _opens(inner), node, (*parts[1], *_notes(inner)))

    def _mapping(self, node: ast.expr, entries: list[tuple[ast.expr | None, ast.expr]], depth: int) -> Known:
        found: dict[str, Any] = {}
        inner: list[Known] = []
        for key, value in entries:
            item = self.value(value, depth + 1)
            if key is None:
                # `**other`
                if not isinstance(item.value, dict):
                    return self._unknown(node)
                found.update(item.value)
            else:
                name = self.value(key, depth + 1)
                if name.open or isinstance(name.value, (list, dict)):
                    return self._unknown(node)
                found[str(name.value)] = item.value
            inner.append(item)
        return Known(found, _opens(inner), node, _notes(inner))

    def _call(self, node: ast.Call, depth: int) -> Known:
        """Calls whose outcome is known: conversions, defaults of the environment, mappings, classes of settings."""
        name = self._module.full_name(node.func)
        last = name.rpartition(".")[2]
        if node.keywords and not node.args and (name == "dict" or (last.endswith("Config") and last[:1].isupper())):
            if all(keyword.arg is not None for keyword in node.keywords):
                entries = [(ast.Constant(keyword.arg), keyword.value) for keyword in node.keywords]
                return self._mapping(node, [*entries], depth)
            return self._unknown(node)
        if node.keywords or not node.args:
            return self._unknown(node)
        if name in _GETTERS and len(node.args) == 2:
            default = self.value(node.args[1], depth + 1)
            if default.open:
                return self._unknown(node)
            note = f"{self._module.segment(node)}: the default {default.value!r} was used"
            return Known(default.value, (), default.node, (*default.notes, note))
        if len(node.args) != 1:
            return self._unknown(node)
        inner = self.value(node.args[0], depth + 1)
        if name in _CONVERTERS and not inner.open:
            try:
                return Known(_CONVERTERS[name](inner.value), (), inner.node, inner.notes)
            except (TypeError, ValueError, OverflowError):
                return self._unknown(node)
        if name == "json.dumps" and isinstance(inner.value, (dict, list)):
            return Known(json.dumps(inner.value), inner.open, inner.node, inner.notes)
        return self._unknown(node)

    def _joined(self, node: ast.expr, values: list[ast.expr], depth: int) -> Known:
        """An f-string; what is not known in it stays as ``{expression}``."""
        texts: list[str] = []
        inner: list[Known] = []
        for part in values:
            if isinstance(part, ast.FormattedValue):
                item = self.value(part.value, depth + 1)
                plain = not item.open and part.format_spec is None and part.conversion == -1
                if plain and isinstance(item.value, (str, int, float)):
                    texts.append(str(item.value))
                    inner.append(item)
                else:
                    expression = "{" + self._module.segment(part.value) + "}"
                    texts.append(expression)
                    inner.append(Known(None, (expression,)))
            elif isinstance(part, ast.Constant):
                texts.append(str(part.value))
        return Known("".join(texts), _opens(inner), node, _notes(inner))
