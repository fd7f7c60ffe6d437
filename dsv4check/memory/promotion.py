"""The cache layers of a launch without the hybrid KV-cache manager: every window is kept as if it were full attention.

``unify_hybrid_kv_cache_specs`` (later ``_promote_local_kv_cache_specs``) gives each sliding window the block size of
the full-attention layers, so its page holds a state for every token of such a block, rounded up to the layout's
alignment as before. All layers then need the same slots and form one group. Compressor states pay most: a page of
4 or 8 tokens grows to one of 256. From 0.31.0 on the promotion itself fails (section ``cache_planning``, key
``promotion``: ``none``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dsv4check.memory.cache_plan import UnplannedError
from dsv4check.resolution import LayerKind


def promoted(kinds: Sequence[LayerKind], style: str, alignment: int | None) -> tuple[LayerKind, ...]:
    """The kinds as they are planned with the hybrid manager off.

    ``style``: how the release promotes; ``alignment`` of the sliding window's and the states' pages in this layout.
    Raises UnplannedError.
    """
    if style != "full-blocks":
        raise UnplannedError("the release cannot turn sliding windows into full attention")
    full = {kind.block_size for kind in kinds if kind.sliding_window is None}
    if len(full) != 1:
        raise UnplannedError("no block size of full-attention layers to give to the windows")
    (block_size,) = full
    return tuple(kind if kind.sliding_window is None else _promoted(kind, block_size, alignment) for kind in kinds)


def _promoted(kind: LayerKind, block_size: int, alignment: int | None) -> LayerKind:
    states = block_size // kind.tokens_per_state
    page = states * kind.bytes_per_state
    padded = -(-page // alignment) * alignment if alignment else page
    return replace(
        kind,
        block_size=block_size,
        states_per_block=states,
        page_bytes=page,
        padded_page_bytes=padded,
        sliding_window=None,
    )
