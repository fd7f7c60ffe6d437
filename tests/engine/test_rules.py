"""Every rule file: well formed, its names known, its examples true."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from dsv4check.data import rules_dir
from dsv4check.engine.conditions import OPERATORS
from dsv4check.engine.edits import kind_of
from dsv4check.engine.fields import Fields
from dsv4check.engine.rule import FoundIn, Severity, read_sources, rule_from_record
from dsv4check.engine.signature import check_signature
from tests.launches import all_rules, run_launch

SOURCES = read_sources(rules_dir() / "checks")
IDS = [record["id"] for record, _area, _path in SOURCES]


def _cases(kind: str) -> list[Any]:
    return list(_each_case(kind))


def _each_case(kind: str) -> Iterator[Any]:
    for record, _area, _path in SOURCES:
        for number, launch in enumerate((record.get("examples") or {}).get(kind) or []):
            if "log" in launch:
                # Read in tests/triage/test_rule_logs.py.
                continue
            yield pytest.param(record["id"], launch, id=f"{record['id']}-{number}")


def test_ids_and_names_are_unique() -> None:
    assert [item for item, count in Counter(IDS).items() if count > 1] == []
    names = Counter(record["name"] for record, _area, _path in SOURCES)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(("record", "area", "path"), SOURCES, ids=IDS)
def test_rule_is_well_formed(record: dict[str, Any], area: str, path: str) -> None:
    rule = rule_from_record(record, area, path)
    assert re.fullmatch(r"[A-Z]{2}\d{3}", rule.id)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    assert Path(path).name.startswith(f"{rule.id}-")
    assert rule.summary
    if rule.found_in is FoundIn.LAUNCH:
        assert rule.problem or rule.when or rule.development, "a rule needs a problem, conditions or development builds"
    else:
        assert rule.signatures, "a rule about logs needs a signature"
    if rule.vllm:
        SpecifierSet(rule.vllm)
    for signature in rule.signatures:
        check_signature(signature)
    if rule.severity is Severity.ERROR:
        assert rule.fixes or rule.no_fix or rule.advice, "an error needs a fix or the reason why none exists"
    for fix in rule.fixes:
        for edit in fix["edits"]:
            kind_of(edit)
    assert rule.verified, "say how it is known"
    examples = record["examples"]
    assert examples["fires"], "at least one launch that triggers it"
    assert examples["silent"], "at least one launch that does not"
    _check_conditions(rule.when)


def _check_conditions(when: Mapping[str, Any]) -> None:
    for name, condition in when.items():
        if name in ("any", "all"):
            for branch in condition:
                _check_conditions(branch)
        elif name == "not":
            _check_conditions(condition)
        else:
            assert name.partition(".")[0] in Fields.areas(), name
            if isinstance(condition, Mapping):
                assert set(condition) <= OPERATORS, condition


@pytest.mark.parametrize(("rule_id", "launch"), _cases("fires"))
def test_example_fires(rule_id: str, launch: dict[str, Any]) -> None:
    report = run_launch(launch)
    assert rule_id in {finding.rule for finding in report.findings}, [
        (finding.rule, finding.message) for finding in report.findings
    ]


@pytest.mark.parametrize(("rule_id", "launch"), _cases("silent"))
def test_example_is_silent(rule_id: str, launch: dict[str, Any]) -> None:
    report = run_launch(launch)
    assert rule_id not in {finding.rule for finding in report.findings}


@pytest.mark.parametrize(("rule_id", "launch"), _cases("fires"))
def test_messages_are_filled(rule_id: str, launch: dict[str, Any]) -> None:
    for finding in run_launch(launch).findings:
        assert not re.search(r"\{[a-z_]+(\.[a-z_]+)*\}", finding.message), finding.message


def test_errors_of_the_examples_have_fixes() -> None:
    """Every error finding of an example offers a verified fix, or says why there is none."""
    without = []
    for record, _area, _path in SOURCES:
        if record["severity"] != "error":
            continue
        for launch in record["examples"]["fires"]:
            if "log" in launch:
                continue
            report = run_launch(launch, fixes=True)
            finding = next(item for item in report.findings if item.rule == record["id"])
            if not finding.fixes and not finding.no_fix:
                without.append((record["id"], launch))
            for fix in finding.fixes:
                assert fix.command.strip()
    assert not without, without


def test_every_problem_code_has_a_rule() -> None:
    """Codes that the resolution can report, as they stand in the sources, against the rules' ``problem`` keys."""
    package = Path(__file__).parents[2] / "dsv4check"
    codes: set[str] = set()
    for path in [*(package / "resolve").glob("*.py"), *(package / "inputs").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        codes |= set(re.findall(r"\bProblem\(\s*\"([a-z0-9]+(?:-[a-z0-9]+)+)\"", text))
    covered = {rule.problem for rule in all_rules() if rule.problem}
    assert codes - covered == set()
