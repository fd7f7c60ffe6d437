"""A plan as plain data: the document of ``dsv4check plan``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from dsv4check.report.json_format import deployment_to_dict, finding_to_dict
from dsv4check.report.memory_json import memory_to_dict

if TYPE_CHECKING:
    from dsv4check.planning.records import Plan, Trial

PLAN_SCHEMA_VERSION: Final = 1
"""Version of the document below; additions keep it."""


def render(plan: Plan) -> str:
    """The plan as indented JSON text."""
    return json.dumps(plan_to_dict(plan), indent=2, ensure_ascii=False)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, in the schema ``docs/plan.schema.json``."""
    wanted = plan.wanted
    return {
        "schema_version": PLAN_SCHEMA_VERSION,
        "verdict": "fail" if plan.best is None else plan.best.report.verdict.value,
        "release": plan.base.resolution.release,
        "deployment": deployment_to_dict(plan.base.deployment),
        "wanted": {
            "context": wanted.context,
            "concurrency": wanted.concurrency,
            "max_nodes": wanted.max_nodes,
            "draft": wanted.draft,
            "draft_tokens": wanted.draft_tokens,
        },
        "gpus_per_node": plan.per_node,
        "best": None if plan.best is None else _trial(plan.best),
        "alternatives": [_trial(trial) for trial in plan.alternatives],
        "shortfalls": [
            {
                "gpus": item.gpus,
                "layout": None if item.closest is None else item.closest.layout.label,
                "holds": _held(item.closest),
                "reason": item.reason,
            }
            for item in plan.shortfalls
        ],
        "checks": plan.checks,
        "notes": list(plan.base.notes),
    }


def _held(trial: Trial | None) -> int | None:
    if trial is None or trial.capacity is None or trial.memory is None or trial.report.errors:
        return None
    return trial.capacity.total


def _trial(trial: Trial) -> dict[str, Any]:
    layout, held, memory = trial.layout, trial.capacity, trial.memory
    return {
        "layout": {
            "label": layout.label,
            "gpus": layout.gpus,
            "nodes": layout.nodes,
            "tensor": layout.tensor,
            "pipeline": layout.pipeline,
            "data": layout.data,
            "expert_parallel": layout.experts,
        },
        "commands": list(trial.texts),
        "verdict": trial.report.verdict.value,
        "warnings": [finding_to_dict(item) for item in trial.warnings],
        "max_num_batched_tokens": trial.tokens,
        "max_num_seqs": trial.seqs,
        "capacity": None
        if held is None
        else {
            "requests": held.total,
            "engines": held.engines,
            "requests_of_an_engine": held.per_engine,
            "blocks": held.blocks,
            "prefill_blocks": held.prefill_blocks,
            "decode_blocks": held.decode_blocks,
        },
        "memory": None if memory is None else memory_to_dict(memory),
    }
