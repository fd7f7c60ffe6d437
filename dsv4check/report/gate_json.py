"""The gate's report as JSON, in the published schema (``docs/gate.schema.json``)."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from dsv4check import __version__
from dsv4check.gate.records import Fact, FileProblem, GateFinding, GateReport, LaunchResult, Region
from dsv4check.report.gate_words import count
from dsv4check.report.json_format import fix_to_dict, open_question_to_dict

GATE_SCHEMA_VERSION: Final = 1
"""Version of the document below; additions keep it."""

# Parts of characters, which no encoding writes, and control characters that the json module leaves as they are.
_UNSAFE: Final = re.compile("[\ud800-\udfff\x7f-\x9f]")


def render(report: GateReport) -> str:
    """The report as indented JSON text."""
    return json_text(report_to_dict(report))


def json_text(data: Any) -> str:
    """Indented JSON that every terminal and encoding takes."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def report_to_dict(report: GateReport) -> dict[str, Any]:
    """The report as plain data, keys in the order people read them."""
    return {
        "schema_version": GATE_SCHEMA_VERSION,
        "tool": {"name": "dsv4check", "version": __version__},
        "summary": _summary(report),
        "launches": [_launch(item) for item in report.launches],
        "own": [_finding(item) for item in report.own],
        "problems": [_problem(item) for item in report.problems],
        "stale": list(report.stale),
        "files": report.files,
        "seconds": report.seconds,
        "notes": list(report.notes),
    }


def _summary(report: GateReport) -> dict[str, int]:
    counts = count(report)
    return {
        "files": counts.files,
        "launches": counts.launches,
        "pass": counts.passed,
        "warn": counts.warned,
        "fail": counts.failed,
        "not_checked": counts.not_checked,
        "other_models": counts.other_models,
        "errors": counts.errors,
        "warnings": counts.warnings,
        "notes": counts.notes,
        "ignored": counts.ignored,
        "baseline": counts.baseline,
        "problems": counts.problems,
        "skipped": counts.skipped,
        "stale": counts.stale,
    }


def _launch(launch: LaunchResult) -> dict[str, Any]:
    return {
        "path": launch.path,
        "name": launch.name,
        "format": launch.format,
        "region": _region(launch.region),
        "command": launch.command,
        "args": list(launch.args),
        "env": dict(launch.env),
        "model": launch.model,
        "facts": {name: _fact(fact) for name, fact in launch.facts.items()},
        "verdict": launch.verdict,
        "not_checked": launch.not_checked,
        "other_model": launch.other_model,
        "findings": [_finding(item) for item in launch.findings],
        "not_evaluated": [open_question_to_dict(item) for item in launch.not_evaluated],
        "notes": list(launch.notes),
    }


def _finding(finding: GateFinding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "name": finding.name,
        "severity": finding.severity.value,
        "certainty": finding.certainty.value,
        "stage": None if finding.stage is None else finding.stage.value,
        "message": finding.message,
        "error": finding.error,
        "path": finding.path,
        "region": _region(finding.region),
        "launch": finding.launch,
        "fixes": [fix_to_dict(fix) for fix in finding.fixes],
        "no_fix": finding.no_fix,
        "fixed_in": finding.fixed_in,
        "references": list(finding.references),
        "fingerprint": finding.fingerprint,
        "active": finding.active,
        "ignored": finding.ignored,
        "baseline": finding.baseline,
    }


def _region(region: Region) -> dict[str, Any]:
    return {
        "line": region.line,
        "column": region.column,
        "end_line": region.end_line,
        "end_column": region.end_column,
        "token": region.token,
    }


def _fact(fact: Fact) -> dict[str, Any]:
    return {"value": fact.value, "source": fact.source, "line": fact.line}


def _problem(problem: FileProblem) -> dict[str, Any]:
    return {"path": problem.path, "line": problem.line, "why": problem.why, "skipped": problem.skipped}
