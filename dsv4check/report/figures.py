"""Sizes and counts as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dsv4check.memory.records import Span

_GIB: Final = 2**30


def gib(size: float) -> str:
    """GiB with one decimal, two below one; without the unit."""
    value = size / _GIB
    if abs(value) >= 0.995 or not size:
        return f"{value:,.1f}"
    return f"{value:.2f}" if abs(value) >= 0.005 else "<0.01"


def gib_range(span: Span) -> str:
    """``3.1 - 5.0``, or one figure where both are the same as printed."""
    return _range(gib(span.low), gib(span.high))


def count_range(span: Span) -> str:
    """``11,900 - 12,400``."""
    return _range(f"{span.low:,}", f"{span.high:,}")


def ratio_range(bounds: tuple[float, float]) -> str:
    """``2.93x - 3.10x``, in the form of vLLM's log."""
    return _range(*(f"{bound:,.2f}x" for bound in bounds))


def plural(count: int, one: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{count:,} {one}{'s' * (count != 1)}"


def _range(low: str, high: str) -> str:
    if low == high:
        return low
    # A dash before a minus cannot be read.
    return f"{low} to {high}" if low.startswith("-") else f"{low} - {high}"
