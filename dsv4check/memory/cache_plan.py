"""How a release groups the cache layers and how many bytes one block id takes: ``get_kv_cache_configs`` on paper.

All groups draw blocks from one pool. A block id stands for one block of every layer of the group that holds it, so
its bytes on a GPU (the stride) are those of the widest group, or more where a release pads. What differs between
releases is learned by planning with them (section ``cache_planning``):

``grouping``
    ``padded-tuples``, ``tuples``: full-attention layers form one group of tuples of different page sizes, the others
    are split so that they need as many tuples; ``padded`` raises their pages to the next page of the first group.
    ``packed``: layers of one block size and window form a group; those that have one page size, or as many layers
    of each, are split; hidden states that are kept for a connector form a group of their own. ``packed-windows``:
    where that gives no size to split by, windows are split to fit the others.
``stride``
    ``tuples``: the first group's page sizes x tuples; ``buckets``: most layers of each page size; ``widest``: the
    widest group.
``check``
    With which bytes a block is counted when one request is checked: ``tuples`` or ``stride``.
``override``
    With which memory a request is checked when ``--num-gpu-blocks-override`` fixes the number of blocks: ``memory``
    that there is, or that of those blocks, by their stride (``sizes``) or as the check counts them (``checked``).
``promotion``
    How windows are planned without the hybrid manager: :mod:`dsv4check.memory.promotion`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsv4check.memory.records import CacheGroup, CachePlan
from dsv4check.records import dataclass
from dsv4check.resolution import HIDDEN_STATES


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """One layer's cache."""

    kind: str
    page_bytes: int
    """Padded."""
    block_size: int
    sliding_window: int | None
    stage: int
    """Pipeline stage that holds it."""


class UnplannedError(Exception):
    """The release does not plan these layers: it stops with an error of its own, or in a way not known here."""


Group = Sequence[CacheLayer]


def plan_cache(
    layers: Sequence[CacheLayer], stages: int, style: Mapping[str, Any], *, retained: int = 0, context_ranks: int = 1
) -> CachePlan:
    """The plan for all layers in the order in which the model registers them; ``style``: section ``cache_planning``.

    Raises UnplannedError.
    """
    groups = _one_group(layers) or _groups(layers, style["grouping"])
    single = len(groups) == 1
    strides = [_stride(groups, stage, "widest" if single else style["stride"]) for stage in range(stages)]
    checked = strides if single or style["check"] == "stride" else [_checked(groups, stage) for stage in range(stages)]
    if not all(strides):
        raise UnplannedError("a pipeline stage has no cache")
    return CachePlan(
        groups=tuple(_summary(group, stages) for group in groups),
        strides=tuple(strides),
        checked_strides=tuple(checked),
        reserved_blocks=style["reserved_blocks"],
        weighted_concurrency=style["concurrency"] == "weighted",
        tokens_by_group=style["log_tokens"] == "groups",
        retained_tokens=retained if style["retained_tokens"] else 0,
        context_ranks=context_ranks,
    )


def _one_group(layers: Sequence[CacheLayer]) -> list[Group] | None:
    """All layers in one group where they need the same slots (the hybrid manager is off, or all windows are alike)."""
    return [layers] if len({(layer.block_size, layer.sliding_window) for layer in layers}) == 1 else None


def _groups(layers: Sequence[CacheLayer], grouping: str) -> list[Group]:
    match grouping:
        case "padded-tuples":
            return _tuple_groups(layers, padded=True)
        case "tuples":
            return _tuple_groups(layers, padded=False)
        case "packed":
            return _packed_with_hidden_states(layers, split_windows=False)
        case "packed-windows":
            return _packed_with_hidden_states(layers, split_windows=True)
    raise UnplannedError(f"grouping {grouping!r} is not known")


def _tuple_groups(layers: Sequence[CacheLayer], *, padded: bool) -> list[Group]:
    full = [layer for layer in layers if layer.sliding_window is None]
    buckets = list(_buckets(layer for layer in layers if layer.sliding_window is not None).values())
    if not full:
        raise UnplannedError("no layer keeps the whole context")
    counts = [_tuples(full), *(_tuples(bucket) for bucket in buckets)]
    size = _chunk(counts, counts[0])
    pages = sorted({layer.page_bytes for layer in full})
    groups: list[Group] = [full]
    for bucket in buckets:
        if padded:
            bucket = [_raised(layer, pages) for layer in bucket]
        by_page = list(_by_page(bucket).values())
        if len({len(members) for members in by_page}) > 1:
            raise UnplannedError("page sizes of one group have different numbers of layers")
        groups += _split(by_page, -(-len(by_page[0]) // size))
    return groups


def _packed_with_hidden_states(layers: Sequence[CacheLayer], *, split_windows: bool) -> list[Group]:
    apart: list[Group] = [[layer] for layer in layers if layer.kind == HIDDEN_STATES]
    rest = [layer for layer in layers if layer.kind != HIDDEN_STATES]
    return _packed_groups(rest, split_windows=split_windows) + apart


def _packed_groups(layers: Sequence[CacheLayer], *, split_windows: bool) -> list[Group]:
    buckets = list(_buckets(layers).values())
    pages = [list(_by_page(bucket).values()) for bucket in buckets]
    even = [members for members in pages if len({len(layers) for layers in members}) == 1]
    mixed = [len(members[0]) for members in even if len(members) > 1]
    counts = [1] * len(buckets)
    if mixed:
        size = _chunk([len(members[0]) for members in even], max(mixed))
        counts = [-(-len(members[0]) // size) if members in even else 1 for members in pages]
    elif split_windows:
        counts = _window_splits(pages)
    groups: list[Group] = []
    for bucket, members, count in zip(buckets, pages, counts, strict=True):
        groups += [bucket] if count == 1 else _split(members, count)
    return groups


def _window_splits(buckets: Sequence[Sequence[Group]]) -> list[int]:
    """Windows are cut into as many groups as makes each fit the widest of the other groups, or one of its own layers.

    ``buckets``: of each bucket its layers by page size.
    """

    def window(bucket: Sequence[Group]) -> bool:
        return bucket[0][0].sliding_window is not None

    anchor = max(
        sum(members[0].page_bytes * (1 if window(bucket) else len(members)) for members in bucket) for bucket in buckets
    )
    return [
        -(-sum(map(len, bucket)) // max(anchor // bucket[0][0].page_bytes, 1)) if window(bucket) else 1
        for bucket in buckets
    ]


def _buckets(layers: Iterable[CacheLayer]) -> dict[tuple[int, int | None], list[CacheLayer]]:
    """Layers of one block size and window, in the order in which the first of each comes."""
    found: dict[tuple[int, int | None], list[CacheLayer]] = {}
    for layer in layers:
        found.setdefault((layer.block_size, layer.sliding_window), []).append(layer)
    return found


def _by_page(layers: Group) -> dict[int, list[CacheLayer]]:
    found: dict[int, list[CacheLayer]] = {}
    for layer in layers:
        found.setdefault(layer.page_bytes, []).append(layer)
    return found


def _tuples(layers: Group) -> int:
    """Layers of the page size that most of them have."""
    return max(Counter(layer.page_bytes for layer in layers).values())


def _chunk(counts: Sequence[int], least: int) -> int:
    """The size from ``least`` on that pads ``counts`` least when each is rounded up to it; the largest such."""
    sizes = range(least, max(counts) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in counts), -size), default=least)


def _raised(layer: CacheLayer, pages: Sequence[int]) -> CacheLayer:
    page = next((size for size in pages if size >= layer.page_bytes), None)
    if page is None:
        raise UnplannedError(f"the page of {layer.kind} is larger than every page of the full-attention group")
    return CacheLayer(layer.kind, page, layer.block_size, layer.sliding_window, layer.stage)


def _split(by_page: Sequence[Group], count: int) -> list[Group]:
    """Every ``count``-th tuple of layers, one layer of each page size."""
    tuples = list(zip(*by_page, strict=False))
    return [[layer for members in tuples[first::count] for layer in members] for first in range(count)]


def _here(group: Group, stage: int) -> list[CacheLayer]:
    return [layer for layer in group if layer.stage == stage]


def _reckoned(group: Group, stage: int) -> Group:
    """The layers with which a stage reckons: a group it has no part in keeps the spec of the whole model."""
    return _here(group, stage) or group


def _stride(groups: Sequence[Group], stage: int, style: str) -> int:
    here = [_here(group, stage) for group in groups]
    match style:
        case "tuples":
            pages = {layer.page_bytes for layer in _reckoned(groups[0], stage)}
            return sum(pages) * max((_tuples(group) for group in here if group), default=0)
        case "buckets":
            counts = [Counter(layer.page_bytes for layer in group) for group in here]
            return sum(page * max(count[page] for count in counts) for page in set().union(*counts))
        case "widest":
            return max(sum(layer.page_bytes for layer in group) for group in here)
    raise UnplannedError(f"stride {style!r} is not known")


def _checked(groups: Sequence[Group], stage: int) -> int:
    pages = {layer.page_bytes for layer in _reckoned(groups[0], stage)}
    return sum(pages) * max(_tuples(_reckoned(group, stage)) for group in groups)


def _summary(group: Group, stages: int) -> CacheGroup:
    kinds = Counter(layer.kind for layer in group)
    return CacheGroup(
        kinds=tuple(kinds.items()),
        block_size=group[0].block_size,
        sliding_window=group[0].sliding_window,
        stage_bytes=tuple(sum(layer.page_bytes for layer in _reckoned(group, stage)) for stage in range(stages)),
        stage_layers=tuple(len(_here(group, stage)) for stage in range(stages)),
    )
