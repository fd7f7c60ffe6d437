"""``dsv4check weights`` as JSON, in the published schema (``docs/weights.schema.json``)."""

from __future__ import annotations

import json
from typing import Any, Final

from dsv4check.checkpoint.shares import Share
from dsv4check.checkpoint.storage import Storage
from dsv4check.checkpoint.survey import Stored
from dsv4check.checkpoint.tensors import Checkpoint
from dsv4check.report.json_format import deployment_to_dict, finding_to_dict
from dsv4check.weights_report import PartLoad, WeightsReport

WEIGHTS_SCHEMA_VERSION: Final = 1
"""Version of the JSON below; additions keep it."""


def render(item: WeightsReport) -> str:
    """The report as indented JSON text."""
    return json.dumps(weights_to_dict(item), indent=2, ensure_ascii=False)


def weights_to_dict(item: WeightsReport) -> dict[str, Any]:
    """The report as plain data, keys in the order people read them."""
    choice = item.choice
    own = choice.located if choice.own else None
    return {
        "schema_version": WEIGHTS_SCHEMA_VERSION,
        "verdict": item.verdict.value,
        "release": item.report.resolution.release,
        "fatal_defects": len(item.fatal_defects),
        "refused_tensors": item.refused,
        "unfilled_parameters": item.empty,
        "deployment": deployment_to_dict(item.report.deployment),
        "checkpoint": _checkpoint(item.located.checkpoint, item.located.place) | {"size": item.content.size},
        "content": _content(item),
        "disagreements": [
            {"what": one.what, "config": one.config, "checkpoint": one.checkpoint, "example": one.example}
            for one in item.disagreements
        ],
        "target": _part(item.target, item.no_target),
        "draft": {
            "method": choice.method,
            "why": choice.why,
            "started": choice.started,
            "own_checkpoint": None if own is None else _checkpoint(own.checkpoint, own.place),
            **_part(item.draft, item.no_draft),
        },
        "shares": {
            "not_evaluated": item.no_shares or None,
            "stages": [
                {
                    "layers": stage.layers,
                    "target": _share(stage.target),
                    "draft": None if stage.draft is None else _share(stage.draft),
                    "total": stage.total,
                }
                for stage in item.shares
            ],
        },
        "findings": [finding_to_dict(finding) for finding in item.findings],
        "notes": list(item.report.notes),
    }


def _checkpoint(found: Checkpoint, place: str) -> dict[str, Any]:
    return {
        "place": place,
        "source": found.source,
        "files": len(set(found.files.values())) or None,
        "absent_files": list(found.absent),
        "tensors": len(found.tensors),
        "without_shape": found.without_shape,
        "stated_size": found.total_size,
        "defects": [
            {
                "kind": defect.kind,
                "file": defect.file,
                "detail": defect.detail,
                "tensors": defect.count,
                "examples": list(defect.examples),
            }
            for defect in found.defects
        ],
    }


def _content(item: WeightsReport) -> dict[str, Any]:
    content = item.content
    return {
        "family": content.family,
        "naming": content.naming,
        "layers": list(content.layers),
        "missing_layers": list(content.holes),
        "draft_kind": content.draft_kind,
        "stages": list(content.stages),
        "target": _stored(content.target),
        "draft": _stored(content.draft),
        "complete": content.complete,
        "parts": {
            part: {"tensors": count, "size": content.size_by_part[part]}
            for part, count in content.tensors_by_part.items()
        },
    }


def _stored(stored: Stored) -> dict[str, Any]:
    return {
        "experts_by_layer": {str(layer): count for layer, count in stored.experts.by_layer.items()},
        "experts": _storage(stored.experts.storage),
        "attention": _storage(stored.attention),
        "shared_experts": _storage(stored.shared_experts),
    }


def _storage(storage: Storage) -> dict[str, Any]:
    return {
        "format": storage.format,
        "formats": {name or "unknown": count for name, count in storage.formats.items()},
        "scale_dtype": storage.scale_dtype,
        "scale_suffix": storage.scale_suffix,
        "block": None if storage.block is None else list(storage.block),
        "example": storage.example,
    }


def _part(item: PartLoad | None, why: str) -> dict[str, Any]:
    """What becomes of the tensors; ``not_evaluated`` says why that, or only the parameters, is not known."""
    if item is None:
        return {"part": None, "not_evaluated": why, "parameters": None, "filled": None, "rows": [], "gaps": []}
    known = item.load.parameters is not None
    return {
        "part": item.part.name,
        "not_evaluated": None if known else item.part.unknown,
        "parameters": item.load.parameters,
        "filled": item.load.filled if known else None,
        "rows": [
            {
                "pattern": row.pattern,
                "count": row.count,
                "first": row.first,
                "targets": list(row.targets),
                "skipped": row.skipped or None,
                "exception": row.exception or None,
                "message": row.message or None,
            }
            for row in item.load.rows
        ],
        "gaps": [
            {"pattern": gap.pattern, "count": gap.count, "first": gap.first, "lacking": gap.lacking or None}
            for gap in item.load.gaps
        ],
    }


def _share(share: Share) -> dict[str, Any]:
    return {"experts": share.experts, "cut": share.cut, "whole": share.whole, "total": share.total}
