"""What a candidate lacks to serve what is wanted, and how near it comes."""

from __future__ import annotations

from dsv4check.memory.records import Memory
from dsv4check.memory_report import build_memory_report
from dsv4check.planning.capacity import per_engine
from dsv4check.planning.records import Trial
from dsv4check.planning.repairs import obstacles
from dsv4check.report.figures import count_range, gib_range, plural


def lack_of(trial: Trial, concurrency: int) -> str:
    """Why the launch does not serve ``concurrency`` requests of its context; empty where it does.

    It serves when the check finds no error, one request fits at the high bound of every cost, each engine admits its
    share of the requests, and the blocks at that bound hold them.
    """
    refused = obstacles(trial.report)
    if refused:
        first = min(refused, key=lambda item: item.stage.order)
        return f"fails at {first.stage.value}: {first.rule} {first.message}"
    memory, held = trial.memory, trial.capacity
    if memory is None or memory.blocks is None or held is None:
        missing = build_memory_report(trial.report).missing
        return f"cannot be judged: {missing.why if missing is not None else 'its memory is not known'}"
    if memory.fits is not True:
        return _too_small(memory)
    if trial.report.errors:
        return f"fails: {trial.report.errors[0].message}"
    share = per_engine(concurrency, held.engines)
    if held.per_engine < share:
        return f"holds {held.total:,} of {concurrency:,} requests"
    if trial.seqs < share:
        return f"admits {trial.seqs * held.engines:,} of {concurrency:,} requests (--max-num-seqs {trial.seqs})"
    return ""


def standing(trial: Trial) -> tuple[bool, int, int]:
    """How near it comes: larger is nearer."""
    memory = trial.memory
    fits = memory is not None and memory.fits is True
    held = trial.capacity.total if fits and trial.capacity is not None else 0
    room = memory.cache_bytes.low if memory is not None and memory.cache_bytes is not None else -(1 << 60)
    return not obstacles(trial.report), held, room


def _too_small(memory: Memory) -> str:
    cache, blocks = memory.cache_bytes, memory.blocks
    if cache is not None and cache.high <= 0:
        return f"has no room for a KV cache: weights and start-up costs are {gib_range(0 - cache)} GiB too large"
    if blocks is None or memory.request_blocks is None:
        return "does not fit one request"
    word = "does not hold" if memory.fits is False else "may not hold"
    return f"{word} one request: it needs {plural(memory.request_blocks, 'block')}, there are {count_range(blocks)}"
