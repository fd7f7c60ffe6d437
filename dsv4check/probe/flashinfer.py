"""FlashInfer's sparse MLA for DeepSeek-V4, called as vLLM calls it.

One function serves two families of GPUs, with different caches and different arguments:

- SM 10.x: plain rows (512 elements, bfloat16 or fp8). One index matrix: 128 columns for the sliding window, then the
  compressed states. Indices count rows of the storage (a block spans ``stride(0) // stride(-2)`` of them), lengths
  include the 128 window columns, and the kernel derives the window's valid part from the sequence length.
- SM 12.x: packed states (584 bytes). Window and compressed states have indices and lengths of their own, by slot.

What the installed function takes is asked of its signature, never of a version. FlashInfer may compile or download
kernels on the first call: the caller's time limit has to bear that.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from .plain import HEAD

NAME: Final = "trtllm_batch_decode_sparse_mla_dsv4"
WINDOW: Final = 128
WORKSPACE_BYTES: Final = 128 << 20
"""As vLLM allocates it; zeroed, which the SM 10.x kernels need."""
PACKED_BYTES: Final = 584
BOUNDS: Final = {"bfloat16": 0.01, "fp8": 0.1}
"""Relative error (root of the squared sum) an output may have. fp8: the kernel multiplies in fp8, so that scores and
weights keep three mantissa bits each; single errors of 1/16 average out to less."""


@dataclass(frozen=True)
class Inputs:
    """A decode step over given caches: one request a token.

    Caches are (blocks, states, elements). Indices (tokens, width) count slots, block * states + offset, -1 for none;
    lengths (tokens) say how many of them count. ``compressed`` is absent on sliding-window layers.
    """

    q: Any
    sink: Any
    swa: Any
    swa_indices: Any
    swa_lengths: Any
    compressed: Any = None
    compressed_indices: Any = None
    compressed_lengths: Any = None


@dataclass(frozen=True)
class KernelPlan:
    """A call that is ready to be made."""

    function: Callable[..., Any]
    name: str
    arguments: dict[str, Any]
    out: Any
    arithmetic: str
    """``bfloat16`` or ``fp8``: which of :data:`BOUNDS` the output must keep to."""


@dataclass(frozen=True)
class KernelResult:
    """``ran``, ``refused`` (the function's own checks said no) or ``failed``; the function gives no log-sum-exp."""

    status: str
    message: str
    out: Any
    seconds: float
    lse: Any = None


def version() -> str:
    """The installed FlashInfer's version; empty when its package is unknown."""
    try:
        return importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return ""


def plan(inputs: Inputs, heads: int, capability: tuple[int, int]) -> KernelPlan | str:
    """The call for these inputs with ``heads`` (padded) query heads, or why there is none."""
    label = f"FlashInfer {version()}".strip()
    try:
        function = getattr(importlib.import_module("flashinfer.decode"), NAME)
    except ImportError as error:
        return f"FlashInfer cannot be imported: {' '.join(str(error).split())}"
    except AttributeError:
        return f"{label} has no {NAME}"
    made = arguments(inputs, heads, capability, accepted(function))
    if isinstance(made, str):
        return f"{label}: {made}"
    if capability[0] == 12:
        said = _specialised(heads, int(inputs.swa_indices.shape[-1]))
        if said:
            return f"{label}: {said}"
    arithmetic = "bfloat16" if made["swa_kv_cache"].element_size() == 2 else "fp8"
    return KernelPlan(function, f"{label}, {NAME}", made, made["out"], arithmetic)


def accepted(function: Callable[..., Any]) -> Collection[str]:
    """Names of the parameters a function takes by keyword."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind in kinds]


def arguments(
    inputs: Inputs, heads: int, capability: tuple[int, int], names: Collection[str], workspace: int = WORKSPACE_BYTES
) -> dict[str, Any] | str:
    """Keyword arguments as vLLM passes them to a function that takes ``names``, or why the call cannot be made."""
    import torch

    if capability[0] not in (10, 12):
        return f"sparse MLA for DeepSeek-V4 needs SM 10.x or 12.x, not {capability[0]}.{capability[1]}"
    if inputs.q.shape[1] > heads:
        return f"{inputs.q.shape[1]} query heads do not fit into {heads}"
    if (inputs.compressed is None) != (inputs.compressed_indices is None):
        return "a compressed cache and its indices belong together"
    made = _rows_arguments(inputs, heads) if capability[0] == 10 else _packed_arguments(inputs, heads)
    if isinstance(made, str):
        return made
    made["workspace_buffer"] = torch.zeros(workspace, dtype=torch.uint8, device=inputs.q.device)
    if capability[0] == 10 and "sparse_indices_are_storage_offsets" in names:
        # Before it had this parameter the function took storage rows as they are.
        made["sparse_indices_are_storage_offsets"] = True
    absent = [name for name in made if name not in names]
    if absent:
        return f"{NAME} takes no {absent[0]}: it has no kernels for SM {capability[0]}.x with this cache"
    return made


def padded(inputs: Inputs, heads: int) -> tuple[Any, Any, Any]:
    """Queries, sinks and the output, heads padded as vLLM does."""
    import torch

    tokens, local, _ = inputs.q.shape
    q = inputs.q.new_zeros((tokens, heads, HEAD))
    q[:, :local] = inputs.q
    sink = torch.full((heads,), float("-inf"), dtype=torch.float32, device=q.device)
    sink[:local] = inputs.sink
    return q, sink, torch.zeros(tokens, heads, HEAD, dtype=torch.bfloat16, device=q.device)


def _rows_arguments(inputs: Inputs, heads: int) -> dict[str, Any] | str:
    import torch

    caches = [inputs.swa] + ([inputs.compressed] if inputs.compressed is not None else [])
    if any(cache.shape[-1] != HEAD for cache in caches):
        return f"on SM 10.x it reads plain rows of {HEAD} elements, not states of {caches[0].shape[-1]} bytes"
    if any(cache.stride(0) % cache.stride(-2) for cache in caches):
        return "blocks must lie a whole number of rows apart"
    q, sink, out = padded(inputs, heads)
    tokens = q.shape[0]
    columns = inputs.swa_indices.shape[1]
    if columns > WINDOW:
        return f"the window has {WINDOW} columns, not {columns}"
    matrix = [
        _storage_rows(inputs.swa, inputs.swa_indices),
        inputs.swa_indices.new_full((tokens, WINDOW - columns), -1),
    ]
    lengths = torch.full((tokens,), WINDOW, dtype=torch.int32, device=q.device)
    if inputs.compressed is not None:
        listed = _storage_rows(inputs.compressed, inputs.compressed_indices)
        # Rows of the matrix are read 16 bytes at a time.
        matrix += [listed, listed.new_full((tokens, -listed.shape[1] % 4), -1)]
        lengths = lengths + inputs.compressed_lengths.to(torch.int32)
    return {
        "query": q.to(torch.float8_e4m3fn) if inputs.swa.dtype == torch.float8_e4m3fn else q,
        "swa_kv_cache": inputs.swa,
        "sparse_indices": torch.cat(matrix, dim=1).to(torch.int32).contiguous(),
        # A layer without a compressed cache names any valid one.
        "compressed_kv_cache": inputs.swa if inputs.compressed is None else inputs.compressed,
        "sparse_topk_lens": lengths,
        # With one query a request the window's valid part is min(sequence length, 128).
        "seq_lens": inputs.swa_lengths.to(torch.int32),
        "out": out,
        "bmm1_scale": HEAD**-0.5,
        "bmm2_scale": 1.0,
        "sinks": sink,
        "cum_seq_lens_q": torch.arange(tokens + 1, dtype=torch.int32, device=q.device),
        "max_q_len": 1,
    }


def _storage_rows(cache: Any, slots: Any) -> Any:
    states, span = cache.shape[1], cache.stride(0) // cache.stride(-2)
    rows = slots // states * span + slots % states
    return rows.masked_fill(slots < 0, -1)


def _packed_arguments(inputs: Inputs, heads: int) -> dict[str, Any] | str:
    import torch

    caches = [inputs.swa] + ([inputs.compressed] if inputs.compressed is not None else [])
    if any(cache.shape[-1] != PACKED_BYTES or cache.dtype != torch.uint8 for cache in caches):
        return f"on SM 12.x vLLM gives it packed states of {PACKED_BYTES} bytes, not rows of {caches[0].shape[-1]}"
    q, sink, out = padded(inputs, heads)

    def three(indices: Any) -> Any:
        return None if indices is None else indices.to(torch.int32).unsqueeze(1).contiguous()

    lengths = inputs.compressed_lengths
    return {
        "query": q,
        "swa_kv_cache": inputs.swa.unsqueeze(-2),
        "sparse_indices": three(inputs.swa_indices),
        "compressed_kv_cache": None if inputs.compressed is None else inputs.compressed.unsqueeze(-2),
        "out": out,
        "bmm1_scale": HEAD**-0.5,
        "sinks": sink,
        "kv_layout": "NHD",
        "swa_topk_lens": inputs.swa_lengths.to(torch.int32),
        "extra_sparse_indices": three(inputs.compressed_indices),
        "extra_sparse_topk_lens": None if lengths is None else lengths.to(torch.int32),
    }


def _specialised(heads: int, width: int) -> str:
    """Why the SM 12.x kernels do not cover this shape; empty when they do. The table is the one vLLM asks."""
    try:
        module = importlib.import_module("flashinfer.mla._sparse_mla_sm120")
    except ImportError:
        return "it has no sparse MLA kernels for SM 12.x"
    table = getattr(module, "_DECODE_DSV4_DISPATCH", None)
    if table is None or (heads, width) in table:
        return ""
    return f"it has no SM 12.x decode kernel for {heads} query heads and {width} window entries"


def run(planned: KernelPlan) -> KernelResult:
    """Make the call and wait for the kernel."""
    import torch

    started = time.perf_counter()
    status, message = "ran", ""
    try:
        planned.function(**planned.arguments)
        if planned.out.is_cuda:
            torch.cuda.synchronize(planned.out.device)
    except Exception as error:  # FlashInfer's refusals are plain ValueErrors; a kernel's faults anything
        status = "refused" if isinstance(error, (ValueError, TypeError, NotImplementedError)) else "failed"
        message = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
    return KernelResult(status, message, planned.out, time.perf_counter() - started)


def run_checks(caches: dict[str, Any], attention: dict[str, Any], reporter: Any, outcome: Any, seed: int) -> None:
    """The probe's checks of FlashInfer; see flashinfer_checks."""
    from .flashinfer_checks import run_checks as checks

    checks(caches, attention, reporter, outcome, seed)
