"""FlashMLA's argument checks for sparse decoding, applied to cache tensors: the probe's, on what vLLM allocated."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

OTHER_LAYOUTS = ("nvfp4_ds_mla",)
"""Packed caches of other kernels: V4.1's mega attention."""


def _shared(name: str) -> Any:
    """A module of ``probe/``. The child knows no package around the rehearsal's, and must not see what lies beside it:
    there the folder is loaded by its place, under a name of its own."""
    try:
        return importlib.import_module(f"...probe.{name}", __package__)
    except ImportError:
        package, folder = "dsv4check_rehearsal_probe", Path(__file__).resolve().parents[2] / "probe"
    if package not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            package, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[package] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return importlib.import_module(f"{package}.{name}")


_contract, _packed = _shared("contract"), _shared("packed")
STATE_BYTES: int = _packed.STATE_BYTES


def packed_caches(specs: dict[str, Any], backends: dict[str, str]) -> list[str]:
    """Names of the layers whose cache goes to FlashMLA as packed states: main and sliding-window caches.

    Empty when the attention layers use another kernel. Indexer keys and compressor states never go there.
    """
    if not any("FLASHMLA" in name.upper() for name in backends.values()):
        return []
    return [
        name
        for name, spec in specs.items()
        if getattr(spec, "head_size", None) == _packed.HEAD
        and str(getattr(spec, "dtype", "")) == "torch.uint8"
        and getattr(spec, "cache_dtype_str", None) not in OTHER_LAYOUTS
    ]


def violation(cache: Any) -> str:
    """What FlashMLA would say about this cache; empty when it accepts it. ``cache``: what the layer holds."""
    # V4.1's states come only from releases whose kernel tells formats by their size.
    newer = cache.shape[-1] in _contract.DETECTED_BYTES[1:]
    said: str = _contract.cache_refusal(cache, detects_format=newer)
    if "Padding might be necessary" in said:
        # The kernel names a stride of its own argument; the allocation knows blocks.
        return f"{said}: blocks are {cache.stride()[0]} bytes apart, not a multiple of {_packed.PAGE_ALIGNMENT}"
    return said


def describe(cache: Any) -> dict[str, Any]:
    """Shape, strides and dtype of a cache tensor."""
    described: dict[str, Any] = _contract.view_of(cache)
    return described
