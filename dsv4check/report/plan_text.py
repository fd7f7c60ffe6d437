"""A plan as text: the command to paste, what it holds, and why fewer GPUs do not do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from dsv4check.planning.layouts import HEAD_ADDRESS
from dsv4check.report.blocks import Block, Heading, Paragraph, Table, finding_blocks, subject
from dsv4check.report.figures import count_range, gib, gib_range, plural, ratio_range

if TYPE_CHECKING:
    from dsv4check.planning.records import Plan, Shortfall, Trial


def plan_blocks(plan: Plan) -> Iterator[Block]:
    """The whole answer, top to bottom."""
    best = plan.best
    yield Heading(_headline(plan), "fail" if best is None else best.report.verdict.value)
    yield Paragraph(subject(plan.base.deployment), indent=0)
    for note in plan.base.notes:
        yield Paragraph(f"note: {note}", indent=0, style="dim")
    if best is not None:
        yield from _commands(best)
        yield from _holds(plan, best)
        for warning in best.warnings:
            yield from finding_blocks(warning)
        yield from _alternatives(plan, best)
    if plan.shortfalls:
        yield Heading("Why fewer GPUs do not do" if best is not None else "How far each number of GPUs gets")
        yield from _shortfalls(plan.shortfalls)
    if best is None and any(item.closest is not None and item.closest.report.errors for item in plan.shortfalls):
        yield Paragraph(
            "A plan only adds flags and environment variables; `dsv4check serve-args` says whether another package, "
            "release or GPU removes an error.",
            style="dim",
        )


def _shortfalls(shortfalls: tuple[Shortfall, ...]) -> Iterator[Block]:
    """One line each; numbers that fail in the same words, as with an error of the release, share one."""
    for _lacks, group in groupby(shortfalls, key=lambda item: item.closest and item.closest.lacks):
        same = list(group)
        if len(same) == 1 or same[0].closest is None:
            yield from (Paragraph(f"{plural(item.gpus, 'GPU')}: {item.reason}") for item in same)
        else:
            yield Paragraph(f"{', '.join(str(item.gpus) for item in same)} GPUs: {same[0].closest.lacks}")


def _headline(plan: Plan) -> str:
    wanted = plan.wanted
    asked = f"{plural(wanted.concurrency, 'request')} of {wanted.context:,} tokens at once"
    if plan.best is not None:
        layout = plan.best.layout
        return f"{plural(layout.gpus, 'GPU')}: {layout.label} serves {asked}"
    last = plan.shortfalls[-1]
    text = f"NOTHING SERVES {asked}, up to {plural(wanted.max_nodes, 'node')} of {plural(plan.per_node, 'GPU')}"
    # The messages of errors are long, and stand below.
    return text if last.closest is None or last.closest.report.errors else f"{text}: {last.reason}"


def _commands(best: Trial) -> Iterator[Block]:
    several = len(best.commands) > 1
    verdict = "no error, no warning"
    if best.warnings:
        verdict = f"no error, {plural(len(best.warnings), 'warning')}"
    yield Heading(f"Command of the first node, checked: {verdict}" if several else f"Command, checked: {verdict}")
    texts = best.texts
    yield Paragraph(texts[0], indent=4, verbatim=True)
    if not several:
        return
    for node, text in enumerate(texts[1:], start=1):
        yield Heading(f"Command of node {node}")
        yield Paragraph(text, indent=4, verbatim=True)
    rank = "--data-parallel-start-rank" if best.layout.data > 1 else "--node-rank"
    yield Paragraph(
        f"Put the first node's address for {HEAD_ADDRESS} on every node. Each further node runs the same with its own "
        f"{rank} and --headless.",
        style="dim",
    )


def _holds(plan: Plan, best: Trial) -> Iterator[Block]:
    memory, held = best.memory, best.capacity
    assert memory is not None
    assert held is not None
    stages = "" if best.layout.pipeline == 1 else f", pipeline stage {memory.stage}, the fullest"
    yield Heading(f"One GPU ({gib(memory.gpu_bytes)} GiB{stages})")
    rows: list[tuple[str, str]] = []
    if memory.weights is not None:
        rows.append(("Weights", f"{gib(memory.weights.stages[memory.stage].total)} GiB"))
    if memory.cache_bytes is not None:
        rows.append(("KV cache", f"{gib_range(memory.cache_bytes)} GiB"))
    if memory.blocks is not None:
        rows.append(("Blocks", count_range(memory.blocks)))
    each = "" if held.engines == 1 else f", {held.per_engine:,} in each of {held.engines} data-parallel engines"
    rows.append(
        (
            "Holds",
            f"{plural(held.total, 'request')} of {plan.wanted.context:,} tokens at once{each}: one prefilled takes "
            f"{plural(held.prefill_blocks, 'block')}, each that decodes {held.decode_blocks:,}",
        )
    )
    if memory.concurrency is not None:
        of = "" if held.engines == 1 else " of an engine"
        logged = f"{ratio_range(memory.concurrency)}{of} in vLLM's log, as if all were prefilled at once"
        rows.append(("Maximum concurrency", logged))
    if memory.longest_context is not None:
        rows.append(("Longest context", f"{count_range(memory.longest_context)} tokens, one request alone"))
    batch = f"{best.tokens:,} tokens (--max-num-batched-tokens), {plural(best.seqs, 'request')} (--max-num-seqs)"
    rows.append(("A step", f"{batch} at most"))
    yield Table((), tuple(rows), prose=True)
    yield Paragraph(
        "Counted with the high bound of every cost and with requests that are all at their full length; shorter ones "
        "need less.",
        style="dim",
    )
    for note in memory.notes:
        yield Paragraph(f"note: {note}", style="dim")


def _alternatives(plan: Plan, best: Trial) -> Iterator[Block]:
    if not plan.alternatives:
        return
    yield Heading(f"Other layouts on {plural(best.layout.gpus, 'GPU')} that serve it")
    rows = []
    for trial in plan.alternatives:
        held = trial.capacity.total if trial.capacity is not None else 0
        tuning = " ".join(" ".join(flag) for flag in trial.tuning.flags()) or "vLLM's defaults"
        hazards = f"; {plural(len(trial.warnings), 'warning')}" if trial.warnings else ""
        rows.append((trial.layout.label, f"{held:,}", f"{tuning}{hazards}"))
    yield Table(("layout", "holds", "with"), tuple(rows), prose=True)
