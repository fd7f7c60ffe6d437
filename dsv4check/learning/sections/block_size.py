"""Section ``block_size``: the block the kernels take, and what a release does with another ``--block-size``.

A block of several kernel blocks meets the code that shapes the caches: it either leaves the block whole, makes more
kernel blocks than the memory holds, or refuses to split it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ..attention_layers import ONE_CLASS, assigned, backend_class, called, layer_classes, only_backend
from ..classes import get_class
from ..interpret import Reading
from ..release import Release
from ..shaping import BLOCKS, shapes
from ..source import LearningError, Source, names, strings

PLATFORM: Final = "platforms/interface.py"
UTILS: Final = "v1/worker/utils.py"
SPECS: Final = "v1/kv_cache_interface.py"
PLANNING: Final = "v1/core/kv_cache_utils.py"
INDEXER: Final = ("v1/attention/backends/mla/indexer.py", "DeepseekV4IndexerBackend")
SHAPING: Final = {
    "v1": ("v1/worker/gpu_model_runner.py", "GPUModelRunner._reshape_kv_cache_tensors"),
    "v2": ("v1/worker/gpu/attn_utils.py", "_reshape_kv_cache"),
}
"""Where each runner shapes raw memory into caches, in releases without one function for both."""
PACKED_SHAPING: Final = "_reshape_attention_kv_cache"
VIEWS: Final = (SPECS, "create_kv_cache_views")
"""The one function for both, which refuses to split blocks that are no dense pages."""
MAPPING: Final = (UTILS, "AttentionGroup.map_kv_cache_to_kernel_blocks")
"""Splits the blocks of one backend's caches, in releases that ask each backend for itself."""
PER_BACKEND: Final = (UTILS, "AttentionGroup.create_metadata_builders")
VIEW_ERROR: Final = "shape '[...]' is invalid for input of size ..."
"""What PyTorch says when ``view`` is asked for more than there is; its own text, not in vLLM."""
_SEVERAL: Final = 2
_RATIO: Final = 4


def learn(release: Release) -> dict[str, Any]:
    """The kernels' block size and the outcome of other sizes."""
    source = release.source
    kernel = kernel_block(source)
    section: dict[str, Any] = {
        "kernel_block": kernel,
        "unset": _unset(source, kernel),
        "other_sizes": "no-common-block",
        "no_common_error": _no_common_error(source, kernel),
    }
    if source.find(*VIEWS) is not None:
        section |= {"multiples": dict.fromkeys(SHAPING, "no-split"), "no_split_error": _no_split_error(source, kernel)}
    else:
        outcomes = {runner: _several_blocks(source, *where, kernel) for runner, where in SHAPING.items()}
        section["multiples"] = outcomes
        if "set-storage" in outcomes.values() and _shaped_by_view(source):
            section["large_block_error"] = VIEW_ERROR
    if _divides_by_empty_page(source):
        section["stateless"] = "zero-division"
    return section


def kernel_block(source: Source) -> int:
    """The one size that the backends of main cache and indexer support."""
    backends = [get_class(source, *INDEXER)]
    for name, layer in layer_classes(source).items():
        backends.append(only_backend(source, layer) if name == ONE_CLASS else backend_class(source, layer))
    sizes = {called(source, backend, "get_supported_kernel_block_sizes", {}) for backend in backends}
    size = sizes.pop()
    if sizes or not isinstance(size, tuple) or len(size) != 1 or not isinstance(size[0], int):
        raise LearningError("V4's backends do not support one and the same kernel block size any more")
    return size[0]


def _unset(source: Source, kernel: int) -> int:
    """Without the flag the platform takes what the backends prefer: the kernels' size, as the default is none."""
    function = source.get(PLATFORM, "Platform.update_block_size_for_backend")
    if not {"get_preferred_block_size", "_preferred_block_size_for_backends"} & names(function):
        raise LearningError(f"{PLATFORM} update_block_size_for_backend does not ask the backends for their block size")
    if source.literal("config/cache.py", "CacheConfig.DEFAULT_BLOCK_SIZE") == kernel:
        raise LearningError("config/cache.py: the default block size is the kernels' own")
    return kernel


def _no_common_error(source: Source, kernel: int) -> str:
    """Message of ``select_common_block_size``; with the backend where one alone is asked, else up to the backends."""
    function = source.get(UTILS, "select_common_block_size")
    raised = (
        [node for node in function.body if isinstance(node, ast.Raise)] if isinstance(function, ast.FunctionDef) else []
    )
    parts = strings(raised[-1]) if raised else []
    if not parts or not parts[0].startswith("No common block size for {}"):
        raise LearningError(f"{UTILS} select_common_block_size does not end in 'No common block size for'")
    said = parts[0].replace("{}", "{block_size}", 1)
    if len(parts) == 1:
        return said.strip().rstrip(".")
    if len(parts) != 4 or parts[2] != "{}: {}":
        raise LearningError(f"{UTILS} select_common_block_size lists the backends in another way")
    if not asks_each_backend(source):
        return said.removesuffix(" (")
    return said + parts[2].format(_indexer_name(source), [kernel]) + parts[3]


def asks_each_backend(source: Source) -> bool:
    """A group's backends are asked for their block one by one, the indexer's first (seen in vLLM's own set-up)."""
    function = source.find(*PER_BACKEND)
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "select_common_block_size":
            return isinstance(node.args[1], ast.List) and len(node.args[1].elts) == 1
    return False


def _indexer_name(source: Source) -> str:
    return str(called(source, get_class(source, *INDEXER), "get_name", {}))


def _no_split_error(source: Source, kernel: int) -> str:
    """Refusal to split a block: of the group that is asked first, or of the function that makes the views."""
    path, name = MAPPING if asks_each_backend(source) else VIEWS
    function = source.get(path, name)
    known = {
        "self.backend.get_name()": _indexer_name(source),
        "self.kernel_block_size": kernel,
        "spec.block_size": "{block_size}",
        "ratio": "{pieces}",
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            text = str(Reading(source, path, known).value(node.exc.args[0]))
            found = re.search(r"a manager block cannot be split into \{pieces\} kernel blocks", text)
            if found:
                return found[0]
            if "cannot be split into." in text:
                return text.partition("cannot be split into.")[0] + "cannot be split into."
    raise LearningError(f"{path} {name} does not refuse to split a block in a known way")


def _several_blocks(source: Source, path: str, name: str, kernel: int) -> str:
    """Does a block of two kernel blocks get as many rows as its memory holds (``works``), or more (``set-storage``)?"""
    rows = _SEVERAL * kernel // _RATIO
    spec = {"block_size": _SEVERAL * kernel, "storage_block_size": rows, "compress_ratio": _RATIO}
    outcomes = set()
    for item in shapes(source, path, name, spec, kernel):
        total = item.total
        if total is None or total < BLOCKS * rows:
            raise LearningError(f"{path} {name}: the number and height of blocks cannot be told")
        outcomes.add("works" if total == BLOCKS * rows else "set-storage")
    if len(outcomes) > 1:
        raise LearningError(f"{path} {name} does not shape all V4 caches the same way")
    return outcomes.pop()


def settling_statements(function: ast.FunctionDef, wanted: list[ast.expr]) -> list[ast.stmt]:
    """The statements that settle some expressions, in order; what is given (specs, groups, memory) is left alone."""
    given = {"kv_cache_spec", "group", "self", "kernel_block_sizes", "kv_cache_group_id"}
    units = list(_units(function.body))
    needed = set().union(*(names(item) for item in wanted)) - given
    while True:
        chosen = [unit for unit in units if _targets([unit]) & needed]
        more = set().union(*(names(unit) for unit in chosen)) - given - needed
        if not more & {name for unit in units for name in _targets([unit])}:
            return chosen
        needed |= more


def _units(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Assignments, and conditions that only choose between assignments, inside loops and other blocks."""
    for node in body:
        if _settles(node):
            yield node
        elif isinstance(node, (ast.For, ast.If, ast.With)):
            yield from _units([*node.body, *getattr(node, "orelse", [])])


def _settles(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return bool(node.orelse and _targets(node.body) and _targets(node.orelse))
    return isinstance(node, ast.AugAssign) or (isinstance(node, ast.Assign) and "numel" not in names(node.value))


def _targets(body: Iterable[ast.stmt]) -> set[str]:
    """Names that the statements assign; empty when they do anything else."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.Assign):
            found |= {ast.unparse(item) for item in node.targets}
        elif isinstance(node, ast.AugAssign):
            found.add(ast.unparse(node.target))
        elif isinstance(node, ast.If):
            found |= _targets(node.body) | _targets(node.orelse)
        else:
            return set()
    return found


def _shaped_by_view(source: Source) -> bool:
    """Packed caches are cut with ``view`` (which refuses) instead of ``as_strided`` (which reaches beyond)."""
    path = SHAPING["v2"][0]
    function = source.find(path, PACKED_SHAPING)
    if not isinstance(function, ast.FunctionDef) or PACKED_SHAPING not in names(source.tree(SHAPING["v1"][0])):
        return False
    known = {"packing": ("offset", "block_stride"), "inv_order": (0,)}
    for node in function.body:
        if isinstance(node, ast.If) and Reading(source, path, known).value(node.test) is True:
            values = [assigned(item, "kv_cache") for item in node.body]
            return any(isinstance(item, ast.Call) and ast.unparse(item.func).endswith(".view") for item in values)
    raise LearningError(f"{path} {PACKED_SHAPING} does not tell packed caches from others")


def _divides_by_empty_page(source: Source) -> bool:
    """A block below 128 tokens holds no state of the C128 layers, and the planning divides by such a page.

    Up to 0.26 an assertion on the page sizes of the sliding window comes first, for every block below the kernels'.
    """
    function = source.find(PLANNING, "_get_kv_cache_groups_uniform_groups")
    asserts = [node for node in ast.walk(function) if isinstance(node, ast.Assert)] if function is not None else []
    if any(isinstance(node.test, ast.Compare) and "max" in names(node.test) for node in asserts):
        return False
    pages = source.get(SPECS, "UniformTypeKVCacheSpecs.max_memory_usage_pages")
    divided = [
        node.args[1]
        for node in ast.walk(pages)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "cdiv" and len(node.args) == 2
    ]
    return any("page_size_bytes" in names(item) for item in divided)
