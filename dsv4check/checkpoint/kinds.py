"""The kinds of checkpoint that synthetic ones are modelled on: which published tensors, which config, what is changed.

NVFP4 kinds are what NVIDIA's ModelOpt exports and vLLM's ``ModelOptNvFp4FusedMoE`` loads: routed experts of the target
with ``weight`` U8 [out, in/2], ``weight_scale`` F8_E4M3 [out, in/16], ``weight_scale_2`` and ``input_scale`` F32
scalars; the draft stays MXFP4 (``ignore: mtp.*`` in these configs). FP8 kinds have F8_E4M3 experts with block scales.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dsv4check.checkpoint.published import published_tensors
from dsv4check.checkpoint.tensors import Tensor
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import bundled_config, deep_merge, find_published
from dsv4check.records import dataclass, field

EXPERT: Final = re.compile(r"^(?P<head>(?P<section>layers|mtp)\.\d+\.ffn\.experts\.\d+\.w[123])\.(?P<suffix>\w+)$")
_NVFP4_GROUP: Final = 16


@dataclass(frozen=True, slots=True)
class Kind:
    """What a synthetic checkpoint is modelled on."""

    tensors: str
    """Published id whose tensors are taken."""
    config: str
    """Published id whose config.json is taken."""
    experts: str = "mxfp4"
    """How the target's routed experts are stored: ``mxfp4`` (as published), ``nvfp4``, ``fp8``."""
    scale_dtype: str = "F8_E8M0"
    """Dtype of the block scales of FP8 matrices."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Merged into the config; null deletes a key."""


_AI: Final = "deepseek-ai/DeepSeek-"
_FP8: Final[Mapping[str, Any]] = {"expert_dtype": "fp8"}
KINDS: Final[Mapping[str, Kind]] = {
    "flash": Kind(f"{_AI}V4-Flash", f"{_AI}V4-Flash"),
    "pro": Kind(f"{_AI}V4-Pro", f"{_AI}V4-Pro"),
    "flash-dspark": Kind(f"{_AI}V4-Flash-0731", f"{_AI}V4-Flash-DSpark"),
    "pro-dspark": Kind(f"{_AI}V4-Pro-0813", f"{_AI}V4-Pro-DSpark"),
    "flash-nvfp4": Kind(f"{_AI}V4-Flash", "nvidia/DeepSeek-V4-Flash-NVFP4", "nvfp4"),
    "pro-nvfp4": Kind(f"{_AI}V4-Pro", "nvidia/DeepSeek-V4-Pro-NVFP4", "nvfp4"),
    "flash-fp8": Kind(f"{_AI}V4-Flash", f"{_AI}V4-Flash", "fp8", changes=_FP8),
    "pro-fp8": Kind(f"{_AI}V4-Pro", f"{_AI}V4-Pro", "fp8", changes=_FP8),
    "flash-base": Kind(f"{_AI}V4-Flash", f"{_AI}V4-Flash-Base", "fp8", "F32"),
    "pro-base": Kind(f"{_AI}V4-Pro", f"{_AI}V4-Pro-Base", "fp8", "F32"),
    "v4.1-flash": Kind(f"{_AI}V4.1-Flash", f"{_AI}V4.1-Flash"),
}
"""Short names; every published id whose tensors are known is a kind of its own."""


def find_kind(like: str) -> Kind:
    """The kind of a short name or a published id. Raises InputError when there is none, naming the short ones."""
    kind = KINDS.get(like.strip().lower())
    if kind is not None:
        return kind
    entry = find_published(like)
    if entry is not None and entry.tensors is not None:
        return Kind(entry.tensors, entry.id)
    known = ", ".join(KINDS)
    reason = "its tensors are not known" if entry is not None else "no such kind"
    raise InputError(
        f"like: {like!r}: {reason}; expected {known} or the id of a published checkpoint with known tensors"
    )


def kind_config(kind: Kind) -> dict[str, Any]:
    """The kind's config.json, before layers are cut."""
    return deep_merge(bundled_config(kind.config), kind.changes)


def kind_tensors(kind: Kind) -> dict[str, Tensor]:
    """The kind's tensors with all layers, of the routed experts of a layer only number 0."""
    published = published_tensors(kind.tensors)
    assert published is not None, f"rules/models/index.yaml names tensors of {kind.tensors}"
    config = kind_config(kind)
    quant = config.get("quantization_config", {})
    block = quant.get("weight_block_size", (128, 128))
    shared: dict[Tensor, Tensor] = {}
    result: dict[str, Tensor] = {}
    for name, tensor in published.tensors.items():
        found = EXPERT.match(name)
        if found is not None and not found["head"].endswith((".experts.0.w1", ".experts.0.w2", ".experts.0.w3")):
            continue
        for key, made in _converted(kind, name, tensor, found, (block[0], block[1])):
            result[key] = shared.setdefault(made, made)
    return result


def _converted(
    kind: Kind, name: str, tensor: Tensor, expert: re.Match[str] | None, block: tuple[int, int]
) -> Iterator[tuple[str, Tensor]]:
    """One published tensor as the kind stores it: none, one or several."""
    shape = tensor.shape or ()
    if expert is None:
        if kind.scale_dtype != "F8_E8M0" and tensor.dtype == "F8_E8M0":
            tensor = Tensor(kind.scale_dtype, shape)
        elif kind.scale_dtype == "F32" and name in ("embed.weight", "head.weight"):
            # The base checkpoints keep both in full precision.
            tensor = Tensor("F32", shape)
        yield name, tensor
        return
    head = expert["head"]
    if kind.experts == "fp8":
        # Of the packed weight two values a byte are known to be there.
        if expert["suffix"] == "weight":
            rows, columns = shape[0], shape[1] * 2
            yield name, Tensor("F8_E4M3", (rows, columns))
            yield f"{head}.scale", Tensor(kind.scale_dtype, (-(-rows // block[0]), -(-columns // block[1])))
    elif kind.experts == "nvfp4" and expert["section"] == "layers":
        if expert["suffix"] == "weight":
            yield name, Tensor("U8", shape)
            yield f"{head}.weight_scale", Tensor("F8_E4M3", (shape[0], shape[1] * 2 // _NVFP4_GROUP))
            yield f"{head}.weight_scale_2", Tensor("F32", ())
            yield f"{head}.input_scale", Tensor("F32", ())
    else:
        yield name, tensor
