"""A probe as text blocks and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from dsv4check.probe.node import ProbeResult
from dsv4check.probe.records import KERNEL, CheckStatus, DeviceResult, Layouts, Verdict
from dsv4check.report.blocks import Block, Heading, Paragraph, Table

_WORDS: Final = {
    CheckStatus.OK: "ok",
    CheckStatus.FAILED: "FAILED",
    CheckStatus.REFUSED: "refused (right)",
    CheckStatus.SKIPPED: "not done",
    CheckStatus.CRASHED: "CRASHED",
}
_STYLES: Final = {Verdict.PASS: "pass", Verdict.FAIL: "fail", Verdict.NO_GPU: "warn", Verdict.UNAVAILABLE: "warn"}


def render(result: ProbeResult) -> str:
    """The probe as indented JSON text."""
    return json.dumps(result.to_dict(), indent=2, ensure_ascii=False)


def probe_blocks(result: ProbeResult) -> Iterator[Block]:
    """The answer, the static check in brief, the caches, then every device's checks."""
    yield Heading(headline(result), _STYLES[result.verdict])
    yield Paragraph(str(result.static["subject"]), indent=0)
    yield Paragraph(f"probed with {result.environment}; {result.seconds:.1f} s", indent=0)
    for note in result.notes:
        yield Paragraph(f"note: {note}", indent=0, style="dim")
    if result.unavailable:
        yield Paragraph(result.unavailable, indent=0)
    yield from _static_blocks(result.static)
    yield Heading("Caches", "error" if result.origin.status is CheckStatus.FAILED else "section")
    yield Paragraph(f"{_WORDS[result.origin.status]}: {result.origin.message}")
    if result.layouts is not None:
        yield _layout_table(result.layouts)
    for device in result.devices:
        yield from _device_blocks(device)
    if result.differences:
        yield Heading("Not the same on all GPUs", "warning")
        for line in result.differences:
            yield Paragraph(f"- {line}")


def headline(result: ProbeResult) -> str:
    """The verdict in one line; it never leaves open whether a kernel was run."""
    match result.verdict:
        case Verdict.PASS:
            many = f" on {len(result.devices)} GPUs" if len(result.devices) > 1 else ""
            return f"PASS: the caches went through the kernel{many}, and its numbers are the reference's"
        case Verdict.FAIL:
            if result.origin.status is CheckStatus.FAILED:
                return f"FAIL: vLLM does not make this launch's caches{_kernel_too(result)}"
            device, check = next((device, check) for device in result.devices for check in device.failed)
            how = "crashed" if check.status is CheckStatus.CRASHED else "failed"
            return f"FAIL: {check.name} {how} on {device.device}{_kernel_too(result)}"
        case Verdict.NO_GPU:
            if any(device.kernel_ran for device in result.devices):
                return "KERNEL NOT RUN IN FULL: what was run agrees with the reference, but not all was"
            return "KERNEL NOT RUN: everything up to the kernel goes through, the kernel itself was not run"
        case Verdict.UNAVAILABLE:
            return "PROBE UNAVAILABLE"


def _kernel_too(result: ProbeResult) -> str:
    return "" if any(device.kernel_ran for device in result.devices) else "; the kernel was not run"


def _static_blocks(static: dict[str, Any]) -> Iterator[Block]:
    stage = f" at {static['stage']}" if static["stage"] else ""
    yield Heading(f"Static check: {static['verdict'].upper()}{stage}", static["verdict"])
    cache, attention = static["cache"], static["attention"]
    rows = []
    if cache is not None:
        layout = "packed" if cache["layout"] == "fp8_ds_mla" else "plain rows" if cache["layout"] else "not resolved"
        state = f", {cache['bytes_per_state']} bytes a state" if cache["bytes_per_state"] else ""
        resolved = cache["resolved_dtype"] or "not resolved"
        rows.append(("KV cache", f"{cache['requested_dtype']} -> {resolved} ({layout}{state})"))
    if attention is not None and attention["class"]:
        heads = f"{attention['local_q_heads']} heads a rank, padded to {attention['padded_q_heads']}"
        rows.append(("Attention", f"{attention['backend']} ({attention['class']}); {heads}"))
    if rows:
        yield Table((), tuple(rows))
    for finding in static["findings"]:
        yield Paragraph(finding)


def _layout_table(layouts: Layouts) -> Table:
    rows = tuple(
        (
            cache.kind,
            str(cache.layers),
            " x ".join(map(str, cache.shape)),
            " x ".join(f"{step:,}" for step in cache.stride),
            cache.dtype,
            f"{cache.offset:,}",
        )
        for cache in layouts.caches
    )
    return Table(("layer kind", "layers", "shape", "strides", "dtype", "first byte"), rows)


def _device_blocks(device: DeviceResult) -> Iterator[Block]:
    style = "error" if device.failed else "section"
    yield Heading(f"{device.device}: {device.seconds:.1f} s of checks, {device.import_seconds:.1f} s of imports", style)
    if device.unavailable:
        yield Paragraph(device.unavailable)
    rows = tuple((check.name, _WORDS[check.status], check.message) for check in device.checks)
    yield Table(("check", "", ""), rows, prose=True)
    if not device.kernel_ran and not any(check.name.startswith(KERNEL) for check in device.checks):
        yield Paragraph("the kernel was not run")
