"""A triage answer as JSON, in the published schema (``docs/triage.schema.json``)."""

from __future__ import annotations

from typing import Any, Final

from dsv4check import __version__
from dsv4check.deployment import Command, Token
from dsv4check.engine.rule import Rule
from dsv4check.problems import Origin
from dsv4check.report.gate_json import json_text
from dsv4check.report.json_format import finding_to_dict, report_to_dict
from dsv4check.report.masking import masked_command
from dsv4check.report.secret_text import Found, masked_named, masked_values
from dsv4check.report.triage_remedies import remedies
from dsv4check.report.triage_words import fixed_in, headline, message_of, missing, unique
from dsv4check.triage.answer import Candidate, Evidence, TriageReport
from dsv4check.triage.records import ErrorEvent, Fact, LogLine, Stated

TRIAGE_SCHEMA_VERSION: Final = 1
"""Version of the document below; additions keep it."""

_MOST_CAUSES: Final = 20


def render(answer: TriageReport) -> str:
    """The answer as indented JSON text."""
    return json_text(triage_to_dict(answer))


def triage_to_dict(answer: TriageReport, found: Found | None = None) -> dict[str, Any]:
    """The answer as plain data, keys in the order people read them, secrets masked.

    Args:
        answer: The answer.
        found: Told of every secret that is masked by its shape or its name.
    """
    reading = answer.reading
    data: dict[str, Any] = {
        "schema_version": TRIAGE_SCHEMA_VERSION,
        "tool": {"name": "dsv4check", "version": __version__},
        "outcome": answer.outcome.value,
        "headline": headline(answer),
        "error": None if answer.error is None else _event(answer.error),
        "candidates": [_candidate(item) for item in answer.candidates],
        "apart": answer.apart,
        "milestone": {
            "stage": answer.milestone.stage.value,
            "reached": answer.milestone.reached,
            "line": _line(answer.milestone.line),
        },
        "stated": _stated(answer.stated),
        "command": answer.command,
        "missing": list(missing(answer)),
        "later": [_event(item) for item in answer.later],
        "nearest": [_rule(rule) for rule in answer.nearest],
        "report": None if answer.report is None else report_to_dict(answer.report),
        "reading": {
            "sources": list(reading.sources),
            "size": reading.size,
            "lines": reading.line_count,
            "runs": len(reading.runs),
            "run_number": answer.run_number,
            "first": _line(answer.run.first),
        },
        "notes": list(unique((*answer.notes, *reading.notes))),
    }
    masked: dict[str, Any] = masked_values(data, found)
    return masked


def _candidate(item: Candidate) -> dict[str, Any]:
    finding = None if item.finding is None else finding_to_dict(item.finding)
    return {
        **_rule(item.rule),
        "sureness": item.sureness.value,
        "message": message_of(item),
        "evidence": [_evidence(evidence) for evidence in item.evidence],
        "found_by_checker": finding is not None,
        "fixes": [] if finding is None else finding["fixes"],
        "no_fix": (finding or {}).get("no_fix") or item.rule.no_fix,
        "remedies": list(remedies(item)),
        "fixed_in": fixed_in(item) or None,
        "references": list((item.finding.references if item.finding else ()) or item.rule.references),
        "needed": list(item.needed),
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "rule": rule.id,
        "name": rule.name,
        "summary": rule.summary,
        "severity": rule.severity.value,
        "certainty": rule.certainty.value,
        "stage": rule.stage.value,
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    return {"text": item.text, "supports": item.supports, "line": _line(item.line)}


def _event(event: ErrorEvent, depth: int = 0) -> dict[str, Any]:
    cause = event.caused_by if depth < _MOST_CAUSES else None
    return {
        "kind": event.kind,
        "message": event.message,
        "line": _line(event.line),
        "frames": [
            {"path": frame.path, "line": frame.line, "function": frame.function, "code": frame.code}
            for frame in event.frames
        ],
        "processes": list(event.processes),
        "times": event.times,
        "consequence": event.consequence,
        # One text: a key that runs over several lines is only seen as one.
        "excerpt": "\n".join(event.excerpt),
        "caused_by": None if cause is None else _event(cause, depth + 1),
    }


def _line(line: LogLine | None) -> dict[str, Any] | None:
    if line is None:
        return None
    return {
        "source": line.source,
        "number": line.number,
        "text": line.text,
        "process": line.process,
        "level": line.level,
        "module": line.module,
        "count": line.count,
    }


def words_of(stated: Stated) -> Command:
    """The stated flags as a command without program and model."""
    return Command((), tuple(Token(word, Origin("flag")) for word in stated.words))


def _stated(stated: Stated) -> dict[str, Any]:
    return {
        "vllm": stated.vllm,
        "model": stated.model,
        "flags": [token.text for token in masked_command(words_of(stated)).tokens],
        "env": dict(stated.env),
        "gpu": stated.gpu,
        "gpus": stated.gpus,
        "gpu_memory_gib": stated.gpu_memory_gib,
        "nodes": stated.nodes,
        "packages": dict(stated.packages),
        "observed": dict(stated.observed),
        "missing": list(stated.missing),
        "facts": [_fact(fact) for fact in stated.facts],
    }


def _fact(fact: Fact) -> dict[str, Any]:
    name = fact.name.split()[-1] if fact.name.split() else ""
    return {"name": fact.name, "value": masked_named(name, fact.value), "how": fact.how, "line": _line(fact.line)}
