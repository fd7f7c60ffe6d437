"""Statements: both ways of a branch, loops whose items are not known, ``match``, handlers."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from ..interpret import StopReading
from ..source import LearningError
from ..values import Raised, Symbol, Unknown
from .calls import Calling
from .things import UNTOLD, alike


class _Leave(Exception):  # noqa: N818 - the rest of a loop's body is left out, no error
    pass


class Branching(Calling):
    """A reading that takes both ways where it cannot decide."""

    guards_pass = False
    """A condition that is not known and only guards a ``raise`` is taken not to be met."""
    _local: dict[str, ast.FunctionDef]
    """Functions that are defined inside the one that is read."""

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.If():
                met = self._decided(node.test)
                self._ways([node.body, node.orelse] if met is None else [node.body if met else node.orelse])
            case ast.Match():
                self._match(node)
            case ast.Continue() | ast.Break():
                # One turn of a loop stands for all of them, so both only end the turn.
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
            except (_Leave, StopReading) as stop:
                stops.append(stop)
        if not ends:
            outcomes = {repr(stop.outcome) for stop in stops if isinstance(stop, StopReading)}
            if all(isinstance(stop, StopReading) for stop in stops) and len(outcomes) == 1:
                raise stops[0]
            if all(isinstance(stop, _Leave) for stop in stops):
                raise stops[0]
            raise LearningError(f"{self._where}: cannot decide which way it takes")
        returned = [stop for stop in stops if isinstance(stop, StopReading) and not isinstance(stop.outcome, Raised)]
        if returned and not tried:
            # The code behind may return something else: nothing is told by going on.
            raise LearningError(f"{self._where}: cannot decide whether it returns {_shown(returned[0].outcome)}")
        if not tried and not self.guards_pass and any(isinstance(stop, StopReading) for stop in stops):
            raise LearningError(f"{self._where}: cannot decide whether it is refused")
        merged = {}
        for text in {text for end in ends for text in end}:
            values = [end.get(text, UNTOLD) for end in ends]
            merged[text] = values[0] if all(alike(item, values[0]) for item in values) else Symbol(text)
        self.known = merged

    def _try(self, node: ast.Try) -> None:
        """The handlers count where the body gives what is not known; what is known was read without an error."""
        before = dict(self.known)
        # Read once to see whether it can fail at all; the second time it is one way among the handlers.
        self._block([*node.body, *node.orelse])
        changed = [value for text, value in self.known.items() if before.get(text, UNTOLD) is not value]
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


def _shown(value: Any) -> str:
    return value.text if isinstance(value, Symbol) else repr(value)[:80]
