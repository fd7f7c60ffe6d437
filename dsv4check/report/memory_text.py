"""The memory of a launch as text: short for ``serve-args``, whole for ``dsv4check memory``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from dsv4check.memory.records import Memory
from dsv4check.report.blocks import Block, Heading, Paragraph, Table, finding_blocks, subject
from dsv4check.report.figures import count_range, gib, gib_range, plural, ratio_range
from dsv4check.report.memory_bar import memory_bar, overflow

if TYPE_CHECKING:
    from dsv4check.memory_report import MemoryReport

_SOURCES: Final = {
    "checkpoint": "from the headers of the checkpoint's files",
    "published": "from the tensors of the published checkpoint",
    "config": "from the shapes and dtypes that config.json implies",
}


def summary_blocks(memory: Memory) -> Iterator[Block]:
    """The bar and the answer, in eight lines at most."""
    yield Heading(f"Memory of one GPU ({gib(memory.gpu_bytes)} GiB)")
    yield memory_bar(memory, compact=True)
    style, text = _answer(memory)
    yield Paragraph(text, style=style)
    over = overflow(memory)
    if over is not None:
        yield Paragraph(over, style="error")
    if memory.concurrency is not None and memory.fits is not False:
        longest = "" if memory.longest_context is None else f"; longest context {count_range(memory.longest_context)}"
        yield Paragraph(f"Maximum concurrency {ratio_range(memory.concurrency)}{longest}; see dsv4check memory")


def memory_report_blocks(item: MemoryReport) -> Iterator[Block]:
    """The whole report of ``dsv4check memory``, top to bottom."""
    memory, stopped = item.memory, item.stopped
    if stopped is not None:
        yield Heading(f"FAIL at {stopped.stage.value} ({stopped.rule}), before its memory is filled", "fail")
    if item.missing is not None and not item.fails:
        if stopped is None:
            yield Heading("NOT EVALUATED: whether this launch fits", "warn")
    elif memory is not None:
        style, text = _answer(memory)
        yield Heading(text, style)
    yield Paragraph(subject(item.report.deployment), indent=0)
    for note in item.report.notes:
        yield Paragraph(f"note: {note}", indent=0, style="dim")
    if item.missing is not None:
        yield Paragraph(f"not evaluated ({item.missing.why}). To know: {item.missing.how}.", indent=0)
    if memory is not None:
        yield from memory_blocks(memory)
    yield from _layout(item)
    if item.findings:
        yield Heading("Findings about memory, and what stops the launch before")
        for finding in item.findings:
            yield from finding_blocks(finding)
    if item.others:
        yield Paragraph("")
        yield Paragraph(f"{plural(item.others, 'other finding')}: see dsv4check serve-args", indent=0, style="dim")


def _layout(item: MemoryReport) -> Iterator[Block]:
    from dsv4check.report.memory_layout import group_blocks, layout_blocks

    memory, resolution = item.memory, item.report.resolution
    cache, attention = resolution.kv_cache, resolution.attention
    if memory is not None and memory.plan is not None:
        yield from group_blocks(memory.plan)
    if cache is not None and cache.layers:
        yield from layout_blocks(cache, None if attention is None else attention.indexer_dtype)


def memory_blocks(memory: Memory) -> Iterator[Block]:
    """Where the memory goes, what the cache holds, and what these figures rest on."""
    stages = 0 if memory.weights is None else len(memory.weights.stages)
    fullest = f" of pipeline stage {memory.stage} (of 0 to {stages - 1}), the fullest" if stages > 1 else ""
    yield Heading(f"One GPU{fullest}: {gib(memory.gpu_bytes)} GiB")
    yield memory_bar(memory, compact=False)
    over = overflow(memory)
    if over is not None:
        yield Paragraph(over, style="error")
    yield from _holds(memory)
    yield from _trade_off(memory)
    yield from _in_flight(memory)
    yield from _costs(memory)
    yield from _known_from(memory)


def _answer(memory: Memory) -> tuple[str, str]:
    """Style and text of the one line that matters."""
    cache, blocks, need = memory.cache_bytes, memory.blocks, memory.request_blocks
    if memory.fits is False and cache is not None and cache.high <= 0:
        short = gib_range(0 - cache)
        return "fail", f"DOES NOT FIT: weights and costs leave nothing for the KV cache (short by {short} GiB)"
    word, style = {True: ("FITS", "pass"), False: ("DOES NOT FIT", "fail"), None: ("MAY NOT FIT", "warn")}[memory.fits]
    if blocks is None or need is None:
        return ("warn", "NOT EVALUATED: whether this launch fits") if memory.fits is None else (style, word)
    tokens = "max_model_len" if memory.max_model_len is None else f"{memory.max_model_len:,} tokens"
    text = f"{word}: one request of {tokens} needs {plural(need, 'block')}; there are {count_range(blocks)}"
    return style, text if memory.fits is not None else f"{text}, by how high the costs are"


def _holds(memory: Memory) -> Iterator[Block]:
    rows: list[tuple[str, str]] = []
    if memory.cache_bytes is not None:
        rows.append(("KV cache", f"{gib_range(memory.cache_bytes)} GiB"))
    if memory.blocks is not None:
        rows.append(("Blocks", count_range(memory.blocks)))
    if memory.request_blocks is not None:
        flight = f", {memory.in_flight_tokens:,} tokens in flight" if memory.in_flight_tokens is not None else ""
        rows.append(("One request", f"{plural(memory.request_blocks, 'block')} at most{flight}"))
    if memory.concurrency is not None:
        of = "" if memory.max_model_len is None else f" requests of {memory.max_model_len:,} tokens at once"
        rows.append(("Maximum concurrency", f"{ratio_range(memory.concurrency)}{of}"))
    if memory.log_tokens is not None:
        text = f"{count_range(memory.log_tokens)} tokens, in vLLM's log: {_log_formula(memory)}"
        rows.append(("GPU KV cache size", text))
    if memory.longest_context is not None:
        rows.append(("Longest context", _longest(memory)))
    if rows:
        yield Heading("What the KV cache holds")
        yield Table((), tuple(rows))


def _log_formula(memory: Memory) -> str:
    tokens, concurrency, context = memory.log_tokens, memory.concurrency, memory.max_model_len
    why = "not a capacity in tokens (shorter requests need more blocks a token)"
    if tokens is None or concurrency is None or context is None:
        return why
    # The first release had another formula. Both figures are rounded on the way.
    product = concurrency[1] * context
    return f"concurrency x max_model_len, {why}" if abs(tokens.high - product) <= 0.01 * product + context else why


def _longest(memory: Memory) -> str:
    longest = memory.longest_context
    assert longest is not None
    if longest.high <= 0:
        return "none: not even the shortest request fits"
    text = f"{count_range(longest)} tokens, one request alone"
    if memory.fits is not True and longest.low > 0:
        text += f"; --max-model-len {longest.low} fits at the high bound of the costs, too"
    return text


def _trade_off(memory: Memory) -> Iterator[Block]:
    if memory.trade_off:
        yield Heading("Context or concurrency")
        rows = tuple(
            (
                f"{row.context:,}",
                f"{row.blocks:,}",
                gib(row.request_bytes),
                ratio_range(row.concurrency),
                f"{row.decode_blocks:,}",
                gib(row.decode_bytes),
                ratio_range(row.decode_concurrency),
            )
            for row in memory.trade_off
        )
        yield Table(("tokens", "blocks", "GiB", "requests at once", "decoding", "GiB", "at once"), rows)
        flight = "" if memory.in_flight_tokens is None else f" ({memory.in_flight_tokens:,} tokens in flight)"
        yield Paragraph(
            f"blocks: of one request while it is prefilled{flight}, and how many of them vLLM reckons with; decoding: "
            "what it keeps afterwards, when its windows hold one step's tokens.",
            style="dim",
        )


def _in_flight(memory: Memory) -> Iterator[Block]:
    if memory.in_flight:
        yield Heading("Tokens in flight, whatever the context")
        rows = tuple((f"{row.tokens:,}", f"{row.blocks:,}", gib(row.request_bytes)) for row in memory.in_flight)
        yield Table(("tokens in flight", "blocks", "GiB"), rows)
        yield Paragraph(
            "windows and compressor states keep every scheduled token until its step is done: "
            "--max-num-batched-tokens, times the batches in flight from 0.26.0 on.",
            style="dim",
        )


def _costs(memory: Memory) -> Iterator[Block]:
    if not memory.costs:
        return
    yield Heading("Costs beside weights and KV cache")
    rows = [
        (
            cost.name,
            gib_range(cost.size),
            "before" if cost.budgeted else "after",
            f"{cost.why.rstrip('. ')} ({cost.source})",
        )
        for cost in memory.costs
    ]
    yield Table(("cost", "GiB", "counted", "why (source)"), tuple(rows), prose=True)
    yield Paragraph(
        "before: vLLM measures it before it sizes the KV cache, which becomes smaller by it; "
        "after: comes out of what --gpu-memory-utilization leaves.",
        style="dim",
    )


def _known_from(memory: Memory) -> Iterator[Block]:
    yield Heading("What these figures rest on")
    rows = []
    if memory.weights is not None:
        exact = "Exact" if memory.weights.source in ("checkpoint", "published") else "Derived"
        rows.append((exact, f"weights, {_SOURCES.get(memory.weights.source, memory.weights.source)}"))
    if memory.plan is not None:
        rows.append(("Exact", "groups, strides and blocks a request needs: the arithmetic of this release's planner"))
    if memory.costs:
        rows.append(("Estimated", "costs, each from its source above; what follows from them is a range"))
    yield Table((), tuple(rows))
    for note in memory.notes:
        yield Paragraph(f"note: {note}", style="dim")
