"""A parsed Python module: its calls in order, the names each of them sees, and the place of every node.

The module is never imported and none of it is run.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from dsv4check.launchfiles.text import SourceText, Span
from dsv4check.records import dataclass, field

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_CONDITIONAL: Final = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match, ast.IfExp)
_NEWLINE: Final = re.compile(r"\r\n|\r|\n")


@dataclass(slots=True)
class Addition:
    """Items put behind a list that has a name: ``cmd += [...]``, ``cmd.append(...)``."""

    value: ast.expr
    several: bool
    """True where ``value`` is a list."""
    conditional: bool


@dataclass(slots=True)
class Scope:
    """The names of a module or of a function."""

    parent: Scope | None = None
    names: dict[str, ast.expr | None] = field(default_factory=dict)
    """What each name is assigned; None where that is not known, or happens more than once."""
    additions: dict[str, list[Addition]] = field(default_factory=dict)

    def owner(self, name: str) -> Scope | None:
        """The scope that a name is found in."""
        scope: Scope | None = self
        while scope is not None and name not in scope.names:
            scope = scope.parent
        return scope

    def assign(self, name: str, value: ast.expr | None) -> None:
        """Note an assignment."""
        self.names[name] = None if name in self.names else value


@dataclass(frozen=True, slots=True)
class Event:
    """A call, or an assignment to an item (``os.environ["X"] = "1"``)."""

    node: ast.Call | ast.Assign
    scope: Scope


class Module:
    """A parsed module."""

    __slots__ = ("_starts", "budget", "events", "imports", "source")

    def __init__(self, source: SourceText, tree: ast.Module) -> None:
        self.source = source
        self.events: list[Event] = []
        self.imports: dict[str, str] = {}
        """Name in the module -> what it stands for, in full: ``LLM`` -> ``vllm.LLM``."""
        self.budget = 100_000
        """How much more is evaluated: a few names can stand for billions of values."""
        self._starts = [0, *(match.end() for match in _NEWLINE.finditer(source.text))]
        self._scan(tree)

    def _scan(self, tree: ast.Module) -> None:
        stack: list[tuple[ast.AST, Scope, bool]] = [(tree, Scope(), False)]
        while stack:
            node, scope, conditional = stack.pop()
            self._see(node, scope, conditional)
            inner = scope
            if isinstance(node, _FUNCTIONS):
                inner = Scope(scope)
                conditional = False
            conditional = conditional or (isinstance(node, _CONDITIONAL) and not _is_main_guard(node))
            skipped = _target(node)
            children = [child for child in ast.iter_child_nodes(node) if child is not skipped]
            stack += [(child, inner, conditional) for child in reversed(children)]

    def _see(self, node: ast.AST, scope: Scope, conditional: bool) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    name = alias.asname or alias.name.partition(".")[0]
                    self.imports[name] = alias.name if alias.asname else name
            case ast.ImportFrom(module=origin, names=names):
                for alias in names:
                    self.imports[alias.asname or alias.name] = f"{origin or ''}.{alias.name}"
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                scope.assign(name, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                scope.assign(name, value)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                self._add(scope, name, Addition(value, True, conditional))
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                scope.names[name] = None
            case ast.Assign(targets=[ast.Subscript()]):
                self.events.append(Event(node, scope))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend" as how), args=[value]):
                self._add(scope, name, Addition(value, how == "extend", conditional))
            case ast.Call():
                self.events.append(Event(node, scope))

    @staticmethod
    def _add(scope: Scope, name: str, addition: Addition) -> None:
        owner = scope.owner(name) or scope
        owner.additions.setdefault(name, []).append(addition)

    def imports_all(self, package: str) -> bool:
        """True for ``from package import *``."""
        return self.imports.get("*", "").partition(".")[0] == package

    def span(self, node: Any) -> Span:
        """Where a node stands."""
        return Span(self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset))

    def segment(self, node: ast.AST) -> str:
        """A node's source text."""
        span = self.span(node)
        return self.source.text[span.start : span.stop]

    def full_name(self, node: ast.expr) -> str:
        """``a.b.c`` for a chain of names, imports resolved; empty for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.imports.get(node.id, node.id), *reversed(parts)])

    def _offset(self, line: int, column: int) -> int:
        """Python counts a column in bytes of UTF-8."""
        start = self._starts[min(line, len(self._starts)) - 1]
        piece = self.source.text[start : start + column]
        if piece.isascii():
            return start + len(piece)
        return start + len(piece.encode("utf-8", "surrogatepass")[:column].decode("utf-8", "ignore"))


def _target(node: ast.AST) -> ast.AST | None:
    """The name that an assignment sets: it has been seen with it."""
    match node:
        case ast.Assign(targets=[ast.Name() as target]) | ast.AnnAssign(target=ast.Name() as target):
            return target
        case ast.AugAssign(target=ast.Name() as target, op=ast.Add()):
            return target
    return None


def _is_main_guard(node: ast.AST) -> bool:
    """``if __name__ == "__main__":``."""
    return isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.iter_child_nodes(node.test)
    )
