"""Edits whose value a problem does not have."""

from __future__ import annotations

from tests.launches import run_launch

# No round context and no smaller batch is enough for certain here, so those remedies have no value.
_TIGHT = (
    "-dp 8 --enable-expert-parallel --kv-cache-dtype fp8 --max-model-len 800000 --gpu-memory-utilization 0.95 "
    "--max-num-batched-tokens 512 --max-num-seqs 512"
)


def test_an_edit_without_a_value_is_not_offered() -> None:
    launch = {"vllm": "0.20.0", "gpu": "H200", "gpus": 8, "model": "deepseek-ai/DeepSeek-V4-Pro", "args": _TIGHT}
    (finding,) = (found for found in run_launch(launch, fixes=True).findings if found.rule == "ME005")
    words = [edit.shown for fix in finding.fixes for edit in (*fix.edits, *fix.also)]
    assert words
    assert not [word for word in words if "none" in word or "unknown" in word]


def test_a_remedy_with_a_value_is_offered() -> None:
    launch = {"vllm": "0.33.0", "gpu": "H200", "gpus": 8, "model": "deepseek-ai/DeepSeek-V4-Pro"}
    args = "-tp 8 --kv-cache-dtype fp8 --gpu-memory-utilization 0.8 --max-num-batched-tokens 16384"
    findings = [found for found in run_launch(launch | {"args": args}, fixes=True).findings if found.rule == "ME003"]
    assert any(fix.edits[0].name == "--max-model-len" for found in findings for fix in found.fixes)
