"""Classes of a release across its files: where a name comes from, and what a class inherits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from .source import LearningError, Source, defined_names, statements


@dataclass(frozen=True)
class Defined:
    """A class and the file it stands in."""

    path: str
    node: ast.ClassDef

    @property
    def name(self) -> str:
        """The class's name."""
        return self.node.name

    def member(self, name: str) -> ast.stmt | None:
        """The statement of the class's own body that defines ``name``."""
        for child in statements(self.node):
            if isinstance(child, ast.stmt) and name in defined_names(child):
                return child
        return None


_IMPORTED: Final[WeakKeyDictionary[Source, dict[str, dict[str, ast.ImportFrom]]]] = WeakKeyDictionary()
_STANDING: Final[WeakKeyDictionary[Source, dict[tuple[str, str], ast.AST | None]]] = WeakKeyDictionary()


def standing(source: Source, path: str, name: str) -> ast.AST | None:
    """Like ``source.find``, remembered: an interpreter asks for the same names again and again."""
    known = _STANDING.setdefault(source, {})
    if (path, name) not in known:
        known[path, name] = source.find(path, name)
    return known[path, name]


def origin(source: Source, path: str, name: str) -> str | None:
    """The file of the package from which ``path`` imports ``name``, also under ``if TYPE_CHECKING``; else None."""
    files = _IMPORTED.setdefault(source, {})
    if path not in files:
        files[path] = {
            alias.asname or alias.name: node
            for node in ast.walk(source.tree(path))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
    node = files[path].get(name)
    return None if node is None else _module_file(source, path, node)


def _module_file(source: Source, path: str, node: ast.ImportFrom) -> str | None:
    parts = (node.module or "").split(".") if node.module else []
    if node.level:
        parts = path.split("/")[: -node.level] + parts
    elif parts[:1] == ["vllm"]:
        parts = parts[1:]
    else:
        return None
    for candidate in ("/".join(parts) + ".py", "/".join([*parts, "__init__.py"])):
        if source.has(candidate):
            return candidate
    return None


def find_class(source: Source, path: str, name: str) -> Defined | None:
    """The class that ``name`` stands for in ``path``: defined there, or imported from another file of the package."""
    for _ in range(4):
        node = standing(source, path, name)
        if isinstance(node, ast.ClassDef):
            return Defined(path, node)
        found = origin(source, path, name)
        if found is None or found == path:
            return None
        path = found
    return None


def get_class(source: Source, path: str, name: str) -> Defined:
    """Like :func:`find_class`. Raises LearningError when it is not found."""
    found = find_class(source, path, name)
    if found is None:
        raise LearningError(f"{path} has no class {name} and imports none")
    return found


def lineage(source: Source, defined: Defined) -> Iterator[Defined]:
    """The class and the classes of the package it inherits from, nearest first."""
    yield defined
    for base in defined.node.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(name, ast.Name):
            found = find_class(source, defined.path, name.id)
            if found is not None:
                yield from lineage(source, found)


def member(source: Source, defined: Defined, name: str) -> tuple[Defined, ast.stmt] | None:
    """What ``name`` means on the class: the class that defines it and the statement."""
    for owner in lineage(source, defined):
        found = owner.member(name)
        if found is not None:
            return owner, found
    return None


def imported_as(source: Source, path: str, name: str) -> str:
    """What a name is called where it is defined: ``from x import A as B`` makes ``A`` of ``B``."""
    origin(source, path, name)
    node = _IMPORTED[source][path].get(name)
    return next((alias.name for alias in node.names if (alias.asname or alias.name) == name), name) if node else name
