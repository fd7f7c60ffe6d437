"""What a model runner asks a backend for when it shapes the memory of a V4 cache, worked out for a given spec."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .classes import find_class, get_class, lineage
from .following import Following, Thing
from .source import LearningError, Source, names

_SHAPE: Final = "get_kv_cache_shape"
_SPECS: Final = "v1/kv_cache_interface.py"
_SPEC: Final = "<the spec>"
_GLOBAL: Final = "<the cache dtype of the launch>"
BLOCKS: Final = 10
"""Blocks that the memory of a cache holds."""


@dataclass(frozen=True)
class Shape:
    """One call of ``get_kv_cache_shape`` that is reached."""

    path: str
    node: ast.Call
    blocks: Any
    rows: Any
    dtype: Any
    """None where no cache dtype is given."""

    @property
    def total(self) -> int | None:
        """Rows of all blocks together; None where they are not known."""
        known = isinstance(self.blocks, int) and isinstance(self.rows, int)
        return self.blocks * self.rows if known else None

    @property
    def dtype_node(self) -> ast.expr:
        """The argument with the cache dtype; the call where there is none."""
        given = next((item.value for item in self.node.keywords if item.arg == "cache_dtype_str"), None)
        return given or (self.node.args[4] if len(self.node.args) > 4 else self.node)


class _Shaping(Following):
    """The spec, the launch's cache dtype and the number of blocks are known wherever they are read, by any name."""

    guards_pass = True
    awaited = frozenset({_SHAPE})

    def _attribute(self, node: ast.Attribute) -> Any:
        if node.attr == "kv_cache_spec":
            return self.known[_SPEC]
        if node.attr == "kv_cache_group_id":
            return 0
        if node.attr == "cache_dtype":
            base = self.value(node.value)
            if getattr(base, "text", "").rpartition(".")[2] == "cache_config":
                return self.known[_GLOBAL]
        return super()._attribute(node)

    def _binop(self, node: ast.BinOp) -> Any:
        if isinstance(node.op, (ast.FloorDiv, ast.Div)) and "numel" in names(node.left):
            return BLOCKS
        return super()._binop(node)


def shapes(
    source: Source, path: str, name: str, spec: Mapping[str, Any], kernel: int, dtype: str = "fp8"
) -> tuple[Shape, ...]:
    """The shapes that are asked for a cache of this spec, where the launch has this cache dtype.

    Raises LearningError where none is asked for, or what is asked for depends on what is not known.
    """
    function = source.get(path, name)
    if not isinstance(function, ast.FunctionDef):
        raise LearningError(f"{path} {name} is no function any more")
    kinds = frozenset(item.name for item in lineage(source, get_class(source, _SPECS, "MLAAttentionSpec")))
    found: list[Shape] = []

    def seen(reading: Following, call: ast.Call) -> Any:
        if isinstance(call.func, ast.Attribute) and call.func.attr == _SHAPE:
            found.append(_shape(reading, call))
        return None

    known: dict[str, Any] = {_SPEC: Thing("kv_cache_spec", spec, kinds), _GLOBAL: dtype}
    for item in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        if item.arg.endswith("block_sizes"):
            known[item.arg] = (kernel,)
        elif "dtype" in item.arg:
            known[item.arg] = dtype
    owner = find_class(source, path, name.rpartition(".")[0]) if "." in name else None
    _Shaping(source, path, known, owner, seen=seen).run(function)
    if not found:
        raise LearningError(f"{path} {name} asks for the shape of no cache with states of MLA")
    return tuple(found)


def _shape(reading: Following, call: ast.Call) -> Shape:
    given = {item.arg: item.value for item in call.keywords if item.arg}
    order = ("num_blocks", "block_size", "num_kv_heads", "head_size", "cache_dtype_str")
    given = dict(zip(order, call.args, strict=False)) | given
    values = {key: reading.value(item) for key, item in given.items()}
    for item in call.keywords:
        more = reading.value(item.value) if item.arg is None else {}
        if not isinstance(more, dict):
            raise LearningError(f"{reading.path}: what {ast.unparse(item.value)!r} holds is not known")
        values |= more
    return Shape(reading.path, call, values.get("num_blocks"), values.get("block_size"), values.get("cache_dtype_str"))
