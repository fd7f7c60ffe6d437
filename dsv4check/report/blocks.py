"""The report as headings, paragraphs and tables: what both text renderers print."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4check.deployment import Deployment
from dsv4check.engine.rule import Severity
from dsv4check.problems import Origin
from dsv4check.records import dataclass
from dsv4check.report.bar import Bar
from dsv4check.report.model import Finding, Fix, Report
from dsv4check.resolution import Draft, KvCache, Resolution


@dataclass(frozen=True, slots=True)
class Heading:
    """A line that starts a section; ``style`` is a role, not a colour."""

    text: str
    style: str = "section"


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Text to wrap, indented by ``indent``; ``verbatim`` text is printed as it is (commands)."""

    text: str
    indent: int = 2
    style: str = "plain"
    verbatim: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table; ``header`` may be empty for label/value rows."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    prose: bool = False
    """The last column holds sentences: they are wrapped, and never aligned as figures."""


Block = Heading | Paragraph | Table | Bar


def printable(block: Block) -> Block:
    """The block as it may be shown: names from files hold anything, control characters must not reach a terminal."""
    match block:
        case Heading(text, style):
            return Heading(_escaped(text), style)
        case Paragraph(text, indent, style, verbatim):
            return Paragraph("\n".join(map(_escaped, text.split("\n"))), indent, style, verbatim)
        case Table(header, rows, prose):
            return Table(tuple(map(_escaped, header)), tuple(tuple(map(_escaped, row)) for row in rows), prose)
        case Bar():
            # Holds nothing that came from outside.
            return block


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def report_blocks(report: Report) -> Iterator[Block]:
    """The whole report, top to bottom."""
    yield Heading(_headline(report), report.verdict.value)
    yield Paragraph(subject(report.deployment), indent=0)
    for note in report.notes:
        yield Paragraph(f"note: {note}", indent=0, style="dim")
    yield Heading(f"What vLLM {report.resolution.release} decides")
    yield Table((), tuple(_decisions(report.resolution)))
    cache = report.resolution.kv_cache
    if cache is not None and cache.layers:
        yield _layer_table(cache)
    if report.resolution.memory is not None:
        from dsv4check.report.memory_text import summary_blocks

        yield from summary_blocks(report.resolution.memory)
    if report.findings:
        yield Heading("Findings")
        for finding in report.findings:
            yield from finding_blocks(finding)
    if report.not_evaluated:
        yield Heading("Not evaluated")
        for item in report.not_evaluated:
            yield Paragraph(f"{item.what}: {item.why}. To know: {item.how}.")


def _headline(report: Report) -> str:
    counts = dict.fromkeys(Severity, 0)
    for finding in report.findings:
        counts[finding.severity] += 1
    parts = [f"{number} {severity.value}{'s' * (number != 1)}" for severity, number in counts.items() if number]
    text = {
        "pass": "PASS: nothing found that stops this launch",
        "warn": "WARN: it starts, with a hazard",
    }.get(report.verdict.value, f"FAIL at {report.stage.value if report.stage else '?'}")
    return f"{text} ({', '.join(parts)})" if parts else text


def subject(deployment: Deployment) -> str:
    """Model, hardware, vLLM and config.json in one line."""
    hardware, build = deployment.hardware, deployment.vllm
    if hardware.vendor is None:
        gpu = "an unknown GPU"
    else:
        count = f"{hardware.gpus_per_node} x " if hardware.gpus_per_node else ""
        nodes = f"{hardware.nodes} nodes of " if hardware.nodes > 1 else ""
        sm = f" (SM{hardware.capability[0]}{hardware.capability[1]})" if hardware.capability else ""
        gpu = f"{nodes}{count}{hardware.name or 'GPU'}{sm}"
    return f"{deployment.model.name} on {gpu}, vLLM {build.version}; config: {deployment.model.source}"


def _decisions(resolution: Resolution) -> Iterator[tuple[str, str]]:
    cache, attention = resolution.kv_cache, resolution.attention
    if cache is not None:
        yield "KV cache", _cache_line(cache)
        if cache.rewrites:
            yield "  rewritten", "; ".join(cache.rewrites)
        if cache.block_size:
            yield "Block size", f"{cache.block_size} tokens"
    if attention is not None:
        asked = f" (asked for: {attention.requested})" if attention.requested else ""
        if attention.cls is None:
            yield "Attention", f"open{asked}"
        else:
            heads = "open"
            if attention.local_q_heads:
                heads = f"{attention.local_q_heads} heads a rank, padded to {attention.padded_q_heads}"
            yield "Attention", f"{attention.backend} ({attention.cls}){asked}; {heads}"
            yield "Indexer keys", attention.indexer_dtype or "open"
    if resolution.runner is not None:
        name = resolution.runner.name.upper() if resolution.runner.name else "open"
        yield "Model runner", f"{name}: {resolution.runner.why}"
    if resolution.draft is not None:
        yield "Draft", _draft_line(resolution.draft)
        if resolution.draft.mapping:
            yield "  weights", resolution.draft.mapping
    if resolution.moe is not None:
        yield (
            "MoE",
            f"{resolution.moe.expert_format or 'unknown'} experts, backend {resolution.moe.backend or 'open'}"
            + (f" (asked for: {resolution.moe.requested})" if resolution.moe.requested != "auto" else ""),
        )
    parallel = resolution.parallel
    if parallel is not None:
        sizes = f"TP {parallel.tensor}, PP {parallel.pipeline}, DP {parallel.data}"
        if parallel.decode_context > 1 or parallel.prefill_context > 1:
            sizes += f", DCP {parallel.decode_context}, PCP {parallel.prefill_context}"
        experts = f"EP {parallel.expert_parallel_size}" if parallel.expert_parallel else "experts split by TP"
        yield "Parallel", f"{sizes}; {experts}; {parallel.total} GPU{'s' * (parallel.total != 1)}"


def _cache_line(cache: KvCache) -> str:
    if cache.resolved_dtype is None:
        return f"{cache.requested_dtype} -> not resolved"
    layout = "packed" if cache.layout == "fp8_ds_mla" else "plain rows"
    line = f"{cache.requested_dtype} -> {cache.resolved_dtype} ({cache.torch_dtype}, {layout}"
    if cache.bytes_per_state:
        line += f", {cache.bytes_per_state} bytes a state"
    line += ")"
    if cache.bytes_per_token is not None:
        line += f"; {cache.bytes_per_token:,.1f} bytes a token of context"
    return line


def _draft_line(draft: Draft) -> str:
    if draft.method is None:
        return "none"
    line = f"{draft.method}, {draft.num_speculative_tokens} tokens" if draft.num_speculative_tokens else draft.method
    if draft.requested_method and draft.requested_method != draft.method:
        line += f" (asked for: {draft.requested_method})"
    return f"{line}; weights from {draft.source}" if draft.source else line


def _layer_table(cache: KvCache) -> Table:
    rows = []
    for layer in cache.layers:
        count = f"{layer.count}+{layer.draft_count} draft" if layer.draft_count else str(layer.count)
        rows.append(
            (
                layer.kind,
                count,
                str(layer.tokens_per_state),
                str(layer.states_per_block),
                str(layer.bytes_per_state),
                f"{layer.page_bytes:,}",
                f"{layer.padded_page_bytes:,}",
                layer.dtype,
            )
        )
    header = (
        "layer kind",
        "layers",
        "tokens/state",
        "states/block",
        "bytes/state",
        "page",
        "padded",
        "dtype",
    )
    return Table(header, tuple(rows))


def finding_blocks(finding: Finding) -> Iterator[Block]:
    """One finding with its fixes."""
    yield Heading(
        f"{finding.severity.value} {finding.rule} {finding.name} [{finding.stage.value}, {finding.certainty.value}]",
        finding.severity.value,
    )
    yield Paragraph(finding.message)
    if finding.error:
        yield Paragraph(f"vLLM says: {finding.error}", style="dim")
    place = _place(finding.location)
    if place:
        yield Paragraph(f"at: {place}", style="dim")
    if finding.evidence:
        yield Paragraph(f"in this build: {'; '.join(finding.evidence)}", style="dim")
    for number, fix in enumerate(finding.fixes, start=1):
        yield from _fix_blocks(number, fix)
    if finding.no_fix:
        yield Paragraph(f"no fix: {finding.no_fix}")
    if finding.references:
        yield Paragraph(f"see: {', '.join(finding.references)}; dsv4check explain {finding.rule}", style="dim")


def _fix_blocks(number: int, fix: Fix) -> Iterator[Block]:
    edits = "; ".join(edit.text for edit in fix.edits)
    also = "; ".join(edit.text for edit in fix.also)
    state = "checked again: no error left" if fix.verified else "removes this error, but others are left"
    line = f"fix {number}: {edits}" + (f" (and, for the other findings: {also})" if also else "") + f" [{state}]"
    yield Paragraph(line, style="fix")
    if fix.note:
        yield Paragraph(fix.note, indent=4)
    yield Paragraph(fix.command, indent=6, verbatim=True)


def _place(origin: Origin | None) -> str:
    if origin is None or origin.kind == "default":
        return ""
    place = origin.text
    if origin.line is not None:
        place += f", line {origin.line}" + (f", column {origin.column}" if origin.column is not None else "")
    return place
