"""Plain-row caches (512 elements a state, bfloat16 or per-tensor fp8 with scale 1) and sparse decoding over any rows.

FlashInfer's kernels for SM 10.x read such rows. They differ from a packed cache in that a block is an array of rows.
Standard library and torch only: children import this file without dsv4check's packages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

HEAD: Final = 512
FP8_MAX: Final = 448.0


def plain_write(cache: Any, slots: Any, keys: Any) -> None:
    """Write ``keys`` (tokens, 512) to ``slots`` (block * states + offset); a negative slot is skipped.

    fp8 rows saturate at 448, as vLLM's insert does.
    """
    import torch

    listed = slots >= 0
    block, offset = _places(cache, slots[listed])
    rows = keys[listed].to(torch.bfloat16)
    if cache.dtype == torch.float8_e4m3fn:
        rows = rows.float().clamp(-FP8_MAX, FP8_MAX)
        # Not every torch can scatter fp8: bytes can always be.
        cache.view(torch.uint8)[block, offset] = rows.to(torch.float8_e4m3fn).view(torch.uint8)
    else:
        cache[block, offset] = rows.to(cache.dtype)


def plain_read(cache: Any, slots: Any) -> Any:
    """The rows at ``slots``: bfloat16 (tokens, 512); exact, since bfloat16 holds every fp8 value."""
    import torch

    block, offset = _places(cache, slots)
    if cache.dtype == torch.float8_e4m3fn:
        return cache.view(torch.uint8)[block, offset].view(torch.float8_e4m3fn).to(torch.bfloat16)
    return cache[block, offset].to(torch.bfloat16)


def _places(cache: Any, slots: Any) -> tuple[Any, Any]:
    import torch

    if cache.dim() != 3 or cache.shape[2] != HEAD or cache.dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        shape, dtype = tuple(cache.shape), str(cache.dtype).removeprefix("torch.")
        raise ValueError(f"a plain cache is (blocks, states, {HEAD}) of bfloat16 or fp8, got {shape} of {dtype}")
    blocks, states = cache.shape[:2]
    slots = slots.long()
    if len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) < blocks * states:
        raise ValueError(f"slots must lie in 0 .. {blocks * states - 1}, got {int(slots.min())} .. {int(slots.max())}")
    return slots // states, slots % states


def sparse_decode(
    q: Any, parts: list[tuple[Any, Any, Any]], sink: Any, scale: float, read: Callable[[Any, Any], Any]
) -> Any:
    """Sparse attention of ``q`` (tokens, heads, 512) over the listed states, in float64: (tokens, heads, 512).

    ``parts``: each a cache, indices (tokens, width; -1 for none) and lengths (tokens); ``read`` gives a cache's rows at
    slots. The values are the full rows; the sink enters the denominator only.
    """
    import torch

    outputs = []
    for token in range(q.shape[0]):
        rows = []
        for cache, indices, lengths in parts:
            listed = indices[token, : int(lengths[token])]
            rows.append(read(cache, listed[listed >= 0]).double())
        states = torch.cat(rows)
        scores = q[token].double() @ states.T * scale
        total = torch.logaddexp(scores.logsumexp(dim=1), sink.double())
        outputs.append(torch.exp(scores - total.unsqueeze(1)) @ states)
    return torch.stack(outputs)
