"""A rehearsal as text blocks and as JSON, beside the static report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsv4check.rehearsal.compare import Agreement, Comparison
from dsv4check.rehearsal.protocol import Rehearsal, RehearsedStage, StageResult, Status
from dsv4check.report.blocks import Block, Heading, Paragraph, Table, report_blocks
from dsv4check.report.model import Report

REHEARSAL_SCHEMA_VERSION: Final = 1
"""Version of the JSON below; additions keep it."""


@dataclass(frozen=True)
class RehearsalReport:
    """Everything one ``dsv4check rehearse`` says about one launch."""

    report: Report
    rehearsal: Rehearsal
    comparison: Comparison
    environment: str
    """Interpreter, vLLM and PyTorch in one line."""

    @property
    def verdict(self) -> str:
        """``fail`` when vLLM stopped, ``unavailable`` when the rehearsal could not tell, else ``pass``."""
        if self.rehearsal.failure is not None:
            return "fail"
        return "unavailable" if self.rehearsal.unavailable is not None else "pass"


def rehearsal_blocks(item: RehearsalReport) -> Iterator[Block]:
    """The rehearsal, how it compares, then the static report."""
    yield Heading(_headline(item), {"fail": "fail", "pass": "pass"}.get(item.verdict, "warn"))
    yield Paragraph(f"rehearsed with {item.environment}; {item.rehearsal.seconds:.1f} s", indent=0)
    yield Heading("Stages: vLLM's own code on a simulated GPU, and what the rules say")
    yield Table(("stage", "rehearsed", "rules", ""), tuple(_rows(item)))
    problem = item.rehearsal.failure or item.rehearsal.unavailable
    if problem is not None:
        yield from _problem_blocks(item, problem)
    yield from _weight_blocks(item.rehearsal)
    yield from _decided_blocks(item.rehearsal)
    differing = [decision for decision in item.comparison.decisions if not decision.agrees]
    if item.comparison.disagreements or differing:
        yield Heading("Disagreements", "warning")
        for stage in item.comparison.disagreements:
            yield Paragraph(f"{stage.stage.value}: {stage.note}")
        for decision in differing:
            yield Paragraph(f"{decision.what}: vLLM {decision.rehearsed}; the rules {decision.rules}")
    yield Heading("Not simulated (could still fail)")
    for note in item.rehearsal.not_simulated:
        yield Paragraph(f"- {note}")
    yield Heading("Static report")
    yield from report_blocks(item.report)


def rehearsal_to_dict(item: RehearsalReport) -> dict[str, Any]:
    """The rehearsal as plain data; ``static`` is the report in its own schema."""
    compared = {stage.stage: stage for stage in item.comparison.stages}
    return {
        "schema_version": REHEARSAL_SCHEMA_VERSION,
        "verdict": item.verdict,
        "stage": item.rehearsal.failure.stage.value if item.rehearsal.failure else None,
        "unavailable": item.rehearsal.unavailable.message if item.rehearsal.unavailable else None,
        "vllm": item.rehearsal.vllm,
        "environment": item.environment,
        "seconds": item.rehearsal.seconds,
        "stages": [
            {
                "stage": result.stage.value,
                "status": result.status.value,
                "seconds": result.seconds,
                "exception": result.exception or None,
                "message": result.message or None,
                "where": result.where or None,
                "detail": dict(result.detail),
                "static_rules": list(compared[result.stage].rules),
                "agreement": compared[result.stage].agreement.value,
                "note": compared[result.stage].note or None,
            }
            for result in item.rehearsal.stages
        ],
        "matching_rules": [
            {"rule": rule.rule, "name": rule.name, "reported": rule.fired} for rule in item.comparison.matching
        ],
        "disagreements": [stage.stage.value for stage in item.comparison.disagreements],
        "decisions": [
            {"what": one.what, "rehearsed": one.rehearsed, "rules": one.rules, "agrees": one.agrees}
            for one in item.comparison.decisions
        ],
        "not_simulated": list(item.rehearsal.not_simulated),
        "static": item.report.to_dict(),
    }


def _headline(item: RehearsalReport) -> str:
    failure, unavailable = item.rehearsal.failure, item.rehearsal.unavailable
    differ = len(item.comparison.disagreements)
    tail = f" ({differ} disagreement{'s' * (differ != 1)} with the rules)" if differ else ""
    if failure is not None:
        return f"FAIL at {failure.stage.value} in the rehearsal{tail}"
    if unavailable is not None:
        return f"REHEARSAL UNAVAILABLE at {unavailable.stage.value}{tail}"
    return f"PASS: the rehearsed stages go through{tail}"


_WORDS: Final = {
    Status.OK: "ok",
    Status.FAILED: "FAILED",
    Status.NOT_REACHED: "not reached",
    Status.UNAVAILABLE: "unavailable",
}


def _rows(item: RehearsalReport) -> Iterator[tuple[str, str, str, str]]:
    for result, compared in zip(item.rehearsal.stages, item.comparison.stages, strict=True):
        rehearsed = _WORDS[result.status]
        if result.status in (Status.OK, Status.FAILED):
            rehearsed += f" ({result.seconds:.2f} s)"
        if result.detail.get("applies") is False:
            rehearsed = f"does not apply: {result.detail.get('why')}"
        agreement = "" if compared.agreement is Agreement.OPEN else compared.agreement.value
        yield result.stage.value, rehearsed, ", ".join(compared.rules) or "-", agreement


def _problem_blocks(item: RehearsalReport, problem: StageResult) -> Iterator[Block]:
    if problem.status is Status.UNAVAILABLE:
        yield Heading("Why the rehearsal could not tell", "warning")
        yield Paragraph(problem.message)
        return
    yield Heading(f"What vLLM {item.rehearsal.vllm} says", "error")
    said = f"{problem.exception}: {problem.message}" if problem.exception else problem.message
    yield Paragraph(said)
    if problem.where:
        yield Paragraph(f"at: {problem.where}", style="dim")
    reported = "; ".join(f"{rule.rule} {rule.name}" for rule in item.comparison.matching if rule.fired)
    similar = "; ".join(f"{rule.rule} {rule.name}" for rule in item.comparison.matching if not rule.fired)
    yield Paragraph(f"described by: {reported}" if reported else "described by no rule that was reported", style="dim")
    if similar:
        yield Paragraph(f"the same text is known from: {similar} (not reported for this launch)", style="dim")


def _weight_blocks(rehearsal: Rehearsal) -> Iterator[Block]:
    """What became of the checkpoint's tensors: those nobody took are told even when vLLM says nothing."""
    detail = rehearsal.result(RehearsedStage.WEIGHT_LOAD).detail
    parts = [(part, detail[part]) for part in ("target", "draft") if part in detail]
    if not parts:
        return
    incomplete = any(found["missing"] for _part, found in parts)
    yield Heading("Weights by name", "warning" if incomplete else "")
    for part, found in parts:
        yield Paragraph(f"{part}: {found['loaded']:,} of {found['parameters']:,} parameters get a tensor")
        if found["missing"]:
            yield Paragraph(f"never loaded: {_listed(found['missing'])}", style="warning")
        for one in found["refused"]:
            yield Paragraph(f"refused: {one['tensor']}: {one['exception']}: {one['message']}")
    for checkpoint in detail.get("checkpoints", ()):
        without = f", {checkpoint['without_shape']:,} without a known shape" if checkpoint["without_shape"] else ""
        said = f"{checkpoint['model']}: {checkpoint['tensors']:,} tensors (a few experts stand for all){without}"
        yield Paragraph(said, style="dim")
        if checkpoint["unused"]:
            yield Paragraph(f"used by nobody: {_listed(checkpoint['unused'])}", style="dim")


_LISTED: Final = 8


def _listed(patterns: Mapping[str, int]) -> str:
    """The first patterns with their counts, and how many more there are."""
    shown = [f"{pattern} ({count})" for pattern, count in list(patterns.items())[:_LISTED]]
    more = len(patterns) - len(shown)
    return ", ".join(shown) + (f" and {more} more patterns" if more else "")


def _decided_blocks(rehearsal: Rehearsal) -> Iterator[Block]:
    detail = rehearsal.result(RehearsedStage.KV_CACHE_INIT).detail
    if not detail:
        return
    yield Heading("The KV cache vLLM made")
    gib = detail.get("memory_bytes", 0) / 2**30
    yield Paragraph(
        f"model runner {str(detail.get('runner')).upper()}, dtype {detail.get('cache_dtype')}, block size "
        f"{detail.get('block_size')}; {detail.get('num_blocks'):,} blocks in at most {gib:.1f} GiB"
    )
    rows = tuple(
        (
            str(tensor["layer"]),
            str(tensor["layers"]),
            " x ".join(str(size) for size in tensor["shape"][1:]),
            f"{tensor['stride'][0]:,}",
            str(tensor["dtype"]),
        )
        for tensor in detail.get("tensors", ())
    )
    yield Table(("layer, for example", "layers", "block", "block stride", "dtype"), rows)
