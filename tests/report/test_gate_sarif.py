"""SARIF of the gate's report: the published schema, and what code scanning needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import jsonschema
import pytest

from dsv4check.engine.rule import Certainty, Severity, load_rules
from dsv4check.gate.records import GateReport
from dsv4check.report.gate_sarif import render, sarif_log
from tests.report.gate import (
    NASTY_PATH,
    OWN,
    clean_report,
    empty_report,
    finding,
    large_report,
    launch,
    rich_report,
    surrogate_report,
)

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parent / "sarif-schema-2.1.0.json").read_text(encoding="utf-8"))
REPORTS = {
    "rich": rich_report(),
    "empty": empty_report(),
    "clean": clean_report(),
    "surrogates": surrogate_report(),
    "large": large_report(20),
}


def run_of(report: GateReport) -> dict[str, Any]:
    (run,) = json.loads(render(report, load_rules(), OWN))["runs"]
    return dict(run)


@pytest.mark.parametrize("name", REPORTS)
def test_log_is_valid(name: str) -> None:
    log = json.loads(render(REPORTS[name], load_rules(), OWN))
    jsonschema.validators.validator_for(SCHEMA)(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(log)
    assert log["version"] == "2.1.0"


def test_every_rule_makes_a_valid_descriptor() -> None:
    report = GateReport(
        launches=(launch(findings=tuple(finding(rule=rule.id, name=rule.name) for rule in load_rules())),)
    )
    log = sarif_log(report, load_rules(), {})
    jsonschema.validate(log, SCHEMA)
    described = log["runs"][0]["tool"]["driver"]["rules"]
    assert len(described) == len(load_rules())
    for rule in described:
        assert rule["name"].isalnum()
        assert rule["name"][0].isupper() or rule["name"][0].isdigit()
        assert len(rule["fullDescription"]["text"]) <= 1024
        assert len(set(rule["properties"]["tags"])) == len(rule["properties"]["tags"])
        if "helpUri" in rule:
            address = urlsplit(rule["helpUri"])
            assert (address.scheme, address.netloc) == ("https", "github.com")
    assert sum("helpUri" in rule for rule in described) > 20


def test_only_rules_that_occur_in_order() -> None:
    run = run_of(rich_report())
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["CG001", "EV001", "FL001", "GT001", "GT009", "KV001"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


def test_rules_of_the_gate_itself() -> None:
    rules = {rule["id"]: rule for rule in run_of(rich_report())["tool"]["driver"]["rules"]}
    summary, text = OWN["GT001"]
    assert rules["GT001"]["shortDescription"]["text"] == summary
    assert rules["GT001"]["help"]["text"] == text
    # Without a record and without words of the caller the finding speaks.
    assert rules["GT009"]["shortDescription"]["text"] == "Unused ignore."
    assert rules["GT009"]["help"]["text"] == "This ignore covers nothing."


def test_precision_follows_certainty() -> None:
    made = {
        item: sarif_log(GateReport((), own=(finding(rule="X1", certainty=item),)), (), {})["runs"][0]["tool"]["driver"]
        for item in Certainty
    }
    said = {item: driver["rules"][0]["properties"]["precision"] for item, driver in made.items()}
    assert said == {Certainty.PROVEN: "very-high", Certainty.DECLARED: "high", Certainty.REPORTED: "medium"}


def test_paths_are_relative_references() -> None:
    for report in (rich_report(), surrogate_report()):
        run = run_of(report)
        assert "uri" not in run["originalUriBaseIds"]["%SRCROOT%"]
        paths = {item.path for item in report.findings}
        uris = {
            result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]: result for result in run["results"]
        }
        # Bytes that are no UTF-8 stand in a path as the file system's own escapes.
        assert {unquote_to_bytes(uri).decode("utf-8", "surrogateescape") for uri in uris} == paths
        for uri in uris:
            parts = urlsplit(uri)
            assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("", "", "", "")
    assert unquote("deploy%20of%7Ctwo/a%20b%231%20100%25%2Cx%3A%C3%A9%60%3Cb%3E.sh") == NASTY_PATH


def test_region() -> None:
    result = next(item for item in run_of(rich_report())["results"] if item["ruleId"] == "CG001")
    assert result["locations"][0]["physicalLocation"]["region"] == {
        "startLine": 4,
        "startColumn": 3,
        "endLine": 6,
        "endColumn": 8,
        "snippet": {"text": "--compilation-config"},
    }
    assert run_of(rich_report())["columnKind"] == "unicodeCodePoints"


def test_fingerprints_are_unique_and_do_not_hang_on_lines() -> None:
    report = rich_report()
    said = [result["partialFingerprints"]["dsv4check/v1"] for result in run_of(report)["results"]]
    assert len(set(said)) == len(said)
    assert [item for item in said if item.startswith("0123")] == ["0123456789abcdef", "0123456789abcdef:2"]
    moved = replace(
        report,
        launches=tuple(
            replace(item, findings=tuple(replace(one, region=replace(one.region, line=99)) for one in item.findings))
            for item in report.launches
        ),
    )
    assert [result["partialFingerprints"]["dsv4check/v1"] for result in run_of(moved)["results"]] == said


def test_suppressions() -> None:
    report = rich_report()
    for item, result in zip(report.findings, run_of(report)["results"], strict=True):
        kinds = [entry["kind"] for entry in result.get("suppressions", ())]
        assert kinds == ["inSource"] * (item.ignored is not None) + ["external"] * item.baseline
        assert result["baselineState"] == ("unchanged" if item.baseline else "new")
        if item.ignored is not None:
            assert result["suppressions"][0]["justification"] == item.ignored


def test_no_baseline_no_state() -> None:
    run = run_of(GateReport((launch(findings=(finding(),)),)))
    assert [("baselineState" in item, "suppressions" in item) for item in run["results"]] == [(False, False)]


@pytest.mark.parametrize("severity", Severity)
def test_levels(severity: Severity) -> None:
    run = run_of(GateReport((), own=(finding(severity=severity),)))
    assert run["results"][0]["level"] == severity.value


def test_message_holds_the_fix_and_no_link() -> None:
    results = run_of(rich_report())["results"]
    fixed = next(item for item in results if item["ruleId"] == "KV001" and "Fix:" in item["message"]["text"])
    assert "Fix: --kv-cache-dtype fp8 (packed states exist only in fp8)." in fixed["message"]["text"]
    assert (
        "```sh\nvllm serve deepseek-ai/DeepSeek-V4-Flash -tp 4 --kv-cache-dtype fp8\n```"
        in fixed["message"]["markdown"]
    )
    nasty = next(item for item in results if item["ruleId"] == "FL001")
    assert "\\[a](b)" in nasty["message"]["text"]
    assert " [a](b)" not in nasty["message"]["text"]


def test_notifications() -> None:
    run = run_of(rich_report())
    (invocation,) = run["invocations"]
    said = [(item["descriptor"]["id"], item["level"]) for item in invocation["toolExecutionNotifications"]]
    assert said == [
        ("file-skipped", "note"),
        ("file-not-understood", "error"),
        ("file-not-understood", "error"),
        ("launch-not-checked", "warning"),
    ]
    assert invocation["executionSuccessful"] is False
    for item in invocation["toolExecutionNotifications"]:
        described = run["tool"]["driver"]["notifications"][item["descriptor"]["index"]]
        assert described["id"] == item["descriptor"]["id"]
    lines = [
        item["locations"][0]["physicalLocation"].get("region", {}).get("startLine")
        for item in invocation["toolExecutionNotifications"]
    ]
    assert lines == [4, 7, None, 3]


def test_skipped_files_are_no_failure() -> None:
    report = rich_report()
    only_skipped = replace(report, problems=tuple(item for item in report.problems if item.skipped))
    assert run_of(only_skipped)["invocations"][0]["executionSuccessful"] is True
