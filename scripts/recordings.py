"""Rehearsals as compact records, and back: what a release did with a launch, to compare the rules with later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from dsv4check.api import check_request
from dsv4check.batch import request_from_record
from dsv4check.engine.rule import Rule
from dsv4check.rehearsal.compare import Agreement, Comparison
from dsv4check.rehearsal.launch import build_launch, draft_model
from dsv4check.rehearsal.parent import RehearsalSession
from dsv4check.rehearsal.protocol import Rehearsal, RehearsedStage, StageResult, Status, complete
from dsv4check.report.model import Report

_LONGEST: Final = 400
"""Characters kept of a message."""
_STAGE_SECONDS: Final = 300.0


def rehearse(line: Mapping[str, Any], session: RehearsalSession, rules: tuple[Rule, ...]) -> tuple[Report, Rehearsal]:
    """Check a batch line and rehearse it.

    Raises InputError for a line that cannot be used, RehearsalUnavailable for a GPU that is not simulated.
    """
    request = request_from_record(line, str(line["id"]), online=False)
    report = check_request(request, rules, fixes=False)
    launch = build_launch(
        request, report.deployment, draft=draft_model(report.resolution), stage_timeout=_STAGE_SECONDS
    )
    return report, session.rehearse(launch)


def differences(comparison: Comparison) -> list[str]:
    """What rules and rehearsal see differently, in words."""
    stages = [f"{item.stage.value}: {item.note}" for item in comparison.disagreements]
    return stages + [
        f"{one.what}: vLLM {one.rehearsed}; rules {one.rules}" for one in comparison.decisions if not one.agrees
    ]


def not_compared(comparison: Comparison) -> bool:
    """True when vLLM stopped at something the rules do not speak about: KV-cache memory, caches of V4.1."""
    return any(
        item.agreement is Agreement.OPEN and item.note.startswith(("memory", "the rules do not evaluate"))
        for item in comparison.stages
    )


def record(rehearsal: Rehearsal) -> dict[str, Any]:
    """The part of a rehearsal that the comparison reads."""
    seen: dict[str, Any] = {"verdict": "pass"}
    failure, unavailable = rehearsal.failure, rehearsal.unavailable
    if failure is not None:
        seen = {
            "verdict": "fail",
            "stage": failure.stage.value,
            "exception": failure.exception,
            "message": failure.message[:_LONGEST],
            "where": failure.where,
        }
    elif unavailable is not None:
        seen = {"verdict": "unavailable", "stage": unavailable.stage.value, "message": unavailable.message[:_LONGEST]}
    model = rehearsal.result(RehearsedStage.MODEL_INIT).detail
    if model:
        seen["classes"] = dict(model["cache_layers"])
    cache = rehearsal.result(RehearsedStage.KV_CACHE_INIT).detail
    if cache:
        pages = Counter[int]()
        for spec in cache["specs"]:
            pages[int(spec["page_bytes"])] += int(spec["layers"])
        seen["cache"] = {
            "runner": cache["runner"],
            "dtype": cache["cache_dtype"],
            "block_size": cache["block_size"],
            "pages": sorted(pages.items()),
        }
    skipped = [
        stage.stage.value
        for stage in rehearsal.stages
        if stage.status is Status.OK and stage.detail.get("applies") is False
    ]
    if skipped:
        seen["skipped"] = skipped
    return seen


def replay(seen: Mapping[str, Any], release: str) -> Rehearsal:
    """The rehearsal a record was made of, as far as the comparison reads it."""
    ended = RehearsedStage(seen["stage"]) if "stage" in seen else None
    results = []
    for stage in RehearsedStage:
        if stage is ended:
            if seen["verdict"] == "fail":
                results.append(
                    StageResult(
                        stage,
                        Status.FAILED,
                        exception=seen["exception"],
                        message=seen["message"],
                        where=seen["where"],
                        detail=_detail(stage, seen),
                    )
                )
            break
        results.append(StageResult(stage, Status.OK, detail=_detail(stage, seen)))
    reason = seen["message"] if seen["verdict"] == "unavailable" else ""
    return complete(results, reason=reason, vllm=release)


def _detail(stage: RehearsedStage, seen: Mapping[str, Any]) -> dict[str, Any]:
    if stage.value in seen.get("skipped", ()):
        return {"applies": False}
    if stage is RehearsedStage.MODEL_INIT and "classes" in seen:
        return {"cache_layers": seen["classes"]}
    if stage is RehearsedStage.KV_CACHE_INIT and "cache" in seen:
        cache = seen["cache"]
        return {
            "runner": cache["runner"],
            "cache_dtype": cache["dtype"],
            "block_size": cache["block_size"],
            "specs": [{"page_bytes": size, "layers": layers} for size, layers in cache["pages"]],
        }
    return {}
