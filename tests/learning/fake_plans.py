"""A release that plans caches in a given style: the layers are those of the rules, the answers the static plan's.

It shows that the learner finds the style again, and which launches it needs for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dsv4check.learning.plan_launches import LAUNCHES, TRIALS, launch_of, memory_of, stages_of
from dsv4check.learning.release import Release
from dsv4check.learning.sections.cache_planning import UNEVEN
from dsv4check.learning.source import Source
from dsv4check.learning.static_plans import answer, layers_of
from dsv4check.memory.cache_plan import CacheLayer, UnplannedError, plan_cache
from dsv4check.memory.launch_plan import retained_tokens
from dsv4check.rehearsal.protocol import Launch, Rehearsal, RehearsedStage, StageResult, Status, complete
from dsv4check.releases.facts import load_facts
from dsv4check.report.model import Report
from tests.memory.test_recorded_plans import report_of


@cache
def _report(release: str, name: str) -> Report:
    planned = LAUNCHES[name]
    row = {"model": planned.model, "args": planned.argv, "gpu": planned.gpu, "gpus": planned.gpus}
    return report_of({**row, "env": dict(planned.env), "config": dict(planned.changes)}, release)


def told_layers(release: str, name: str) -> list[list[dict[str, Any]]]:
    """The layers of every stage as the worker describes them, before any promotion."""
    report = _report(release, name)
    cache = report.resolution.kv_cache
    assert cache is not None
    kinds = {kind.kind: kind for kind in cache.layers}
    alignment = load_facts(release).section("kv_cache")["packed" if cache.layout == "fp8_ds_mla" else "plain"][
        "alignment"
    ]
    stages: list[list[dict[str, Any]]] = [[] for _stage in range(stages_of(LAUNCHES[name]))]
    for layer in layers_of(report, hybrid=True):
        stages[layer.stage].append(
            {
                "page_bytes": layer.page_bytes,
                "unpadded_bytes": kinds[layer.kind].page_bytes,
                "block_size": layer.block_size,
                "sliding_window": layer.sliding_window,
                "alignment": alignment,
            }
        )
    return stages


@dataclass
class FakePlanner:
    """Answers launches as a release with this section ``cache_planning`` would."""

    release: str
    style: Mapping[str, Any]
    change: Callable[[dict[str, Any]], None] = lambda _detail: None
    """Applied to the answer of every launch that is planned."""

    def __call__(self, launch: Launch) -> Rehearsal:
        """The rehearsal of a launch."""
        name = next(name for name, one in LAUNCHES.items() if launch_of(one) == launch)
        stages = []
        for stage in RehearsedStage:
            if stage is RehearsedStage.KV_CACHE_INIT:
                try:
                    stages.append(StageResult(stage, Status.OK, detail=self.detail(name)))
                    if name == UNEVEN and self.style["empty_group"] == "stops":
                        stages[-1] = StageResult(stage, Status.FAILED, exception="StopIteration")
                except UnplannedError as error:
                    stages.append(StageResult(stage, Status.FAILED, exception="ValueError", message=str(error)))
                break
            stages.append(StageResult(stage, Status.OK))
        return complete(stages)

    def detail(self, name: str) -> dict[str, Any]:
        """What the worker tells about the stage that plans. Raises UnplannedError."""
        planned = LAUNCHES[name]
        report = _report(self.release, name)
        if report.resolution.facts["hybrid_manager_disabled"] and self.style["promotion"] == "none":
            raise UnplannedError("cannot be promoted")
        layers: tuple[CacheLayer, ...] = layers_of(report)
        stages = stages_of(planned)
        retained = retained_tokens(dict(planned.changes).get("num_nextn_predict_layers", 1), planned.draft_tokens)
        plan = plan_cache(layers, stages, self.style, retained=retained)
        ahead = "--no-async-scheduling" not in planned.words
        runner = "v1" if ("VLLM_USE_V2_MODEL_RUNNER", "0") in planned.env else "v2"
        batches = stages + (1 if ahead and (runner == "v2" or stages == 1) else 0)
        batches = batches if self.style["in_flight"] == "batches" else 1
        trials = [
            _raw(
                answer(
                    plan,
                    trial,
                    memory_of(trial, stages),
                    trial["max_num_batched_tokens"] * batches,
                    self.style["override"],
                ),
                stages,
            )
            for trial in TRIALS
        ]
        basis = {"in_flight_tokens": 8192 * batches, "max_num_batched_tokens": 8192, "async_scheduling": ahead}
        detail = {"runner": runner, "basis": basis, "layers": told_layers(self.release, name), "trials": trials}
        self.change(detail)
        return detail


def _raw(said: Any, stages: int) -> dict[str, Any]:
    if isinstance(said, int):
        known = f", the estimated maximum model length is {said}" if said else ""
        return {"error": f"ValueError: the KV cache needs more memory than there is{known}."}
    blocks, concurrency, length = said
    per_stage = concurrency if isinstance(concurrency, list) else [concurrency] * stages
    return {"blocks": [blocks] * stages, "concurrency": per_stage, "max_model_len": length}


@dataclass(frozen=True)
class FakeRelease(Release):
    """A release whose rehearsals are made up."""

    planner: Callable[[Launch], Rehearsal] | None = None

    @contextlib.contextmanager
    def rehearsals(self) -> Iterator[Callable[[Launch], Rehearsal]]:
        """The planner."""
        assert self.planner is not None
        yield self.planner


def fake_release(source: Source, planner: FakePlanner) -> Release:
    """A release with this text that plans so."""

    def run(*_arguments: Any, **_options: Any) -> Any:
        raise AssertionError("nothing is run")

    return FakeRelease(source, run, None, planner)
