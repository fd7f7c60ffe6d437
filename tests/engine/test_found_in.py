"""Rules about faults that only a log shows: never found in a launch, told as such."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from dsv4check.api import check_request
from dsv4check.cli.main import make_app
from dsv4check.engine.rule import FoundIn, rule_from_record
from dsv4check.errors import InputError
from tests.launches import all_rules, launch_request

LAUNCH = {"vllm": "0.24.0", "gpu": "H200", "gpus": 8, "model": "deepseek-ai/DeepSeek-V4-Flash", "args": "-tp 8"}
LOG_RULES = [rule for rule in all_rules() if rule.found_in is FoundIn.LOG]
RECORD = {
    "id": "ZZ001",
    "name": "gizmo",
    "summary": "A gizmo.",
    "severity": "error",
    "certainty": "proven",
    "stage": "warmup",
    "message": "A gizmo.",
}


def test_a_rule_is_about_launches_unless_it_says_otherwise() -> None:
    assert rule_from_record(RECORD, "a", "s").found_in is FoundIn.LAUNCH
    assert rule_from_record(RECORD | {"found_in": "log"}, "a", "s").found_in is FoundIn.LOG
    with pytest.raises(InputError, match="prayer"):
        rule_from_record(RECORD | {"found_in": "prayer"}, "a", "s")


def test_a_log_rule_never_fires_on_a_launch() -> None:
    """Even one whose conditions hold."""
    rule = rule_from_record(RECORD | {"when": {"gpu.name": {"in": ["H200"]}}}, "a", "s")
    assert "ZZ001" in {item.rule for item in check_request(launch_request(LAUNCH), (rule,)).findings}
    report = check_request(launch_request(LAUNCH), (replace(rule, found_in=FoundIn.LOG),))
    assert report.findings == ()
    assert report.verdict.value == "pass"


def test_the_bundled_ones_never_fire() -> None:
    assert LOG_RULES
    everything = tuple(replace(rule, when={}) for rule in LOG_RULES)
    assert check_request(launch_request(LAUNCH), everything, fixes=False).findings == ()


@pytest.mark.parametrize("rule", LOG_RULES, ids=lambda rule: rule.id)
def test_a_log_rule_says_how_it_looks_and_what_to_do(rule: object) -> None:
    shown = CliRunner().invoke(make_app(["explain"]), ["explain", rule.id])  # type: ignore[attr-defined]
    assert shown.exit_code == 0
    assert "logs alone" in shown.output
    assert "In a log" in shown.output
    assert "What to do on the machine" in shown.output or "Fixes tried" in shown.output
    assert "Fixes tried\n  none" not in shown.output


def test_explain_says_nothing_of_it_for_other_rules() -> None:
    shown = CliRunner().invoke(make_app(["explain"]), ["explain", "KV001"])
    assert "logs alone" not in shown.output
    assert "Fixes tried" in shown.output


def test_json_says_what_a_rule_is_found_in() -> None:
    shown = CliRunner().invoke(make_app(["rules"]), ["rules", "--format", "json"])
    found = {item["id"]: item["found_in"] for item in json.loads(shown.output)}
    assert found["KV001"] == "launch"
    assert {id for id, where in found.items() if where == "log"} == {rule.id for rule in LOG_RULES}
