"""The cache layers of a model one by one, in the order in which its layers come, each on its pipeline stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsv4check.memory.cache_plan import CacheLayer
from dsv4check.resolution import LayerKind

_OF_RATIO = {
    4: ("main_c4", "indexer_k", "state_c4", "state_indexer"),
    128: ("main_c128", "state_c128"),
}


def model_layers(
    kinds: Sequence[LayerKind], ratios: Sequence[int], stage_sizes: Sequence[int]
) -> tuple[CacheLayer, ...]:
    """Every cache of the target's layers, then the draft's on the last stage.

    ``ratios``: compress ratio of each layer; ``stage_sizes``: layers on each pipeline stage.
    """
    return tuple(_layers({kind.kind: kind for kind in kinds}, ratios, stage_sizes))


def _layers(kinds: dict[str, LayerKind], ratios: Sequence[int], stage_sizes: Sequence[int]) -> Iterator[CacheLayer]:
    stages = [stage for stage, size in enumerate(stage_sizes) for _layer in range(size)]
    for ratio, stage in zip(ratios, stages, strict=True):
        yield _layer(kinds["swa"], stage)
        names = _OF_RATIO.get(ratio, (f"main_c{ratio}",) if ratio > 1 else ())
        yield from (_layer(kinds[name], stage) for name in names)
    last = len(stage_sizes) - 1
    for kind in kinds.values():
        yield from (_layer(kind, last) for _draft in range(kind.draft_count))


def _layer(kind: LayerKind, stage: int) -> CacheLayer:
    return CacheLayer(kind.kind, kind.padded_page_bytes, kind.block_size, kind.sliding_window, stage)
