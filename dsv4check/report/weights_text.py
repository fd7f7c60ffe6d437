"""``dsv4check weights`` as headings, paragraphs and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from dsv4check.checkpoint.storage import MIXED, Storage
from dsv4check.checkpoint.survey import Stored
from dsv4check.checkpoint.tensors import Defect
from dsv4check.engine.rule import Severity
from dsv4check.records import dataclass
from dsv4check.report.blocks import Block, Heading, Paragraph, Table, finding_blocks, subject
from dsv4check.report.weights_rows import loaded_groups, skipped_lines
from dsv4check.weights_report import NONE, PartLoad, WeightsReport

_GIB: Final = 2**30
_GAP: Final = Paragraph("", indent=0)
"""A blank line between two tables of a section."""
_MOST: Final = 16
"""Lines of one kind that are shown; ``--format json`` and ``--names`` have all."""


@dataclass(frozen=True, slots=True)
class _Words:
    """How a number of things is said."""

    one: str
    many: str

    def of(self, count: int) -> str:
        return f"{count:,} {self.one if count == 1 else self.many}"


_TENSORS: Final = _Words("tensor", "tensors")
_PARAMETERS: Final = _Words("parameter", "parameters")


def weights_blocks(item: WeightsReport) -> Iterator[Block]:
    """The whole report, top to bottom."""
    yield Heading(_headline(item), item.verdict.value)
    yield Paragraph(subject(item.report.deployment), indent=0)
    for note in item.report.notes:
        yield Paragraph(f"note: {note}", indent=0, style="dim")
    yield from _checkpoint(item)
    yield from _content(item)
    yield from _part(item, "Target", item.target, item.no_target)
    choice = item.choice
    if choice.method == NONE:
        yield Heading("Draft")
        yield Paragraph(f"none: {choice.why}")
    else:
        said = f"looked at because of {choice.why}"
        if not choice.started:
            said = f"{choice.why}, but this launch does not start it: what follows is what would happen"
        yield from _part(item, f"Draft ({choice.method})", item.draft, item.no_draft, said)
    yield from _shares(item)
    if item.findings:
        yield Heading("Findings about weights, quantisation and config.json")
        for finding in item.findings:
            yield from finding_blocks(finding)


def _headline(item: WeightsReport) -> str:
    said = []
    if item.fatal_defects:
        said.append(_Words("defect", "defects").of(len(item.fatal_defects)) + " of the files")
    if item.refused:
        said.append(f"{_TENSORS.of(item.refused)} refused")
    if item.empty:
        said.append(f"{_PARAMETERS.of(item.empty)} not filled")
    if any(part.load.parameters is None for part in item.loaded) or item.target is None:
        said.append("empty parameters not evaluated")
    for severity in Severity:
        number = sum(finding.severity is severity for finding in item.findings)
        if number:
            said.append(f"{number} {severity.value}{'s' * (number != 1)}")
    text = {
        "pass": "PASS: nothing found that keeps these weights from loading",
        "warn": "WARN: these weights load, with a hazard",
        "fail": "FAIL: these weights do not fit this launch",
    }[item.verdict.value]
    return f"{text} ({', '.join(said)})" if said else text


def _checkpoint(item: WeightsReport) -> Iterator[Block]:
    found, content = item.located.checkpoint, item.content
    yield Heading("Checkpoint")
    files = len(set(found.files.values()))
    rows = [
        ("Found", f"{item.located.place}: {found.source}"),
        ("Files", f"{files:,}" if files else "not known"),
        ("Tensors", f"{content.tensors:,}"),
        ("Bytes", _size(content.size)),
    ]
    if found.without_shape:
        rows.append(("Names only", f"{_TENSORS.of(found.without_shape)}: the index gives nothing but the name"))
    yield Table((), tuple(rows))
    yield from _defects(found.defects)
    place = item.choice.located
    if item.choice.own and place is not None:
        yield Paragraph(f"Draft: {place.place}: {place.checkpoint.source}")
        yield from _defects(place.checkpoint.defects)


def _defects(defects: Sequence[Defect]) -> Iterator[Block]:
    shown: Counter[str] = Counter()
    for defect in defects:
        shown[defect.kind] += 1
        if shown[defect.kind] <= _MOST:
            examples = ", ".join(defect.examples)
            names = f" ({_TENSORS.of(defect.count)}: {examples}{', ...' * (defect.count > len(defect.examples))})"
            text = f"{defect.kind}: {defect.file}: {defect.detail}{names if defect.count else ''}"
            yield Paragraph(text, style="warning")
    for kind, number in shown.items():
        if number > _MOST:
            yield Paragraph(f"{kind}: {number - _MOST:,} more files", style="warning")


def _content(item: WeightsReport) -> Iterator[Block]:
    content = item.content
    yield Heading("What is in it")
    layers = f"{len(content.layers)}" if content.layers else "none"
    if content.holes:
        layers += f" (none of number {', '.join(map(str, content.holes[:_MOST]))})"
    stages = f", {len(content.stages)} stage{'s' * (len(content.stages) != 1)}" if content.stages else ""
    rows = [
        ("Family", f"{content.family or 'not told by the names'}, names as {content.naming}"),
        ("Layers", layers),
        ("Draft", f"{content.draft_kind or 'not known'}{stages}"),
        ("Target", _stored(content.target)),
    ]
    if content.stages:
        rows.append(("Draft stages", _stored(content.draft)))
    yield Table((), tuple(rows))
    parts = [
        (part, f"{count:,}", _size(content.size_by_part[part]))
        for part, count in content.tensors_by_part.items()
        if count
    ]
    yield _GAP
    yield Table(("part", "tensors", "bytes"), tuple(parts))
    if item.disagreements:
        yield Heading("config.json and checkpoint disagree", "warning")
        for one in item.disagreements:
            example = f" ({one.example})" if one.example else ""
            yield Paragraph(f"{one.what}: config.json: {one.config}; checkpoint: {one.checkpoint}{example}")


def _stored(stored: Stored) -> str:
    experts = stored.experts
    numbers = sorted(set(experts.by_layer.values()))
    count = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}" if numbers else "no"
    return (
        f"{count} routed experts in {_format(experts.storage)}; attention {_format(stored.attention)}; "
        f"shared experts {_format(stored.shared_experts)}"
    )


def _format(storage: Storage) -> str:
    if storage.format is None:
        return "an unknown format"
    said = storage.format
    if said == MIXED:
        said += " (" + ", ".join(f"{name or 'unknown'}: {count:,}" for name, count in storage.formats.items()) + ")"
    if storage.scale_dtype is not None:
        block = f" per {storage.block[0]}x{storage.block[1]}" if storage.block is not None else ""
        said += f" ({storage.scale_dtype} {storage.scale_suffix}{block})"
    return said


def _part(item: WeightsReport, title: str, part: PartLoad | None, why: str, said: str = "") -> Iterator[Block]:
    release = item.report.resolution.release
    yield Heading(f"{title}: what vLLM {release} does with the tensors")
    if said:
        yield Paragraph(said)
    if part is None:
        yield Paragraph(f"not evaluated: {why}")
        return
    load = part.load
    refused = load.refused
    for row in refused[:_MOST]:
        name = _first_of(row.pattern, row.count, row.first)
        yield Paragraph(f"refused: {name}: {row.exception}: {row.message}", style="error")
    if len(refused) > _MOST:
        yield Paragraph(f"refused: {len(refused) - _MOST} more patterns", style="error")
    for group in loaded_groups(load.rows):
        yield _GAP
        lines: list[tuple[str, str, str]] = []
        for line in group.lines:
            lines.append((line.tensor, f"{line.count:,}", line.targets[0]))
            lines += [("", "", f"and {target}") for target in line.targets[1:]]
        where = f"{group.tensors}*" if group.tensors else "tensor"
        into = f"loaded into {group.parameters}*" if group.parameters else "loaded into"
        yield Table((where, "of each", into), tuple(lines))
    skipped = tuple((name, f"{count:,}", reason) for name, count, reason in skipped_lines(load.rows))
    if skipped:
        yield _GAP
        yield Table(("not loaded", "count", "why"), skipped)
    yield _GAP
    yield from _gaps(part)


def _first_of(pattern: str, count: int, first: str) -> str:
    return first if count == 1 else f"{pattern} ({count:,}, first {first})"


def _gaps(part: PartLoad) -> Iterator[Block]:
    load = part.load
    if load.parameters is None:
        yield Paragraph(f"parameters that nothing fills: not evaluated: {part.part.unknown}")
        return
    style = "error" if load.gaps else "plain"
    yield Paragraph(f"{load.filled:,} of {_PARAMETERS.of(load.parameters)} filled", style=style)
    for gap in load.gaps[:_MOST]:
        lacking = f"lacks {gap.lacking}" if gap.lacking else "nothing fills it"
        name = _first_of(gap.pattern, gap.count, gap.first)
        yield Paragraph(f"not filled: {name}: {lacking}", style="error")
    if len(load.gaps) > _MOST:
        yield Paragraph(f"not filled: {len(load.gaps) - _MOST} more patterns", style="error")


def _shares(item: WeightsReport) -> Iterator[Block]:
    yield Heading("Bytes of the checkpoint on each GPU")
    if not item.shares:
        yield Paragraph(f"not evaluated: {item.no_shares}")
        return
    rows = []
    for number, stage in enumerate(item.shares):
        share = stage.target
        rows.append(
            (
                f"{number}",
                f"{stage.layers}",
                *(_gib(part) for part in (share.experts, share.cut, share.whole)),
                "-" if stage.draft is None else _gib(stage.draft.total),
                _gib(stage.total),
            )
        )
    yield Table(("pipeline stage", "layers", "routed experts", "cut", "whole", "draft", "total"), tuple(rows))
    text = "As the checkpoint stores them; vLLM pads shards that do not divide evenly and may repack weights."
    if any(stage.draft is not None for stage in item.shares) and not item.choice.started:
        text += " The draft is not in the total: this launch does not start it."
    yield Paragraph(text, style="dim")


def _size(size: int | None) -> str:
    return "not known" if size is None else f"{_gib(size)} ({size:,})"


def _gib(size: float) -> str:
    return f"{size / _GIB:,.2f} GiB"
