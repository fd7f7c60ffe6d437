"""The gate's report as SARIF 2.1.0, as GitHub's code scanning and other viewers read it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote_from_bytes

from dsv4check import __version__
from dsv4check.engine.rule import Rule
from dsv4check.gate.records import GateFinding, GateReport, Region
from dsv4check.report.gate_json import json_text
from dsv4check.report.gate_sarif_rules import descriptors
from dsv4check.report.gate_words import fix_words, not_checked, visible
from dsv4check.report.markdown import escaped, fence

SCHEMA_URI: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT: Final = "%SRCROOT%"
# `[text](target)` is a link in a plain text message, too; what vLLM prints has none.
_LINK: Final = re.compile(r"\[(?=[^\[\]]*\]\()")
_NOTIFICATIONS: Final = {
    "file-not-understood": (
        "FileNotUnderstood",
        "A file, or a part of it, that could not be read or understood.",
        "Correct the file at the line named, or leave it out of the check.",
    ),
    "file-skipped": (
        "FileSkipped",
        "A file with which nothing is wrong and which cannot be read as it is.",
        "Render the template first and check what comes out.",
    ),
    "launch-not-checked": (
        "LaunchNotChecked",
        "A launch of which nothing could be said.",
        "The message names what is missing, most often the config.json of a model.",
    ),
}


def render(report: GateReport, rules: tuple[Rule, ...], own: Mapping[str, tuple[str, str]] | None = None) -> str:
    """The report as a SARIF log.

    Args:
        report: The gate's report.
        rules: All rules that are known, for the descriptions of those that fired.
        own: Summary and help of the rules of the gate itself, by id.
    """
    return json_text(sarif_log(report, rules, own or {}))


def sarif_log(report: GateReport, rules: tuple[Rule, ...], own: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """The SARIF log as plain data."""
    findings = report.findings
    described = descriptors(findings, rules, own)
    indices = {item["id"]: number for number, item in enumerate(described)}
    # A state for one result asks for one of each.
    compared = any(item.baseline for item in findings) or bool(report.stale)
    seen: Counter[str] = Counter()
    results = []
    for finding in findings:
        seen[finding.fingerprint] += 1
        result = _result(finding, indices[finding.rule], seen[finding.fingerprint])
        if compared:
            result["baselineState"] = "unchanged" if finding.baseline else "new"
        results.append(result)
    driver = {
        "name": "dsv4check",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": described,
        "notifications": [
            {
                "id": name,
                "name": title,
                "shortDescription": {"text": text},
                # GitHub asks for these in notifications, too.
                "fullDescription": {"text": text},
                "help": {"text": todo},
            }
            for name, (title, text, todo) in _NOTIFICATIONS.items()
        ],
    }
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": "dsv4check/gate/"},
        "invocations": [
            {
                "executionSuccessful": all(item.skipped for item in report.problems),
                "toolExecutionNotifications": list(_notifications(report)),
            }
        ],
        "originalUriBaseIds": {_ROOT: {"description": {"text": "Root of the tree that was checked."}}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}


def _result(finding: GateFinding, index: int, ordinal: int) -> dict[str, Any]:
    # Two results with one fingerprint would be one alert.
    fingerprint = finding.fingerprint if ordinal == 1 else f"{finding.fingerprint}:{ordinal}"
    properties = {"launch": visible(finding.launch), "certainty": finding.certainty.value}
    if finding.stage:
        properties["stage"] = finding.stage.value
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity.value,
        "message": {"text": _text(finding), "markdown": _markdown(finding)},
        "locations": [_location(finding.path, _region(finding.region))],
        "properties": properties,
    }
    if finding.fingerprint:
        result["partialFingerprints"] = {"dsv4check/v1": fingerprint}
    suppressions = []
    if finding.ignored is not None:
        suppressions.append({"kind": "inSource", "status": "accepted", "justification": visible(finding.ignored, "\n")})
    if finding.baseline:
        suppressions.append(
            {"kind": "external", "status": "accepted", "justification": "The baseline lists this finding."}
        )
    if suppressions:
        result["suppressions"] = suppressions
    return result


def _text(finding: GateFinding) -> str:
    parts = [finding.message]
    if finding.error:
        parts.append(f"vLLM prints: {finding.error}")
    if finding.fixes:
        fix = finding.fixes[0]
        parts.append(f"Fix: {fix_words(fix)}" + (f" ({fix.note})" if fix.note else ""))
    elif finding.no_fix:
        parts.append(f"No fix: {finding.no_fix}")
    # Braces stay single: without arguments nothing is filled in, and code scanning shows double ones as they are.
    return _LINK.sub(r"\\[", visible("\n".join(map(_sentence, parts)), "\n"))


def _sentence(text: str) -> str:
    stripped = text.rstrip()
    return stripped if stripped.endswith((".", "!", "?")) else f"{stripped}."


def _markdown(finding: GateFinding) -> str:
    parts = [escaped(finding.message)]
    if finding.error:
        parts += ["vLLM prints:", fence(finding.error, "text")]
    if finding.fixes:
        fix = finding.fixes[0]
        parts.append(f"Fix: {escaped(fix_words(fix))}" + (f" ({escaped(fix.note)})" if fix.note else ""))
        parts.append(fence(fix.command, "sh"))
    elif finding.no_fix:
        parts.append(f"No fix: {escaped(finding.no_fix)}")
    return "\n\n".join(parts)


def _notifications(report: GateReport) -> Iterator[dict[str, Any]]:
    for problem in report.problems:
        kind, level = ("file-skipped", "note") if problem.skipped else ("file-not-understood", "error")
        region = {"startLine": problem.line} if problem.line > 0 else None
        yield _notification(kind, level, problem.why, _location(problem.path, region))
    for launch in not_checked(report):
        said = f"{launch.name}: {launch.not_checked or 'not checked'}"
        yield _notification("launch-not-checked", "warning", said, _location(launch.path, _region(launch.region)))


def _notification(kind: str, level: str, text: str, location: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "descriptor": {"id": kind, "index": list(_NOTIFICATIONS).index(kind)},
        "level": level,
        "message": {"text": _LINK.sub(r"\\[", visible(_sentence(text), "\n"))},
        "locations": [location],
    }


def _location(path: str, region: Mapping[str, Any] | None) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(path), "uriBaseId": _ROOT}}
    if region is not None:
        physical["region"] = dict(region)
    return {"physicalLocation": physical}


def _uri(path: str) -> str:
    """The path as a relative reference; bytes of a name that are no UTF-8 come out as they lie on disk."""
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = path.encode("utf-8", "replace")
    return quote_from_bytes(raw, safe="/")


def _region(region: Region) -> dict[str, Any]:
    data: dict[str, Any] = {
        "startLine": region.line,
        "startColumn": region.column,
        "endLine": region.end_line,
        "endColumn": region.end_column,
    }
    if region.token:
        data["snippet"] = {"text": visible(region.token, "\n\t")}
    return data
