"""The report as JSON, in the published schema (``docs/report.schema.json``)."""

from __future__ import annotations

import json
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.inputs.command import format_command
from dsv4check.problems import Origin
from dsv4check.report.masking import masked_command, masked_env, masked_settings
from dsv4check.report.model import SCHEMA_VERSION, Edit, Finding, Fix, Report
from dsv4check.report.plain_values import plain_record, plain_value
from dsv4check.resolution import KvCache, NotEvaluated, Resolution


def render(report: Report) -> str:
    """The report as indented JSON text."""
    return json.dumps(report_to_dict(report), indent=2, ensure_ascii=False)


def report_to_dict(report: Report) -> dict[str, Any]:
    """The report as plain data, keys in the order people read them."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": report.verdict.value,
        "deployment": deployment_to_dict(report.deployment),
        "resolution": _resolution(report.resolution),
        "findings": [finding_to_dict(item) for item in report.findings],
        "not_evaluated": [open_question_to_dict(item) for item in report.not_evaluated],
        "evidence": _evidence(report),
        "notes": list(report.notes),
    }


def deployment_to_dict(deployment: Deployment) -> dict[str, Any]:
    """The launch: command, model, hardware, vLLM."""
    hardware, build, model = deployment.hardware, deployment.vllm, deployment.model
    return {
        "command": format_command(masked_command(deployment.command)),
        "env": masked_env(deployment.env),
        "flags": {dest: plain_value(value) for dest, value in masked_settings(deployment.flags.values).items()},
        "model": {
            "name": model.name,
            "family": model.family,
            "generation": model.generation,
            "source": model.source,
            "published_as": model.known_id,
            "draft": model.draft_kind,
        },
        "hardware": {
            "gpu": hardware.name,
            "vendor": hardware.vendor,
            "compute_capability": hardware.sm,
            "memory_mib": hardware.memory_mib,
            "gpus_per_node": hardware.gpus_per_node,
            "nodes": hardware.nodes,
            "source": hardware.origin.kind,
        },
        "vllm": {
            "version": build.version,
            "kind": build.kind,
            "facts_of": build.release,
            "brackets": list(build.brackets),
            "source": build.origin.kind,
        },
        "packages": dict(deployment.packages),
    }


def _resolution(resolution: Resolution) -> dict[str, Any]:
    cache, attention, draft = resolution.kv_cache, resolution.attention, resolution.draft
    data: dict[str, Any] = {"release": resolution.release}
    data["kv_cache"] = None if cache is None else kv_cache_to_dict(cache)
    if attention is None:
        data["attention"] = None
    else:
        values = plain_record(attention)
        values["class"] = values.pop("cls")
        data["attention"] = values
    data["runner"] = resolution.runner.name if resolution.runner else None
    data["runner_why"] = resolution.runner.why if resolution.runner else None
    data["draft"] = None if draft is None else plain_record(draft)
    data["moe"] = None if resolution.moe is None else plain_record(resolution.moe)
    data["parallel"] = None if resolution.parallel is None else plain_record(resolution.parallel)
    data["facts"] = {name: plain_value(value) for name, value in resolution.facts.items()}
    data["memory"] = None
    if resolution.memory is not None:
        from dsv4check.report.memory_json import memory_to_dict

        data["memory"] = memory_to_dict(resolution.memory)
    return data


def kv_cache_to_dict(cache: KvCache) -> dict[str, Any]:
    """KV-cache dtype, layout and pages."""
    return plain_record(cache)


def finding_to_dict(finding: Finding) -> dict[str, Any]:
    """One finding; ``evidence`` only where the build's own code was looked at."""
    values = {
        "rule": finding.rule,
        "name": finding.name,
        "severity": finding.severity.value,
        "certainty": finding.certainty.value,
        "stage": finding.stage.value,
        "message": finding.message,
        "error": finding.error,
        "location": _origin(finding.location),
        "fixes": [fix_to_dict(fix) for fix in finding.fixes],
        "no_fix": finding.no_fix,
        "fixed_in": finding.fixed_in,
        "references": list(finding.references),
    }
    if finding.evidence:
        values["evidence"] = list(finding.evidence)
    return values


def open_question_to_dict(item: NotEvaluated) -> dict[str, Any]:
    """An answer that was not given."""
    return {"what": item.what, "why": item.why, "how": item.how}


def fix_to_dict(fix: Fix) -> dict[str, Any]:
    """A set of edits and the corrected command."""
    return {
        "edits": [_edit(edit) for edit in fix.edits],
        "also": [_edit(edit) for edit in fix.also],
        "command": fix.command,
        "verified": fix.verified,
        "note": fix.note,
    }


def _edit(edit: Edit) -> dict[str, Any]:
    return {"kind": edit.kind, "target": edit.target, "value": edit.value, "text": edit.text}


def _origin(origin: Origin | None) -> dict[str, Any] | None:
    return None if origin is None else plain_record(origin)


def _evidence(report: Report) -> list[dict[str, Any]]:
    build = report.deployment.vllm
    release = report.resolution.release
    how = f"facts read from vLLM {release}'s own code"
    if build.own is not None:
        how = f"facts read from the code in {build.own.tree.package}; what was not read there is as in {release}"
    elif build.kind == "development" and build.may_be_any:
        how += f"; what is in {build.version} cannot be told from its number, so only what every release has is said"
    elif build.kind == "development":
        how += f"; {build.version} lies between releases, so only what holds for {', '.join(build.brackets)} is said"
    return [{"level": "rules", "release": release, "how": how}]
