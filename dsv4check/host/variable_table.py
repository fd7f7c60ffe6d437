"""The variables that a vLLM tree knows, read from its ``envs.py`` as text."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from dsv4check.learning.source import LearningError, Source, names, strings
from dsv4check.records import dataclass

_FILE: Final = "envs.py"
_TABLE: Final = "environment_variables"
_PREFIX: Final = "VLLM_"
_MOST_FILES: Final = 20_000
_LARGEST_FILE: Final = 4 << 20
_LARGEST_EXTENSION: Final = 512 << 20
_PIECE: Final = 8 << 20
_OVERLAP: Final = 256


@dataclass(frozen=True, slots=True)
class VariableTable:
    """``envs.environment_variables`` of one tree."""

    lines: Mapping[str, int]
    """Variable and the line of ``envs.py`` that defines it."""
    dynamic: int | None = None
    """The line that adds names which the text does not tell; None when there is none."""
    deprecated: frozenset[str] = frozenset()
    """Variables whose reader says that they are deprecated."""


def read_table(source: Source) -> VariableTable:
    """The table of ``envs.py``. Raises LearningError when there is none."""
    try:
        tree = source.tree(_FILE)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise LearningError(f"{_FILE} cannot be parsed") from None
    reader = _Reader(tree)
    if not reader.lines:
        raise LearningError(f"{_FILE} has no {_TABLE}")
    return VariableTable(reader.lines, reader.dynamic, frozenset(reader.deprecated))


class _Reader:
    def __init__(self, tree: ast.Module) -> None:
        self.lines: dict[str, int] = {}
        self.dynamic: int | None = None
        self.deprecated: set[str] = set()
        self._statements = list(_statements(tree))
        self._dicts: dict[str, ast.expr] = {}
        self._functions = {item.name: item for item in tree.body if isinstance(item, ast.FunctionDef)}
        for statement in self._statements:
            target, value = _assigned(statement)
            if isinstance(target, ast.Name) and value is not None:
                self._dicts[target.id] = value
        for statement in self._statements:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        target, value = _assigned(statement)
        match statement:
            case ast.AugAssign(target=ast.Name(id=name), value=added) if name == _TABLE:
                self._add(added, 0)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) as call):
                if name == _TABLE and method in ("update", "setdefault", "__setitem__"):
                    self._call(call, method)
            case _ if isinstance(target, ast.Name) and target.id == _TABLE and value is not None:
                self._add(value, 0)
            case _ if isinstance(target, ast.Subscript) and getattr(target.value, "id", None) == _TABLE:
                self._key(target.slice, value)

    def _call(self, call: ast.Call, method: str) -> None:
        if method != "update":
            self._key(call.args[0] if call.args else None, call.args[1] if len(call.args) > 1 else None, call.lineno)
            return
        for argument in call.args:
            self._add(argument, 0)
        for keyword in call.keywords:
            if keyword.arg is None:
                self._add(keyword.value, 0)
            else:
                self.lines.setdefault(keyword.arg, call.lineno)

    def _add(self, value: ast.expr, depth: int) -> None:
        """Names of a dict, of dicts joined with ``|`` or ``**``, or of a dict that has a name in this file."""
        match value:
            case ast.Dict(keys=keys, values=values):
                for key, item in zip(keys, values, strict=True):
                    if key is None:
                        self._add(item, depth + 1)
                    else:
                        self._key(key, item)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right) if depth < 20:
                self._add(left, depth + 1)
                self._add(right, depth + 1)
            case ast.Call(func=ast.Name(id="dict"), args=arguments, keywords=keywords) if depth < 20:
                for argument in [*arguments, *(word.value for word in keywords if word.arg is None)]:
                    self._add(argument, depth + 1)
                for word in keywords:
                    if word.arg is not None:
                        self.lines.setdefault(word.arg, value.lineno)
            case ast.Name(id=name) if name == _TABLE:
                return
            case ast.Name(id=name) if depth < 20 and name in self._dicts:
                self._add(self._dicts[name], depth + 1)
            case _:
                self.dynamic = self.dynamic or value.lineno

    def _key(self, key: ast.expr | None, value: ast.expr | None, line: int = 0) -> None:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            self.lines.setdefault(key.value, key.lineno)
            if value is not None and self._says_deprecated(value):
                self.deprecated.add(key.value)
        else:
            self.dynamic = self.dynamic or (key.lineno if key is not None else line)

    def _says_deprecated(self, value: ast.expr) -> bool:
        used = [self._functions[name] for name in names(value) if name in self._functions]
        own = [text for text in strings(value) if "deprecated" in text.lower()]
        # A helper that many variables share may speak of deprecation for some other of them.
        return bool(own) or any(_PREFIX in text and "deprecated" in text.lower() for f in used for text in strings(f))


def _assigned(statement: ast.stmt) -> tuple[ast.expr | None, ast.expr | None]:
    match statement:
        case ast.Assign(targets=[target], value=value):
            return target, value
        case ast.AnnAssign(target=target, value=value):
            return target, value
    return None, None


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements of the module, those under ``if``, ``try``, ``with`` and ``for`` included."""
    waiting = list(ast.iter_child_nodes(node))[::-1]
    while waiting:
        child = waiting.pop()
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, (ast.If, ast.Try, ast.With, ast.For, ast.ExceptHandler)):
            waiting += list(ast.iter_child_nodes(child))[::-1]


def read_elsewhere(package: Path, wanted: Iterable[str]) -> dict[str, str]:
    """Variables that the table lacks and the tree reads all the same: name, and ``file:line`` or the extension."""
    missing = {name.encode() for name in wanted}
    found: dict[str, str] = {}
    if not missing:
        return found
    for path in islice(_files(package), _MOST_FILES):
        with suppress(OSError):
            if not path.is_file():
                continue
            shown = path.relative_to(package).as_posix()
            for name, line in _in_code(path, missing) if path.suffix == ".py" else _in_extension(path, missing):
                found[name.decode()] = f"{shown}:{line}" if line else shown
                missing.discard(name)
        if not missing:
            break
    return found


def _files(package: Path) -> Iterator[Path]:
    """Python files of the tree and the extensions directly in it."""
    yield from sorted(package.glob("*.so"))
    for folder, folders, files in os.walk(package):
        folders.sort()
        yield from (Path(folder, file) for file in sorted(files) if file.endswith(".py"))


def _in_code(path: Path, wanted: Iterable[bytes]) -> list[tuple[bytes, int]]:
    with path.open("rb") as stream:
        text = stream.read(_LARGEST_FILE)
    if _PREFIX.encode() not in text:
        return []
    found = []
    for name in wanted:
        if name not in text:
            continue
        for match in re.finditer(rb"[\"']" + re.escape(name) + rb"[\"']", text):
            if _is_read(text, match.start(), match.end()):
                found.append((name, text.count(b"\n", 0, match.start()) + 1))
                break
    return found


def _in_extension(path: Path, wanted: Iterable[bytes]) -> list[tuple[bytes, int]]:
    """Names that a compiled extension holds as text of their own: it asks ``getenv`` for them."""
    left = {b"\0" + name + b"\0" for name in wanted}
    found: list[tuple[bytes, int]] = []
    keep = b""
    with path.open("rb") as stream:
        while left and stream.tell() < _LARGEST_EXTENSION and (piece := stream.read(_PIECE)):
            text = keep + piece
            here = [name for name in left if name in text]
            found += [(name.strip(b"\0"), 0) for name in here]
            left.difference_update(here)
            keep = text[-_OVERLAP:]
    return found


def _is_read(text: bytes, start: int, end: int) -> bool:
    """True when the quoted name is looked up in the environment there, and not set."""
    before = text[max(0, start - 60) : start].rstrip()
    if before.endswith((b"environ.get(", b"getenv(")):
        return True
    return before.endswith(b"environ[") and re.match(rb"\s*\]\s*=(?!=)", text[end : end + 20]) is None
