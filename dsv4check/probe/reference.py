"""Sparse decoding over packed caches in plain PyTorch: what FlashMLA's kernel has to come to, and how near.

Standard library and torch only: children import this file without dsv4check's packages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .packed import HEAD, read_states

BF16_ROUNDING: Final = 2.0**-8
"""Relative error of rounding to bfloat16: eight significant bits."""
FLOAT32_ROUNDING: Final = 2.0**-24
LSE_RELATIVE: Final = 2.0**-13
LSE_ABSOLUTE: Final = 2.0**-16
"""Of the log-sum-exp: float32 throughout, with the GPU's approximations of exp2 and log2."""


@dataclass(frozen=True)
class Bounds:
    """How far a kernel in bfloat16 may be off: each value at most ``maximum`` (shaped like the output), all on average
    at most ``mean``."""

    maximum: Any
    mean: float


@dataclass(frozen=True)
class Agreement:
    """How far an output is off, beside what it may be."""

    max_error: float
    mean_error: float
    worst: float
    """The largest error as a share of what its value may be off; above 1 is outside."""
    mean_bound: float
    inside: bool


def sparse_decode(
    q: Any,
    cache: Any,
    indices: Any,
    topk_length: Any = None,
    extra_cache: Any = None,
    extra_indices: Any = None,
    extra_topk_length: Any = None,
    attn_sink: Any = None,
    scale: float = HEAD**-0.5,
) -> tuple[Any, Any]:
    """Output (tokens, 1, heads, 512) and log-sum-exp (tokens, heads, 1), both float32, computed in float64.

    ``q`` (tokens, 1, heads, 512); ``indices`` (tokens, 1, top-k) list states of ``cache`` as block * states + offset.
    Entries of -1 and from ``topk_length`` (tokens) on are ignored. The values are the states' full 512 dimensions. The
    sink (heads) enters the denominator only, and never the log-sum-exp. A token without any state: output 0, +inf.
    """
    weights, states, lse = _attend(
        q, [(cache, indices, topk_length), (extra_cache, extra_indices, extra_topk_length)], attn_sink, scale
    )
    return (weights @ states).unsqueeze(1).float(), lse.unsqueeze(2).float()


def error_bounds(
    q: Any,
    cache: Any,
    indices: Any,
    topk_length: Any = None,
    extra_cache: Any = None,
    extra_indices: Any = None,
    extra_topk_length: Any = None,
    attn_sink: Any = None,
    scale: float = HEAD**-0.5,
) -> Bounds:
    """What a right kernel's output may differ from :func:`sparse_decode` for the same arguments.

    The kernel multiplies the same dequantised states (exact in bfloat16), adds up in float32, and rounds twice to
    bfloat16: the softmax's weights before they meet the values, and the output. With ``A`` the sum of weight x |value|:

    - a weight is off by u = 2^-8 of itself, and so may be the sum it is divided by: 2 u A;
    - the output is rounded: u |output|, at most u A;
    - a score adds 512 products in float32: its error, relative in the weight, is 512 x 2^-24 x scale x sum |q||k|.

    The mean bound is a third of that, u A and the scores' part: roundings of different states have different signs, so
    only a systematic fault (a wrong scale, a state left out) brings all values near their worst.
    """
    import torch

    parts = [(cache, indices, topk_length), (extra_cache, extra_indices, extra_topk_length)]
    weights, states, _ = _attend(q, parts, attn_sink, scale)
    absolute = (weights @ states.abs()).unsqueeze(1)
    products = q.squeeze(1).double().abs() @ states.abs().transpose(1, 2) * abs(scale)
    scores = 2 * HEAD * FLOAT32_ROUNDING * products.amax(dim=2)[:, None, :, None] * absolute
    # Where all is zero a kernel is right only with zero; elsewhere float32 has a smallest step of its own.
    tiny = torch.where(absolute > 0, 2.0**-126, 0.0)
    return Bounds(
        3 * BF16_ROUNDING * absolute + scores + tiny, float((BF16_ROUNDING * absolute + scores + tiny).mean())
    )


def agreement(output: Any, expected: Any, bounds: Bounds) -> Agreement:
    """Compare a kernel's output with :func:`sparse_decode`'s. A value that is no number is outside."""
    import torch

    error = (output.double() - expected.double()).abs()
    share = torch.where(error > 0, error / bounds.maximum, error).nan_to_num(nan=float("inf"))
    mean, worst = float(error.mean()), float(share.max())
    return Agreement(float(error.max()), mean, worst, bounds.mean, worst <= 1 and mean <= bounds.mean)


def lse_agrees(lse: Any, expected: Any) -> bool:
    """Whether a kernel's log-sum-exp is the reference's, but for float32."""
    infinite = expected.isinf()
    near = (lse.double() - expected.double()).abs() <= LSE_ABSOLUTE + LSE_RELATIVE * expected.double().abs()
    return bool((near | infinite).all()) and bool((lse[infinite] == expected[infinite]).all())


def _attend(q: Any, parts: list[tuple[Any, Any, Any]], attn_sink: Any, scale: float) -> tuple[Any, Any, Any]:
    """Weights (tokens, heads, states), states (tokens, states, 512) and log-sum-exp (tokens, heads), in float64."""
    import torch

    gathered = [_gather(*part) for part in parts if part[0] is not None]
    states = torch.cat([found for found, _ in gathered], dim=1)
    live = torch.cat([listed for _, listed in gathered], dim=1).unsqueeze(1)
    scores = q.squeeze(1).double() @ states.transpose(1, 2) * scale
    scores = scores.masked_fill(~live, float("-inf"))
    lse = scores.logsumexp(dim=2)
    lonely = lse == float("-inf")
    total = lse if attn_sink is None else torch.logaddexp(lse, attn_sink.double().expand_as(lse))
    weights = torch.exp(scores - total.unsqueeze(2)).masked_fill(lonely.unsqueeze(2), 0.0)
    return weights, states, lse.masked_fill(lonely, float("inf"))


def _gather(cache: Any, indices: Any, lengths: Any) -> tuple[Any, Any]:
    """The listed states in float64 (tokens, top-k, 512), and which entries count (tokens, top-k)."""
    import torch

    tokens, _, width = indices.shape
    listed = indices.squeeze(1)
    live = listed != -1
    if lengths is not None:
        live = live & (torch.arange(width, device=listed.device) < lengths.unsqueeze(1))
    # Entries past the length may hold anything: only those that count are looked up.
    states = torch.zeros(tokens, width, HEAD, dtype=torch.float64, device=listed.device)
    states[live] = read_states(cache, listed[live]).double()
    return states, live
