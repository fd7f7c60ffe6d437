"""The memory of a launch as plain data: ``resolution.memory``, and the document of ``dsv4check memory``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dsv4check.memory.records import CachePlan, Memory, Span, Weights
    from dsv4check.memory_report import MemoryReport

MEMORY_SCHEMA_VERSION: Final = 1
"""Version of the document below; additions keep it."""


def render(item: MemoryReport) -> str:
    """The report as indented JSON text."""
    return json.dumps(memory_report_to_dict(item), indent=2, ensure_ascii=False)


def memory_report_to_dict(item: MemoryReport) -> dict[str, Any]:
    """The report of ``dsv4check memory`` as plain data, in the schema ``docs/memory.schema.json``."""
    from dsv4check.report.json_format import (
        deployment_to_dict,
        finding_to_dict,
        kv_cache_to_dict,
        open_question_to_dict,
    )

    resolution = item.report.resolution
    memory, cache, missing = item.memory, resolution.kv_cache, item.missing
    return {
        "schema_version": MEMORY_SCHEMA_VERSION,
        "verdict": None if item.verdict is None else item.verdict.value,
        "release": resolution.release,
        "deployment": deployment_to_dict(item.report.deployment),
        "kv_cache": None if cache is None else kv_cache_to_dict(cache),
        "memory": None if memory is None else memory_to_dict(memory),
        "not_evaluated": None if missing is None else open_question_to_dict(missing),
        "findings": [finding_to_dict(finding) for finding in item.findings],
        "other_findings": item.others,
        "notes": list(item.report.notes),
    }


def memory_to_dict(memory: Memory) -> dict[str, Any]:
    """Every figure of the record; sizes in bytes, bounds as ``low`` and ``high``."""
    return {
        "gpu_bytes": memory.gpu_bytes,
        "utilization": memory.utilization,
        "budget_bytes": memory.budget_bytes,
        "weights": None if memory.weights is None else _weights(memory.weights),
        "costs": [
            {
                "name": cost.name,
                "size": _span(cost.size),
                "budgeted": cost.budgeted,
                "why": cost.why,
                "source": cost.source,
            }
            for cost in memory.costs
        ],
        "plan": None if memory.plan is None else _plan(memory.plan),
        "stage": memory.stage,
        "cache_bytes": _span(memory.cache_bytes),
        "blocks": _span(memory.blocks),
        "max_model_len": memory.max_model_len,
        "in_flight_tokens": memory.in_flight_tokens,
        "request_blocks": memory.request_blocks,
        "concurrency": _ratio(memory.concurrency),
        "log_tokens": _span(memory.log_tokens),
        "longest_context": _span(memory.longest_context),
        "trade_off": [
            {
                "context": row.context,
                "blocks": row.blocks,
                "request_bytes": row.request_bytes,
                "concurrency": _ratio(row.concurrency),
                "decode_blocks": row.decode_blocks,
                "decode_bytes": row.decode_bytes,
                "decode_concurrency": _ratio(row.decode_concurrency),
            }
            for row in memory.trade_off
        ],
        "in_flight": [
            {"tokens": row.tokens, "blocks": row.blocks, "request_bytes": row.request_bytes} for row in memory.in_flight
        ],
        "fits": memory.fits,
        "notes": list(memory.notes),
    }


def _weights(weights: Weights) -> dict[str, Any]:
    return {
        "source": weights.source,
        "checkpoint_bytes": weights.checkpoint_bytes,
        "draft_bytes": weights.draft_bytes,
        "padding": weights.padding,
        "stages": [
            {
                "experts": stage.experts,
                "cut": stage.cut,
                "whole": stage.whole,
                "draft": stage.draft,
                "total": stage.total,
            }
            for stage in weights.stages
        ],
    }


def _plan(plan: CachePlan) -> dict[str, Any]:
    return {
        "groups": [
            {
                "kinds": [{"kind": kind, "layers": layers} for kind, layers in group.kinds],
                "block_size": group.block_size,
                "block_bytes": group.block_bytes,
                "sliding_window": group.sliding_window,
                "stage_bytes": list(group.stage_bytes),
                "stage_layers": list(group.stage_layers),
            }
            for group in plan.groups
        ],
        "strides": list(plan.strides),
        "checked_strides": list(plan.checked_strides),
        "reserved_blocks": plan.reserved_blocks,
        "weighted_concurrency": plan.weighted_concurrency,
        "tokens_by_group": plan.tokens_by_group,
        "retained_tokens": plan.retained_tokens,
        "context_ranks": plan.context_ranks,
    }


def _span(span: Span | None) -> dict[str, int] | None:
    return None if span is None else {"low": span.low, "high": span.high}


def _ratio(bounds: tuple[float, float] | None) -> dict[str, float] | None:
    return None if bounds is None else {"low": bounds[0], "high": bounds[1]}
