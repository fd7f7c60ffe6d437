"""Keys written into a cache by vLLM's own quantise-and-insert ops, so that their bytes can be compared.

Ops are looked up by their symbols, never by a version, and called by what they ask for: Python functions and Triton
kernels by the names of their parameters, compiled ops by the types in their schema. All but the plain ones also
normalise or rotate keys; they are fed so that these steps change nothing:

- RoPE: a table of cos 1 and sin 0;
- q: zeros, in a tensor of its own (the fused ops touch only k's cache beside it);
- the compressor's softmax and RMSNorm: see compressor.

The only trace of these steps is the sign of zero: a key's -0.0 may come back as +0.0. :func:`comparable` removes it.
"""

from __future__ import annotations

import functools
import inspect
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from .compressor import compressor_arguments, rope_table
from .symbols import compiled, exact_fp8, imported, interpreted

_COMMON = ("vllm.models.deepseek_v4.common.ops.", "vllm.v1.attention.ops.deepseek_v4_ops.")
_CUTEDSL = "vllm.models.deepseek_v4.nvidia.ops.sparse_attn_compress_cutedsl"
_FUSED = "fused_deepseek_v4_qnorm_rope_kv_rope_"


@dataclass(frozen=True)
class Op:
    """One of vLLM's ways to write keys: its symbol, the module or ``torch.ops`` namespace, what it writes.

    ``writes``: ``packed`` (584 bytes a state), ``plain-bf16`` or ``plain-fp8`` (512 elements a row), ``indexer``
    (132 bytes a key). ``kind`` says how it is called.
    """

    name: str
    where: str
    writes: str
    kind: str
    meaning: str
    interpret: bool = False
    least_scale: float = 1e-4 / 448
    """The smallest scale before rounding up to a power of two: the CuTe DSL compressor stops at 1e-4 itself."""


@dataclass(frozen=True)
class InsertResult:
    """Whether an op ran, and what it said when it did not. ``seconds`` includes compiling it."""

    ok: bool
    op: str
    error: str
    seconds: float


# Places in which releases keep them: (kind, modules or namespaces, names of which the first found counts, writes, for)
_PLACES: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str, str], ...] = (
    ("fused", ("torch.ops._C",), (_FUSED + "quant_insert",), "packed", "sliding-window keys"),
    ("fused", ("torch.ops._C",), (_FUSED + "quant_insert_out",), "packed", "sliding-window keys"),
    ("fused", ("torch.ops._C",), (_FUSED + "full_cache_bf16_insert",), "plain-bf16", "sliding-window keys"),
    ("fused", ("torch.ops._C",), (_FUSED + "full_cache_fp8_insert",), "plain-fp8", "sliding-window keys"),
    (
        "compress",
        (_CUTEDSL,),
        ("compress_norm_rope_store_cutedsl", "_SPARSE_ATTN_COMPRESSOR_CUTEDSL_KERNEL"),
        "packed",
        "compressed keys",
    ),
    (
        "compress",
        tuple(place + "fused_compress_quant_cache" for place in _COMMON),
        ("compress_norm_rope_store_triton", "_fused_kv_compress_norm_rope_insert_sparse_attn"),
        "packed",
        "compressed keys",
    ),
    (
        "compress",
        tuple(place + "fused_compress_quant_cache" for place in _COMMON),
        ("compress_norm_rope_store_triton", "_fused_kv_compress_norm_rope_insert_indexer_attn"),
        "indexer",
        "indexer keys",
    ),
    ("by-name", ("torch.ops._C_cache_ops",), ("indexer_k_quant_and_cache",), "indexer", "indexer keys"),
    (
        "by-name",
        tuple(place + "cache_utils" for place in _COMMON),
        ("quantize_and_insert_k_cache",),
        "packed",
        "keys, quantised and inserted alone",
    ),
)


@functools.cache
def _module(where: str, interpret: bool) -> Any:
    return interpreted(where) if interpret else imported(where)


@functools.cache
def _symbol(where: str, name: str, interpret: bool) -> Any:
    if interpret and (where.startswith("torch.ops.") or where == _CUTEDSL):
        raise ImportError("it needs a GPU")
    if where.startswith("torch.ops."):
        return compiled(where.removeprefix("torch.ops."), name)
    try:
        return getattr(_module(where, interpret), name)
    except AttributeError as error:
        raise ImportError(f"{where} has no {name}") from error


def find_ops(interpret: bool = False) -> tuple[list[Op], dict[str, str]]:
    """The ops this vLLM has, and for each one looked for in vain why it is not there."""
    found: list[Op] = []
    missing: dict[str, str] = {}
    for kind, places, names, writes, meaning in _PLACES:
        reasons = {}
        for where, name in ((where, name) for where in places for name in names):
            try:
                _symbol(where, name, interpret)
            except ImportError as error:
                reasons[f"{where}.{name}"] = str(error)
                continue
            least = 1e-4 if where == _CUTEDSL else Op.least_scale
            found.append(Op(name, where, writes, kind, meaning, interpret, least))
            break
        else:
            missing |= reasons
    return found, missing


def available_ops(interpret: bool = False) -> list[Op]:
    """The ops this vLLM has for writing keys; ``interpret``: those that Triton's interpreter runs on CPU tensors."""
    return find_ops(interpret)[0]


def comparable(keys: Any) -> Any:
    """The same keys without negative zeros: what every op here writes exactly."""
    return keys + 0.0


def insert_with_vllm(op: Op, cache: Any, slots: Any, keys: Any, **more: Any) -> InsertResult:
    """Write ``keys`` (n, 512; an indexer's: n, 128; bfloat16) to ``slots`` of ``cache`` (blocks, states, bytes).

    ``more``: ``ratio`` (4 or 128: whose compressed cache it is, 4 unless said), ``heads`` (query heads, 64),
    ``scale_format`` (of an indexer's keys, ``ue8m0``). Whatever the op raises becomes the result's ``error``.
    """
    import torch

    started = time.perf_counter()
    view = cache.squeeze(-2) if cache.dim() == 4 else cache
    error = ""
    try:
        call = {"fused": _call_fused, "compress": _call_compressor, "by-name": _call_by_name}[op.kind]
        with exact_fp8() if op.interpret else nullcontext():
            call(op, view, slots.to(torch.int64), keys.to(torch.bfloat16).contiguous(), more)
        if view.is_cuda:
            torch.cuda.synchronize(view.device)
    except Exception as problem:  # whatever vLLM's op raises is the answer that was asked for
        lines = str(problem).strip().splitlines() or [""]
        error = f"{type(problem).__name__}: {lines[0]}"
    return InsertResult(not error, op.name, error, time.perf_counter() - started)


def _call_fused(op: Op, cache: Any, slots: Any, keys: Any, more: dict[str, Any]) -> None:
    """A compiled op: tensors, integers and the epsilon in vLLM's order, as many of each as its schema has."""
    import torch

    function = _symbol(op.where, op.name, op.interpret)
    heads = int(more.get("heads", 64))
    q = torch.zeros(keys.shape[0], heads, 512, dtype=torch.bfloat16, device=keys.device)
    packed = op.writes == "packed"
    tensors = [q, keys]
    if op.name.endswith("_out"):
        tensors.append(torch.empty_like(q))
    if op.writes == "plain-fp8":
        tensors.append(torch.empty_like(q, dtype=torch.float8_e4m3fn))
    tensors.append(cache.view(cache.shape[0], -1) if packed else cache)
    positions = torch.zeros(keys.shape[0], dtype=torch.int64, device=keys.device)
    tensors += [slots, positions, rope_table(keys.device)]
    if op.writes == "plain-fp8":
        tensors += [torch.ones(1, device=keys.device), torch.ones(1, device=keys.device)]
    function(*schema_arguments(function.default._schema.arguments, tensors, heads, int(cache.shape[1])))


def schema_arguments(schema: Any, tensors: list[Any], heads: int, block: int) -> list[Any]:
    """Arguments in the order of a compiled op's schema; ValueError when it asks for something unknown.

    Integers: the block size, and before it the padded head count where the op takes one. Further arguments must
    have a default.
    """
    kinds = [str(argument.type) for argument in schema]
    if sum(kind == "Tensor" for kind in kinds) != len(tensors) or kinds.count("float") != 1:
        raise ValueError(f"the op takes ({', '.join(kinds)}), not {len(tensors)} tensors, sizes and an epsilon")
    if kinds.count("int") not in (1, 2):
        raise ValueError(f"the op takes {kinds.count('int')} sizes, expected the block size and perhaps the heads")
    integers = iter([block] if kinds.count("int") == 1 else [heads, block])
    remaining = iter(tensors)
    values: list[Any] = []
    for argument, kind in zip(schema, kinds, strict=True):
        if kind == "Tensor":
            values.append(next(remaining))
        elif kind == "int":
            values.append(next(integers))
        elif kind == "float":
            values.append(1e-6)
        elif argument.has_default_value():
            values.append(argument.default_value)
        else:
            raise ValueError(f"the op asks for {argument.name} ({kind}), which is unknown here")
    return values


def _call_by_name(op: Op, cache: Any, slots: Any, keys: Any, more: dict[str, Any]) -> None:
    known = {
        "k": keys,
        "kv_cache": cache,
        "k_cache": cache,
        "slot_mapping": slots,
        "block_size": int(cache.shape[1]),
        "is_ue8m0": True,
        "quant_block_size": 128,
        "kv_cache_dtype": more.get("scale_format", "ue8m0"),
        "scale_fmt": more.get("scale_format", "ue8m0"),
    }
    function = _symbol(op.where, op.name, op.interpret)
    if op.where.startswith("torch.ops."):
        function(*(known[argument.name] for argument in function.default._schema.arguments))
    else:
        function(**by_name(inspect.signature(function), known))


def by_name(signature: inspect.Signature, known: dict[str, Any]) -> dict[str, Any]:
    """What a function asks for out of what is known; ValueError names a required parameter that is not."""
    given = {}
    for name, parameter in signature.parameters.items():
        if name in known:
            given[name] = known[name]
        elif parameter.default is inspect.Parameter.empty and parameter.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            raise ValueError(f"asks for {name!r}, which is unknown here")
    return given


def _call_compressor(op: Op, cache: Any, slots: Any, keys: Any, more: dict[str, Any]) -> None:
    known = compressor_arguments(cache, slots, keys, int(more.get("ratio", 4)))
    function = _symbol(op.where, op.name, op.interpret)
    kernel_names = getattr(function, "arg_names", None)
    if kernel_names is None:
        function(**by_name(inspect.signature(function), known))
        return
    absent = [name for name in kernel_names if name.removesuffix("_ptr") not in known]
    if absent:
        raise ValueError(f"asks for {absent[0]!r}, which is unknown here")
    function[(keys.shape[0],)](**{name: known[name.removesuffix("_ptr")] for name in kernel_names})


def read_with_vllm(cache: Any, blocks: list[int], states: int, interpret: bool = False) -> Any:
    """The first ``states`` states of ``blocks``, dequantised by vLLM's own gather: (states, 512) bfloat16.

    Raises ImportError when this vLLM has none, and whatever the op raises.
    """
    import torch

    view = cache.squeeze(-2) if cache.dim() == 4 else cache
    last = ImportError("no dequantize_and_gather_k_cache")
    for place in _COMMON:
        try:
            function = _symbol(place + "cache_utils", "dequantize_and_gather_k_cache", interpret)
        except ImportError as error:
            last = error
            continue
        known = {
            "out": torch.zeros(1, states, 512, dtype=torch.bfloat16, device=view.device),
            "k_cache": view,
            "seq_lens": torch.tensor([states], dtype=torch.int32, device=view.device),
            "gather_lens": None,
            "block_table": torch.tensor([blocks], dtype=torch.int32, device=view.device),
            "block_size": int(view.shape[1]),
            "offset": 0,
        }
        function(**by_name(inspect.signature(function), known))
        return known["out"][0]
    raise last


def write_indexer(cache: Any, slots: Any, keys: Any) -> None:
    """The reference for indexer keys: a block of n holds n x 128 fp8 values, then n float32 scales (powers of two)."""
    import torch

    states = int(cache.shape[1])
    for slot, key in zip(slots.tolist(), keys.to(torch.bfloat16).float(), strict=True):
        if slot < 0:
            continue
        block = cache[slot // states].reshape(-1)
        scale = torch.exp2(torch.ceil(torch.log2(key.abs().max().clamp(min=1e-4) / 448.0)))
        place = slot % states
        values = (key / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
        block[place * 128 : place * 128 + 128] = values.view(torch.uint8)
        at = states * 128 + place * 4
        block[at : at + 4] = scale.reshape(1).view(torch.uint8)
