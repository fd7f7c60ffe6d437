"""What a checkpoint holds, decided from names, dtypes and shapes: layers, draft, formats, bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsv4check.checkpoint.drafts import draft_kind_of_names
from dsv4check.checkpoint.kept import Kept
from dsv4check.checkpoint.survey import EXTRAS, Stored, Survey
from dsv4check.checkpoint.tensor_names import PARTS
from dsv4check.checkpoint.tensors import NO_HEADER, Checkpoint
from dsv4check.records import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """What a checkpoint holds."""

    family: str | None
    """``deepseek_v4`` or ``deepseek_v41``; None when the names show neither."""
    naming: str
    """``original``, ``prefixed``, ``transformers`` (see ``names.py``), or ``unknown``."""
    layers: tuple[int, ...]
    """Numbers of the target layers of which there is any tensor."""
    holes: tuple[int, ...]
    """Numbers below the last layer of which there is no tensor."""
    draft_kind: str | None
    """``mtp``, ``dspark``, ``none``; None when it cannot be told."""
    stages: tuple[int, ...]
    """Numbers of the draft stages (``mtp.N``) of which there is any tensor."""
    target: Stored
    draft: Stored
    has_norm: bool
    """The norm behind the last layer is there."""
    embedding: tuple[int, ...] | None
    """Shape of the embedding, (vocabulary, hidden size); None when it is not there or only its name is known."""
    head: tuple[int, ...] | None
    """Shape of the output head, likewise."""
    has_embedding: bool
    has_head: bool
    hash_layers: tuple[int, ...]
    """Target layers that route by token id (``gate.tid2eid``)."""
    compressor_layers: tuple[int, ...]
    """Target layers with a KV compressor."""
    indexer_layers: tuple[int, ...]
    """Target layers with an indexer."""
    engram_layers: tuple[int, ...]
    """Target layers with an n-gram table (V4.1)."""
    scale_suffixes: tuple[str, ...]
    """How scales are named behind their matrix: ``scale``, ``weight_scale``, ``weight_scale_inv``, ..."""
    extras: tuple[str, ...]
    """What only some checkpoints have: ``vision``, ``aligner``, ``image_``, ``engram``."""
    tensors: int
    tensors_by_part: Mapping[str, int]
    """Number of tensors by ``names.PARTS``."""
    size: int | None
    """Bytes of all tensors: summed up, or where dtypes are not known as the index states it; None without either."""
    size_by_part: Mapping[str, int | None]
    """Bytes by ``names.PARTS``; None where a dtype or shape is not known."""
    complete: bool
    """False when a file could not be read and no index tells the names in it: what is absent may be in there."""
    examples: Mapping[str, str]
    """A tensor's name for each thing said: ``embedding``, ``head``, ``layer 3``, ``stage 0``, ``hash 0``, ..."""


_KNOWN: Final[Kept[Content]] = Kept()


def content_of(checkpoint: Checkpoint) -> Content:
    """Decide what a checkpoint holds. Never raises: what cannot be told is None or empty."""
    return _KNOWN.get(checkpoint, None, lambda: _decide(checkpoint))


def _decide(checkpoint: Checkpoint) -> Content:
    seen = Survey()
    seen.add_all(checkpoint.tensors)
    complete = not any(defect.kind in NO_HEADER and not defect.count for defect in checkpoint.defects)
    sizes = seen.sizes()
    total = None if None in sizes.values() else sum(size or 0 for size in sizes.values())
    kind = draft_kind_of_names(seen.draft_names)
    if kind == "none" and not (complete and seen.numbers["layer"]):
        kind = None
    layers = tuple(sorted(seen.numbers["layer"]))
    present = set(layers)
    return Content(
        family=seen.family(),
        naming=seen.spellings.most_common(1)[0][0] if seen.spellings else "unknown",
        layers=layers,
        holes=tuple(number for number in range(layers[-1]) if number not in present) if layers else (),
        draft_kind=kind,
        stages=tuple(sorted(seen.numbers["stage"])),
        target=seen.stored("layer"),
        draft=seen.stored("stage"),
        has_norm="norm" in seen.roles,
        embedding=seen.roles["embedding"].shape if "embedding" in seen.roles else None,
        head=seen.roles["head"].shape if "head" in seen.roles else None,
        has_embedding="embedding" in seen.roles,
        has_head="head" in seen.roles,
        hash_layers=tuple(sorted(seen.numbers["hash"])),
        compressor_layers=tuple(sorted(seen.numbers["compressor"])),
        indexer_layers=tuple(sorted(seen.numbers["indexer"])),
        engram_layers=tuple(sorted(seen.numbers["engram"])),
        scale_suffixes=tuple(sorted(seen.scale_suffixes)),
        extras=tuple(extra for extra in EXTRAS if extra in seen.extras),
        tensors=len(checkpoint.tensors),
        tensors_by_part={part: seen.counts[part] for part in PARTS},
        size=checkpoint.total_size if total is None else total,
        size_by_part=sizes,
        complete=complete,
        examples=seen.examples,
    )
