"""Flags that trade speed for room in the KV cache: the steps of a candidate, from vLLM's defaults to the tightest."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dsv4check.records import dataclass

TUNED: Final = frozenset({"max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization"})
"""Dests of the flags that a plan may set to make room."""
CHUNKS: Final = (8192, 4096, 2048, 1024, 512)
"""Values of --max-num-batched-tokens to try: smaller ones keep fewer tokens in flight and need smaller buffers, and
prefill slows down with them."""
HIGHER_UTILIZATION: Final = 0.95
"""The one value of --gpu-memory-utilization that is tried above the default: what it leaves must still hold the CUDA
context and whatever comes after the KV cache."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Values of these flags; None leaves one out."""

    tokens: int | None = None
    """--max-num-batched-tokens."""
    seqs: int | None = None
    """--max-num-seqs, of each data-parallel engine."""
    utilization: float | None = None
    """--gpu-memory-utilization."""

    def flags(self) -> tuple[tuple[str, ...], ...]:
        """The flags, each with its value."""
        named = (
            ("--max-num-batched-tokens", self.tokens),
            ("--max-num-seqs", self.seqs),
            ("--gpu-memory-utilization", self.utilization),
        )
        return tuple((name, f"{value}") for name, value in named if value is not None)

    @property
    def changes(self) -> int:
        """Flags that are set."""
        return len(self.flags())


@dataclass(frozen=True, slots=True)
class Limits:
    """What the release does when these flags are left out."""

    tokens: int
    seqs: int
    utilization: float


def steps(limits: Limits, requests: int, given: Collection[str], *, tokens_per_request: int = 1) -> list[Tuning]:
    """Tunings to try in this order; every one admits ``requests`` at once in an engine.

    The utilisation is raised last, the chunk shrinks before that, and with each chunk the number of requests is first
    left alone and then set to exactly those asked for, which makes block tables and CUDA graphs small. So the last
    step leaves the KV cache the most room. Flags in ``given`` (dests) were stated and stay as they are.
    ``tokens_per_request``: of a decode step, one and the draft's.
    """
    batch = requests * tokens_per_request
    chunks: list[int | None] = [None]
    if "max_num_batched_tokens" not in given:
        if batch > limits.tokens:
            # A step must hold every request: the next power of two, as such values are written.
            chunks = [1 << (batch - 1).bit_length()]
        chunks += [size for size in CHUNKS if batch <= size < limits.tokens]
    seqs: list[int | None] = [None]
    if "max_num_seqs" not in given and requests != limits.seqs:
        seqs = [None, requests] if requests < limits.seqs else [requests]
    raises = limits.utilization < HIGHER_UTILIZATION and not {"gpu_memory_utilization", "kv_cache_memory_bytes"} & {
        *given
    }
    utilizations = (None, HIGHER_UTILIZATION) if raises else (None,)
    return [Tuning(chunk, number, share) for share in utilizations for chunk in chunks for number in seqs]


def fewest(tightest: Tuning, given: Collection[str], *, tokens_per_request: int = 1) -> Tuning:
    """The tightest tuning with the smallest chunk, and no more requests than that holds a step of."""
    tokens = None if "max_num_batched_tokens" in given else CHUNKS[-1]
    most = max(1, CHUNKS[-1] // tokens_per_request)
    seqs = None if "max_num_seqs" in given else min(tightest.seqs or most, most)
    return Tuning(tokens, seqs, tightest.utilization)
