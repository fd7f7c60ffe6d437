"""The gate's report as text."""

from __future__ import annotations

import io

from rich.console import Console

from dsv4check.gate.records import GateReport
from dsv4check.report.gate_text import gate_blocks
from dsv4check.report.rich_format import print_blocks
from dsv4check.report.text_format import render_blocks
from tests.report.gate import clean_report, empty_report, finding, fix, launch, rich_report


def text(report: GateReport, *, verbose: bool = False) -> str:
    return render_blocks(gate_blocks(report, verbose=verbose))


def test_a_launch_without_findings_is_one_line() -> None:
    assert text(clean_report()).splitlines() == [
        "deploy/flash.sh:3: pass  line 3 (deepseek-ai/DeepSeek-V4-Flash)",
        "z.sh:3: pass  line 1 (deepseek-ai/DeepSeek-V4-Flash, vLLM 0.24.0, 4 x H200)",
        "",
        "2 files, 2 launches: 2 pass",
        "no findings",
    ]


def test_nothing_at_all() -> None:
    assert text(empty_report()) == "0 files, 0 launches\nno findings\n"


def test_a_finding() -> None:
    report = GateReport((launch(verdict="fail", findings=(finding(fixes=(fix(note="only fp8"),)),)),), files=1)
    assert text(report).splitlines()[:7] == [
        "deploy/flash.sh:3: fail  line 3 (deepseek-ai/DeepSeek-V4-Flash, vLLM 0.24.0, 4 x H200)",
        "  deploy/flash.sh:3:12: error KV001 auto-on-packed-layout [model-init]",
        "    --kv-cache-dtype is `auto`, which vLLM 0.24.0 maps to nothing for packed fp8_ds_mla states.",
        "    vLLM prints: DeepseekV4 only supports fp8 kv-cache format for now, got auto",
        "    at: vllm",
        "    fix: --kv-cache-dtype fp8",
        "      only fp8",
    ]


def test_quiet_findings_are_counted_and_shown_with_verbose() -> None:
    reason = "a fork of ours takes it"
    assert reason not in text(rich_report())
    assert "1 ignored, 2 in the baseline" in text(rich_report())
    lines = text(rich_report(), verbose=True).splitlines()
    assert f"  compose.yaml:12:7: error KV001 auto-on-packed-layout [model-init] (ignored: {reason})" in lines
    assert sum(line.endswith("(in the baseline)") for line in lines) == 2


def test_verbose_adds_other_models_facts_and_notes() -> None:
    short, long = text(rich_report()), text(rich_report(), verbose=True)
    for said in (
        "Deployment/llama",
        "vllm 0.24.0 (file, line 2)",
        "note: the words behind",
        "to know memory: give --gpu",
    ):
        assert said not in short
        assert said in long


def test_problems_name_line_and_reason() -> None:
    lines = text(rich_report()).splitlines()
    assert lines[lines.index("Not understood") + 1] == "  broken.yaml:7: mapping values are not allowed here"
    assert lines[lines.index("Skipped") + 1] == "  charts/templates/x.yaml:4: a template to be rendered first"
    assert "  deploy/old.sh KV001 line 3" in lines


def test_paths_stay_as_they_are() -> None:
    report = GateReport((launch(path="two  blanks/" + "long" * 60 + ".sh"),))
    assert text(report).startswith("two  blanks/" + "long" * 60 + ".sh:3: pass  line 3")


def test_rich_says_the_same() -> None:
    output = io.StringIO()
    print_blocks(gate_blocks(rich_report(), verbose=True), Console(file=output, width=110, no_color=True))
    said = " ".join(output.getvalue().split())
    for word in ("KV001", "Not understood", "(not verified)", "7 files, 7 launches"):
        assert word in said
