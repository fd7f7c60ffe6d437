"""The rules of a SARIF log: what code scanning shows beside a finding, made from the rule records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dsv4check.engine.edits import edits_text
from dsv4check.engine.rule import Certainty, Rule, Severity
from dsv4check.gate.records import GateFinding
from dsv4check.report.gate_words import clipped, visible

# GitHub cuts what is longer.
_DESCRIPTION: Final = 1024
_PRECISION: Final = {Certainty.PROVEN: "very-high", Certainty.DECLARED: "high", Certainty.REPORTED: "medium"}
_PROBLEM_SEVERITY: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "recommendation"}
_KNOWN_BY: Final = {
    Certainty.PROVEN: "read in, or run with, vLLM's own code",
    Certainty.DECLARED: "declared by vLLM's documentation or package metadata",
    Certainty.REPORTED: "public reports",
}
_VLLM_REFERENCE: Final = re.compile(r"vllm#(\d+)\Z")


def descriptors(
    findings: Iterable[GateFinding], rules: Iterable[Rule], own: Mapping[str, tuple[str, str]]
) -> list[dict[str, Any]]:
    """One descriptor for each rule that occurs, ordered by id.

    Args:
        findings: The findings of the log.
        rules: All rules that are known.
        own: Summary and help of rules without a record, by id.
    """
    first = {item.rule: item for item in reversed(list(findings))}
    known = {rule.id: rule for rule in rules if rule.id in first}
    return [
        _of_rule(known[rule_id]) if rule_id in known else _of_finding(first[rule_id], own.get(rule_id))
        for rule_id in sorted(first)
    ]


def _of_rule(rule: Rule) -> dict[str, Any]:
    lines = list(_help(rule))
    # A record's message has places for values; only the summary reads well without them.
    full = f"{rule.summary} vLLM gets to it at {rule.stage.value}; known from: {_KNOWN_BY[rule.certainty]}."
    made = _descriptor(rule.id, rule.name, rule.severity, rule.certainty, (rule.summary, full))
    made["help"] = {
        "text": "\n".join(f"{label}: {text}" for label, text in lines),
        "markdown": "\n\n".join(f"**{label}**: {_markdown(text)}" for label, text in lines),
    }
    reference = next((found for item in rule.references if (found := _VLLM_REFERENCE.match(item))), None)
    if reference:
        made["helpUri"] = f"https://github.com/vllm-project/vllm/issues/{reference[1]}"
    # An area and a stage may share a name.
    made["properties"]["tags"] += dict.fromkeys((rule.area, rule.stage.value))
    return made


def _of_finding(finding: GateFinding, said: tuple[str, str] | None) -> dict[str, Any]:
    summary, text = said or (f"{finding.name.replace('-', ' ').capitalize()}.", finding.message)
    made = _descriptor(finding.rule, finding.name, finding.severity, finding.certainty, (summary, text))
    made["help"] = {"text": visible(text, "\n"), "markdown": _markdown(text)}
    if finding.stage:
        made["properties"]["tags"].append(finding.stage.value)
    return made


def _descriptor(
    rule_id: str, name: str, severity: Severity, certainty: Certainty, descriptions: tuple[str, str]
) -> dict[str, Any]:
    short, full = (clipped(visible(text), _DESCRIPTION) for text in descriptions)
    return {
        "id": rule_id,
        "name": "".join(part[:1].upper() + part[1:] for part in re.split(r"[^0-9A-Za-z]+", name)),
        "shortDescription": {"text": short},
        "fullDescription": {"text": full},
        "defaultConfiguration": {"level": severity.value},
        "properties": {
            "tags": ["vllm", "deepseek-v4"],
            "precision": _PRECISION[certainty],
            "problem.severity": _PROBLEM_SEVERITY[severity],
        },
    }


def _help(rule: Rule) -> Iterator[tuple[str, str]]:
    yield "What it finds", rule.summary
    yield "Stage", rule.stage.value
    ranges = [rule.vllm] if rule.vllm else []
    ranges += [
        f"{item.base}.dev{item.first or 0} to {'an open end' if item.last is None else f'dev{item.last}'}"
        for item in rule.development
    ]
    yield "vLLM", ", ".join(ranges) or "all known releases"
    if rule.fixed_in:
        yield "Fixed in", rule.fixed_in
    if rule.error:
        yield "vLLM prints", rule.error
    fixes = [edits_text(fix["edits"]) for fix in rule.fixes]
    yield "Fixes tried", " | ".join(fixes) or rule.no_fix or "none"
    if rule.references:
        yield "References", ", ".join(rule.references)
    known = [", ".join(str(value) for value in item.values()) for item in rule.verified]
    yield "How it is known", "; ".join([_KNOWN_BY[rule.certainty], *known])


def _markdown(text: str) -> str:
    from dsv4check.report.markdown import escaped

    return escaped(text)
