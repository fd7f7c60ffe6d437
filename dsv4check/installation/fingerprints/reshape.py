"""How the runners shape a V4 cache: by which cache dtype, and in how many blocks."""

from __future__ import annotations

import ast
from typing import Any, Final

from dsv4check.learning.sections.block_size import SHAPING, SPECS, UTILS, settling_statements
from dsv4check.learning.shaping import BLOCKS, Shape, shapes
from dsv4check.learning.source import LearningError, Source, names
from dsv4check.learning.values import Symbol

from .kit import Decision, Place, assignments, called, fingerprint, function, mentions

_SHARED: Final = "allocate_kv_cache"
_SIZES: Final = "compute_layer_kv_cache_shape_bytes"
_TELLING: Final = ("kv_quant_mode", "cache_dtype_str", "cache_dtype")
_LAYER: Final = "the layer's string"
_GLOBAL: Final = "the global string"
_QUANTISED: Final = Symbol("KVQuantMode.FP8_PER_TENSOR")
_NOT_QUANTISED: Final = Symbol("KVQuantMode.NONE")
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
    asked = {mode: _asked(source, path, name, mode) for mode in (_QUANTISED, _NOT_QUANTISED)}
    given = [{item.dtype for item in found} for found in asked.values()]
    values: dict[tuple[Any, ...], str] = {
        (_GLOBAL, _GLOBAL): "global",
        (_GLOBAL, "auto"): "global-if-quantised",
        (_LAYER, "auto"): "spec-if-quantised",
        (_LAYER, _GLOBAL): "spec-if-quantised",
        (_LAYER, _LAYER): "spec",
    }
    outcomes = tuple(item.pop() if len(item) == 1 else None for item in given)
    value = values.get(outcomes) if all(isinstance(item, str) for item in outcomes) else None
    first = asked[_QUANTISED][0]
    if value is None:
        raise LearningError(f"{path} {name}: which cache dtype {ast.unparse(first.dtype_node)!r} stands for")
    places = {(item.path, item.dtype_node) for found in asked.values() for item in found}
    steps = settling_statements(function(source, path, name), [first.dtype_node]) if first.path == path else []
    told = [(path, node) for step in steps for node in (step, *mentions(step, *_TELLING))]
    return value, [*sorted(places, key=lambda place: place[1].lineno), *told]


def _asked(source: Source, path: str, name: str, mode: Symbol) -> tuple[Shape, ...]:
    spec = {"kv_quant_mode": mode, "cache_dtype_str": _LAYER, "block_size": _KERNEL, "storage_block_size": _KERNEL // 4}
    return shapes(source, path, name, spec, _KERNEL, _GLOBAL)


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
    found = {size: [item for ratio in _RATIOS for item in _rows(source, path, name, size, ratio)] for size in (1, 2)}
    first = found[1][0][0]
    wanted = first.node.args[:2]
    steps = settling_statements(function(source, path, name), wanted) if first.path == path else []
    places: list[Place] = [
        (path, node) for step in steps for node in mentions(step, "block_size", "storage_block_size")
    ]
    places = [*places, *((first.path, node) for node in (*wanted, first.node))]
    if not all(fits for _, fits in found[1]):
        return "block-size", places
    return ("storage-size" if all(fits for _, fits in found[2]) else "kernel-size"), places


def _rows(source: Source, path: str, name: str, pieces: int, ratio: int) -> list[tuple[Shape, bool]]:
    """Do the rows of a block of so many kernel blocks, of a compressed cache, add up to what was allocated?"""
    rows = pieces * _KERNEL // ratio
    spec = {
        "kv_quant_mode": _QUANTISED,
        "cache_dtype_str": _LAYER,
        "block_size": pieces * _KERNEL,
        "storage_block_size": rows,
        "compress_ratio": ratio,
    }
    answers = []
    for item in shapes(source, path, name, spec, _KERNEL, _GLOBAL):
        total = item.total
        if total is None or total < BLOCKS * rows:
            raise LearningError(f"{path} {name}: the number and height of blocks cannot be told")
        answers.append((item, total == BLOCKS * rows))
    return answers


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
