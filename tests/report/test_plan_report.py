"""A plan as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsv4check.planning.records import Plan
from dsv4check.report.plan_json import render
from dsv4check.report.plan_schema import plan_json_schema
from dsv4check.report.plan_text import plan_blocks
from dsv4check.report.text_format import render_blocks
from tests.planning.plans import FLASH, PRO, planned

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs/plan.schema.json").read_text(encoding="utf-8"))


def one_node() -> Plan:
    return planned(FLASH, "H200", "0.24.0", 131072, 320)


def two_nodes() -> Plan:
    return planned(PRO, "H100", "0.33.0", 131072, 32)


def nothing() -> Plan:
    return planned(PRO, "H100", "0.33.0", 1048576, 5000)


def refused() -> Plan:
    return planned(FLASH, "L40S", "0.33.0", 8192, 1)


def text_of(plan: Plan) -> str:
    return " ".join(render_blocks(plan_blocks(plan)).split())


def test_schema_file_is_current() -> None:
    assert plan_json_schema() == SCHEMA, "run scripts/write_schema.py"


@pytest.mark.parametrize("make", [one_node, two_nodes, nothing, refused])
def test_documents_are_valid(make: Any) -> None:
    plan = make()
    document = json.loads(render(plan))
    jsonschema.validate(document, SCHEMA)
    assert (document["verdict"] == "fail") == (plan.best is None)
    assert [item["gpus"] for item in document["shortfalls"]] == [item.gpus for item in plan.shortfalls]
    if plan.best is not None:
        assert document["best"]["commands"] == list(plan.best.texts)
        capacity = document["best"]["capacity"]
        assert capacity["requests"] == capacity["engines"] * capacity["requests_of_an_engine"]
        assert capacity["requests"] >= plan.wanted.concurrency


def test_the_text_has_the_command_and_both_figures() -> None:
    plan = one_node()
    text = text_of(plan)
    assert text.startswith("4 GPUs: DP 4 + EP serves 320 requests of 131,072 tokens at once")
    assert "Command, checked: no error, no warning" in text
    assert "--kv-cache-dtype fp8" in text
    assert "in each of 4 data-parallel engines" in text
    assert "in vLLM's log, as if all were prefilled at once" in text
    assert "1 GPU: has no room for a KV cache" in text
    assert "2 GPUs: DP 2 + EP holds 188 of 320 requests" in text


def test_several_nodes_are_told_what_to_run() -> None:
    text = text_of(two_nodes())
    assert "Command of the first node" in text
    assert "Command of node 1" in text
    assert "Put the first node's address for HEAD_NODE_IP on every node" in text
    assert "runs the same with its own --node-rank and --headless" in text


def test_nothing_serves() -> None:
    text = text_of(nothing())
    assert text.startswith("NOTHING SERVES 5,000 requests of 1,048,576 tokens at once, up to 2 nodes of 8 GPUs: ")
    assert "How far each number of GPUs gets" in text


def test_one_error_is_said_once() -> None:
    text = text_of(refused())
    assert "1, 2, 4, 8, 16 GPUs: fails at warmup: GA002" in text
    assert text.count("GA002") == 1
    assert "`dsv4check serve-args` says whether another package" in text


def test_warnings_are_shown_in_full() -> None:
    plan = planned(FLASH, "H200", "0.33.0", 131072, 32, ("--attention-backend", "TRITON_MLA"))
    assert plan.best is not None
    assert plan.best.warnings
    text = text_of(plan)
    assert "no error, 1 warning" in text
    assert plan.best.warnings[0].rule in text


def test_secrets_are_masked() -> None:
    plan = planned(FLASH, "H200", "0.33.0", 131072, 32, ("--api-key", "sk-secret"))
    assert "sk-secret" not in text_of(plan) + render(plan)


def test_a_pipeline_names_its_fullest_stage() -> None:
    plan = two_nodes()
    assert plan.best is not None
    assert "the fullest" in text_of(replace(plan, alternatives=()))
