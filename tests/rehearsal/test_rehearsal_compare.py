"""The static report beside a rehearsal: agreement per stage, matching rules, overruled findings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsv4check.api import check
from dsv4check.engine.rule import load_rules
from dsv4check.rehearsal.compare import Agreement, Comparison, compare, remaining_findings
from dsv4check.rehearsal.protocol import RehearsedStage, StageResult, Status, complete
from dsv4check.report.model import Report
from dsv4check.report.rehearsal import RehearsalReport, rehearsal_blocks, rehearsal_to_dict
from dsv4check.report.text_format import render_blocks

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
ORDER = list(RehearsedStage)
AUTO = "DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got auto"


def static(flags: str = "", vllm: str = "0.29.0") -> Report:
    return check(f"vllm serve {FLASH} -tp 8 {flags}", gpu="H200", gpus=8, vllm=vllm, fixes=False)


def rehearsed(until: RehearsedStage, status: Status = Status.OK, **more: Any) -> Any:
    passed = [StageResult(stage, Status.OK) for stage in ORDER[: ORDER.index(until)]]
    return complete([*passed, StageResult(until, status, **more)], vllm="0.29.0", not_simulated=("kernels",))


def agreements(comparison: Comparison) -> dict[str, str]:
    return {
        item.stage.value: item.agreement.value for item in comparison.stages if item.agreement is not Agreement.OPEN
    }


def test_both_fail_at_the_same_stage() -> None:
    report = static()
    rehearsal = rehearsed(RehearsedStage.MODEL_INIT, Status.FAILED, exception="AssertionError", message=AUTO)
    comparison = compare(report, rehearsal, load_rules())
    assert agreements(comparison) == {"argparse": "agree", "engine-config": "agree", "model-init": "agree"}
    assert [(rule.rule, rule.fired) for rule in comparison.matching] == [("KV001", True)]


def test_both_pass() -> None:
    comparison = compare(static("--kv-cache-dtype fp8"), rehearsed(RehearsedStage.FLASHMLA), load_rules())
    assert not comparison.disagreements
    assert len(agreements(comparison)) == len(RehearsedStage)


def test_a_failure_that_no_rule_reported_is_a_disagreement_and_rules_with_its_text_are_named() -> None:
    rehearsal = rehearsed(RehearsedStage.MODEL_INIT, Status.FAILED, exception="AssertionError", message=AUTO)
    comparison = compare(static("--kv-cache-dtype fp8"), rehearsal, load_rules())
    assert [item.stage for item in comparison.disagreements] == [RehearsedStage.MODEL_INIT]
    assert ("KV001", False) in [(rule.rule, rule.fired) for rule in comparison.matching]


def test_a_finding_that_vllm_contradicts_is_overruled() -> None:
    report = static()
    comparison = compare(report, rehearsed(RehearsedStage.FLASHMLA), load_rules())
    assert [(item.stage.value, item.rules) for item in comparison.disagreements] == [("model-init", ("KV001",))]
    assert "KV001" not in {finding.rule for finding in remaining_findings(report, comparison)}


def test_an_unavailable_stage_overrules_nothing() -> None:
    report = static()
    rehearsal = complete([StageResult(RehearsedStage.ARGPARSE, Status.OK)], reason="no torch")
    comparison = compare(report, rehearsal, load_rules())
    assert agreements(comparison) == {"argparse": "agree"}
    assert remaining_findings(report, comparison) == report.findings


def test_a_flashmla_refusal_belongs_to_warm_up() -> None:
    report = static("--kv-cache-dtype fp8 --disable-hybrid-kv-cache-manager", vllm="0.25.1")
    said = "kv must have shape (num_blocks, page_block_size, h_kv, bytes_per_token)"
    rehearsal = rehearsed(RehearsedStage.FLASHMLA, Status.FAILED, exception="RuntimeError", message=said)
    comparison = compare(report, rehearsal, load_rules())
    assert not comparison.disagreements
    assert ("KV009", True) in [(rule.rule, rule.fired) for rule in comparison.matching]


@pytest.mark.parametrize("status", [Status.OK, Status.FAILED, Status.UNAVAILABLE])
def test_text_and_json_say_the_same(status: Status) -> None:
    report = static()
    rehearsal = rehearsed(RehearsedStage.MODEL_INIT, status, exception="AssertionError", message=AUTO, where="a.py:1:f")
    item = RehearsalReport(report, rehearsal, compare(report, rehearsal, load_rules()), "vLLM 0.29.0")
    text = render_blocks(rehearsal_blocks(item))
    data = json.loads(json.dumps(rehearsal_to_dict(item)))
    assert data["static"]["verdict"] == "fail"
    assert [stage["stage"] for stage in data["stages"]] == [stage.value for stage in RehearsedStage]
    assert data["not_simulated"] == ["kernels"]
    assert "- kernels" in text
    match status:
        case Status.FAILED:
            assert (data["verdict"], data["stage"], data["matching_rules"][0]["rule"]) == (
                "fail",
                "model-init",
                "KV001",
            )
            assert text.startswith("FAIL at model-init")
            assert "at: a.py:1:f" in text
        case Status.UNAVAILABLE:
            assert (data["verdict"], data["stage"], data["unavailable"]) == ("unavailable", None, AUTO)
            assert text.startswith("REHEARSAL UNAVAILABLE at model-init")
        case _:
            assert data["disagreements"] == ["model-init"]
            assert "1 disagreement with the rules" in text


def test_values_that_both_work_out_are_compared() -> None:
    report = static("--kv-cache-dtype fp8")
    assert report.resolution.kv_cache is not None
    pages = [
        {"page_bytes": layer.padded_page_bytes, "layers": layer.count} for layer in report.resolution.kv_cache.layers
    ]
    detail = {"runner": "v1", "cache_dtype": "fp8_ds_mla", "block_size": 256, "specs": pages}
    results = [
        StageResult(stage, Status.OK, detail=detail if stage is RehearsedStage.KV_CACHE_INIT else {}) for stage in ORDER
    ]
    decisions = {one.what: one.agrees for one in compare(report, complete(results), load_rules()).decisions}
    assert decisions == {"model runner": False, "KV dtype": True, "block size": True, "pages (layers x bytes)": True}


@pytest.mark.parametrize(
    "message",
    ["method: {said}", "1 validation error for SpeculativeConfig\nmethod\n  {said} [type=literal_error, input=1]"],
)
def test_the_frame_around_a_message_does_not_hide_the_rule(message: str) -> None:
    report = static('--kv-cache-dtype fp8 --speculative-config \'{"method":"dspark"}\'', vllm="0.23.0")
    (quoted,) = [finding.error for finding in report.errors if finding.rule == "SD002"]
    text = message.format(said=quoted.removeprefix("ValidationError: "))
    rehearsal = rehearsed(RehearsedStage.ENGINE_CONFIG, Status.FAILED, exception="ValidationError", message=text)
    matching = compare(report, rehearsal, load_rules()).matching
    assert ("SD002", True) in [(rule.rule, rule.fired) for rule in matching]
