"""Statements together with the conditions around them, and the texts they build."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .source import LearningError, Source, names


@dataclass(frozen=True)
class Guarded:
    """A simple statement, the ``if`` tests that must hold around it and those that must not, outermost first."""

    statement: ast.stmt
    tests: tuple[ast.expr, ...] = ()
    untaken: tuple[ast.expr, ...] = ()

    def names(self) -> set[str]:
        """Every name, attribute and string of the tests that must hold."""
        return {word for test in self.tests for word in words(test)}


def guarded(node: ast.AST) -> Iterator[Guarded]:
    """Every simple statement below ``node`` in order; a ``for`` or ``with`` adds no condition."""
    yield from _guarded(getattr(node, "body", []), (), ())


def _guarded(body: list[ast.stmt], tests: tuple[ast.expr, ...], untaken: tuple[ast.expr, ...]) -> Iterator[Guarded]:
    for item in body:
        if isinstance(item, ast.If):
            yield from _guarded(item.body, (*tests, item.test), untaken)
            yield from _guarded(item.orelse, tests, (*untaken, item.test))
        elif isinstance(item, (ast.For, ast.While, ast.With)):
            yield from _guarded(item.body, tests, untaken)
        elif isinstance(item, ast.Try):
            for part in (item.body, *(handler.body for handler in item.handlers), item.orelse, item.finalbody):
                yield from _guarded(part, tests, untaken)
        elif not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield Guarded(item, tests, untaken)


def refused(node: ast.AST, *starts: str) -> Guarded | None:
    """The first ``raise`` whose message starts with one of these texts, with its conditions; None without one."""
    for item in guarded(node):
        if isinstance(item.statement, ast.Raise) and isinstance(item.statement.exc, ast.Call):
            args = item.statement.exc.args
            if args and template(args[0]).startswith(starts):
                return item
    return None


def words(node: ast.AST) -> set[str]:
    """Names, attributes and strings of a piece of code."""
    texts = {item.value for item in ast.walk(node) if isinstance(item, ast.Constant) and isinstance(item.value, str)}
    return names(node) | texts


def template(node: ast.expr, placeholders: Mapping[str, str] | None = None) -> str:
    """The text an expression builds; what is not fixed becomes ``{}`` or what ``placeholders`` has for its source."""
    known = placeholders or {}
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                template(part.value if isinstance(part, ast.FormattedValue) else part, known) for part in parts
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return template(left, known) + template(right, known)
    return known.get(ast.unparse(node), "{}")


def constants(source: Source, path: str, node: ast.AST) -> set[str]:
    """Strings of a set expression: ``frozenset({...})``, ``A - B``, ``A | B``, a tuple, or a constant of the module.

    Raises LearningError when it is something else.
    """
    match node:
        case ast.Call(func=ast.Name(id="frozenset" | "set" | "tuple"), args=[inner]):
            return constants(source, path, inner)
        case ast.Set(elts=items) | ast.Tuple(elts=items) | ast.List(elts=items):
            return {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return constants(source, path, left) - constants(source, path, right)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return constants(source, path, left) | constants(source, path, right)
        case ast.Name(id=name):
            value = getattr(source.get(path, name), "value", None)
            if isinstance(value, ast.AST):
                return constants(source, path, value)
    raise LearningError(f"{path}: {ast.unparse(node)} is not a set of names")


def members(source: Source, path: str, name: str) -> list[str]:
    """Strings of a ``Literal`` in order, those of the Literals it contains included."""
    value = getattr(source.get(path, name), "value", None)
    if not isinstance(value, ast.Subscript):
        raise LearningError(f"{path} {name}: a Literal was expected")
    found: list[str] = []
    for item in value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]:
        match item:
            case ast.Constant(value=str(text)):
                found.append(text)
            case ast.Name(id=inner):
                found += members(source, path, inner)
            case _:
                raise LearningError(f"{path} {name}: {ast.unparse(item)} is no name")
    return found


def fields(source: Source, path: str, name: str) -> dict[str, ast.AnnAssign]:
    """The annotated fields of a class; empty when there is no such class."""
    node = source.find(path, name)
    if not isinstance(node, ast.ClassDef):
        return {}
    return {
        item.target.id: item
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def keys(source: Source, path: str, name: str) -> list[str]:
    """Keys of a dict constant of a module, in order."""
    value = getattr(source.get(path, name), "value", None)
    if not isinstance(value, ast.Dict):
        raise LearningError(f"{path} {name}: a dict was expected")
    found = [item.value for item in value.keys if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    if len(found) != len(value.keys):
        raise LearningError(f"{path} {name}: a key is not a plain name")
    return found
