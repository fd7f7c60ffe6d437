"""How a matrix is stored, told by the dtypes and shapes of its tensors.

The formats and what they consist of (``weight`` is [out, in]):

- ``mxfp4``: two values a byte (I8, U8) or F4, with one E8M0 scale (or U8, the same bits) per 32 values of a row
- ``nvfp4``: the same with one E4M3 scale per 16 values, mostly with one F32 scale for the whole matrix
  (``weight_scale_2`` of ModelOpt, ``weight_global_scale`` of compressed-tensors)
- ``fp8``: F8 weights, mostly with a scale a block
- ``int8``, ``int4``: I8 with a scale a row, or packed into I32 (``weight_packed``, ``qweight``)
- ``bf16``, ``f16``, ``f32``: as they are
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from dsv4check.checkpoint.tensors import Tensor
from dsv4check.records import dataclass, field

MIXED: Final = "mixed"
_WEIGHTS: Final = ("weight", "weight_packed", "qweight", "blocks")
_SCALES: Final = ("weight_scale", "weight_scale_inv", "scale", "scale_inv", "scales")
_PACKED_BYTES: Final = frozenset({"I8", "U8"})
_E8M0: Final = frozenset({"F8_E8M0", "U8"})
_FLOAT_SCALES: Final = frozenset({"F32", "F16", "BF16"})
_FP8: Final = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
_PLAIN: Final = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
_INTEGERS: Final = {8: "int4", 4: "int8"}
"""Format by the values that one I32 holds."""


@dataclass(frozen=True, slots=True)
class Storage:
    """How matrices of one sort are stored."""

    format: str | None = None
    """As the module lists them; ``mixed`` when they are not all alike; None when it cannot be told."""
    formats: Mapping[str | None, int] = field(default_factory=dict)
    """Matrices by format, the most common one first."""
    scale_dtype: str | None = None
    """Dtype of the (first) scales of the most common format; None without scales."""
    scale_suffix: str | None = None
    """Their name behind the matrix: ``scale``, ``weight_scale``, ``weight_scale_inv``; None without."""
    block: tuple[int, int] | None = None
    """Values that share one scale, (rows, columns); None without block scales."""
    example: str = ""
    """A weight of the most common format; with ``mixed`` one of the rarest."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of target or draft."""

    storage: Storage = field(default_factory=Storage)
    by_layer: Mapping[int, int] = field(default_factory=dict)
    """Experts stored by layer (or draft stage)."""

    @property
    def count(self) -> int | None:
        """Experts a layer, where all layers have the same number; else None."""
        numbers = set(self.by_layer.values())
        return numbers.pop() if len(numbers) == 1 else None


@dataclass(frozen=True, slots=True)
class _Sort:
    """What one matrix is; equal ones are counted."""

    format: str | None
    scale_suffix: str | None
    scale_dtype: str | None
    block: tuple[int, int] | None


def storage_of(matrices: Iterable[tuple[str, Mapping[str, Tensor], int | None]]) -> Storage:
    """Sum up matrices: (name of one tensor, suffix -> tensor, values in one I32 where that is known)."""
    seen: Counter[tuple[object, ...]] = Counter()
    firsts: dict[tuple[object, ...], tuple[str, _Sort]] = {}
    for name, parts, packed in matrices:
        # Equal tensors mostly are one object (see headers.py), and hashing 150,000 of them would take a second.
        key: tuple[object, ...] = (packed, *[(suffix, id(tensor)) for suffix, tensor in parts.items()])
        seen[key] += 1
        if key not in firsts:
            firsts[key] = (name, _sort_of(parts, packed))
    counts: Counter[_Sort] = Counter()
    examples: dict[_Sort, str] = {}
    for key, (name, sort) in firsts.items():
        counts[sort] += seen[key]
        examples.setdefault(sort, name)
    if not counts:
        return Storage()
    ranked = counts.most_common()
    formats: dict[str | None, int] = {}
    for sort, number in ranked:
        formats[sort.format] = formats.get(sort.format, 0) + number
    formats = dict(sorted(formats.items(), key=lambda item: -item[1]))
    main = next(sort for sort, _ in ranked if sort.format == next(iter(formats)))
    alike = len(formats) == 1
    shown = main if alike else next(sort for sort, _ in reversed(ranked) if sort.format != main.format)
    return Storage(
        format=main.format if alike else MIXED,
        formats=formats,
        scale_dtype=main.scale_dtype,
        scale_suffix=main.scale_suffix,
        block=main.block,
        example=examples[shown],
    )


def _sort_of(parts: Mapping[str, Tensor], packed: int | None) -> _Sort:
    weight = next((parts[name] for name in _WEIGHTS if name in parts), None)
    suffix = next((name for name in _SCALES if name in parts), None)
    scale = parts[suffix] if suffix is not None else None
    dtype = scale.dtype or None if scale is not None else None
    if weight is None or weight.shape is None:
        return _Sort(None, suffix, dtype, None)
    block = _block(weight, scale)
    return _Sort(_format(weight, scale, block, packed), suffix, dtype, block)


def _format(weight: Tensor, scale: Tensor | None, block: tuple[int, int] | None, packed: int | None) -> str | None:
    if weight.dtype in _PLAIN:
        return _PLAIN[weight.dtype] if scale is None else None
    if weight.dtype in _FP8:
        return "fp8"
    if weight.dtype == "I32":
        return _INTEGERS.get(packed or 0)
    if scale is None:
        return None
    if weight.dtype in _PACKED_BYTES or weight.dtype == "F4":
        if scale.dtype in _E8M0 and block == (1, 32):
            return "mxfp4"
        if scale.dtype == "F8_E4M3" and block == (1, 16):
            return "nvfp4"
    return "int8" if weight.dtype == "I8" and scale.dtype in _FLOAT_SCALES else None


def _block(weight: Tensor, scale: Tensor | None) -> tuple[int, int] | None:
    """Rows and columns of ``weight`` that share one scale; None for one scale a matrix or row."""
    if scale is None or scale.shape is None or weight.shape is None:
        return None
    if len(scale.shape) < 2 or len(weight.shape) < 2 or 0 in scale.shape:
        return None
    if scale.shape[-1] == 1 and scale.dtype in _FLOAT_SCALES and scale.shape[-2] == weight.shape[-2]:
        return None
    # safetensors counts F4 values; in bytes there are two of them.
    four_bit = weight.dtype in _PACKED_BYTES and scale.dtype in {*_E8M0, "F8_E4M3"}
    columns = weight.shape[-1] * (2 if four_bit else 1)
    return _side(weight.shape[-2], scale.shape[-2]), _side(columns, scale.shape[-1])


def _side(size: int, blocks: int) -> int:
    """The block's size: blocks are powers of two, and the last one may be cut."""
    return 1 << (-(-size // blocks) - 1).bit_length() if size else 0


def packed_values(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> int | None:
    """Values that one I32 holds, by the shapes of an expert's ``w1`` and ``w2``; None when these do not tell.

    With hidden size H, intermediate size I and p values in one I32: ``weight_packed`` (compressed-tensors) is
    [I, H/p] and [H, I/p]; ``qweight`` of GPTQ is [H/p, I] and [I/p, H], that of AWQ [H, I/p] and [I, H/p].
    """
    for suffix in ("weight_packed", "qweight"):
        one, two = first.get(suffix), second.get(suffix)
        if one is None or two is None or one.dtype != "I32" or not (one.shape and two.shape):
            continue
        if len(one.shape) != 2 or len(two.shape) != 2:
            continue
        ratios = (two.shape[0], one.shape[1]), (two.shape[1], one.shape[0]), (one.shape[0], two.shape[1])
        for whole, part in ratios[:1] if suffix == "weight_packed" else ratios[1:]:
            if part and whole % part == 0 and whole // part in _INTEGERS:
                return whole // part
    return None
