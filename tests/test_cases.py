"""Real launches: reported failures and known-good commands, with the verdict each should get."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from dsv4check.data import load_yaml
from dsv4check.errors import InputError
from dsv4check.report.model import Report, Verdict
from tests.conftest import CORPUS
from tests.launches import run_launch

CASES: list[dict[str, Any]] = [
    case for path in sorted(CORPUS.glob("cases*.yaml")) for case in load_yaml(path.read_text(encoding="utf-8"))
]

# Launches with another verdict than their case has, and why.
_NVFP4_DRAFT = (
    "from 0.32.0 on vLLM leaves the experts that the checkpoint's ignore list names in MXFP4, the draft's among them "
    "(models/deepseek_v41/quant_config.py): the draft is built as it is stored"
)
_ON_THE_MACHINE = "nothing of the launch shows it; triage knows its text ({})"
EXPLAINED: dict[str, str] = {
    "rcp33-flash-nvfp4-b200-tep8-mtp2": _NVFP4_DRAFT,
    "rcp33-pro-nvfp4-b200-tep8-cutedsl-mtp2": _NVFP4_DRAFT,
    "spec-14-w4a16-optional-scales": "only the checkpoint's index tells; with it on disk WT018 names the scales",
    "hopper-phase1-614-pro-v0260": "only the V2 runner pads requests, which this launch does not use: nothing in the "
    "code leads to the report",
    "b200-v0280-bos-only-v2-default": "one open report without a cause in the code",
    "wrapper-default-block-size-16-v033": "proven by the code: a block of 16 tokens holds no C128 state (KV018)",
    "ops-tilelang-nvcc-header-mismatch": _ON_THE_MACHINE.format("HO008"),
    "ops-nvcc-h100-021": _ON_THE_MACHINE.format("HO008"),
    "triage-gh200-0220-96gb": "5.4 GiB are left where 6.7 GiB are needed: inside the range of the estimate",
    "triage-pro6000-0250-load-fault": "one report of a FlashInfer older than the pin: a warning (PK007), no proof",
    "triage-h20-v4pro-mlir": "the versions of the packages' parts are not stated; triage knows its text (PK013)",
}

# Known-good launches that rightly get an error, with the proof.
PASS_WITH_ERROR: dict[str, str] = {
    "rcp33-pro0813-h200-dep8-dspark7": "a recipe that no GPU of 141 GB can start: with DP 8 each of them holds "
    "122.4 GiB of the target's weights and 6 GiB of the draft's, and vLLM's own planner refuses 800,000 tokens for the "
    "10.97 GiB that are left before the draft and any other cost (13.12 GiB needed; rehearsed)",
}


def _launch(case: dict[str, Any]) -> dict[str, Any]:
    extra = case.get("extra") or {}
    keys = ("config_overrides", "config_like", "packages", "gpu_memory_gib")
    launch = {key: case[key] for key in ("vllm", "gpu", "gpus", "nodes", "model", "args", "env")}
    return launch | {key: extra[key] for key in keys if key in extra}


def _report(case: dict[str, Any]) -> Report | None:
    try:
        return run_launch(_launch(case))
    except InputError:
        return None


def test_no_known_good_launch_gets_an_error(figures: Callable[[str], None]) -> None:
    alarms = {}
    for case in CASES:
        if case["expect"]["verdict"] != "pass":
            continue
        report = _report(case)
        assert report is not None, case["id"]
        if report.errors and case["id"] not in PASS_WITH_ERROR:
            alarms[case["id"]] = [(finding.rule, finding.message) for finding in report.errors]
    passes = sum(case["expect"]["verdict"] == "pass" for case in CASES)
    figures(f"known-good launches: {passes} checked, {len(alarms)} with an error finding")
    assert not alarms, alarms


def test_agreement_on_static_cases(figures: Callable[[str], None]) -> None:
    agreed: dict[str, Counter[bool]] = defaultdict(Counter)
    misses, alarms = [], []
    for case in CASES:
        if case["decidable"] != "static":
            continue
        report = _report(case)
        verdict = report.verdict.value if report is not None else None
        expected = case["expect"]["verdict"]
        agreed[case["expect"]["about"]][verdict == expected] += 1
        if verdict == expected or report is None:
            continue
        fired = ", ".join(finding.rule for finding in report.findings)
        row = f"{case['id']} [{case['confidence']}]: expected {expected}, got {verdict} ({fired})"
        (misses if expected == "fail" else alarms if verdict == "fail" else misses).append(row)
    lines = [f"  {about}: {counts[True]} of {sum(counts.values())}" for about, counts in sorted(agreed.items())]
    right = sum(counts[True] for counts in agreed.values())
    total = sum(sum(counts.values()) for counts in agreed.values())
    lines += [f"  differs: {row}" for row in misses + alarms]
    figures("\n".join([f"static cases: {right} of {total} verdicts agree, by subject:", *lines]))
    alarms = [row for row in alarms if row.split(maxsplit=1)[0] not in PASS_WITH_ERROR]
    assert not alarms, alarms
    high = [row for row in misses if "[high]: expected fail" in row]
    assert not high, high


def test_every_case_agrees_or_has_a_reason(figures: Callable[[str], None]) -> None:
    """All of them, also those that only an installation or a run could settle."""
    differ = {}
    for case in CASES:
        report = _report(case)
        if report is None or report.verdict.value != case["expect"]["verdict"]:
            got = None if report is None else report.verdict.value
            differ[case["id"]] = f"{case['id']}: expected {case['expect']['verdict']}, got {got}"
    reasons = EXPLAINED | PASS_WITH_ERROR
    lines = [f"  {text}: {reasons.get(name, 'unexplained')}" for name, text in differ.items()]
    figures("\n".join([f"all cases: {len(CASES) - len(differ)} of {len(CASES)} verdicts agree; the rest:", *lines]))
    assert set(differ) == set(reasons)


def test_fixes_of_high_confidence_failures() -> None:
    """For failures that are certain, one of the offered fixes is a good one by the case's own list."""
    poor = []
    for case in CASES:
        expect = case["expect"]
        if case["decidable"] != "static" or expect["verdict"] != "fail" or case["confidence"] != "high":
            continue
        report = run_launch(_launch(case), fixes=True)
        assert report.verdict is Verdict.FAIL, case["id"]
        offered = [edit.text for finding in report.errors for fix in finding.fixes for edit in (*fix.edits, *fix.also)]
        if not any(finding.fixes for finding in report.errors):
            poor.append((case["id"], offered, expect["fix_any"]))
    assert not poor, poor
