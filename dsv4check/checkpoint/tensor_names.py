"""Takes a tensor's name apart: which layer or draft stage, which part of it, which matrix, which of its tensors.

Three spellings are known. *original*: DeepSeek's own, ``layers.N.attn.wkv.weight`` and ``mtp.N...`` without a prefix
(``embed.weight``, ``head.weight``). *prefixed*: the same behind ``model.``, as converters write it. *transformers*:
``model.layers.N.self_attn.kv_proj.weight``, ``mlp.experts``, as transformers' DeepseekV4 class saves it (its
conversion mapping renames every leaf; vLLM's loader knows the first two only).
"""

from __future__ import annotations

import re
from typing import Final

from dsv4check.records import dataclass

ROUTED: Final = "routed experts"
SHARED: Final = "shared experts"
ATTENTION: Final = "attention"
EMBEDDING: Final = "embedding and head"
DRAFT: Final = "draft"
VISION: Final = "vision"
ENGRAM: Final = "engram"
OTHER: Final = "other"
PARTS: Final = (ROUTED, SHARED, ATTENTION, EMBEDDING, DRAFT, VISION, ENGRAM, OTHER)
"""Every tensor counts for exactly one; all of a draft stage is ``draft``."""

_PREFIX: Final = re.compile(r"^(?:(?:language_model\.|model\.){1,2})")
_LAYER: Final = re.compile(r"^(layers|mtp)\.([0-9]{1,9})\.(.+)$")
_BLOCK: Final = re.compile(r"^(attn|self_attn|ffn|mlp)\.(?:(shared_experts?|experts)\.)?(?:([0-9]{1,9})\.)?(.+)$")
_FUSED: Final = re.compile(r"^(gate_up_proj|down_proj)(?:_(.+))?$")
_VISION: Final = ("vision", "visual", "aligner", "image_", "multi_modal_projector")
_EMBEDDINGS: Final = frozenset({"embed", "embed_tokens"})
_HEADS: Final = frozenset({"head", "lm_head"})
MATRIX: Final = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
"""DeepSeek's name of an expert's matrix, by the one transformers uses."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a tensor's name says."""

    part: str
    """One of ``PARTS``, but for a draft stage's tensors that of the block they belong to: see ``stage``."""
    spelling: str
    """``original``, ``prefixed`` or ``transformers``; empty when the name does not tell."""
    layer: int | None = None
    """Number of the target layer."""
    stage: int | None = None
    """Number of the draft stage (``mtp.N``)."""
    leaf: str = ""
    """The name behind layer or stage, else the whole name without prefix."""
    expert: int | None = None
    """Number of the routed expert; None for others and for tensors that hold all experts."""
    matrix: str = ""
    """Inside an attention or expert block the matrix: ``wkv``, ``w1``, ``indexer.wq_b``."""
    suffix: str = ""
    """Which of the matrix' tensors: ``weight``, ``scale``, ``weight_scale_2``."""
    role: str = ""
    """``embedding``, ``head`` or ``norm`` for these three tensors of the target."""


def place_of(name: str) -> Place:
    """Take one name apart; names of nothing known are part ``other``."""
    prefix = _PREFIX.match(name)
    bare = name[prefix.end() :] if prefix else name
    if bare.startswith(_VISION):
        return Place(VISION, "", leaf=bare)
    found = _LAYER.match(bare)
    if found is None:
        return _top(bare)
    kind, number, leaf = found[1], int(found[2]), found[3]
    layer, stage = (number, None) if kind == "layers" else (None, number)
    block = _BLOCK.match(leaf)
    if block is None:
        part = ENGRAM if leaf.startswith("engram.") else OTHER
        matrix, _, suffix = leaf.rpartition(".")
        return Place(part, "", layer, stage, leaf, None, matrix, suffix)
    where, experts, expert, rest = block.groups()
    if where in ("self_attn", "mlp"):
        spelling = "transformers"
    else:
        spelling = "prefixed" if prefix else "original"
    fused = _FUSED.match(rest) if experts == "experts" and expert is None else None
    if fused is not None:
        matrix, suffix = fused[1], fused[2] or "weight"
    else:
        matrix, _, suffix = rest.rpartition(".")
    if experts is not None:
        part = ROUTED if experts == "experts" else SHARED
        matrix = MATRIX.get(matrix, matrix)
    else:
        part = ATTENTION if where in ("attn", "self_attn") else OTHER
    return Place(part, spelling, layer, stage, leaf, None if expert is None else int(expert), matrix, suffix)


def _top(bare: str) -> Place:
    first, _, rest = bare.partition(".")
    if first in _EMBEDDINGS or first in _HEADS:
        role = "" if rest != "weight" else "embedding" if first in _EMBEDDINGS else "head"
        return Place(EMBEDDING, "", leaf=bare, suffix=rest, role=role)
    return Place(OTHER, "", leaf=bare, role="norm" if bare == "norm.weight" else "")
