"""FlashMLA's argument checks for sparse decoding, applied to cache tensors.

Facts: the argument checks of FlashMLA's ``csrc/api/sparse_decode.h``. vLLM hands a layer's cache to the kernel as
``(num_blocks, states, 1, bytes)``; for a packed DeepSeek-V4 cache (query heads of 512) a state takes 584 bytes and a
block is padded to a multiple of 576.
"""

from __future__ import annotations

from typing import Any

STATE_BYTES = 584
"""448 fp8 NoPE + 128 (64 bfloat16 RoPE) + 7 UE8M0 scales + 1 unused."""
PAGE_ALIGNMENT = 576
HEAD_SIZE = 512
OTHER_LAYOUTS = ("nvfp4_ds_mla",)
"""Packed caches of other kernels: V4.1's mega attention."""

_SHAPE = "kv must have shape (num_blocks, page_block_size, h_kv, bytes_per_token)"
_BLOCK = "The whole block must be contiguous when is_fp8_cache is True for kv cache"


def packed_caches(specs: dict[str, Any], backends: dict[str, str]) -> list[str]:
    """Names of the layers whose cache goes to FlashMLA as packed states: main and sliding-window caches.

    Empty when the attention layers use another kernel. Indexer keys and compressor states never go there.
    """
    if not any("FLASHMLA" in name.upper() for name in backends.values()):
        return []
    return [
        name
        for name, spec in specs.items()
        if getattr(spec, "head_size", None) == HEAD_SIZE
        and str(getattr(spec, "dtype", "")) == "torch.uint8"
        and getattr(spec, "cache_dtype_str", None) not in OTHER_LAYOUTS
    ]


def violation(cache: Any) -> str:
    """What FlashMLA would say about this cache; empty when it accepts it. ``cache``: what the layer holds."""
    tensor = cache.unsqueeze(-2) if cache.dim() == 3 else cache
    if tensor.dim() != 4:
        return f"kv must have 4 dimensions, got {tuple(tensor.shape)}"
    if tensor.shape[2] != 1:
        return f"Currently only MQA (i.e. h_kv == 1) is supported for sparse decoding, got h_kv {tensor.shape[2]}"
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ("uint8", "int8", "float8_e4m3fn"):
        return f"key must have dtype fp8_e4m3fn, int8 or uint8, got {dtype}"
    if tensor.stride(3) != 1:
        return "kv must have contiguous last dimension"
    if tensor.shape[3] != STATE_BYTES:
        return _SHAPE
    if tensor.shape[1] > 1 and tensor.stride(1) != STATE_BYTES:
        return _BLOCK
    if tensor.shape[0] > 1 and tensor.stride(0) % PAGE_ALIGNMENT:
        return f"blocks are {tensor.stride(0)} bytes apart, not a multiple of {PAGE_ALIGNMENT}"
    return ""


def describe(cache: Any) -> dict[str, Any]:
    """Shape, strides and dtype of a cache tensor."""
    return {
        "shape": list(cache.shape),
        "stride": list(cache.stride()),
        "dtype": str(cache.dtype).removeprefix("torch."),
    }
