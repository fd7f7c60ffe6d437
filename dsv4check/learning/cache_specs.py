"""Specs of V4's KV caches in any release: what ``get_kv_cache_spec`` of each layer makes for a cache dtype."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

from .attention_layers import LAYER, ONE_CLASS, constructor
from .classes import Defined, get_class, member
from .following import Following, keywords
from .interpret import Made, Reading
from .source import LearningError, Source

SPECS: Final = "v1/kv_cache_interface.py"
WINDOW: Final = "v1/attention/backends/mla/sparse_swa.py"
COMPRESSOR: Final = ("models/deepseek_v4/compressor.py", "model_executor/layers/deepseek_compressor.py")
BASE_CLASS: Final = "DeepseekV4Attention"
_HEAD: Final = 512


def cache_specs(source: Source, dtype: str) -> dict[str, dict[str, int | None]]:
    """Alignment, and bytes of one state where the spec states them, of each kind of cache for this cache dtype."""
    state = source.first(*COMPRESSOR)
    owners = {
        "main": main_owner(source),
        "window": window_owner(source),
        "state": get_class(source, state, "CompressorStateCache"),
        "indexer": get_class(source, source.first(*LAYER), "DeepseekV4IndexerCache"),
    }
    return {kind: _spec(source, owner, kind, dtype) for kind, owner in owners.items()}


def main_owner(source: Source) -> Defined:
    """The class whose layers own the main caches."""
    path = source.first(*LAYER)
    return get_class(source, path, BASE_CLASS if source.find(path, BASE_CLASS) is not None else ONE_CLASS)


def window_owner(source: Source) -> Defined:
    """The class of the sliding-window caches."""
    return get_class(source, WINDOW, "DeepseekV4SWACache")


def made_spec(source: Source, owner: Defined, dtype: str, numbers: Mapping[str, Any]) -> tuple[str, Made]:
    """The file of ``get_kv_cache_spec`` and the spec it makes for a cache dtype.

    ``numbers``: what the owner was made with, by the attribute that keeps it. Raises LearningError where none is made.
    """
    found = member(source, owner, "get_kv_cache_spec")
    if found is None or not isinstance(found[1], ast.FunctionDef):
        raise LearningError(f"{owner.path} {owner.name} has no get_kv_cache_spec")
    known: dict[str, Any] = {
        "self.compress_ratio": 4,
        "self.kv_cache_dtype": dtype,
        "self.cache_config.cache_dtype": dtype,
        "vllm_config.cache_config.cache_dtype": dtype,
        **numbers,
    }
    made = Following(source, found[0].path, known, owner).run(found[1])
    if not isinstance(made, Made):
        raise LearningError(f"{owner.path} {owner.name}.get_kv_cache_spec makes no spec")
    return found[0].path, made


def _spec(source: Source, owner: Defined, kind: str, dtype: str) -> dict[str, int | None]:
    _path, made = made_spec(source, owner, dtype, window_arguments(source) if kind == "window" else {})
    name = ast.unparse(made.node.func)
    alignment = _number(made, "alignment", owner)
    size = _number(made, "state_content_bytes", owner)
    if size is None and kind in ("main", "window"):
        size = _spec_bytes(source, name, dtype)
    return {"alignment": alignment, "bytes": size}


def _number(made: Made, name: str, owner: Defined) -> int | None:
    value = keywords(made).get(name)
    if value is not None and not isinstance(value, int):
        raise LearningError(f"{owner.path} {owner.name}.get_kv_cache_spec: {name} is not a number")
    return value


def _spec_bytes(source: Source, name: str, dtype: str) -> int | None:
    """Bytes of one state by the spec's own page size; None where the page is made of elements."""
    if source.find(SPECS, f"{name}.real_page_size_bytes") is None:
        return None
    known = {
        "self.cache_dtype_str": dtype,
        "self.model_version": "deepseek_v4",
        "self.storage_block_size": 1,
        "self.num_kv_heads": 1,
        "self.head_size": _HEAD,
        "self.kv_quant_mode": None,
        "get_dtype_size(self.dtype)": 1,
    }
    size = Reading(source, SPECS, known).call(f"{name}.real_page_size_bytes")
    if not isinstance(size, int):
        raise LearningError(f"{SPECS} {name}.real_page_size_bytes gives no number")
    return None if size == _HEAD else size


def window_arguments(source: Source) -> dict[str, Any]:
    """Numbers that the sliding-window cache of the target's layers is made with, by the attribute that keeps them."""
    owner = window_owner(source)
    function = constructor(owner)
    known: dict[str, Any] = {}
    made = [
        node
        for node in ast.walk(source.tree(source.first(*LAYER)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "DeepseekV4SWACache"
    ]
    if len(made) != 1:
        raise LearningError(f"{source.first(*LAYER)} does not make one DeepseekV4SWACache")
    passed = Made(Reading(source, source.first(*LAYER), {}), made[0])
    names_ = [item.arg for item in (*function.args.args, *function.args.kwonlyargs)]
    known |= {name: passed.keyword(name) for name in names_ if passed.passes(name)}
    reading = Reading(source, WINDOW, known, owner)
    stored = [
        ast.unparse(node.targets[0])
        for node in function.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("self.")
    ]
    values = {target: reading.settle(function, target) for target in stored}
    return {target: value for target, value in values.items() if isinstance(value, int)}
