"""The nodes of a cluster as headings, paragraphs and tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsv4check.host.records import State
from dsv4check.probe.cluster import ClusterResult, Node
from dsv4check.probe.records import Verdict
from dsv4check.report.blocks import Block, Heading, Paragraph, Table

_STYLES: Final = {Verdict.PASS: "pass", Verdict.FAIL: "fail", Verdict.NO_GPU: "warn", Verdict.UNAVAILABLE: "warn"}
_ROLES: Final = {State.ERROR: "error", State.WARNING: "warning"}


def cluster_blocks(result: ClusterResult) -> Iterator[Block]:
    """The answer, a row a node, what is wrong on single nodes, what is not the same on all."""
    if result.unavailable:
        yield Heading("PROBE UNAVAILABLE", _STYLES[result.verdict])
        yield Paragraph(result.unavailable)
        return
    yield Heading(_headline(result), _STYLES[result.verdict])
    yield Paragraph(f"{len(result.nodes)} nodes of the Ray cluster; {result.seconds:.1f} s", indent=0)
    idle = [node.name for node in result.nodes if node not in result.workers]
    if idle:
        yield Paragraph(f"note: no GPUs, so vLLM places no rank there: {', '.join(idle)}", indent=0, style="dim")
    yield Table(("node", "GPUs", "probe", "machine"), tuple(map(_row, result.nodes)))
    for node in result.nodes:
        yield from _node_blocks(node)
    for item in result.differences:
        yield Heading(f"Not the same on all nodes: {item.what}", _ROLES.get(item.state, "section"))
        for value, names in item.groups.items():
            yield Paragraph(f"{value}: {', '.join(names)}")
        yield Paragraph(item.why)
    if not result.differences:
        yield Paragraph("No difference was found between the nodes.", indent=0)


def _headline(result: ClusterResult) -> str:
    apart = [item.what for item in result.differences if item.state is State.ERROR]
    match result.verdict:
        case Verdict.PASS:
            return f"PASS: the caches went through the kernel on all {len(result.workers)} nodes"
        case Verdict.FAIL if apart:
            return f"FAIL: the nodes do not go together ({', '.join(apart)})"
        case Verdict.FAIL:
            failing = ", ".join(node.name for node in result.workers if node.verdict is Verdict.FAIL)
            return f"FAIL: on {failing}"
        case Verdict.NO_GPU:
            return "KERNEL NOT RUN: everything up to the kernel goes through, the kernel itself was not run"
        case Verdict.UNAVAILABLE:
            missing = ", ".join(node.name for node in result.workers if node.verdict is Verdict.UNAVAILABLE)
            return f"PROBE UNAVAILABLE: no whole answer from {missing}"


def _row(node: Node) -> tuple[str, ...]:
    probe = (node.probe.content or {}).get("verdict", "no answer")
    errors = sum(item["state"] == "error" for item in node.troubles)
    warnings = len(node.troubles) - errors
    machine = f"{errors} errors, {warnings} warnings" if node.doctor.content else "no answer"
    return node.name, str(node.gpus), str(probe), machine


def _node_blocks(node: Node) -> Iterator[Block]:
    lines = [f"no answer from {node.unavailable}"] if node.unavailable else []
    lines += [_trouble(item) for item in node.troubles]
    for device in (node.probe.content or {}).get("devices", ()):
        lines += [
            f"{device['device']}: {check['name']} {check['status']}: {check['message']}"
            for check in device["checks"]
            if check["status"] in ("failed", "crashed")
        ]
    if lines:
        yield Heading(node.name, "error" if node.verdict is Verdict.FAIL else "warning")
        for line in lines:
            yield Paragraph(f"- {line}")


def _trouble(item: object) -> str:
    assert isinstance(item, dict)
    parts = [item.get("found"), item.get("why"), item.get("advice")]
    return f"{item['state']}: {item['what']}: {'; '.join(str(part) for part in parts if part)}"
