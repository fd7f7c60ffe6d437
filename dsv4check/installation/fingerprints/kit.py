"""What all fingerprints share: from a decision and its places to an answer with quotes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dsv4check.learning.source import LearningError, Source

from ..fingerprint import Answer, Fingerprint, Quote

Place = tuple[str, ast.AST]
"""A file of the package, and a piece of its code that has a line."""
Decision = tuple[str, Iterable[Place]]
"""A value, and what decides it."""

_MOST_QUOTES: Final = 4
_LONGEST: Final = 160
_UNTOLD: Final = "It could not be told from this tree."


class ForgivingSource(Source):
    """A tree that may hold anything: a file that cannot be read or parsed is missing code, like any other."""

    @classmethod
    def of(cls, source: Source) -> ForgivingSource:
        """The same tree, with what was already read of it."""
        if isinstance(source, cls):
            return source
        made = cls(source.package)
        made._texts, made._trees = source._texts, source._trees
        return made

    def text(self, path: str) -> str:
        """The file's text. Raises LearningError when it is missing or no text."""
        try:
            return super().text(path)
        except UnicodeDecodeError:
            raise LearningError(f"{path} is not UTF-8 text") from None

    def tree(self, path: str) -> ast.Module:
        """The parsed file. Raises LearningError when it is missing or no Python."""
        try:
            return super().tree(path)
        except SyntaxError as error:
            raise LearningError(f"{path} is not valid Python (line {error.lineno}: {error.msg})") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise LearningError(f"{path} cannot be parsed ({type(error).__name__})") from None


def fingerprint(
    id: str,
    question: str,
    values: Mapping[str, str],
    decide: Callable[[Source], Decision],
    *,
    good: Iterable[str],
    rules: tuple[str, ...] = (),
    references: tuple[str, ...] = (),
) -> Fingerprint:
    """A fingerprint whose answers are made from what ``decide`` finds; it raises LearningError where it cannot tell."""

    def read(source: Source) -> Answer:
        try:
            value, places = decide(ForgivingSource.of(source))
            if value not in values:
                raise LearningError(f"{value} is none of {', '.join(values)}")
            return Answer(value, values[value], quotes(ForgivingSource.of(source), places))
        except LearningError as error:
            why = str(error)
        except Exception as error:  # a fork may hold any code, and a reader expects the code it knows
            why = f"the code looks different from all known releases ({type(error).__name__}: {error})"[:300]
        return Answer(None, _UNTOLD, (), why)

    return Fingerprint(id, question, dict(values), read, references, frozenset(good), rules)


def quotes(source: Source, places: Iterable[Place]) -> tuple[Quote, ...]:
    """The lines of some places, each once, in the order given."""
    found: list[Quote] = []
    for path, node in places:
        number = getattr(node, "lineno", 0)
        lines = source.text(path).split("\n")
        if not 1 <= number <= len(lines):
            raise LearningError(f"{path}: a decision without a line")
        quote = Quote(f"{source.package.name}/{path}", number, lines[number - 1].strip()[:_LONGEST])
        if quote not in found:
            found.append(quote)
    if not found:
        raise LearningError("nothing to quote")
    return tuple(found[:_MOST_QUOTES])


def function(source: Source, path: str, name: str) -> ast.FunctionDef:
    """A function by its dotted name. Raises LearningError when it is not there or is something else."""
    node = source.get(path, name)
    if not isinstance(node, ast.FunctionDef):
        raise LearningError(f"{path} {name} is no function any more")
    return node


def class_of(source: Source, path: str, name: str) -> ast.ClassDef:
    """A class by its name. Raises LearningError when it is not there or is something else."""
    node = source.get(path, name)
    if not isinstance(node, ast.ClassDef):
        raise LearningError(f"{path} {name} is no class any more")
    return node


def having(node: ast.AST, text: str) -> list[ast.Constant]:
    """String constants in a piece of code that contain ``text``, fixed parts of f-strings included."""
    return [
        item
        for item in ast.walk(node)
        if isinstance(item, ast.Constant) and isinstance(item.value, str) and text in item.value
    ]


def mentions(node: ast.AST, *wanted: str) -> list[ast.expr]:
    """Names and attributes with one of these names, in the order of their lines."""
    found = [
        item
        for item in ast.walk(node)
        if (isinstance(item, ast.Name) and item.id in wanted)
        or (isinstance(item, ast.Attribute) and item.attr in wanted)
    ]
    return sorted(found, key=lambda item: (item.lineno, item.col_offset))


def refusing(node: ast.AST, text: str) -> list[ast.stmt]:
    """Statements that raise or assert with ``text`` in their message."""
    return [item for item in ast.walk(node) if isinstance(item, (ast.Raise, ast.Assert)) and having(item, text)]


def assignments(node: ast.AST, target: str) -> list[ast.Assign]:
    """Statements that assign to ``target``, written as in the code."""
    return [
        item
        for item in ast.walk(node)
        if isinstance(item, ast.Assign) and any(ast.unparse(part) == target for part in item.targets)
    ]


def called(node: ast.Call) -> str:
    """The last part of the name that is called."""
    return ast.unparse(node.func).rpartition(".")[2]
