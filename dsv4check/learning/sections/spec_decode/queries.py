"""Small questions about parsed code that the parts of this section share."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...source import LearningError, Source, strings


def function(source: Source, path: str, name: str) -> ast.FunctionDef:
    """A function by its dotted name. Raises LearningError when it is not there or is something else."""
    node = source.get(path, name)
    if not isinstance(node, ast.FunctionDef):
        raise LearningError(f"{path} {name}: expected a function")
    return node


def class_(source: Source, path: str, name: str) -> ast.ClassDef:
    """A class of a module. Raises LearningError when it is not there or is something else."""
    node = source.get(path, name)
    if not isinstance(node, ast.ClassDef):
        raise LearningError(f"{path} {name}: expected a class")
    return node


def conjuncts(test: ast.expr) -> list[ast.expr]:
    """The parts of ``a and b and c``; a test without ``and`` is its only part."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for value in test.values for part in conjuncts(value)]
    return [test]


def branches(node: ast.If) -> Iterator[tuple[ast.expr | None, list[ast.stmt]]]:
    """(test, body) of every branch of an if/elif/else chain in order; the test of ``else`` is None."""
    current: ast.If | None = node
    while current is not None:
        yield current.test, current.body
        rest = current.orelse
        current = rest[0] if len(rest) == 1 and isinstance(rest[0], ast.If) else None
        if current is None and rest:
            yield None, rest


def around(root: ast.AST, target: ast.AST) -> list[tuple[ast.If, bool]]:
    """Every ``if`` around a piece of code, outermost first; True where it is under the test, False under ``else``."""

    def search(node: ast.AST) -> list[tuple[ast.If, bool]] | None:
        if node is target:
            return []
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                found = search(child) if isinstance(child, ast.AST) else None
                if found is None:
                    continue
                return [(node, name == "body"), *found] if isinstance(node, ast.If) and name != "test" else found
        return None

    return search(root) or []


def raised(node: ast.AST, words: str) -> list[ast.Raise]:
    """Every ``raise`` whose message has these words."""
    return [
        item
        for item in ast.walk(node)
        if isinstance(item, ast.Raise) and item.exc is not None and any(words in text for text in strings(item.exc))
    ]


def calls(node: ast.AST, name: str) -> list[ast.Call]:
    """Every call of a function or method of this name."""
    return [
        item
        for item in ast.walk(node)
        if isinstance(item, ast.Call)
        and (
            (isinstance(item.func, ast.Name) and item.func.id == name)
            or (isinstance(item.func, ast.Attribute) and item.func.attr == name)
        )
    ]


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """A keyword argument of a call; None when it is not given."""
    return next((item.value for item in call.keywords if item.arg == name), None)


def assigned(body: list[ast.stmt], target: str) -> ast.expr | None:
    """What a list of statements assigns to ``target`` (written as in the code); None when it does not."""
    for item in body:
        if isinstance(item, ast.Assign) and any(ast.unparse(part) == target for part in item.targets):
            return item.value
    return None


def text(node: ast.expr | None) -> str | None:
    """The string an expression is; None when it is none."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def texts(node: ast.AST | None) -> list[str]:
    """The strings of a tuple, list or set; empty when it is something else."""
    if not isinstance(node, ast.Tuple | ast.List | ast.Set):
        return []
    return [value for item in node.elts if (value := text(item)) is not None]
