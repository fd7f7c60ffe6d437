"""A triage answer as JSON: it follows the published schema and loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsv4check.report.triage_formats import TriageFormat, render
from dsv4check.report.triage_json import triage_to_dict
from dsv4check.report.triage_schema import triage_json_schema
from dsv4check.triage.answer import Outcome
from dsv4check.triage.records import ErrorEvent, LogReading
from tests.report.triage import ANSWERS, SAID, answer, certain, event, several, undecided, unknown

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA: dict[str, Any] = json.loads((DOCS / "triage.schema.json").read_text(encoding="utf-8"))


def test_schema_file_is_current() -> None:
    assert triage_json_schema() == SCHEMA, "run scripts/write_schema.py"


@pytest.mark.parametrize("name", ANSWERS)
def test_documents_are_valid(name: str) -> None:
    document = json.loads(render(ANSWERS[name](), TriageFormat.JSON))
    jsonschema.validate(document, SCHEMA)
    assert document["schema_version"] == 1


@pytest.mark.parametrize("key", ["outcome", "candidates", "reading", "stated", "milestone", "report"])
def test_the_schema_refuses_what_is_missing(key: str) -> None:
    document = triage_to_dict(certain())
    del document[key]
    with pytest.raises(jsonschema.ValidationError, match=key):
        jsonschema.validate(document, SCHEMA)


def test_an_answer_is_told_whole() -> None:
    document = triage_to_dict(certain())
    assert document["outcome"] == "explained"
    candidate = document["candidates"][0]
    assert (candidate["rule"], candidate["sureness"], candidate["fixed_in"]) == ("KV001", "certain", "0.30.0")
    assert candidate["found_by_checker"]
    # The very shape of a finding's fixes.
    finding = next(item for item in document["report"]["findings"] if item["rule"] == "KV001")
    assert candidate["fixes"] == finding["fixes"]
    assert candidate["fixes"][0]["verified"]
    assert candidate["evidence"][0]["line"]["number"] == 118
    error = document["error"]
    assert (error["kind"], error["message"], error["times"]) == ("ValueError", SAID, 8)
    assert [frame["function"] for frame in error["frames"]] == ["run_engine_core", "_resolve_dsv4_kv_cache_dtype"]
    assert document["reading"] == {
        "sources": ["vllm.log"],
        "size": 41_000,
        "lines": 318,
        "runs": 1,
        "run_number": 1,
        "first": document["reading"]["first"],
    }
    assert document["reading"]["first"]["text"] == "vLLM API server version 0.24.0"


def test_without_a_known_launch_there_is_no_report_and_nothing_checked() -> None:
    document = triage_to_dict(undecided())
    assert document["report"] is None
    assert [item["fixes"] for item in document["candidates"]] == [[], []]
    assert [item["found_by_checker"] for item in document["candidates"]] == [False, False]
    assert document["candidates"][0]["remedies"] == ["vLLM >=0.26.0", "another GPU: H200 or B200"]
    assert document["error"]["caused_by"]["message"] == "'sm_120'"
    assert document["apart"]
    assert document["missing"] == [
        "The output of nvidia-smi.",
        "The vLLM version: the log has no banner.",
        "The vLLM version.",
    ]


def test_nearest_rules_of_an_unknown_error() -> None:
    document = triage_to_dict(unknown())
    assert [item["rule"] for item in document["nearest"]] == ["KV001", "PK001"]
    assert document["candidates"] == []


def test_several_starts() -> None:
    document = triage_to_dict(several())
    assert (document["reading"]["runs"], document["reading"]["run_number"]) == (3, 3)
    assert document["notes"] == ["vllm.log: 2 lines were longer than 64 KiB."]


def test_a_chain_of_causes_without_end_is_cut() -> None:
    error: ErrorEvent | None = None
    for number in range(3000):
        error = event(message=f"number {number}", caused_by=error, frames=())
    document = json.loads(render(answer(error=error, outcome=Outcome.UNKNOWN), TriageFormat.JSON))
    jsonschema.validate(document, SCHEMA)
    depth, item = 0, document["error"]
    while item is not None:
        depth, item = depth + 1, item["caused_by"]
    assert depth == 21


def test_names_that_are_no_utf8_can_be_written() -> None:
    made = certain()
    reading = LogReading(("caf\udce9.log",), 1, 1, made.reading.runs, "", ("half \ud83d of one",))
    for output in TriageFormat:
        render(answer(reading=reading, candidates=made.candidates), output).encode("utf-8")
