"""Requests that a pool holds: one prefilled, the others decoding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsv4check.planning.capacity import capacity_of, held_requests, per_engine
from tests.report.memory import memory

sizes = st.integers(1, 10_000)


@given(st.integers(0, 1_000_000), sizes, sizes)
def test_what_is_held_fits_and_one_more_does_not(blocks: int, prefill: int, decode: int) -> None:
    held = held_requests(blocks, prefill, decode)

    def needed(requests: int) -> int:
        # The null block is nobody's.
        return 1 + prefill + (requests - 1) * decode

    assert held >= 0
    assert held == 0 or needed(held) <= blocks
    assert needed(held + 1) > blocks


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_the_fullest_engine_gets_its_share(concurrency: int, engines: int) -> None:
    share = per_engine(concurrency, engines)
    assert engines * share >= concurrency > engines * (share - 1)


def test_a_memory_record_is_counted_at_its_low_bound() -> None:
    record = memory()
    held = capacity_of(record, 4)
    assert held is not None
    assert record.blocks is not None
    assert held.blocks == record.blocks.low
    assert (held.total, held.engines) == (4 * held.per_engine, 4)
    assert held.per_engine == held_requests(held.blocks, held.prefill_blocks, held.decode_blocks)


def test_unknown_blocks_are_no_capacity() -> None:
    assert capacity_of(None, 1) is None
    assert capacity_of(memory(blocks=None), 1) is None
    assert capacity_of(memory(trade_off=()), 1) is None
