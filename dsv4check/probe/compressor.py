"""Inputs with which vLLM's compressor writes given keys unchanged.

The compressor takes a window of states from a cache of its own, weighs them by a softmax over their scores, normalises
the sum, rotates it and writes it quantised. It is fed so that only the last step does anything:

- softmax: the window's last state is the key, with score 0; all others have -1e30, so that its weight is exactly 1;
- RMSNorm: epsilon 2^60 and weight 2^30; a key's mean square vanishes beside 2^60 in float32, and multiplying by 2^-30
  and 2^30 is exact;
- RoPE: a table of cos 1 and sin 0, at position 0.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

_STATE_ROWS = {4: 4, 128: 8}
"""States in a block of the compressor's own cache, by compression ratio."""
_SILENT = -1e30
_NORM_EPS = 2.0**60
_NORM_WEIGHT = 2.0**30


def rope_table(device: Any) -> Any:
    """Cosines (1) and sines (0) of the first positions, as vLLM lays them out: (positions, 32 + 32) float32."""
    import torch

    return torch.cat([torch.ones(8, 32), torch.zeros(8, 32)], dim=1).to(device)


def compressor_arguments(cache: Any, slots: Any, keys: Any, ratio: int) -> dict[str, Any]:
    """What the compressor's kernels take, under the names of all releases: one request for each key.

    A request's window ends at position ``ratio - 1``; its last state is the key, all others are silent. C4 windows
    overlap: the state cache is twice as wide and the window's own half is the second one.
    """
    import torch

    count, head = keys.shape
    overlap = ratio == 4
    width = head * (2 if overlap else 1)
    rows = _STATE_ROWS[ratio]
    device = keys.device
    # Block 0 is silent and shared by all windows; block 1 + i ends with key i.
    states = torch.zeros(count + 1, rows, 2 * width, device=device)
    states[:, :, width:] = _SILENT
    states[1:, -1, width - head : width] = keys.float()
    states[1:, -1, 2 * width - head :] = 0.0
    blocks = torch.zeros(count, ratio // rows, dtype=torch.int32, device=device)
    blocks[:, -1] = torch.arange(1, count + 1, dtype=torch.int32, device=device)
    positions = torch.full((count,), ratio - 1, dtype=torch.int64, device=device)
    state_slots = torch.arange(1, count + 1, dtype=torch.int64, device=device) * rows + rows - 1
    table = rope_table(device)
    packed = head == 512
    values: dict[str, Any] = {
        "state_cache": states,
        "num_actual": count,
        "token_to_req_indices": torch.arange(count, dtype=torch.int32, device=device),
        "positions": positions,
        "slot_mapping": state_slots,
        "block_table": blocks,
        "block_size": rows,
        "state_width": width,
        "cos_sin_cache": table,
        "kv_cache": cache,
        "k_cache_metadata": SimpleNamespace(slot_mapping=slots),
        "pdl_kwargs": {},
        "head_dim": head,
        "rope_head_dim": 64,
        "compress_ratio": ratio,
        "overlap": overlap,
        "use_fp4_cache": False,
        "rms_norm_weight": torch.full((head,), _NORM_WEIGHT, dtype=torch.bfloat16, device=device),
        "rms_norm_eps": _NORM_EPS,
        "quant_block": 64 if packed else 128,
        "token_stride": 576 if packed else head,
        "scale_dim": 8 if packed else 4,
        "store_full_kv": packed and cache.dtype != torch.uint8,
        "store_full_fp8": cache.dtype == torch.float8_e4m3fn,
        "fp8_scale": torch.ones(1, device=device) if cache.dtype == torch.float8_e4m3fn else None,
    }
    kernel_only = {
        "state_cache_stride0": states.stride(0),
        "state_cache_stride1": states.stride(1),
        "block_table_stride": blocks.stride(0),
        "cos_sin_stride": table.stride(0),
        "k_cache": cache,
        "kv_slot_mapping": slots,
        "kv_cache_block_size": int(cache.shape[1]),
        "HEAD_SIZE": head,
        "TRITON_BLOCK_SIZE": head,
        "STATE_WIDTH": width,
        "COMPRESS_RATIO": ratio,
        "OVERLAP": overlap,
        "ROPE_HEAD_DIM": 64,
        "FP8_MAX": 448.0,
        "QUANT_BLOCK": values["quant_block"],
        "TOKEN_STRIDE": values["token_stride"],
        "SCALE_DIM": values["scale_dim"],
        "KV_BLOCK_STRIDE": cache.stride(0),
    }
    return values | kernel_only
