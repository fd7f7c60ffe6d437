"""The packed KV cache of DeepSeek-V4 (vLLM's ``fp8_ds_mla``): how a block's bytes are laid out, written and read.

A state takes 584 bytes, but a block is no array of 584-byte records. A block of ``n`` states holds, in this order:

- bytes ``0 .. n*576``: for each state 448 float8_e4m3 values (NoPE), then 64 bfloat16 values (RoPE);
- bytes ``n*576 .. n*584``: for each state 7 UE8M0 scales, one per 64 NoPE values, then one zero byte;
- padding up to a multiple of 576.

Standard library and torch only: children import this file without dsv4check's packages.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from functools import cache as computed_once
from typing import Any, Final

HEAD: Final = 512
NOPE: Final = 448
ROPE: Final = 64
TILE: Final = 64
"""NoPE values that share a scale."""
TILES: Final = NOPE // TILE
DATA_BYTES: Final = 576
"""448 fp8 and 64 bfloat16 values."""
SCALE_BYTES: Final = 8
"""Seven scales and an unused byte."""
STATE_BYTES: Final = DATA_BYTES + SCALE_BYTES
PAGE_ALIGNMENT: Final = 576

FP8_MAX: Final = 448.0
SCALE_BIAS: Final = 127
LEAST_AMAX: Final = 1e-4
INSERT_LEAST_SCALE: Final = LEAST_AMAX / FP8_MAX
"""vLLM's inserts of whole keys (CUDA and Triton) raise a tile's largest magnitude to 1e-4 before they divide it."""
COMPRESSOR_LEAST_SCALE: Final = 1e-4
"""vLLM's compressor for NVIDIA GPUs (0.22 on) and FlashMLA's own tests raise the quotient to 1e-4 instead. Only tiles
below 448e-4 show the difference, and a reader need not know: it multiplies with whatever scale is stored."""

SUBNORMAL_ERROR: Final = 2.0**-10
"""Of an fp8 value in its subnormal range (below 2^-6), in units of the scale: half a step of 2^-9."""
LARGEST_KEY: Final = 248 * 2.0**120
"""A NoPE value of at least this (near bfloat16's end) is rounded up to 2^128 and read back as infinity."""


def page_bytes(states: int) -> int:
    """Bytes of a block, without padding."""
    return states * STATE_BYTES


def padded_page_bytes(states: int) -> int:
    """Bytes from one block to the next where nothing else lies between them."""
    return -(-page_bytes(states) // PAGE_ALIGNMENT) * PAGE_ALIGNMENT


def new_cache(blocks: int, states: int, block_stride: int | None = None, fill: int = 0, device: str = "cpu") -> Any:
    """A cache as a layer holds it: ``(blocks, states, 584)`` bytes, blocks ``block_stride`` apart (padded pages)."""
    import torch

    stride = padded_page_bytes(states) if block_stride is None else block_stride
    raw = torch.full((blocks * stride,), fill, dtype=torch.uint8, device=device)
    return raw.as_strided((blocks, states, STATE_BYTES), (stride, STATE_BYTES, 1))


def quantise(keys: Any, least_scale: float = INSERT_LEAST_SCALE) -> tuple[Any, Any]:
    """NoPE of ``keys`` (tokens, 512) as float8_e4m3 (tokens, 448), and its scales as UE8M0 bytes (tokens, 7).

    A tile's scale is the smallest power of two that keeps its largest magnitude within 448. Float32 keys are rounded
    to bfloat16 first, as every writer of vLLM does.
    """
    import torch

    nope = _rounded(keys)[:, :NOPE].float().reshape(-1, TILES, TILE)
    wanted = (nope.abs().amax(dim=2) / FP8_MAX).clamp(min=least_scale)
    # 2^ceil(log2(x)) without a logarithm: its rounding near a power of two differs between devices.
    mantissa, exponent = torch.frexp(wanted)
    exponent = torch.where(mantissa > 0.5, exponent, exponent - 1)
    inverse = ((SCALE_BIAS - exponent) << 23).to(torch.int32).view(torch.float32)
    values = (nope * inverse.unsqueeze(2)).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return values.reshape(-1, NOPE), (exponent + SCALE_BIAS).to(torch.uint8)


def dequantise(values: Any, scales: Any) -> Any:
    """What :func:`quantise` kept of the NoPE values, as bfloat16 (tokens, 448); exact but for LARGEST_KEY."""
    import torch

    factors = scales.contiguous().view(torch.float8_e8m0fnu).float()
    product = values.float().reshape(-1, TILES, TILE) * factors.unsqueeze(2)
    return product.reshape(-1, NOPE).to(torch.bfloat16)


def write_states(cache: Any, slots: Any, keys: Any, least_scale: float = INSERT_LEAST_SCALE) -> None:
    """Write ``keys`` (tokens, 512) to ``slots`` (block * states + offset); a negative slot is skipped."""
    import torch

    if len(slots) != len(keys):
        raise ValueError(f"{len(slots)} slots for {len(keys)} keys")
    data, scales = _regions(cache)
    listed = slots >= 0
    block, offset = _places(cache, slots[listed])
    keys = _rounded(keys)[listed]
    values, bytes_ = quantise(keys, least_scale)
    rope = keys[:, NOPE:].contiguous().view(torch.uint8)
    data[block, offset] = torch.cat([values.view(torch.uint8), rope], dim=1)
    scales[block, offset] = torch.nn.functional.pad(bytes_, (0, 1))


def read_states(cache: Any, slots: Any) -> Any:
    """The states at ``slots``, dequantised: bfloat16 (tokens, 512)."""
    import torch

    data, scales = _regions(cache)
    block, offset = _places(cache, slots)
    found = data[block, offset]
    nope = dequantise(found[:, :NOPE].contiguous().view(torch.float8_e4m3fn), scales[block, offset][:, :TILES])
    return torch.cat([nope, found[:, NOPE:].contiguous().view(torch.bfloat16)], dim=1)


def _rounded(keys: Any) -> Any:
    """``keys`` in bfloat16; refuses what no writer can store."""
    import torch

    if keys.dim() != 2 or keys.shape[1] != HEAD or keys.dtype not in (torch.bfloat16, torch.float32):
        shape, dtype = tuple(keys.shape), str(keys.dtype).removeprefix("torch.")
        raise ValueError(f"keys must be (tokens, {HEAD}) of bfloat16 or float32, got {shape} of {dtype}")
    keys = keys.to(torch.bfloat16)
    if not bool(torch.isfinite(keys).all()):
        raise ValueError("keys must be finite in bfloat16: an infinity makes its whole tile unreadable")
    return keys


def _regions(cache: Any) -> tuple[Any, Any]:
    """Views of a cache's data (blocks, states, 576) and scales (blocks, states, 8)."""
    if cache.dim() == 4 and cache.shape[2] == 1:
        cache = cache.squeeze(2)
    if cache.dim() != 3 or cache.shape[2] != STATE_BYTES or cache.element_size() != 1:
        shape, dtype = tuple(cache.shape), str(cache.dtype).removeprefix("torch.")
        raise ValueError(f"a packed cache is (blocks, states, {STATE_BYTES}) of bytes, got {shape} of {dtype}")
    blocks, states, _ = cache.shape
    if cache.stride(2) != 1 or (states > 1 and cache.stride(1) != STATE_BYTES):
        raise ValueError(f"the {page_bytes(states)} bytes of a block must lie together, got strides {cache.stride()}")
    import torch

    raw, stride, first = cache.view(torch.uint8), cache.stride(0), cache.storage_offset()
    data = raw.as_strided((blocks, states, DATA_BYTES), (stride, DATA_BYTES, 1), first)
    scales = raw.as_strided((blocks, states, SCALE_BYTES), (stride, SCALE_BYTES, 1), first + states * DATA_BYTES)
    return data, scales


def _places(cache: Any, slots: Any) -> tuple[Any, Any]:
    """Block and offset of every slot. Checked here: on a GPU a wrong index kills the process's CUDA context."""
    blocks, states = cache.shape[:2]
    slots = slots.long()
    if len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) < blocks * states:
        raise ValueError(f"slots must lie in 0 .. {blocks * states - 1}, got {int(slots.min())} .. {int(slots.max())}")
    return slots // states, slots % states


# A second implementation, for cross-checks: one block at a time, in plain Python, sharing nothing with the one above.


def pack_block(keys: Any, least_scale: float = INSERT_LEAST_SCALE) -> Any:
    """A whole padded block holding ``keys`` (states, 512), as bytes."""
    import torch

    rows = keys.to(torch.bfloat16).float().tolist()
    block = bytearray(padded_page_bytes(len(rows)))
    for state, row in enumerate(rows):
        for tile in range(7):
            part = row[tile * 64 : tile * 64 + 64]
            wanted = max(max(map(abs, part)) / 448, least_scale)
            exponent = math.ceil(math.log2(wanted))
            for index, value in enumerate(part):
                block[state * 576 + tile * 64 + index] = _fp8_byte(value / 2.0**exponent)
            block[len(rows) * 576 + state * 8 + tile] = exponent + 127
        for index, value in enumerate(row[448:]):
            # A bfloat16 is the upper half of a float32.
            at = state * 576 + 448 + index * 2
            block[at : at + 2] = struct.pack("<f", value)[2:]
    return torch.frombuffer(block, dtype=torch.uint8)


def unpack_block(block: Any, states: int) -> Any:
    """What :func:`pack_block` kept: bfloat16 (states, 512)."""
    import torch

    found = bytes(block.tolist())
    values = _fp8_values()
    rows = []
    for state in range(states):
        row = []
        for index in range(448):
            byte = found[state * 576 + index]
            magnitude = values[byte & 127] * 2.0 ** (found[states * 576 + state * 8 + index // 64] - 127)
            row.append(-magnitude if byte & 128 else magnitude)
        for index in range(64):
            at = state * 576 + 448 + index * 2
            row.extend(struct.unpack("<f", b"\0\0" + found[at : at + 2]))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64).to(torch.bfloat16)


@computed_once
def _fp8_values() -> list[float]:
    """The magnitudes of float8_e4m3 by their seven bits: four of exponent (bias 7), three of mantissa; no infinity."""
    subnormal = [step * 2.0**-9 for step in range(8)]
    normal = [(8 + step) * 2.0 ** (exponent - 10) for exponent in range(1, 16) for step in range(8)]
    return [*subnormal, *normal[:-1], math.nan]


def _fp8_byte(value: float) -> int:
    """The nearest float8_e4m3, ties to the even mantissa, saturated at 448."""
    values, magnitude = _fp8_values()[:-1], abs(value)
    below = bisect_right(values, magnitude) - 1
    if below < len(values) - 1:
        middle = (values[below] + values[below + 1]) / 2
        if magnitude > middle or (magnitude == middle and below % 2):
            below += 1
    return below | (128 if math.copysign(1, value) < 0 else 0)


def round_trip_error(keys: Any) -> dict[str, float | bool]:
    """What quantise, pack, unpack and dequantise make of ``keys`` (states, 512), against what they may.

    The true bounds: a NoPE value is off by at most 1/17 of itself, or, where that is larger, by 2^-10 of its tile's
    scale, which is below 2/448 of the tile's largest magnitude (or the least scale); RoPE is exact in bfloat16.
    ``inside``: every value keeps to them. Keys of LARGEST_KEY and beyond have no bound.
    """
    import torch

    cache = new_cache(1, len(keys), device=str(keys.device))
    slots = torch.arange(len(keys), device=keys.device)
    write_states(cache, slots, keys)
    exact, back = _rounded(keys).double(), read_states(cache, slots).double()
    error = (back - exact).abs()
    nope, magnitude = error[:, :NOPE], exact[:, :NOPE].abs()
    factors = quantise(keys)[1].view(torch.float8_e8m0fnu).double().repeat_interleave(TILE, dim=1)
    # In this order both sides are exact: 1/17 is no binary fraction.
    within = (nope * 17 <= magnitude) | (nope <= factors * SUBNORMAL_ERROR)
    relative = nope[magnitude > 0] / magnitude[magnitude > 0]
    amax = magnitude.reshape(-1, TILES, TILE).amax(dim=2).repeat_interleave(TILE, dim=1)
    return {
        "max_abs": float(nope.max()),
        "mean_abs": float(nope.mean()),
        "max_relative": float(relative.max()) if len(relative) else 0.0,
        "mean_relative": float(relative.mean()) if len(relative) else 0.0,
        "max_of_tile": float((nope / amax.clamp(min=LEAST_AMAX)).max()),
        "rope_max_abs": float(error[:, NOPE:].max()),
        "inside": bool(within.all()) and not bool(error[:, NOPE:].any()),
    }
