"""Logs of every rule with signatures, in the forms in which they reach a person, lead to that rule."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from dsv4check.api import check_request
from dsv4check.data import rules_dir
from dsv4check.engine.rule import Rule, read_sources
from dsv4check.report.model import Report
from dsv4check.request import Request
from dsv4check.triage.answer import Sureness, TriageReport
from dsv4check.triage.diagnosis import diagnose
from dsv4check.triage.reading import read_logs
from dsv4check.triage.said import SaidByUser
from tests.launches import all_rules
from tests.triage.log_errors import satisfied
from tests.triage.log_forms import TEXT_FORMS
from tests.triage.log_records import LogError
from tests.triage.logs import error_of, sample_for, write_log, write_text

RANKS = 3
"""As many show how ranks repeat one another and mix; more only take time."""
FORMS = ("plain", "docker", "paste")
"""Forms that state a part of the launch: what they leave out may be what decides."""
REPORT = "github-issue"
"""The form that states the command, GPU, packages and environment."""
BY_ID: Mapping[str, Rule] = {rule.id: rule for rule in all_rules()}
EXAMPLES: Mapping[str, list[dict[str, Any]]] = {
    record["id"]: record["examples"]["fires"] for record, _area, _path in read_sources(rules_dir() / "checks")
}
LAUNCHES: Mapping[str, dict[str, Any]] = {
    name: found[0]
    for name, examples in EXAMPLES.items()
    if BY_ID[name].signatures and (found := [item for item in examples if "log" not in item])
}
LOGS: Mapping[str, list[str]] = {
    name: [item["log"] for item in examples if "log" in item]
    for name, examples in EXAMPLES.items()
    if any("log" in item for item in examples)
}
HOST_LAUNCH: Mapping[str, Any] = {
    "vllm": "0.30.0",
    "gpu": "H200",
    "gpus": 8,
    "model": "deepseek-ai/DeepSeek-V4-Flash",
    "args": "-tp 8 --kv-cache-dtype fp8",
}
ON_DISK = "what decides is the checkpoint on disk, which no report states"
NOT_FIRST: Mapping[str, str] = {
    "KV016": "it is about a launch whose GPU is not named, and a report names one",
    "PA005": "the report does not say that there are two nodes, so that the ranks are too many for one",
    "WT004": ON_DISK,
    "WT018": ON_DISK,
}
"""Rules that a report with all facts does not lead to first, and why."""


@pytest.fixture(autouse=True, scope="module")
def _only_causes() -> Iterator[None]:
    """Fixes and the releases that have them are left out: they order no cause and take most of the time."""

    def without_fixes(request: Request, rules: tuple[Rule, ...], **_options: Any) -> Report:
        return check_request(request, rules, fixes=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dsv4check.triage.diagnosis.check_request", without_fixes)
        patch.setattr("dsv4check.triage.first_fix.first_release_with_fix", lambda *_arguments: None)
        yield


def answer_to(text: str) -> TriageReport:
    return diagnose(read_logs(["-"], stdin=io.BytesIO(text.encode())), all_rules(), SaidByUser())


def failure_of(rule: Rule) -> LogError:
    error = error_of(rule.id, LAUNCHES[rule.id])
    if error is None or not satisfied(rule, error):
        error = sample_for(rule)
    assert error is not None
    return error


@cache
def order_in_report(name: str) -> tuple[str, ...]:
    text = write_log(LAUNCHES[name], failure_of(BY_ID[name]), REPORT, ranks=RANKS)
    return tuple(item.rule.id for item in answer_to(text).candidates)


def says_it_is_open(answer: TriageReport) -> bool:
    return bool(answer.apart) or answer.candidates[0].sureness is not Sureness.CERTAIN


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_log_leads_to_its_rule(name: str) -> None:
    """First, or, where the form leaves out what decides, among those that share its text, which the answer says."""
    error = failure_of(BY_ID[name])
    for form in FORMS:
        answer = answer_to(write_log(LAUNCHES[name], error, form, ranks=RANKS))
        order = [item.rule.id for item in answer.candidates]
        if order[:1] == [name]:
            continue
        assert name in order, (form, answer.error)
        assert says_it_is_open(answer), form


@pytest.mark.parametrize("name", [name for name in LAUNCHES if name not in NOT_FIRST])
def test_a_report_with_all_facts_leads_to_its_rule_first(name: str) -> None:
    assert order_in_report(name)[:1] == (name,)


@pytest.mark.parametrize("name", NOT_FIRST)
def test_each_exception_is_still_one(name: str) -> None:
    order = order_in_report(name)
    assert order[:1] != (name,)
    assert name in order


@pytest.mark.parametrize("form", [*TEXT_FORMS, REPORT])
@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in LOGS.items() for text in texts])
def test_a_log_of_the_machine_leads_to_its_rule(name: str, text: str, form: str) -> None:
    answer = answer_to(write_text(text, HOST_LAUNCH, form))
    order = [item.rule.id for item in answer.candidates]
    if order[:1] != [name]:
        assert name in order, answer.error
        assert says_it_is_open(answer)
