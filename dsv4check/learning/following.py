"""A reading that follows code it cannot decide in full: for functions that anybody may have rewritten.

:class:`~.interpret.Reading` stops at the first condition that is not known. Here both ways are taken, and what they do
not agree on is not known afterwards. Statements and expressions that people put in the place of an ``if`` (``match``,
tables, defaults of ``getattr``, helper functions) are understood as well.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .classes import Defined, imported_as, standing
from .interpret import Made, Reading, _StopReading
from .source import LearningError, Source, names
from .values import Raised, Symbol, Unknown, compared

_UNTOLD: Final = object()
_TEXTS: Final = frozenset({"split", "rsplit", "partition", "rpartition", "isdigit", "join", "format", "replace"})
_TABLES: Final = (ast.Dict, ast.Attribute, ast.Tuple, ast.List, ast.Call, ast.BinOp, ast.Set)
"""Values of a module's constants that are worked out when they are asked for."""
_ENUM: Final = "KVQuantMode"


@dataclass(frozen=True)
class Thing(Unknown):
    """An object of which some attributes are known, and the classes it is an instance of."""

    text: str
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    kinds: frozenset[str] = frozenset()


class _Leave(Exception):  # noqa: N818 - the rest of a loop's body is left out, no error
    pass


class Following(Reading):
    """One reading; ``seen`` is told of each call that is reached, with its reading, and may give its value."""

    guards_pass = False
    """A condition that is not known and only guards a ``raise`` is taken not to be met."""
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

    # Statements

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.If():
                met = self._decided(node.test)
                self._ways([node.body, node.orelse] if met is None else [node.body if met else node.orelse])
            case ast.Match():
                self._match(node)
            case ast.Continue() | ast.Break():
                raise _Leave
            case ast.For():
                items = self.value(node.iter)
                for item in items if isinstance(items, (tuple, list, range)) else [self._each(node.iter)]:
                    self._assign(node.target, item)
                    self._turn(node.body)
            case ast.While():
                self._turn(node.body)
                self._forget(node.body)
            case ast.Assert():
                if self._decided(node.test) is False:
                    super()._statement(node)
            case ast.FunctionDef():
                self._local[node.name] = node
            case ast.Expr(value=ast.Call() as call):
                self._effect(call)
            case ast.With():
                for item in node.items:
                    self.value(item.context_expr)
                self._block(node.body)
            case ast.Try():
                self._try(node)
                self._block(node.finalbody)
            case _:
                super()._statement(node)

    def _each(self, node: ast.expr) -> Any:
        """One item of what a loop goes over, the first where there is an order."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            if node.func.id == "enumerate":
                return (0, self._each(node.args[0]))
            if node.func.id == "zip":
                return tuple(self._each(item) for item in node.args)
        items = self.value(node)
        return items[0] if isinstance(items, (tuple, list)) and items else Symbol(f"each of {ast.unparse(node)}")

    def _turn(self, body: Iterable[ast.stmt]) -> None:
        try:
            self._block(body)
        except _Leave:
            return

    def _ways(self, bodies: list[list[ast.stmt]], tried: bool = False) -> None:
        """Take each way; what they leave different is not known afterwards. A way that is left counts no more."""
        if len(bodies) == 1:
            self._block(bodies[0])
            return
        before, ends, stops = dict(self.known), [], []
        for body in bodies:
            self.known = dict(before)
            try:
                self._block(body)
                ends.append(self.known)
            except (_Leave, _StopReading) as stop:
                stops.append(stop)
        if not ends:
            outcomes = {repr(stop.outcome) for stop in stops if isinstance(stop, _StopReading)}
            if all(isinstance(stop, _StopReading) for stop in stops) and len(outcomes) == 1:
                raise stops[0]
            if all(isinstance(stop, _Leave) for stop in stops):
                raise stops[0]
            raise LearningError(f"{self._where}: cannot decide which way it takes")
        returned = [stop for stop in stops if isinstance(stop, _StopReading) and not isinstance(stop.outcome, Raised)]
        if returned and not tried:
            # The code behind may return something else: nothing is told by going on.
            raise LearningError(f"{self._where}: cannot decide whether it returns {_shown(returned[0].outcome)}")
        if not tried and not self.guards_pass and any(isinstance(stop, _StopReading) for stop in stops):
            raise LearningError(f"{self._where}: cannot decide whether it is refused")
        merged = {}
        for text in {text for end in ends for text in end}:
            values = [end.get(text, _UNTOLD) for end in ends]
            merged[text] = values[0] if all(_alike(item, values[0]) for item in values) else Symbol(text)
        self.known = merged

    def _try(self, node: ast.Try) -> None:
        """The handlers count where the body gives what is not known; what is known was read without an error."""
        before = dict(self.known)
        self._block([*node.body, *node.orelse])
        changed = [value for text, value in self.known.items() if before.get(text, _UNTOLD) is not value]
        if node.handlers and any(isinstance(value, Unknown) for value in changed):
            self.known = before
            bodies = [[*node.body, *node.orelse], *(handler.body for handler in node.handlers)]
            self._ways(bodies, tried=True)

    def _match(self, node: ast.Match) -> None:
        subject = self.value(node.subject)
        possible: list[list[ast.stmt]] = []
        for case in node.cases:
            met = self._fits(case.pattern, subject)
            if met and case.guard is not None:
                met = self._decided(case.guard)
            if met is not False:
                possible.append(case.body)
            if met:
                break
        else:
            possible.append([])
        self._ways(possible)

    def _fits(self, pattern: ast.pattern, subject: Any) -> bool | None:
        match pattern:
            case ast.MatchValue(value=wanted):
                return self._compared(ast.Eq(), subject, self.value(wanted))
            case ast.MatchSingleton(value=wanted):
                return self._compared(ast.Is(), subject, wanted)
            case ast.MatchOr(patterns=patterns):
                answers = [self._fits(item, subject) for item in patterns]
                return True if True in answers else None if None in answers else False
            case ast.MatchAs(pattern=None, name=name):
                if name is not None:
                    self.known[name] = subject
                return True
            case ast.MatchAs(pattern=ast.pattern() as inner, name=name):
                self.known[str(name)] = subject
                return self._fits(inner, subject)
            case ast.MatchSequence(patterns=patterns) if isinstance(subject, (tuple, list)):
                if len(patterns) != len(subject) or any(isinstance(item, ast.MatchStar) for item in patterns):
                    return None if any(isinstance(item, ast.MatchStar) for item in patterns) else False
                answers = [self._fits(item, part) for item, part in zip(patterns, subject, strict=True)]
                return False if False in answers else None if None in answers else True
        return None

    def _forget(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            for item in ast.walk(statement):
                if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
                    self.known[item.id] = Symbol(item.id)

    def _effect(self, call: ast.Call) -> None:
        """A call whose value is not used; ``update`` and ``setdefault`` change a table."""
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("update", "setdefault"):
            text = ast.unparse(call.func.value)
            table = self.known.get(text)
            if isinstance(table, dict):
                more = self._table(call) if call.func.attr == "update" else None
                if call.func.attr == "setdefault" and len(call.args) == 2:
                    more = {self.value(call.args[0]): self.value(call.args[1])} | table
                self.known[text] = Symbol(text) if more is None else table | more
                return
        try:
            self.value(call)
        except LearningError:
            # Messages and the like: only what may end the launch has to be known.
            function = self._function(call.func.id) if isinstance(call.func, ast.Name) else None
            if function is None or any(isinstance(item, (ast.Raise, ast.Assert)) for item in ast.walk(function[1])):
                raise

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Subscript):
            text = ast.unparse(target.value)
            table, key = self.known.get(text), self.value(target.slice)
            if isinstance(table, dict) and not isinstance(key, (Made, Thing)):
                self.known[text] = table | {key: value}
                return
        super()._assign(target, value)

    # Expressions

    def _decided(self, test: ast.expr) -> bool | None:
        value = self.value(test)
        if isinstance(value, Thing):
            return True
        if isinstance(value, Symbol) and value.constant and value.text.split(".")[-2] == _ENUM:
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
        return values[0] if _alike(*values) else Symbol(ast.unparse(node))

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
        for one, other in ((left, right), (right, left)):
            # Members of an IntEnum equal numbers, and a table of them may be looked through.
            if isinstance(one, Symbol) and isinstance(other, int) and not isinstance(other, bool):
                return self._numbered(how, one, other)
            if isinstance(one, Thing) and other is None and isinstance(how, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
                return isinstance(how, (ast.IsNot, ast.NotEq))
        return compared(how, left, right)

    def _numbered(self, how: ast.cmpop, member: Symbol, number: int) -> bool | None:
        """The first member, NONE, of the quantisation modes is 0; no other number is known."""
        known = member.constant and member.text.split(".")[-2] == _ENUM and number == 0
        if not known or not isinstance(how, (ast.Eq, ast.NotEq)):
            return None
        return member.text.endswith(".NONE") is isinstance(how, ast.Eq)

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
            return self._looked_up(base, self.value(node.slice), _UNTOLD, node)
        if isinstance(base, Thing):
            return base.attributes.get(f"[{self.value(node.slice)}]", Symbol(ast.unparse(node)))
        return super()._subscript(node)

    def _looked_up(self, table: dict[Any, Any], key: Any, default: Any, node: ast.expr) -> Any:
        if isinstance(key, Unknown) and not (isinstance(key, Symbol) and key.constant):
            return Symbol(ast.unparse(node))
        answers = {name: self._compared(ast.Eq(), name, key) for name in table}
        found = next((name for name, met in answers.items() if met), _UNTOLD)
        if found is not _UNTOLD:
            return table[found]
        return Symbol(ast.unparse(node)) if None in answers.values() or default is _UNTOLD else default

    def _name(self, node: ast.Name) -> Any:
        value = super()._name(node)
        if not isinstance(value, Symbol) or node.id in self._local:
            return value
        found = standing(self.source, self.path, node.id)
        if isinstance(found, (ast.Assign, ast.AnnAssign)) and isinstance(found.value, _TABLES):
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

    def _of_thing(self, thing: Thing, name: str) -> Any:
        return thing.attributes.get(name, Symbol(f"{thing.text}.{name}"))

    def _table(self, call: ast.Call) -> dict[Any, Any] | None:
        """What ``dict(...)`` and ``update(...)`` are given; None where it is not known."""
        made: dict[Any, Any] = {}
        for given in [*call.args, *(item.value for item in call.keywords if item.arg is None)]:
            more = self.value(given)
            if not isinstance(more, dict):
                return None
            made |= more
        return made | {item.arg: self.value(item.value) for item in call.keywords if item.arg}

    def _call(self, node: ast.Call) -> Any:
        if self._seen is not None:
            told = self._seen(self, node)
            if told is not None:
                return told
        name = node.func.id if isinstance(node.func, ast.Name) else ""
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
            if found is not _UNTOLD:
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
        if isinstance(node.func, ast.Attribute) and node.func.attr in _TEXTS:
            made = self._text(node.func.attr, self.value(node.func.value), node)
            if made is not None:
                return made
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            table = self.value(node.func.value)
            if isinstance(table, dict):
                default = self.value(node.args[1]) if len(node.args) > 1 else None
                return self._looked_up(table, self.value(node.args[0]), default, node)
        return super()._call(node)

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
            return base.attributes.get(name, Symbol(f"{base.text}.{name}"))
        if isinstance(base, Symbol) and isinstance(name, str) and f"{base.text}.{name}" in self.known:
            return self.known[f"{base.text}.{name}"]
        return _UNTOLD

    def _is_a(self, thing: Any, kinds: ast.expr) -> Any:
        items = list(kinds.elts) if isinstance(kinds, ast.Tuple) else [kinds]
        resolved = {imported_as(self.source, self.path, ast.unparse(item).rpartition(".")[2]) for item in items}
        own = thing.kinds if isinstance(thing, Thing) else {item.__name__ for item in type(thing).__mro__}
        return bool(resolved & own)

    def _function(self, name: str) -> tuple[str, ast.FunctionDef] | None:
        return (self.path, self._local[name]) if name in self._local else super()._function(name)

    def _inner(self, node: ast.Call, function: ast.FunctionDef, path: str, skipped: int) -> Any:
        local = self._local.get(function.name) is function
        arguments = self._arguments(node, function, skipped)
        # A function that stands in this one sees its names; elsewhere only what is given by expression text holds.
        known = dict(self.known) if local else self._everywhere()
        if self._depth > 12:
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
            raise _StopReading(outcome)
        return outcome

    def _everywhere(self) -> dict[str, Any]:
        return {text: value for text, value in self.known.items() if not text.isidentifier()}

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


def _as_sets(how: ast.operator, left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(how, ast.BitOr):
        return (*left, *(item for item in right if item not in left))
    return tuple(item for item in left if (item in right) is isinstance(how, ast.BitAnd))


def _alike(left: Any, right: Any) -> bool:
    if isinstance(left, Made) and isinstance(right, Made):
        return left.node is right.node
    return type(left) is type(right) and bool(left == right)


def _shown(value: Any) -> str:
    return value.text if isinstance(value, Symbol) else repr(value)[:80]
