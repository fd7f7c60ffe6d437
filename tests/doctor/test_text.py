"""What people read: text and Markdown."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4check.doctor import DoctorReport, DoctorRequest, examine
from dsv4check.doctor.records import BuildAnswer, FactDifference, FingerprintAnswer, Unread
from dsv4check.host.records import Observation, State
from dsv4check.installation.fingerprint import Quote
from dsv4check.report.doctor_formats import DoctorFormat, render
from tests.doctor.fakes import FakeLooks, tree_of

SNAPSHOTS = Path(__file__).parent / "snapshots"
FLASH = "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8"
BUILD = BuildAnswer(
    found=True,
    package="/opt/venv/lib/python3.12/site-packages/vllm",
    found_by="this Python",
    python="/opt/venv/bin/python",
    version="0.24.1.dev7+gabc1234",
    version_from="vllm/_version.py:31",
    commit="abc1234",
    commit_from="vllm/_version.py:34",
    nearest="0.24.0",
    learned=("kv_cache", "attention"),
    differs=(FactDifference("kv_cache.auto", '"fp8"', '"none"'), FactDifference("runner.v2", "true", "")),
    unread=(Unread("moe", "by running only"), Unread("env", "by running only"), Unread("pins", "no METADATA")),
)
ANSWERS = (
    FingerprintAnswer(
        "main-spec-quant-mode",
        "?",
        "none",
        "Only the name tells that the states are packed.",
        (Quote("vllm/models/deepseek_v4/attention.py", 610, "return   MLAAttentionSpec("),),
        fault=True,
        release="0.24.0",
        release_value="none",
        rules=("KV010",),
    ),
    FingerprintAnswer(
        "auto-kv-cache-dtype",
        "?",
        "fp8",
        "A launch without --kv-cache-dtype takes fp8.",
        (Quote("vllm/models/deepseek_v4/attention.py", 79, 'kv_cache_dtype = "fp8"'),),
        fault=False,
        release="0.24.0",
        release_value="refused",
        rules=("KV001",),
    ),
    FingerprintAnswer(
        "padded-query-heads", "?", "from-8", "It pads.", fault=False, release="0.24.0", release_value="from-8"
    ),
    FingerprintAnswer(
        "draft-sampling", "?", None, "", why="vllm/config/speculative.py: no such file", release="0.24.0"
    ),
)
OBSERVATIONS = (
    Observation("gpu-0", "gpu", State.OK, "GPU 0", "NVIDIA H200, SM 9.0"),
    Observation("gpu-1", "gpu", State.OK, "GPU 1", "NVIDIA H200, SM 9.0"),
    Observation("gpu-links", "gpu", State.OK, "NVLink", "1 of 1 pairs"),
    Observation(
        "driver-cuda",
        "driver",
        State.ERROR,
        "NVIDIA driver",
        "driver 535.1, CUDA 12.2",
        "CUDA 13.0, driver 580.65.06 or newer",
        "PyTorch stops with a message.",
        "Update the driver.",
        "NVML",
        {"rule": "HO001"},
    ),
    Observation("package-torch", "packages", State.OK, "torch", "2.11.0"),
    Observation("package-triton", "packages", State.WARNING, "triton", "3.5.0", "==3.6.0", "It is older."),
    Observation("limit-shm", "limits", State.OK, "shared memory", "64 GiB"),
    Observation("limit-files", "limits", State.NOTE, "open files", "1024", why="vLLM warns.", advice="ulimit -n 65535"),
    Observation("a", "extensions", State.UNKNOWN, "vllm/_C.abi3.so", why="No permission.", advice="Run as root."),
    Observation("b", "extensions", State.UNKNOWN, "vllm/_moe_C.abi3.so", why="No permission.", advice="Run as root."),
)
REPORT = DoctorReport(BUILD, ANSWERS, observations=OBSERVATIONS, notes=("something was assumed",))


def same_as_kept(name: str, text: str) -> None:
    path = SNAPSHOTS / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("format", "name"), [(DoctorFormat.TEXT, "report.txt"), (DoctorFormat.MARKDOWN, "report.md")])
def test_the_whole_report(format: DoctorFormat, name: str) -> None:
    same_as_kept(name, render(REPORT, format))


def test_problems_come_first_and_reasons_once() -> None:
    text = render(REPORT, DoctorFormat.TEXT)
    places = [
        text.index(word) for word in ("error driver-cuda", "warning package-triton", "torch: 2.11.0", "Not looked at")
    ]
    assert places == sorted(places)
    assert text.count("No permission") == 1
    assert text.startswith(
        "FAIL: a launch fails on this machine (1 error of the machine, 1 warning of the machine, 2 not"
    )


def test_without_vllm() -> None:
    report = DoctorReport(BuildAnswer(found=False, why="this Python has no vllm"))
    text = render(report, DoctorFormat.TEXT)
    assert text == (
        "PASS: nothing found that stops a launch\n\nBuild\n  no vLLM was looked at: this Python has no vllm\n\n"
        "Machine\n  nothing was looked at\n"
    )


def test_a_build_of_which_nothing_was_read() -> None:
    build = replace(BUILD, learned=(), nearest=None, differs=(), unread=(), version=None, commit=None)
    text = render(replace(REPORT, build=build), DoctorFormat.TEXT)
    assert "  version   says none" in text
    assert "  its code  was not read" in text


def test_many_differences_are_cut() -> None:
    many = tuple(FactDifference(f"kv_cache.fact{number}", "x" * 300, "y") for number in range(30))
    text = render(replace(REPORT, build=replace(BUILD, differs=many)), DoctorFormat.TEXT)
    assert "30 facts differ" in text
    assert "and 18 more (--format json)" in text
    assert "x" * 100 not in text


def test_the_launch_is_printed_as_serve_args_does(tmp_path: Path) -> None:
    from dsv4check.report.text_format import render as static

    report = examine(DoctorRequest(command=FLASH), looks=FakeLooks(tree_of(tmp_path)), env={})
    assert report.report is not None
    text = render(report, DoctorFormat.TEXT)
    assert text.endswith("\nLaunch, judged by this build's own code, as far as it was read\n\n" + static(report.report))
    assert text.startswith("FAIL: the launch stops at model-init (1 error of the launch, 2 warnings of the launch)\n")
    # What the launch meets is told with its line, the rest is counted.
    assert (
        "  auto-kv-cache-dtype = refused (KV001). It is refused.\n      vllm/models/deepseek_v4/attention.py:79:"
        in text
    )
    assert "not shown: 1 without one (--format json)" in text
    again = render(DoctorReport.from_dict(report.to_dict()), DoctorFormat.TEXT)
    assert "Launch\n  fail; see the JSON of the machine that looked at it\n" in again


def test_nothing_from_outside_is_taken_for_markup_or_control() -> None:
    build = replace(BUILD, version="1\x1b[31m|*x*<b>@me", package="/tmp/`x`")
    markdown = render(replace(REPORT, build=build), DoctorFormat.MARKDOWN)
    assert "\x1b" not in markdown
    assert "<b>" not in markdown
    assert "@me" not in markdown
    assert "\x1b" not in render(replace(REPORT, build=build), DoctorFormat.TEXT)


def test_every_format_ends_with_one_line_end() -> None:
    for format in DoctorFormat:
        assert render(REPORT, format).endswith("\n")
        assert not render(REPORT, format).endswith("\n\n")
