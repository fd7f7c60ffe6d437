"""The memory of a launch as JSON: nothing is lost, and it follows the published schemas."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsv4check.memory.records import Memory
from dsv4check.memory_report import build_memory_report
from dsv4check.report.memory_json import memory_report_to_dict, memory_to_dict, render
from dsv4check.report.memory_report_schema import memory_json_schema
from tests.report.memory import memory, report, too_large

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA: dict[str, Any] = json.loads((DOCS / "memory.schema.json").read_text(encoding="utf-8"))
REPORT_SCHEMA: dict[str, Any] = json.loads((DOCS / "report.schema.json").read_text(encoding="utf-8"))
UNKNOWN = memory(
    weights=None,
    plan=None,
    cache_bytes=None,
    blocks=None,
    max_model_len=None,
    in_flight_tokens=None,
    request_blocks=None,
    concurrency=None,
    log_tokens=None,
    longest_context=None,
    trade_off=(),
    fits=None,
    notes=(),
)
RECORDS = {"fits": memory(), "too large": too_large(), "unknown": UNKNOWN, "between": memory(fits=None)}


def test_schema_file_is_current() -> None:
    assert memory_json_schema() == SCHEMA, "run scripts/write_schema.py"


@pytest.mark.parametrize("record", [*RECORDS.values(), None], ids=[*RECORDS, "none"])
def test_documents_are_valid(record: Memory | None) -> None:
    whole = report(record)
    document = json.loads(render(build_memory_report(whole)))
    jsonschema.validate(document, SCHEMA)
    as_resolution = json.loads(json.dumps(whole.to_dict()))
    jsonschema.validate(as_resolution, REPORT_SCHEMA)
    assert as_resolution["resolution"]["memory"] == document["memory"]


def same(value: Any, said: Any, path: str) -> None:
    """Every field of a record is said under its own name; pairs of bounds as low and high."""
    if is_dataclass(value):
        assert isinstance(said, dict), path
        for item in fields(value):
            assert item.name in said, f"{path}.{item.name}"
            same(getattr(value, item.name), said[item.name], f"{path}.{item.name}")
    elif isinstance(value, tuple) and isinstance(said, dict):
        low, high = value
        assert (said["low"], said["high"]) == (low, high), path
    elif isinstance(value, tuple):
        assert len(value) == len(said), path
        for number, (one, other) in enumerate(zip(value, said, strict=True)):
            if path.endswith("kinds"):
                assert one == (other["kind"], other["layers"]), path
            else:
                same(one, other, f"{path}[{number}]")
    else:
        assert said == value, path


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_every_figure_of_the_record_is_in_the_json(record: Memory) -> None:
    same(record, memory_to_dict(record), "memory")


def test_sums_that_readers_need_are_there() -> None:
    stages = memory_to_dict(memory())["weights"]["stages"]
    assert [stage["total"] for stage in stages] == [
        stage["experts"] + stage["cut"] + stage["whole"] + stage["draft"] for stage in stages
    ]


def test_a_report_without_memory_is_no_pass() -> None:
    document = memory_report_to_dict(build_memory_report(report(None)))
    assert (document["verdict"], document["memory"]) == (None, None)
    assert document["not_evaluated"]["how"]


@pytest.mark.parametrize(
    ("record", "verdict"), [(memory(), "pass"), (too_large(), "fail"), (memory(fits=None), "warn"), (UNKNOWN, None)]
)
def test_verdict(record: Memory, verdict: str | None) -> None:
    assert memory_report_to_dict(build_memory_report(report(record)))["verdict"] == verdict


def test_an_earlier_stop_is_a_finding_of_the_report() -> None:
    # 0.24.0 refuses --kv-cache-dtype auto while it builds the model.
    item = build_memory_report(report(None, vllm="0.24.0", args="-tp 8"))
    document = memory_report_to_dict(item)
    assert document["verdict"] == "fail"
    assert [finding["rule"] for finding in document["findings"]] == ["KV001"]
    assert item.stopped is not None
    assert item.stopped.rule == "KV001"
