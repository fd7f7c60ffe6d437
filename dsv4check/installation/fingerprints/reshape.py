"""How the runners shape a V4 cache: by which cache dtype, and in how many blocks."""

from __future__ import annotations

import ast
from typing import Any, Final

from dsv4check.learning.interpret import Reading
from dsv4check.learning.sections.block_size import SHAPING, SPECS, UTILS, settling_statements
from dsv4check.learning.source import LearningError, Source, ancestors, names
from dsv4check.learning.values import Symbol

from .kit import Decision, Place, assignments, called, class_of, fingerprint, function, mentions

_SHAPE: Final = "get_kv_cache_shape"
_SHARED: Final = "allocate_kv_cache"
_SIZES: Final = "compute_layer_kv_cache_shape_bytes"
_LAYER: Final = "the layer's string"
_GLOBAL: Final = "the global string"
_QUANTISED: Final = Symbol("KVQuantMode.FP8_PER_TENSOR")
_NOT_QUANTISED: Final = Symbol("KVQuantMode.NONE")
_BLOCKS: Final = 10
_KERNEL: Final = 256
"""Tokens of a block of V4's kernels in every release."""
_RATIOS: Final = (4, 128)
"""Tokens per state of V4's compressed caches."""


# Which cache dtype shapes a cache


def string_of(source: Source, runner: str) -> Decision:
    """Which cache dtype a runner shapes by, worked out for a quantised spec and for one that is not."""
    path, name = SHAPING[runner]
    if source.find(path, name) is None:
        return "spec-shape", _shared_shape(source, path)
    shaping = function(source, path, name)
    call, spec = _shape_call(shaping, path)
    argument = next((item.value for item in call.keywords if item.arg == "cache_dtype_str"), None)
    if argument is None:
        if len(call.args) < 5:
            raise LearningError(f"{path} {name}: {_SHAPE} gets no cache dtype")
        argument = call.args[4]
    steps = settling_statements(shaping, [argument])
    kinds = _kinds(source, spec, steps)

    def outcome(mode: Symbol) -> Any:
        known = {
            f"{spec}.kv_quant_mode": mode,
            f"{spec}.cache_dtype_str": _LAYER,
            f"getattr({spec}, 'cache_dtype_str', None)": _LAYER,
            "self.cache_config.cache_dtype": _GLOBAL,
            "cache_dtype": _GLOBAL,
            **kinds,
        }
        reading = Reading(source, path, known)
        reading.run(shaping, steps)
        return reading.value(argument)

    outcomes = (outcome(_QUANTISED), outcome(_NOT_QUANTISED))
    values = {
        (_GLOBAL, _GLOBAL): "global",
        (_GLOBAL, "auto"): "global-if-quantised",
        (_LAYER, "auto"): "spec-if-quantised",
        (_LAYER, _GLOBAL): "spec-if-quantised",
        (_LAYER, _LAYER): "spec",
    }
    value = values.get(outcomes) if all(isinstance(item, str) for item in outcomes) else None
    if value is None:
        raise LearningError(f"{path} {name}: which cache dtype {ast.unparse(argument)!r} stands for")
    asked = [item for step in steps for item in mentions(step, "kv_quant_mode", "cache_dtype_str", "cache_dtype")]
    return value, [(path, argument), *((path, node) for node in (*steps, *asked))]


def _kinds(source: Source, spec: str, steps: list[ast.stmt]) -> dict[str, bool]:
    """What ``isinstance`` says of a V4 spec, by the text of each such question."""
    asked = {
        node
        for step in steps
        for node in ast.walk(step)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and len(node.args) == 2
    }
    if not asked:
        return {}
    bases = {class_of(source, SPECS, "MLAAttentionSpec").name, *ancestors(source, SPECS, "MLAAttentionSpec")}
    return {ast.unparse(node): bool(names(node.args[1]) & bases) for node in asked if ast.unparse(node.args[0]) == spec}


def _shape_call(shaping: ast.FunctionDef, path: str) -> tuple[ast.Call, str]:
    """The one call that asks a backend for a shape, and what the spec is called there."""
    calls = [
        node
        for node in ast.walk(shaping)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == _SHAPE
    ]
    if len(calls) != 1 or len(calls[0].args) < 4 or not isinstance(calls[0].args[3], ast.Attribute):
        raise LearningError(f"{path} {shaping.name} does not ask for the shape of a cache once")
    return calls[0], ast.unparse(calls[0].args[3].value)


def _shared_shape(source: Source, path: str) -> list[Place]:
    """Where one function for both runners works out the shape from the spec alone."""
    used = [node for node in mentions(source.tree(path), _SHARED) if isinstance(node, ast.Name)]
    sizes = function(source, SPECS, _SIZES)
    returned = [node for node in ast.walk(sizes) if isinstance(node, ast.Return)]
    content = mentions(sizes, "state_content_size_bytes")
    if not used or not returned or not content:
        raise LearningError(f"{path} neither asks backends for shapes nor uses {_SHARED} with the spec's own size")
    function(source, UTILS, _SHARED)
    return [(path, used[0]), (SPECS, returned[-1]), (SPECS, content[-1])]


# How many kernel blocks a cache is cut into


def _blocks(source: Source) -> Decision:
    path, name = SHAPING["v2"]
    if source.find(path, name) is None:
        return "spec-view", [*_shared_shape(source, path), *_spec_blocks(source)]
    shaping = function(source, path, name)
    call, spec = _shape_call(shaping, path)
    steps = settling_statements(shaping, call.args[:2])
    fits = {size: {_fits(source, path, shaping, spec, size, ratio) for ratio in _RATIOS} for size in (1, 2)}
    places = [(path, node) for step in steps for node in mentions(step, "block_size", "storage_block_size")]
    places = [*places, *((path, node) for node in call.args[:2])]
    if fits[1] != {True}:
        return "block-size", places
    return ("storage-size" if fits[2] == {True} else "kernel-size"), places


def _fits(source: Source, path: str, shaping: ast.FunctionDef, spec: str, pieces: int, ratio: int) -> bool:
    """Do the rows of a block of so many kernel blocks, of a compressed cache, add up to what was allocated?"""
    call, _ = _shape_call(shaping, path)
    rows = pieces * _KERNEL // ratio
    known = {
        "num_blocks": _BLOCKS,
        f"{spec}.block_size": pieces * _KERNEL,
        f"{spec}.storage_block_size": rows,
        "kernel_block_sizes": (_KERNEL,),
        "kv_cache_group_id": 0,
        "group.kv_cache_group_id": 0,
    }
    reading = Reading(source, path, known)
    reading.run(shaping, settling_statements(shaping, call.args[:2]))
    number, height = (reading.value(item) for item in call.args[:2])
    if not isinstance(number, int) or not isinstance(height, int) or number * height < _BLOCKS * rows:
        raise LearningError(f"{path} {shaping.name}: the number and height of blocks cannot be told")
    return number * height == _BLOCKS * rows


def _spec_blocks(source: Source) -> list[Place]:
    """The division in the shared function; both of its sizes count tokens."""
    return [(SPECS, node) for node in assignments(function(source, SPECS, _SIZES), "blocks_per_page")]


# A block that the kernels do not take


def _common_size(source: Source) -> Decision:
    name = "prepare_kernel_block_sizes"
    prepare = function(source, UTILS, name)
    calls = [
        node for node in ast.walk(prepare) if isinstance(node, ast.Call) and called(node) == "select_common_block_size"
    ]
    if not calls:
        raise LearningError(f"{UTILS} {name} does not ask for a common block size")
    for node in ast.walk(prepare):
        if isinstance(node, (ast.If, ast.IfExp)) and "block_stride" in names(node.test):
            return "bypassed", [(UTILS, mentions(node.test, "block_stride")[0]), (UTILS, calls[0])]
    return "checked", [(UTILS, calls[0])]


_STRINGS: Final = {
    "global": "It shapes every cache by the cache dtype of the whole launch: a layer whose own dtype differs gets 512 "
    "bytes a state, as in the defect that vLLM PR 47716 corrects.",
    "global-if-quantised": "It shapes quantised caches by the cache dtype of the whole launch and all others as plain "
    "rows: a layer whose own dtype differs gets 512 bytes a state.",
    "spec-if-quantised": "It shapes quantised caches by the layer's own cache dtype and all others as plain rows: a "
    "spec without a quantisation mode gets 512 bytes a state.",
    "spec": "It shapes every cache by the layer's own cache dtype.",
    "spec-shape": "It works out the shape from the spec's own size of a state; no cache dtype is involved.",
}
FINGERPRINTS: Final = (
    fingerprint(
        "v1-cache-dtype-string",
        "By which cache dtype does the V1 runner shape a layer's cache?",
        _STRINGS,
        lambda source: string_of(source, "v1"),
        good=("spec-if-quantised", "spec", "spec-shape"),
        references=("vllm#47716",),
    ),
    fingerprint(
        "v2-cache-dtype-string",
        "By which cache dtype does the V2 runner shape a layer's cache?",
        _STRINGS,
        lambda source: string_of(source, "v2"),
        good=("spec-if-quantised", "spec", "spec-shape"),
        references=("vllm#47716",),
    ),
    fingerprint(
        "v2-reshape-block-size",
        "Does the V2 runner count the kernel blocks of a compressed cache in the size that is stored?",
        {
            "storage-size": "Rows and blocks are counted in the spec's storage size and add up for any block size.",
            "kernel-size": "Rows and blocks add up for a block of 256 tokens; a larger one runs out of its storage.",
            "block-size": "It counts tokens where rows are stored: a compressed cache asks for up to 128 times its "
            "storage and the start ends with 'setStorage ... out of bounds'.",
            "spec-view": "Blocks are views of one allocation, sized by the spec.",
        },
        _blocks,
        good=("storage-size", "kernel-size", "spec-view"),
        rules=("KV011",),
        references=("vllm#38831", "vllm#43988"),
    ),
    fingerprint(
        "common-block-size",
        "Is the block size checked against what V4's kernels take?",
        {
            "checked": "A block size that is no multiple of 256 is refused with 'No common block size'.",
            "bypassed": "Caches whose blocks lie outermost skip the check of the whole group; each backend is asked "
            "for itself later.",
        },
        _common_size,
        good=("checked", "bypassed"),
    ),
)
