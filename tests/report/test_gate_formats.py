"""Every format of the gate's report against its snapshot; see README.md for how these are written anew."""

from __future__ import annotations

import json
import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsv4check.engine.rule import load_rules
from dsv4check.gate.records import GateReport
from dsv4check.report.gate_formats import GateFormat, render
from dsv4check.report.gate_json import report_to_dict
from dsv4check.report.gate_schema import gate_json_schema
from tests.report.gate import OWN, clean_report, empty_report, large_report, rich_report, surrogate_report

SNAPSHOTS = Path(__file__).parent / "snapshots"
SCHEMA: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs/gate.schema.json").read_text(encoding="utf-8"))
REPORTS = {
    "rich": rich_report(),
    "empty": empty_report(),
    "clean": clean_report(),
    "surrogates": surrogate_report(),
    "large": large_report(50),
}


def rendered(report: GateReport, output: GateFormat, *, verbose: bool = False) -> str:
    return render(report, output, rules=load_rules(), fail_rank=2, verbose=verbose, own=OWN)


@pytest.mark.parametrize("name", [*GateFormat, "verbose"])
def test_snapshot(name: str) -> None:
    output = GateFormat.TEXT if name == "verbose" else GateFormat(name)
    said = rendered(rich_report(), output, verbose=name == "verbose").encode("utf-8")
    file = SNAPSHOTS / f"gate.{name}"
    if os.environ.get("DSV4CHECK_UPDATE") == "1":
        file.write_bytes(said)
    assert said == file.read_bytes(), f"{file.name} differs (tests/report/README.md says how it is written anew)"


@pytest.mark.parametrize("output", GateFormat)
@pytest.mark.parametrize("name", REPORTS)
def test_every_format_takes_every_report(output: GateFormat, name: str) -> None:
    said = rendered(REPORTS[name], output)
    assert said.strip()
    assert said.endswith("\n")
    assert not said.endswith("\n\n")
    # Halves of characters could not be written, and control characters would reach a terminal.
    said.encode("utf-8")
    assert [char for char in said if (ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160] == []


def test_the_same_report_gives_the_same_text() -> None:
    for output in GateFormat:
        assert rendered(rich_report(), output) == rendered(rich_report(), output)


def test_schema_file_is_current() -> None:
    assert gate_json_schema() == SCHEMA, "run scripts/write_schema.py"


@pytest.mark.parametrize("name", REPORTS)
def test_json_is_valid(name: str) -> None:
    document = json.loads(rendered(REPORTS[name], GateFormat.JSON))
    jsonschema.validate(document, SCHEMA)
    assert document["schema_version"] == 1
    assert document["tool"]["name"] == "dsv4check"


def test_the_schema_refuses_what_is_missing() -> None:
    document = report_to_dict(rich_report())
    del document["launches"][0]["findings"][0]["fingerprint"]
    with pytest.raises(jsonschema.ValidationError, match="fingerprint"):
        jsonschema.validate(document, SCHEMA)


def same(value: Any, said: Any, path: str) -> None:
    """Every field of a record is said under its own name."""
    if is_dataclass(value):
        assert isinstance(said, dict), path
        for item in fields(value):
            if item.name == "edited":
                # The corrected command taken apart holds secrets.
                assert item.name not in said
                continue
            assert item.name in said, f"{path}.{item.name}"
            same(getattr(value, item.name), said[item.name], f"{path}.{item.name}")
    elif isinstance(value, dict):
        assert set(value) == set(said), path
        for key, item in value.items():
            same(item, said[key], f"{path}.{key}")
    elif isinstance(value, tuple):
        assert len(value) == len(said), path
        for index, (item, entry) in enumerate(zip(value, said, strict=True)):
            same(item, entry, f"{path}[{index}]")
    else:
        assert value == said, path


@pytest.mark.parametrize("name", REPORTS)
def test_json_loses_nothing(name: str) -> None:
    same(REPORTS[name], json.loads(rendered(REPORTS[name], GateFormat.JSON)), "report")


def test_counts_add_up() -> None:
    document = report_to_dict(rich_report())
    summary = document["summary"]
    launches = document["launches"]
    findings = [item for launch in launches for item in launch["findings"]] + document["own"]
    answers = ("pass", "warn", "fail", "not_checked", "other_models")
    assert [summary[name] for name in answers] == [2, 1, 2, 1, 1]
    assert sum(summary[name] for name in answers) == summary["launches"] == len(launches)
    active = sum(summary[name] for name in ("errors", "warnings", "notes"))
    assert active == sum(item["active"] for item in findings) == 7
    assert active + summary["ignored"] + summary["baseline"] == len(findings)
    assert summary["problems"] + summary["skipped"] == len(document["problems"])
    assert summary["stale"] == len(document["stale"])
