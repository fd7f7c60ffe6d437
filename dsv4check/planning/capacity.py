"""How many requests of the whole context a launch holds at once while it works through them.

vLLM's own ``Maximum concurrency`` divides the pool by what a request takes while it is *prefilled* with every token
that may be in flight. All requests cannot be in that state together: the tokens in flight are shared by them. Here one
request has all of them and the others decode. Spreading the same tokens over several prefills only moves blocks from
one to the other (up to one block a window group and further prefill, for rounding).
"""

from __future__ import annotations

from typing import Final

from dsv4check.memory.records import Memory
from dsv4check.records import dataclass

NULL_BLOCKS: Final = 1
"""Blocks of the pool that no request gets: the null block (``v1/core/block_pool.py:BlockPool.__init__``)."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests of the whole context that a launch holds, at the low bound of what its KV cache gets."""

    engines: int
    """Data-parallel engines, each with a pool of its own."""
    per_engine: int
    """Requests that one engine's pool holds."""
    blocks: int
    """Blocks of one engine's pool, low bound."""
    prefill_blocks: int
    """Blocks of a request that is prefilled, with all tokens in flight."""
    decode_blocks: int
    """Blocks of a request of the whole context that decodes."""

    @property
    def total(self) -> int:
        """Requests that all engines hold, evenly spread."""
        return self.engines * self.per_engine


def held_requests(blocks: int, prefill_blocks: int, decode_blocks: int) -> int:
    """Requests that a pool of ``blocks`` holds: one being prefilled, the others decoding."""
    left = blocks - NULL_BLOCKS - prefill_blocks
    return 0 if left < 0 else 1 + left // max(decode_blocks, 1)


def per_engine(concurrency: int, engines: int) -> int:
    """Requests that the fullest of ``engines`` data-parallel engines gets, when they are spread evenly."""
    return -(-concurrency // engines)


def capacity_of(memory: Memory | None, engines: int) -> Capacity | None:
    """The capacity at ``max_model_len`` tokens; None where the blocks are not known."""
    if memory is None or memory.blocks is None or memory.request_blocks is None:
        return None
    row = next((row for row in memory.trade_off if row.context == memory.max_model_len), None)
    if row is None:
        return None
    blocks = memory.blocks.low
    held = held_requests(blocks, row.blocks, row.decode_blocks)
    return Capacity(engines, held, blocks, row.blocks, row.decode_blocks)
