"""JUnit XML of the gate's report, read by a standard reader."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any
from xml.etree import ElementTree as ET

import junitparser
import pytest

from dsv4check.engine.rule import Severity
from dsv4check.gate.records import GateReport
from dsv4check.report.gate_junit import NEVER, render
from tests.report.gate import (
    NASTY_PATH,
    clean_report,
    empty_report,
    finding,
    large_report,
    launch,
    rich_report,
    surrogate_report,
)


def read(report: GateReport, fail_rank: int = 2) -> Any:
    return junitparser.JUnitXml.fromstring(render(report, fail_rank).encode("utf-8"))


def cases(report: GateReport, fail_rank: int = 2) -> dict[str, Any]:
    return {f"{case.classname}::{case.name}": case for suite in read(report, fail_rank) for case in suite}


def results(case: Any) -> list[str]:
    return [type(item).__name__ for item in case.result]


@pytest.mark.parametrize("make", [rich_report, empty_report, clean_report, surrogate_report, lambda: large_report(20)])
@pytest.mark.parametrize("fail_rank", [0, 1, 2, NEVER])
def test_counts_are_those_of_the_cases(make: Any, fail_rank: int) -> None:
    report = make()
    document = read(report, fail_rank)
    said = {name: getattr(document, name) for name in ("tests", "failures", "errors", "skipped")}
    # The reader's own count.
    document.update_statistics()
    assert said == {name: getattr(document, name) for name in said}
    for suite in junitparser.JUnitXml.fromstring(render(report, fail_rank).encode("utf-8")):
        before = (suite.tests, suite.failures, suite.errors, suite.skipped)
        suite.update_statistics()
        assert before == (suite.tests, suite.failures, suite.errors, suite.skipped)


def test_names_are_unique() -> None:
    names = Counter((case.classname, case.name) for suite in read(rich_report()) for case in suite)
    assert set(names.values()) == {1}
    assert ("compose.yaml", "service flash (line 9)") in names
    assert ("compose.yaml", "service flash (line 9) #2") in names
    assert len(names) == 12


def test_a_suite_for_each_file() -> None:
    document = read(rich_report())
    assert [suite.name for suite in document] == sorted(suite.name for suite in document)
    assert NASTY_PATH in [suite.name for suite in document]
    assert document.time == 1.25
    for suite in document:
        assert {item.name: item.value for item in suite.properties()}["dsv4check"]
        assert {case.classname for case in suite} == {suite.name}


def test_findings_of_a_launch_are_one_failure() -> None:
    case = cases(rich_report())["deploy/flash.sh::line 3"]
    (failure,) = case.result
    assert isinstance(failure, junitparser.Failure)
    assert failure.type == "KV001"
    assert failure.message.startswith("3 findings: KV001, KV001, CG001.")
    assert "--enforce-eager" in failure.text
    assert {item.name: item.value for item in case.child(junitparser.Properties)}["vllm"] == "0.24.0"
    assert "not evaluated: memory" in case.system_out


@pytest.mark.parametrize(("severity", "fails"), [("error", (0, 1, 2)), ("warning", (0, 1)), ("note", (0,))])
def test_lowest_severity_that_fails(severity: str, fails: tuple[int, ...]) -> None:
    report = GateReport((launch(findings=(finding(severity=Severity(severity)),)),))
    for rank in (0, 1, 2, NEVER):
        (case,) = cases(report, rank).values()
        assert results(case) == ["Failure"] * (rank in fails)
        # What does not fail is still said.
        assert ("KV001" in (case.system_out or "")) is (rank not in fails)


@pytest.mark.parametrize("quiet", [{"ignored": "ours"}, {"baseline": True}])
def test_quiet_findings_never_fail(quiet: dict[str, Any]) -> None:
    (case,) = cases(GateReport((launch(findings=(finding(**quiet),)),)), 0).values()
    assert results(case) == []
    assert ("(ignored: ours)" if "ignored" in quiet else "(in the baseline)") in case.system_out


def test_what_was_not_checked_is_skipped() -> None:
    made = cases(rich_report())
    other = made["k8s/flash.yaml::Deployment/llama container vllm (line 3)"]
    missing = made["k8s/flash.yaml::Deployment/v4 container vllm (line 3)"]
    assert (results(other), other.result[0].message) == (["Skipped"], "no DeepSeek-V4 launch")
    assert results(missing) == ["Skipped"]
    assert missing.result[0].message.startswith("not checked: no config.json")


def test_problems_are_errors() -> None:
    made = cases(rich_report())
    broken = made["broken.yaml::reading the file (line 7)"]
    assert (results(broken), broken.result[0].message) == (["Error"], "mapping values are not allowed here")
    assert results(made["charts/templates/x.yaml::reading the file (line 4)"]) == ["Skipped"]
    assert results(made[f"{NASTY_PATH}::reading the file"]) == ["Error"]


def test_characters_xml_cannot_hold_are_gone() -> None:
    text = "".join(map(chr, [*range(32), 0x7F, 0xD800, 0xDFFF, 0xFFFE, 0xFFFF, 0x10FFFF])) + "<&>\"']]>"
    report = GateReport((launch(path=text, name=text, findings=(finding(message=text, error=text),)),))
    root = ET.parse(io.BytesIO(render(report, 2).encode("utf-8"))).getroot()
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.text is not None
    assert "\t\n\x7f\U0010ffff<&>\"']]>" in failure.text
