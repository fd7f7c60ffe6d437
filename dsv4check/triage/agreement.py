"""Does the log agree with what the checker says about its launch? Where not, the build may be a patched one."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4check.problems import Stage
from dsv4check.report.model import Report
from dsv4check.triage.records import Milestone, Stated


def disagreements(stated: Stated, report: Report, milestone: Milestone) -> Iterator[str]:
    """One sentence for each point on which vLLM's own lines and the checker differ."""
    for name, what, expected in _decided(report):
        said = stated.observed.get(name)
        if said and expected and said.lower() != expected.lower():
            yield (
                f"the log says {what} {said}, the checker expects {expected}: a patched build, or flags that the log "
                "does not state"
            )
    if milestone.line is None:
        return
    passed = milestone.stage.order
    if milestone.stage is Stage.WARMUP:
        # The first forward passes measure the memory, before the cache is planned.
        passed = Stage.KV_CACHE_INIT.order
    early = [item for item in report.errors if item.stage.order < passed]
    if early:
        first = min(early, key=lambda item: item.stage.order)
        yield (
            f"the checker expects the launch to stop at {first.stage.value} already ({first.rule}), the log goes on to "
            f"{milestone.stage.value}: a patched build, or flags that the log does not state"
        )


def _decided(report: Report) -> Iterator[tuple[str, str, str | None]]:
    """What the checker says that vLLM decides, under the names of the log's facts."""
    attention, runner = report.resolution.attention, report.resolution.runner
    yield "attention_backend", "attention backend", attention.backend if attention is not None else None
    yield "runner", "model runner", runner.name if runner is not None else None
