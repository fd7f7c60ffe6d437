"""A few blocks of the planned cache, allocated and reshaped by the release's own code, for the probe.

What is cut is the number of blocks alone: a block's bytes, what lies where in it and how it is viewed stay as planned.
"""

from __future__ import annotations

import re
from typing import Any

from . import flashmla

BLOCKS = 24
"""Enough for a window, a top-k and a null block of their own for each kind of layer."""
BYTES = 48 << 20
_LAYER = re.compile(r"(?:^|\.)layers?\.(\d+)\.")


def shrink(plan: Any) -> int:
    """Cut a plan to a few blocks, as engine cores do when workers differ in memory; returns their number."""
    tensors, planned = plan.kv_cache_tensors, int(plan.num_blocks)
    shared = any(getattr(tensor, "block_stride", 0) for tensor in tensors)
    sizes = [int(tensor.size) for tensor in tensors]
    # Layers whose tensors are their own are not all taken along: one of each kind, and kinds seldom have one size.
    block = max(1, (max(sizes) if shared else 2 * sum(set(sizes))) // planned)
    # A block of all layers together may be large; each group needs one of its own all the same, beside the null block.
    least = min(planned, 1 + len(getattr(plan, "kv_cache_groups", None) or [None]))
    blocks = max(least, min(BLOCKS, planned, BYTES // block))
    for tensor in tensors:
        tensor.size = tensor.size // planned * blocks
        if getattr(tensor, "layer_stride", 0) > getattr(tensor, "block_stride", 0):
            # Layer after layer: where a layer begins depends on the number of blocks.
            tensor.layer_stride = tensor.layer_stride // planned * blocks
            tensor.offset = tensor.offset // planned * blocks
    plan.num_blocks = blocks
    return blocks


def describe(config: Any, caches: dict[str, Any], specs: dict[str, Any], groups: dict[str, int]) -> dict[str, Any]:
    """One layer of each kind: its tensor, and the storage it lies in. ``groups``: layer name -> KV-cache group."""
    text = config.model_config.hf_text_config
    draft_from = int(getattr(text, "num_hidden_layers", 0) or 0)
    ratios = _main_ratios(specs)
    storages: dict[int, int] = {}
    sizes: list[int] = []
    found: dict[str, dict[str, Any]] = {}
    for name, cache in caches.items():
        if not hasattr(cache, "untyped_storage"):
            continue
        kind = kind_of(name, specs.get(name), draft_from, ratios)
        if kind in found:
            found[kind]["layers"] += 1
            continue
        storage = cache.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = len(sizes)
            sizes.append(storage.nbytes())
        found[kind] = {
            "kind": kind,
            "layer": name,
            "layers": 1,
            **flashmla.describe(cache),
            "offset": int(cache.storage_offset()) * cache.element_size(),
            "storage": storages[storage.data_ptr()],
            "group": groups.get(name, 0),
            "spec": type(specs.get(name)).__name__,
            "tokens_per_state": _ratio(specs.get(name)),
        }
    return {"storages": sizes, "caches": list(found.values())}


def kind_of(name: str, spec: Any, draft_from: int, ratios: list[int]) -> str:
    """``main_c4``, ``main_c128``, ``swa``, ``indexer_k``, ``state_...``; ``draft_`` in front for a drafter's layers.

    ``ratios``: compress ratio of each layer's main cache.
    """
    number = _LAYER.search(name)
    draft = "draft_" if "draft" in name or (number and draft_from and int(number[1]) >= draft_from) else ""
    if "swa_cache" in name:
        return f"{draft}swa"
    if "state_cache" in name:
        if "indexer" in name:
            return f"{draft}state_indexer"
        # The spec's window would not tell: without the hybrid manager it has none.
        return f"{draft}state_c{_own_ratio(number, ratios)}"
    if "indexer" in name:
        return f"{draft}indexer_k"
    return f"{draft}main_c{_ratio(spec)}"


def _main_ratios(specs: dict[str, Any]) -> list[int]:
    """Compress ratio of each layer's main cache, 0 where it has none; the config's own names differ by generation."""
    found = {
        int(number[1]): _ratio(spec)
        for name, spec in specs.items()
        if (number := _LAYER.search(name)) and not any(part in name for part in ("swa_cache", "state_cache", "indexer"))
    }
    return [found.get(layer, 0) for layer in range(max(found, default=-1) + 1)]


def _own_ratio(number: re.Match[str] | None, ratios: list[int]) -> int:
    layer = int(number[1]) if number else len(ratios)
    return int(ratios[layer]) if layer < len(ratios) else 0


def _ratio(spec: Any) -> int:
    return int(getattr(spec, "tokens_per_state", None) or getattr(spec, "compress_ratio", None) or 1)
