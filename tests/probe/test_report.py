"""What people and programs read of a probe."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsv4check.probe import report
from dsv4check.probe.node import ProbeResult
from dsv4check.probe.records import Check, CheckStatus, DeviceResult, Layouts, Verdict
from dsv4check.report.probe_schema import probe_json_schema
from dsv4check.report.text_format import render_blocks
from tests.probe.layouts import packed_layouts

STATIC: dict[str, Any] = {
    "verdict": "pass",
    "stage": None,
    "subject": "deepseek-ai/DeepSeek-V4-Flash on 8 x H200 (SM90), vLLM 0.33.0",
    "release": "0.33.0",
    "findings": [],
    "cache": {
        "requested_dtype": "fp8",
        "resolved_dtype": "fp8_ds_mla",
        "layout": "fp8_ds_mla",
        "block_size": 256,
        "bytes_per_state": 584,
    },
    "attention": {
        "backend": "FLASHMLA_SPARSE_DSV4",
        "class": "DeepseekV4FlashMLAAttention",
        "local_q_heads": 8,
        "padded_q_heads": 64,
    },
}
MADE = Check("caches by vLLM's own code", CheckStatus.OK, "vLLM 0.33.0 planned 117,785 blocks")
RAN = Check("kernel: swa", CheckStatus.OK, "max error 1.95e-03", 0.1, {"inside": True})
NOT_RUN = Check("kernel: sparse decode", CheckStatus.SKIPPED, "the kernel was not run: PyTorch sees no CUDA GPU")
CRASHED = Check("kernel: swa", CheckStatus.CRASHED, "the child was killed by SIGSEGV (during: kernel: swa)")


def result(*checks: Check, origin: Check = MADE, layouts: Layouts | None = None, **more: Any) -> ProbeResult:
    devices = (DeviceResult("GPU", checks, 1.0, 5.0, **more),) if checks or more else ()
    return ProbeResult(STATIC, layouts or packed_layouts(), origin, devices, "vLLM 0.33.0 (/x)", 9.0)


def text(item: ProbeResult) -> str:
    return render_blocks(report.probe_blocks(item))


@pytest.mark.parametrize(
    ("item", "verdict", "line"),
    [
        (result(RAN), "pass", "PASS: the caches went through the kernel, and its numbers are the reference's"),
        (result(NOT_RUN), "no-gpu", "KERNEL NOT RUN: everything up to the kernel goes through"),
        (result(CRASHED), "fail", "FAIL: kernel: swa crashed on GPU; the kernel was not run"),
        (result(unavailable="python has no working PyTorch"), "unavailable", "PROBE UNAVAILABLE"),
        (
            result(RAN, origin=replace(MADE, status=CheckStatus.FAILED)),
            "fail",
            "FAIL: vLLM does not make this launch's caches",
        ),
        (result(replace(RAN, status=CheckStatus.FAILED), RAN), "fail", "FAIL: kernel: swa failed on GPU"),
        (result(RAN, NOT_RUN), "no-gpu", "KERNEL NOT RUN IN FULL"),
    ],
)
def test_headlines_and_verdicts(item: ProbeResult, verdict: str, line: str) -> None:
    assert item.verdict is Verdict(verdict)
    assert report.headline(item).startswith(line)
    assert text(item).startswith(line)


def test_a_probe_without_a_device_is_no_pass() -> None:
    assert result().verdict is Verdict.UNAVAILABLE


def test_the_text_has_the_static_check_first_then_caches_and_checks() -> None:
    shown = text(result(NOT_RUN))
    places = [shown.index(part) for part in ("Static check: PASS", "Caches", "GPU: 1.0 s of checks", "kernel: sparse")]
    assert places == sorted(places)
    assert "fp8 -> fp8_ds_mla (packed, 584 bytes a state)" in shown
    assert "76,032 x 584 x 1" in shown


def test_unavailable_says_how_to_get_there() -> None:
    shown = " ".join(text(result(unavailable="python has no working PyTorch")).split())
    assert "name an interpreter that has it (--python), or `pip install 'dsv4check[probe]'`" in shown


def test_control_characters_of_a_child_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in text(result(replace(CRASHED, message="\x1b[31mred")))


@pytest.mark.parametrize("item", [result(RAN), result(NOT_RUN), result(CRASHED), result(), result(unavailable="x")])
def test_documents_keep_to_the_schema(item: ProbeResult) -> None:
    document = json.loads(report.render(item))
    jsonschema.validate(document, probe_json_schema())
    assert document["verdict"] == item.verdict.value
    assert document["kernel_ran"] is any(check.data for device in item.devices for check in device.checks)


def test_the_published_schema_is_current() -> None:
    published = Path(__file__).parents[2] / "docs" / "probe.schema.json"
    assert json.loads(published.read_text(encoding="utf-8")) == probe_json_schema()
