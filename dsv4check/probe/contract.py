"""FlashMLA's argument checks for sparse decoding, in the kernel's order and with its messages.

Facts: ``csrc/api/sparse_decode.h`` of FlashMLA and the assertions of the kernels it launches; for ``detects_format``
the messages inside vLLM 0.33.0's ``_flashmla_C``. Arguments are tensors, or :class:`TensorShape` where there is none.

Standard library and torch only: children import this file without dsv4check's packages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from .packed import HEAD, PAGE_ALIGNMENT, STATE_BYTES

V32_HEAD: Final = 576
V32_STATE_BYTES: Final = 656
"""DeepSeek-V3.2's: 512 fp8, four float32 scales, 64 bfloat16."""
DETECTED_BYTES: Final = (STATE_BYTES, 528, 288)
"""What kernels that tell the format by a state's bytes take beside heads of 512: V4, V4.1 and (extra only) its fp4."""
TOPK_MULTIPLE: Final = 64
HEADS: Final = (64, 128)
BASE_ALIGNMENT: Final = 16

_UNEXPLAINED = (
    "Expected {} to be true, but got false.  (Could this error message be improved?  If so, please report an "
    "enhancement request to PyTorch.)"
)
_DTYPES = {
    "bfloat16": ("torch::kBFloat16", "ScalarType::BFloat16"),
    "int32": ("torch::kInt32", "ScalarType::Int"),
    "float32": ("torch::kFloat32", "ScalarType::Float"),
}
"""How the checks spell a type: FlashMLA's own sources, and those that detect the format."""


class TensorShape:
    """A tensor that need not exist: shape, strides (contiguous by default), dtype."""

    def __init__(
        self, shape: tuple[int, ...], dtype: str, stride: tuple[int, ...] | None = None, *, is_cuda: bool = False
    ) -> None:
        contiguous = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        self.shape, self.dtype, self.is_cuda = shape, dtype, is_cuda
        self._stride = contiguous if stride is None else stride

    def stride(self) -> tuple[int, ...]:
        """Elements from one index to the next, per dimension."""
        return self._stride


@dataclass(frozen=True)
class Call:
    """The arguments of one ``flash_mla_with_kvcache`` with ``indices``; tensors or :class:`TensorShape`."""

    q: Any
    k_cache: Any
    indices: Any
    topk_length: Any = None
    attn_sink: Any = None
    extra_k_cache: Any = None
    extra_indices: Any = None
    extra_topk_length: Any = None
    head_dim_v: int = HEAD


def refusal(call: Call, *, on_cuda: bool = False, sm: int | None = None, detects_format: bool = False) -> str:
    """What the kernel says of these arguments; empty when it accepts them.

    ``on_cuda``: check also that every tensor is on a GPU. ``sm``: the compute capability's major; without one the
    assertions of all kernels hold (SM90's lays no condition on the distance of blocks). ``detects_format``: the kernel
    tells the format by a state's bytes, as in vLLM from 0.30.0.
    """
    return next(_violations(call, on_cuda, sm, detects_format), "")


def cache_refusal(cache: Any, *, sm: int | None = None, detects_format: bool = False) -> str:
    """What the kernel says of a cache as a layer holds it, ``(blocks, states, 584)``, in an otherwise right call."""
    call = Call(
        q=TensorShape((1, 1, HEADS[0], HEAD), "bfloat16"),
        # vLLM adds the dimension of the single head when it calls.
        k_cache=cache.unsqueeze(-2) if len(cache.shape) == 3 else cache,
        indices=TensorShape((1, 1, TOPK_MULTIPLE), "int32"),
    )
    return refusal(call, sm=sm, detects_format=detects_format)


def view_of(tensor: Any) -> dict[str, Any]:
    """Shape, strides and dtype of a tensor."""
    return {"shape": list(tensor.shape), "stride": list(tensor.stride()), "dtype": _dtype(tensor)}


def layout_of(tensor: Any) -> dict[str, Any]:
    """Shape, strides and dtype of a tensor, where it starts in its storage (in elements) and what that holds."""
    storage = {"storage_offset": tensor.storage_offset(), "storage_bytes": tensor.untyped_storage().nbytes()}
    return view_of(tensor) | storage


def _violations(call: Call, on_cuda: bool, sm: int | None, detects_format: bool) -> Iterator[str]:
    """Every check that fails, in the kernel's order. Later ones may rely on earlier ones: only the first counts."""
    yield from _sizes(call)
    if on_cuda:
        for name, tensor in _given(call, "q kv indices topk_length attn_sink extra_kv extra_indices extra_topk_length"):
            if not tensor.is_cuda:
                yield f"{name} must be on CUDA"
    yield from _dtypes(call, detects_format)
    yield from _contiguity(call)
    yield from _shapes(call, detects_format)
    heads = call.q.shape[2]
    if heads not in HEADS:
        yield f"Unsupported h_q: {heads}"
    if sm not in (None, 9, 10):
        yield "Unsupported architecture for sparse decode fwd"
    yield from _launch(call, sm)


def _given(call: Call, names: str) -> Iterator[tuple[str, Any]]:
    """The named arguments that are given, under the kernel's names."""
    own = {"kv": "k_cache", "extra_kv": "extra_k_cache"}
    for name in names.split():
        if (tensor := getattr(call, own.get(name, name))) is not None:
            yield name, tensor


def _sizes(call: Call) -> Iterator[str]:
    for (name, tensor), dimensions in zip(_given(call, "q kv indices"), (4, 4, 3), strict=True):
        if len(tensor.shape) != dimensions:
            yield f"{name} must have {dimensions} dimensions"
    b, s_q, h_q, d_qk = call.q.shape
    for name, size in (("b", b), ("s_q", s_q), ("h_q", h_q)):
        if size <= 0:
            yield _UNEXPLAINED.format(f"{name} > 0")
    if call.k_cache.shape[2] != 1:
        yield "Currently only MQA (i.e. h_kv == 1) is supported for sparse decoding"
    if d_qk not in (V32_HEAD, HEAD):
        yield "Only head_size_k == 576 or 512 is supported for sparse decoding"
    if call.head_dim_v != HEAD:
        yield "Only head_size_v == 512 is supported for sparse decoding"
    if call.indices.shape[2] <= 0:
        yield _UNEXPLAINED.format("topk > 0")
    if call.extra_k_cache is not None:
        if call.extra_indices is None:
            yield "extra_indices_in_kvcache must be provided when extra_kcache is provided for sparse attention"
    else:
        if call.extra_indices is not None:
            yield "extra_indices_in_kvcache must not be provided when extra_k_cache is not provided"
        if call.extra_topk_length is not None:
            yield "extra_topk_length must not be provided when extra_k_cache is not provided"


def _dtypes(call: Call, detects_format: bool) -> Iterator[str]:
    def wrong(names: str, dtype: str) -> Iterator[str]:
        for name, tensor in _given(call, names):
            if _dtype(tensor) != dtype:
                yield f"{name} must have dtype {_DTYPES[dtype][detects_format]}"

    yield from wrong("q", "bfloat16")
    for name, tensor in _given(call, "kv extra_kv"):
        if _dtype(tensor) not in ("float8_e4m3fn", "int8", "uint8"):
            yield f"{'key' if name == 'kv' else 'extra k cache'} must have dtype fp8_e4m3fn, int8 or uint8"
    yield from wrong("indices topk_length", "int32")
    yield from wrong("attn_sink", "float32")
    yield from wrong("extra_indices extra_topk_length", "int32")


def _contiguity(call: Call) -> Iterator[str]:
    for names, whole in (
        ("q kv indices", False),
        ("topk_length attn_sink", True),
        ("extra_kv extra_indices", False),
        ("extra_topk_length", True),
    ):
        for name, tensor in _given(call, names):
            if whole and not _contiguous(tensor):
                yield f"{name} must be contiguous"
            if not whole and tensor.shape[-1] != 1 and tensor.stride()[-1] != 1:
                yield f"{name} must have contiguous last dimension"


def _shapes(call: Call, detects_format: bool) -> Iterator[str]:
    b, s_q, h_q, d_qk = call.q.shape
    caches = {
        "kv": (call.k_cache, "num_blocks, page_block_size", "model_type"),
        "extra_kv": (call.extra_k_cache, "extra_num_blocks, extra_page_block_size", "extra_model_type"),
    }
    wanted = {}
    for name, (cache, _, _) in caches.items():
        wanted[name] = STATE_BYTES if d_qk == HEAD else V32_STATE_BYTES
        if cache is not None and detects_format and d_qk == HEAD:
            wanted[name] = cache.shape[-1]
            if wanted[name] not in DETECTED_BYTES:
                known = "Expected {} (V4), {} (V4.1) or {} (V4.1 fp4)".format(*DETECTED_BYTES)
                yield f"Unsupported bytes_per_token for d_qk=512: {wanted[name]}. {known}"
    if detects_format and wanted["kv"] == DETECTED_BYTES[-1]:
        yield "The fp4 KV cache is only supported as extra_kv"
    for name, (cache, first, model) in caches.items():
        bytes_ = f"kv_cache_bytes_per_token({model})" if detects_format else "bytes_per_token"
        if cache is not None and (len(cache.shape) != 4 or tuple(cache.shape[2:]) != (1, wanted[name])):
            yield f"{name} must have shape ({first}, h_kv, {bytes_})"
    for name, (cache, _, _) in caches.items():
        if cache is not None and cache.stride()[1] != wanted[name]:
            which = name.replace("_", " ")
            yield f"The whole block must be contiguous when is_fp8_cache is True for {which} cache"
    extra = call.extra_indices.shape[-1] if call.extra_indices is not None else 0
    for name, shape, spelled in (
        ("indices", (b, s_q, call.indices.shape[2]), "b, s_q, topk"),
        ("topk_length", (b,), "b"),
        ("attn_sink", (h_q,), "h_q"),
        ("extra_indices", (b, s_q, extra), "b, s_q, extra_topk"),
        ("extra_topk_length", (b,), "b"),
    ):
        for _, tensor in _given(call, name):
            if tuple(tensor.shape) != shape:
                yield f"{name} must have shape ({spelled})"


def _launch(call: Call, sm: int | None) -> Iterator[str]:
    """What the chosen kernel asserts before it starts (written to stderr, then raised)."""
    for _, cache in _given(call, "kv extra_kv"):
        if cache.stride()[0] > 2**31 - 1:
            yield f"[FlashMLA] Stride exceeds int32 limit: {cache.stride()[0]}"
    for name, tensor in _given(call, "indices" if sm == 9 else "indices extra_indices"):
        if tensor.shape[-1] % TOPK_MULTIPLE:
            which = name.replace("indices", "topk")
            yield f"{which} ({tensor.shape[-1]}) mod B_TOPK ({TOPK_MULTIPLE}) must be 0"
    if sm == 9:
        return
    for name, cache in _given(call, "kv extra_kv"):
        which = name.removesuffix("kv")
        # An allocation's own start is aligned: what is left is where in it the view begins.
        if getattr(cache, "storage_offset", int)() % BASE_ALIGNMENT:
            yield f"The base address of {which}k_ptr must be 16B aligned for sparse fp8 attention on sm100f"
        if cache.stride()[0] % PAGE_ALIGNMENT and call.q.shape[3] == HEAD:
            yield (
                f"{which}k_cache.stride(0) ({cache.stride()[0]}) must be a multiple of {PAGE_ALIGNMENT}. "
                "Padding might be necessary"
            )


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _contiguous(tensor: Any) -> bool:
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
