"""What a small function of a release does for given inputs, worked out on its text: nothing of vLLM is imported.

Only plain code is understood: conditions, assignments, comparisons, strings and numbers. Whatever is not known
stays a :class:`Symbol`; a condition that depends on one cannot be decided, and LearningError says so. The inputs are
given by the text of the expressions that read them::

    Reading(source, path, {"num_heads": 64}).call("pad_heads")
    Reading(source, path, {"self.cache_dtype": "fp8", "platform.get_device_capability()": None}).call("Spec.page_size")
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .classes import Defined, find_class, member, origin, standing
from .source import LearningError, Source
from .values import Raised, Symbol, Unknown, combined, compared


@dataclass(frozen=True)
class Made(Unknown):
    """What calling something unknown gives: a constructor's arguments are worked out when they are asked for."""

    reading: Reading
    node: ast.Call

    def keyword(self, name: str) -> Any:
        """Value of a keyword argument; None when it is not passed."""
        for item in self.node.keywords:
            if item.arg == name:
                return self.reading.value(item.value)
        return None

    def passes(self, name: str) -> bool:
        """True when the call has this keyword argument."""
        return any(item.arg == name for item in self.node.keywords)


class StopReading(Exception):  # noqa: N818 - ends a reading, is no error
    """A function returned or raised: ``outcome`` is what it gives."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome


_PLAIN: Final[Mapping[str, Callable[..., Any]]] = {
    "len": len,
    "min": min,
    "max": max,
    "sorted": sorted,
    "int": int,
    "str": str,
    "tuple": tuple,
    "list": list,
    "set": set,
    "range": range,
}
_TEXT_METHODS: Final = frozenset({"startswith", "endswith", "removeprefix", "removesuffix", "lower", "upper", "strip"})
DEPTH: Final = 12
"""How deep calls may be nested that are followed."""


class Reading:
    """One reading of functions in one file, with the inputs that are known."""

    def __init__(
        self, source: Source, path: str, known: Mapping[str, Any], owner: Defined | None = None, depth: int = 0
    ) -> None:
        self.source = source
        self.path = path
        self.known = dict(known)
        self.owner = owner
        self._where = path
        self._depth = depth

    def call(self, name: str) -> Any:
        """What the function ``name`` returns, or :class:`Raised`. Its parameters are among the known inputs."""
        node = self.source.get(self.path, name)
        if not isinstance(node, ast.FunctionDef):
            raise LearningError(f"{self.path} {name} is no function any more")
        if self.owner is None and "." in name:
            self.owner = find_class(self.source, self.path, name.rpartition(".")[0])
        return self.run(node)

    def run(self, node: ast.FunctionDef, body: Iterable[ast.stmt] | None = None) -> Any:
        """Outcome of a function, or of some of its statements (None when they neither return nor raise)."""
        self._where = f"{self.path} {node.name}"
        self._defaults(node)
        try:
            self._block(node.body if body is None else body)
        except StopReading as stop:
            return stop.outcome
        return None

    def settle(self, node: ast.FunctionDef, target: str) -> Any:
        """Value that ``target`` (``self.block_size``) has at the end, or :class:`Raised`.

        Only the statements of the function's body that assign it are followed. Raises LearningError when none does.
        """
        body = [statement for statement in node.body if _assigns(statement, target)]
        if not body:
            raise LearningError(f"{self.path} {node.name} does not assign {target}")
        outcome = self.run(node, body)
        return outcome if isinstance(outcome, Raised) else self.known.get(target)

    def value(self, node: ast.expr) -> Any:
        """Value of an expression, a :class:`Symbol` when it is not known."""
        text = ast.unparse(node)
        if text in self.known:
            return self.known[text]
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        return Symbol(text) if method is None else method(node)

    def truth(self, node: ast.expr) -> bool:
        """Is the condition met? Raises LearningError when that cannot be decided."""
        value = self.value(node)
        if isinstance(value, Unknown):
            raise LearningError(f"{self._where}: cannot decide {ast.unparse(node)!r}")
        return bool(value)

    def _defaults(self, node: ast.FunctionDef) -> None:
        plain = [*node.args.posonlyargs, *node.args.args]
        pairs: list[tuple[ast.arg, ast.expr | None]] = list(
            zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        )
        pairs += list(zip(reversed(plain), reversed(node.args.defaults), strict=False))
        for argument, default in pairs:
            if argument.arg not in self.known and default is not None:
                self.known[argument.arg] = self.value(default)

    # Statements

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Return():
                raise StopReading(None if node.value is None else self.value(node.value))
            case ast.Raise():
                raise StopReading(self._raised(node))
            case ast.Assert():
                if not self.truth(node.test):
                    raise StopReading(Raised("AssertionError", "" if node.msg is None else self._message(node.msg)))
            case ast.If():
                self._block(node.body if self.truth(node.test) else node.orelse)
            case ast.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self._assign(target, value)
            case ast.AnnAssign(value=ast.expr() as given):
                self._assign(node.target, self.value(given))
            case ast.For():
                self._loop(node)
            case ast.Try() | ast.With():
                self._block(node.body)
            case ast.AugAssign():
                self._assign(node.target, self.value(ast.BinOp(node.target, node.op, node.value)))
            case ast.While() | ast.Match() | ast.Delete():
                raise LearningError(f"{self._where}: a {type(node).__name__.lower()} statement is not understood")
            case _:  # calls, imports, docstrings, nested functions: nothing that decides a value
                return

    def _loop(self, node: ast.For) -> None:
        items = self.value(node.iter)
        if not isinstance(items, (tuple, list, range)):
            raise LearningError(f"{self._where}: cannot follow the loop over {ast.unparse(node.iter)!r}")
        for item in items:
            self._assign(node.target, item)
            self._block(node.body)
        self._block(node.orelse)

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            known = isinstance(value, (tuple, list)) and len(value) == len(target.elts)
            for index, item in enumerate(target.elts):
                self._assign(item, value[index] if known else Symbol(ast.unparse(item)))
            return
        self.known[ast.unparse(target)] = value

    def _raised(self, node: ast.Raise) -> Raised:
        if isinstance(node.exc, ast.Call):
            message = self._message(node.exc.args[0]) if node.exc.args else ""
            return Raised(ast.unparse(node.exc.func), message)
        return Raised("" if node.exc is None else ast.unparse(node.exc), "")

    def _message(self, node: ast.expr) -> str:
        value = self.value(node)
        return value.text if isinstance(value, Symbol) else str(value)

    # Expressions

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        found = standing(self.source, self.path, node.id)
        if found is None:
            path = origin(self.source, self.path, node.id)
            found = None if path is None else standing(self.source, path, node.id)
        if isinstance(found, (ast.Assign, ast.AnnAssign)) and found.value is not None:
            try:
                return ast.literal_eval(found.value)
            except ValueError:
                return Symbol(node.id)
        return Symbol(node.id)

    def _attribute(self, node: ast.Attribute) -> Any:
        base = self.value(node.value)
        if isinstance(base, Symbol):
            if base.text in ("self", "cls"):
                return self._member(node)
            text = f"{base.text}.{node.attr}"
            if text in self.known:
                return self.known[text]
            if node.attr == "name" and base.constant:
                return base.label or base.text.rpartition(".")[2]
            return Symbol(text)
        if not isinstance(base, Made) and hasattr(base, node.attr):
            return getattr(base, node.attr)
        return Symbol(ast.unparse(node))

    def _member(self, node: ast.Attribute) -> Any:
        found = None if self.owner is None else member(self.source, self.owner, node.attr)
        if found is not None and isinstance(found[1], (ast.Assign, ast.AnnAssign)) and found[1].value is not None:
            return Reading(self.source, found[0].path, {}, self.owner, self._depth + 1).value(found[1].value)
        return Symbol(ast.unparse(node))

    def _joinedstr(self, node: ast.JoinedStr) -> str:
        parts = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.value(part.value)
                parts.append(f"{{{value.text}}}" if isinstance(value, Symbol) else str(value))
            elif isinstance(part, ast.Constant):
                parts.append(str(part.value))
        return "".join(parts)

    def _tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Any:
        return tuple(self.value(item) for item in node.elts)

    _list = _set = _tuple

    def _subscript(self, node: ast.Subscript) -> Any:
        base, index = self.value(node.value), self.value(node.slice)
        known = isinstance(base, (tuple, list)) and isinstance(index, int) and -len(base) <= index < len(base)
        return base[index] if known else Symbol(ast.unparse(node))

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self.truth(node.test) else node.orelse)

    def _boolop(self, node: ast.BoolOp) -> Any:
        stops = isinstance(node.op, ast.Or)
        unknown: Symbol | None = None
        value: Any = None
        for item in node.values:
            value = self.value(item)
            if isinstance(value, Unknown):
                unknown = Symbol(ast.unparse(node))
            elif bool(value) is stops:
                return value
        return unknown or value

    def _namedexpr(self, node: ast.NamedExpr) -> Any:
        value = self.value(node.value)
        self._assign(node.target, value)
        return value

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(value, Unknown):
            return Symbol(ast.unparse(node))
        return not value if isinstance(node.op, ast.Not) else -value

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        value = combined(node.op, left, right)
        return Symbol(ast.unparse(node)) if value is None else value

    def _compare(self, node: ast.Compare) -> Any:
        left = self.value(node.left)
        for how, item in zip(node.ops, node.comparators, strict=True):
            right = self.value(item)
            met = self._compared(how, left, right)
            if met is None:
                return Symbol(ast.unparse(node))
            if not met:
                return False
            left = right
        return True

    def _compared(self, how: ast.cmpop, left: Any, right: Any) -> bool | None:
        return compared(how, left, right)

    def _call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute):
            base = self.value(node.func.value)
            if isinstance(base, str) and node.func.attr in _TEXT_METHODS:
                return getattr(base, node.func.attr)(*(self.value(item) for item in node.args))
            if isinstance(base, Symbol) and base.text in ("self", "cls", "super()"):
                found = None if self.owner is None else member(self.source, self.owner, node.func.attr)
                if found is not None and isinstance(found[1], ast.FunctionDef) and base.text != "super()":
                    return self._inner(node, found[1], found[0].path, 0 if _static(found[1]) else 1)
            return Made(self, node)
        if isinstance(node.func, ast.Name):
            function = self._function(node.func.id)
            if function is not None:
                return self._inner(node, function[1], function[0], 0)
            values = [self.value(item) for item in node.args]
            if node.func.id in _PLAIN and not any(isinstance(item, Unknown) for item in values):
                return _PLAIN[node.func.id](*values)
        return Made(self, node)

    def _function(self, name: str) -> tuple[str, ast.FunctionDef] | None:
        """A function by the name that the file knows it by, with the file it stands in."""
        for path in (self.path, origin(self.source, self.path, name)):
            inner = None if path is None else standing(self.source, path, name)
            if path is not None and isinstance(inner, ast.FunctionDef):
                return path, inner
        return None

    def _inner(self, node: ast.Call, function: ast.FunctionDef, path: str, skipped: int) -> Any:
        if self._depth > DEPTH:
            raise LearningError(f"{self._where}: {function.name} is nested too deeply")
        names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)][skipped:]
        known = self._everywhere()
        known |= {name: self.value(item) for name, item in zip(names, node.args, strict=False)}
        known |= {item.arg: self.value(item.value) for item in node.keywords if item.arg}
        owner = self.owner if skipped else None
        outcome = Reading(self.source, path, known, owner, self._depth + 1).run(function)
        if isinstance(outcome, Raised):
            raise StopReading(outcome)
        return outcome

    def _everywhere(self) -> dict[str, Any]:
        # What was given by expression text ("self.x", "platform.f()") holds inside as well, plain names do not.
        return {text: value for text, value in self.known.items() if not text.isidentifier()}


def _static(node: ast.FunctionDef) -> bool:
    return any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in node.decorator_list)


def _assigns(statement: ast.stmt, target: str) -> bool:
    for node in ast.walk(statement):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            targets = [node.target]
        if any(ast.unparse(item) == target for item in targets):
            return True
    return False
