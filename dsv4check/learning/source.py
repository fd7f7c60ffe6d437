"""A release's source text: parsed once, asked many times. Nothing here imports vLLM."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any


class LearningError(Exception):
    """A fact cannot be read: the release no longer has the code it was read from. The message names the place."""


class Source:
    """The package ``vllm`` of one unpacked release."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self._texts: dict[str, str] = {}
        self._trees: dict[str, ast.Module] = {}

    @cached_property
    def version(self) -> str:
        """The version written into the package."""
        found = re.search(r"__version__ = version = ['\"]([^'\"]+)", self.text("_version.py"))
        if found is None:
            raise LearningError("_version.py has no version")
        return found[1]

    def has(self, path: str) -> bool:
        """True when the package has this file."""
        return (self.package / path).is_file()

    def text(self, path: str) -> str:
        """The file's text. Raises LearningError when the release has no such file."""
        if path not in self._texts:
            try:
                self._texts[path] = (self.package / path).read_text(encoding="utf-8")
            except OSError:
                raise LearningError(f"{path} is not there") from None
        return self._texts[path]

    def tree(self, path: str) -> ast.Module:
        """The parsed file. Raises LearningError when the release has no such file."""
        if path not in self._trees:
            self._trees[path] = ast.parse(self.text(path), path)
        return self._trees[path]

    def first(self, *paths: str) -> str:
        """The first of these paths that the release has. Raises LearningError when it has none."""
        for path in paths:
            if self.has(path):
                return path
        raise LearningError(f"none of {', '.join(paths)} is there")

    def find(self, path: str, name: str) -> ast.AST | None:
        """A function, class or assignment by its dotted name (``CacheConfig._validate``); None when it is not there."""
        node: ast.AST = self.tree(path)
        for part in name.split("."):
            found = next((child for child in statements(node) if part in defined_names(child)), None)
            if found is None:
                return None
            node = found
        return node

    def get(self, path: str, name: str) -> ast.AST:
        """Like :meth:`find`. Raises LearningError when it is not there."""
        node = self.find(path, name)
        if node is None:
            raise LearningError(f"{path} has no {name}")
        return node

    def segment(self, path: str, name: str) -> str:
        """Source text of a function or class; empty when it is not there."""
        node = self.find(path, name)
        return "" if node is None else ast.get_source_segment(self.text(path), node) or ""

    def literal(self, path: str, name: str) -> Any:
        """Value of a constant (``NAME = [...]``, ``Literal[...]``). Raises LearningError when it is no literal."""
        node = self.get(path, name)
        value = getattr(node, "value", None)
        if isinstance(value, ast.Subscript):  # Literal[...]
            inner = value.slice
            value = ast.List(elts=inner.elts if isinstance(inner, ast.Tuple) else [inner], ctx=ast.Load())
        try:
            return ast.literal_eval(value)  # type: ignore[arg-type]
        except (ValueError, TypeError):
            raise LearningError(f"{name} in {path} is not a literal any more") from None


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Statements of a module, class or function, those under ``if`` and ``try`` included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
            if isinstance(child, (ast.If, ast.Try, ast.With)):
                yield from statements(child)


def defined_names(node: ast.AST) -> tuple[str, ...]:
    """The names that one statement defines: of a function, a class or an assignment; empty for all others."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return (node.name,)
        case ast.Assign():
            return tuple(target.id for target in node.targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
    return ()


def strings(node: ast.AST) -> list[str]:
    """Every string of a piece of code in order; of an f-string, its fixed parts joined by ``{}``."""
    found: list[str] = []

    def visit(item: ast.AST) -> None:
        if isinstance(item, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in item.values))
            return
        if isinstance(item, ast.Constant) and isinstance(item.value, str):
            found.append(item.value)
        for child in ast.iter_child_nodes(item):
            visit(child)

    visit(node)
    return found


def names(node: ast.AST) -> set[str]:
    """Every name and attribute that a piece of code mentions."""
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name)} | {
        item.attr for item in ast.walk(node) if isinstance(item, ast.Attribute)
    }


def raises(node: ast.AST) -> list[tuple[str, str]]:
    """(exception, message) of every ``raise`` and ``assert``, in order; names and calls in messages become ``{}``."""
    found = []
    for item in ast.walk(node):
        if isinstance(item, ast.Raise) and isinstance(item.exc, ast.Call):
            name = ast.unparse(item.exc.func)
            found.append((item.lineno, name, "".join(strings(item.exc)[:1])))
        elif isinstance(item, ast.Assert):
            found.append((item.lineno, "AssertionError", "".join(strings(item.msg)[:1]) if item.msg else ""))
    return [(name, text) for _line, name, text in sorted(found)]


@dataclass(frozen=True)
class Refusal:
    """A ``raise`` or ``assert``: its nearest condition as text, its exception, the fixed parts of its message."""

    test: str
    exception: str
    message: str


def refusals(node: ast.AST) -> list[Refusal]:
    """Every refusal of a piece of code in order, with the condition of the ``if`` around it (or the asserted one)."""
    found: list[Refusal] = []

    def visit(item: ast.AST, test: str) -> None:
        if isinstance(item, ast.Raise) and isinstance(item.exc, ast.Call):
            found.append(Refusal(test, ast.unparse(item.exc.func), "".join(strings(item.exc)[:1])))
        elif isinstance(item, ast.Assert):
            message = "".join(strings(item.msg)[:1]) if item.msg is not None else ""
            found.append(Refusal(ast.unparse(item.test), "AssertionError", message))
        elif isinstance(item, ast.If):
            for child in item.body:
                visit(child, ast.unparse(item.test))
            for child in item.orelse:
                visit(child, f"not ({ast.unparse(item.test)})")
        else:
            for part in ast.iter_child_nodes(item):
                visit(part, test)

    visit(node, "")
    return found


def refusal(node: ast.AST, part: str) -> Refusal | None:
    """The first refusal whose message contains ``part``; None when there is none."""
    return next((item for item in refusals(node) if part in item.message), None)


def ancestors(source: Source, path: str, name: str) -> set[str]:
    """Names of all classes that a class derives from, as far as the same file tells."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        node = source.find(path, waiting.pop())
        if not isinstance(node, ast.ClassDef):
            continue
        for base in node.bases:
            title = ast.unparse(base).split("[")[0].rsplit(".", 1)[-1]
            if title not in found:
                found.add(title)
                waiting.append(title)
    return found
