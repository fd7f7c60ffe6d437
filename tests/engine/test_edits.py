"""Edits whose value a problem does not have."""

from __future__ import annotations

from tests.launches import run_launch


def edits_of(rule: str, **launch: object) -> list[list[str]]:
    findings = [found for found in run_launch(launch, fixes=True).findings if found.rule == rule]
    assert findings
    return [[edit.text for edit in fix.edits] for found in findings for fix in found.fixes]


def test_an_edit_without_a_value_is_not_offered() -> None:
    # No round context and no smaller batch is enough for certain here, so those remedies have no value.
    args = (
        "-dp 8 --enable-expert-parallel --kv-cache-dtype fp8 --max-model-len 800000 --gpu-memory-utilization 0.95 "
        "--max-num-batched-tokens 512 --max-num-seqs 512"
    )
    offered = edits_of("ME005", vllm="0.20.0", gpu="H200", gpus=8, model="deepseek-ai/DeepSeek-V4-Pro", args=args)
    assert offered
    assert not [text for edits in offered for text in edits if "none" in text or "unknown" in text]


def test_an_edit_with_a_value_is_offered() -> None:
    args = "-tp 8 --kv-cache-dtype fp8 --max-num-batched-tokens 32768"
    offered = edits_of("ME003", vllm="0.33.0", gpu="H200", gpus=8, model="deepseek-ai/DeepSeek-V4-Pro", args=args)
    assert ["--max-num-batched-tokens 4096"] in offered


def test_both_memory_knobs_may_be_turned_at_once() -> None:
    args = "-tp 8 --kv-cache-dtype fp8 --gpu-memory-utilization 0.8 --max-num-batched-tokens 16384"
    offered = edits_of("ME003", vllm="0.33.0", gpu="H200", gpus=8, model="deepseek-ai/DeepSeek-V4-Pro", args=args)
    assert ["--gpu-memory-utilization 0.89", "--max-num-batched-tokens 2048"] in offered
