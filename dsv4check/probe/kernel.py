"""FlashMLA's sparse decode on the probe's caches, called as vLLM calls it, against a reference in plain PyTorch.

Standard library and torch only: a child of the probe runs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from . import contract, device_caches, packed, reference
from .device_caches import Cache

_WINDOW: Final = 128
_WIDTH: Final = 128
"""Widths of index lists are multiples of this: the kernels for SM 10.x ask for 64 or 128."""
_TOKENS: Final = 4
_PLACES: Final = ("vllm.third_party.flashmla.flash_mla_interface", "vllm.v1.attention.ops.flashmla", "flash_mla")
"""Where the interface is, vLLM's own copy first; upstream's package last."""


@dataclass
class FlashMla:
    """The functions of FlashMLA's Python interface."""

    decode: Callable[..., Any]
    metadata: Callable[..., Any]
    origin: str


@dataclass
class Call:
    """Arguments of a sparse decode, as tensors."""

    q: Any
    cache: Any
    indices: Any
    lengths: Any
    sink: Any
    extra_cache: Any = None
    extra_indices: Any = None
    extra_lengths: Any = None

    @property
    def scale(self) -> float:
        """Of the scores: head size to the power of -1/2."""
        return float(packed.HEAD**-0.5)


def load() -> FlashMla:
    """FlashMLA as this interpreter finds it. Raises ImportError that says what each place answered."""
    said = []
    for place in _PLACES:
        try:
            module = importlib.import_module(place)
            found = FlashMla(module.flash_mla_with_kvcache, module.get_mla_metadata, place)
        except Exception as error:
            said.append(f"{place}: {' '.join(str(error).split())[:200]}")
            continue
        missing = getattr(module, "_is_flashmla_available", None)
        if missing is not None and not missing()[0]:
            said.append(f"{place}: {missing()[1]}")
            continue
        return found
    raise ImportError("; ".join(said))


def fill(caches: dict[str, Cache], seed: int) -> None:
    """Write keys to every slot of the packed caches, so that any of them may be listed."""
    for number, cache in enumerate(caches.values()):
        if cache.packed:
            made = device_caches.keys(len(cache.slots), seed + number, str(cache.view.device))
            packed.write_states(cache.view, cache.slots, made)
            device_caches.keep(cache, cache.slots)


def build(swa: Cache, extra: Cache | None, attention: dict[str, Any], seed: int) -> Call:
    """A decode step of a few tokens: the window, the extra cache's top-k, a sink; heads padded as vLLM pads them."""
    import torch

    device = str(swa.view.device)
    generator = torch.Generator().manual_seed(seed)
    padded, local = int(attention["padded_heads"]), int(attention["local_heads"])
    q = torch.zeros(_TOKENS, 1, padded, packed.HEAD)
    # Scores spread by about 2: the softmax is neither flat nor decided by one state.
    q[:, :, :local] = torch.randn(_TOKENS, 1, local, packed.HEAD, generator=generator) * 2
    sink = torch.full((padded,), float("-inf"))
    sink[:local] = torch.randn(local, generator=generator)
    indices, lengths = _listed(swa, _WINDOW, (_WINDOW, 100, 17, 1), generator)
    call = Call(q.to(torch.bfloat16).to(device), swa.view.unsqueeze(-2), indices, lengths, sink.to(device))
    if extra is not None:
        topk = int(attention["topk"]) if extra.kind.endswith("main_c4") else _WIDTH
        width = -(-topk // _WIDTH) * _WIDTH
        call.extra_cache = extra.view.unsqueeze(-2)
        call.extra_indices, call.extra_lengths = _listed(extra, width, (width, width // 2, 3, 1), generator)
    return call


def _listed(cache: Cache, width: int, lengths: tuple[int, ...], generator: Any) -> tuple[Any, Any]:
    """Indices (tokens, 1, width), -1 behind each token's own number of states, and those numbers."""
    import torch

    device = cache.view.device
    indices = torch.full((_TOKENS, 1, width), -1, dtype=torch.int32)
    counts = []
    for token, wanted in enumerate(lengths):
        count = min(wanted, len(cache.slots))
        order = torch.randperm(len(cache.slots), generator=generator)[:count]
        indices[token, 0, :count] = cache.slots.cpu()[order].to(torch.int32)
        counts.append(count)
    return indices.to(device), torch.tensor(counts, dtype=torch.int32, device=device)


def run(flashmla: FlashMla, call: Call) -> tuple[Any, Any]:
    """One call, its arguments named and shaped as vLLM does: output (tokens, 1, heads, 512) and log-sum-exp."""
    import torch

    out = torch.empty(call.q.shape[0], call.q.shape[2], packed.HEAD, dtype=torch.bfloat16, device=call.q.device)
    _, lse = flashmla.decode(
        q=call.q,
        k_cache=call.cache,
        block_table=None,
        head_dim_v=packed.HEAD,
        tile_scheduler_metadata=flashmla.metadata()[0],
        cache_seqlens=None,
        is_fp8_kvcache=True,
        indices=call.indices,
        topk_length=call.lengths,
        softmax_scale=call.scale,
        attn_sink=call.sink,
        extra_k_cache=call.extra_cache,
        extra_indices_in_kvcache=call.extra_indices,
        extra_topk_length=call.extra_lengths,
        out=out.unsqueeze(1),
    )
    if out.is_cuda:
        # An error of the kernel belongs to this check, not to the next one.
        torch.cuda.synchronize()
    return out.unsqueeze(1), lse


def compare(call: Call, output: Any, lse: Any) -> dict[str, Any]:
    """Errors of a call's output and log-sum-exp beside what a right kernel's may be."""
    arguments = (call.q, call.cache, call.indices, call.lengths)
    extra = (call.extra_cache, call.extra_indices, call.extra_lengths, call.sink, call.scale)
    wanted, wanted_lse = reference.sparse_decode(*arguments, *extra)
    found = reference.agreement(output, wanted, reference.error_bounds(*arguments, *extra))
    return {
        "max_error": found.max_error,
        "mean_error": found.mean_error,
        "mean_bound": found.mean_bound,
        "worst_share_of_bound": found.worst,
        "lse_agrees": reference.lse_agrees(lse, wanted_lse),
        "inside": found.inside,
        "largest_value": float(wanted.abs().max()),
    }


def arguments(call: Call) -> contract.Call:
    """The same call for the argument checks."""
    return contract.Call(
        q=call.q,
        k_cache=call.cache,
        indices=call.indices,
        topk_length=call.lengths,
        attn_sink=call.sink,
        extra_k_cache=call.extra_cache,
        extra_indices=call.extra_indices,
        extra_topk_length=call.extra_lengths,
    )
