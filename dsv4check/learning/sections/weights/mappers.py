"""A model's ``WeightsMapper`` as data, by asking the function of the release that builds it.

Only code that puts dictionaries, patterns and mappers together is run, without vLLM and without its module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from ...source import LearningError, Source
from ..spec_decode.fields import imported_from
from ..spec_decode.queries import function

MAPPER: Final = "WeightsMapper"
KINDS: Final = ("regex", "substr", "prefix", "suffix")
"""Kinds of rules that the evaluator knows; the mapper has others, which none of our models uses."""
_OTHER_KINDS: Final = ("stacked", "renaming", "renamings")
_FIELD: Final = "orig_to_new_"
_METHODS: Final = frozenset({"compile", "items", "update"}) | {f"{_FIELD}{kind}" for kind in (*KINDS, *_OTHER_KINDS)}
_FORBIDDEN: Final = (ast.Import, ast.Global, ast.Nonlocal, ast.ClassDef, ast.While, ast.For, ast.Lambda, ast.With)
_FORBIDDEN_TOO: Final = (ast.Delete, ast.Try, ast.Raise, ast.Await, ast.Yield, ast.YieldFrom)


class Mapper:
    """Stands for ``WeightsMapper``: keeps the rules it is given."""

    def __init__(self, **rules: Any) -> None:
        for name, value in rules.items():
            kind = name.removeprefix(_FIELD)
            if kind in _OTHER_KINDS and not value:
                continue
            if kind not in KINDS:
                raise LearningError(f"{MAPPER}: rules of the kind {name} are not understood")
        for kind in KINDS:
            setattr(self, f"{_FIELD}{kind}", rules.get(f"{_FIELD}{kind}", {}))
        for kind in _OTHER_KINDS:
            setattr(self, f"{_FIELD}{kind}", {})

    def __or__(self, other: Mapper) -> Mapper:
        return Mapper(**{f"{_FIELD}{kind}": {**self.rules(kind), **other.rules(kind)} for kind in KINDS})

    def rules(self, kind: str) -> dict[Any, str | None]:
        """The dictionary of one kind."""
        found = getattr(self, f"{_FIELD}{kind}")
        assert isinstance(found, dict)
        return found

    def pairs(self, kind: str) -> list[list[str | None]]:
        """[what is looked for, what takes its place or None] in the order of the code."""
        return [[getattr(old, "pattern", old), new] for old, new in self.rules(kind).items()]


def evaluate(source: Source, path: str, node: ast.expr, values: Mapping[str, Any]) -> Any:
    """The value of an expression of a module. ``values``: what some of its names stand for.

    Raises LearningError when it does more than put rules together.
    """
    _only_rules(path, node, set(values))
    space = _space(source, path, node, set(values)) | dict(values)
    return eval(compile(ast.fix_missing_locations(ast.Expression(node)), path, "eval"), space)


def call(source: Source, path: str, name: str, values: Mapping[str, Any]) -> Any:
    """What a function of a module gives for arguments by name; those not given keep their defaults."""
    node = function(source, path, name)
    known = {argument.arg for argument in node.args.args}
    return _function(source, path, node)(**{key: value for key, value in values.items() if key in known})


def _function(source: Source, path: str, node: ast.FunctionDef) -> Any:
    arguments = node.args
    if arguments.kwonlyargs or arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise LearningError(f"{path} {node.name}: expected plain arguments")
    own = {argument.arg for argument in arguments.args} | {
        item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
    }
    plain = [ast.arg(item.arg) for item in arguments.args]
    body = [item for item in node.body if not isinstance(item, ast.ImportFrom)]
    copy = ast.FunctionDef(node.name, ast.arguments([], plain, None, [], [], None, arguments.defaults), body, [], None)
    for item in body:
        _only_rules(f"{path} {node.name}", item, own)
    space = _space(source, path, ast.Module(body, []), own)
    exec(compile(ast.fix_missing_locations(ast.Module([copy], [])), path, "exec"), space)
    return space[node.name]


def _only_rules(place: str, node: ast.AST, own: set[str]) -> None:
    for item in ast.walk(node):
        known = not isinstance(item, _FORBIDDEN + _FORBIDDEN_TOO)
        if isinstance(item, ast.Attribute):
            known = item.attr in _METHODS
        elif isinstance(item, ast.Name) and item.id.startswith("__"):
            known = item.id in own
        if not known:
            raise LearningError(f"{place}: more than putting rules together ({ast.unparse(item)[:60]})")


def _space(source: Source, path: str, node: ast.AST, own: set[str]) -> dict[str, Any]:
    """What the names of a piece of code stand for: the mapper, patterns, constants and functions of its module."""
    space: dict[str, Any] = {
        "__builtins__": {},
        "re": SimpleNamespace(compile=re.compile),
        MAPPER: Mapper,
        "dict": dict,
    }
    for item in ast.walk(node):
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load) and item.id not in own | set(space):
            if item.id in ("str", "None", "list", "tuple", "bool"):
                space[item.id] = None  # only in annotations
                continue
            space[item.id] = _global(source, path, item.id)
    return space


def _global(source: Source, path: str, name: str) -> Any:
    node = source.find(path, name)
    if node is None:
        path = imported_from(source, path, name)
        node = source.get(path, name)
    if isinstance(node, ast.FunctionDef):
        return _function(source, path, node)
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        try:
            return ast.literal_eval(node.value)
        except ValueError:
            pass
    raise LearningError(f"{path} {name}: expected a function or a constant")


def map_order(source: Source) -> list[str]:
    """Kinds of rules in the order in which a name meets them; every rule that fits is applied, one after the other.

    Source: ``WeightsMapper._map_name`` or what it calls.
    """
    path = "model_executor/models/utils.py"
    place = f"{MAPPER}._map_name_with_shard"
    if source.find(path, place) is None:
        place = f"{MAPPER}._map_name"
    node = function(source, path, place)
    order: list[str] = []
    for item in node.body:
        if isinstance(item, ast.For):
            kind = next((kind for kind, text in _LOOPS.items() if ast.unparse(item) == text), None)
            if kind is None:
                raise LearningError(f"{path} {place}: a rule is applied in no known way ({ast.unparse(item)[:80]})")
            order.append(kind)
        elif isinstance(item, ast.Return):
            if ast.unparse(item) not in ("return key", "return (key, shard_id)"):
                raise LearningError(f"{path} {place}: expected it to return the name")
        elif {"key"} & {
            part.id for part in ast.walk(item) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        } or not isinstance(item, ast.If | ast.Expr | ast.AnnAssign):
            raise LearningError(f"{path} {place}: a name is changed in no known way ({ast.unparse(item)[:80]})")
    if sorted(kind for kind in order if kind in KINDS) != sorted(KINDS):
        raise LearningError(f"{path} {place}: expected rules of the kinds {', '.join(KINDS)}, got {', '.join(order)}")
    return [kind for kind in order if kind in KINDS]


def _loop(variable: str, kind: str, test: str, change: str) -> str:
    return (
        f"for {variable}, new_key in self.{_FIELD}{kind}.items():\n    if {test}:\n        if new_key is None:\n"
        f"            return None\n        key = {change}"
    )


_LOOPS: Final = {
    "regex": _loop("pattern", "regex", "pattern.search(key)", "pattern.sub(new_key, key)"),
    "substr": _loop("substr", "substr", "substr in key", "key.replace(substr, new_key, 1)"),
    "prefix": _loop("prefix", "prefix", "key.startswith(prefix)", "key.replace(prefix, new_key, 1)"),
    "suffix": _loop("suffix", "suffix", "key.endswith(suffix)", "new_key.join(key.rsplit(suffix, 1))"),
    "stacked": (
        f"for substr, (new_key, new_shard_id) in self.{_FIELD}stacked.items():\n    if substr in key:\n"
        "        key = key.replace(substr, new_key, 1)\n        shard_id = new_shard_id"
    ),
    **{
        name: f"for renaming in self.{_FIELD}{name}:\n    key, _ = renaming.rename_source_key(key)"
        for name in ("renaming", "renamings")
    },
}
