"""Asking a small function of vLLM itself: name rules are exact when the function that applies them answers.

Only a function that does nothing but handle strings is called, without vLLM and without its module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection
from typing import Any, Final, cast

from ...source import LearningError

_BUILTINS: Final = {"int": int, "str": str}
_ATTRIBUTES: Final = frozenset({"match", "fullmatch", "group", "startswith", "endswith", "replace"}) | {
    "removeprefix",
    "removesuffix",
}
_FORBIDDEN: Final = (
    ast.Import,
    ast.ImportFrom,
    ast.Global,
    ast.Nonlocal,
    ast.ClassDef,
    ast.While,
    ast.Lambda,
    ast.With,
)


def string_function(path: str, node: ast.FunctionDef, attributes: Collection[str] = ()) -> Callable[..., Any]:
    """``node`` as a callable. ``attributes``: what it may read besides the methods of strings and matches.

    Raises LearningError when it does anything else.
    """
    own = {argument.arg for argument in node.args.args} | {
        item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
    }
    body = ast.FunctionDef(node.name, _plain(node.args), node.body, [], None)
    for item in ast.walk(ast.Module(body.body, [])):
        known = True
        if isinstance(item, ast.Name):
            known = item.id in own or item.id in _BUILTINS or item.id == "re"
        elif isinstance(item, ast.Attribute):
            known = item.attr in _ATTRIBUTES or item.attr in attributes
        elif isinstance(item, _FORBIDDEN):
            known = False
        if not known:
            raise LearningError(f"{path} {node.name}: more than string handling ({ast.unparse(item)[:60]})")
    module = ast.fix_missing_locations(ast.Module([body], []))
    space: dict[str, Any] = {"__builtins__": dict(_BUILTINS), "re": re}
    exec(compile(module, path, "exec"), space)
    return cast("Callable[..., Any]", space[node.name])


def _plain(arguments: ast.arguments) -> ast.arguments:
    """The same arguments without annotations."""
    if arguments.defaults or arguments.kwonlyargs or arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise LearningError("expected plain arguments")
    return ast.arguments([], [ast.arg(item.arg) for item in arguments.args], None, [], [], None, [])
