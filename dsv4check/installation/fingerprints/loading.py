"""Experts and their weights: what an exchange carries, which limit a kernel gets, what Quark's names become."""

from __future__ import annotations

import ast
from typing import Final

from dsv4check.learning.source import LearningError, Source

from .kit import Decision, Place, fingerprint, function, having, mentions, refusing

_EXCHANGE: Final = "model_executor/layers/fused_moe/all2all_utils.py"
_TRTLLM: Final = "model_executor/layers/fused_moe/experts/trtllm_fp8_moe.py"
_QUANTIZATION: Final = "config/quantization.py"
_RESOLVERS: Final = ("resolve_quantization_config", "resolve_online_quant_config")
_AMD_MTP: Final = ("models/deepseek_v4/amd/mtp.py", "model_executor/models/deepseek_v4_mtp.py")
_LIMIT: Final = "gemm1_clamp_limit"


def _one_sided(source: Source) -> Decision:
    tree = source.tree(_EXCHANGE)
    refused = [item for item in refusing(tree, "flashinfer_nvlink_one_sided") if isinstance(item, ast.Raise)]
    for item in refused:
        if having(item, "supports nvfp4 activation quantization"):
            return "nvfp4", [(_EXCHANGE, item)]
    for item in refused:
        if having(item, "DeepSeek Blockwise FP8 (E4M3"):
            return "fp8-blocks", [(_EXCHANGE, item)]
    for item in refused:
        if having(item, "dispatch supports nvfp4, mxfp8"):
            return "nvfp4-mxfp8-bf16", [(_EXCHANGE, item)]
    raise LearningError(f"{_EXCHANGE}: what flashinfer_nvlink_one_sided refuses")


def _clamp(source: Source) -> Decision:
    """Does FlashInfer's TRT-LLM kernel for FP8 experts get the limit of SwiGLU?"""
    passed = [
        (_TRTLLM, item.value)
        for node in ast.walk(source.tree(_TRTLLM))
        if isinstance(node, ast.Call)
        for item in node.keywords
        if item.arg == _LIMIT
    ]
    if passed:
        return "passed", passed
    called = mentions(source.tree(_TRTLLM), "flashinfer_trtllm_fp8_block_scale_moe", "trtllm_fp8_block_scale_moe")
    return "dropped", [(_TRTLLM, item) for item in called[-1:]]


def _combined(source: Source) -> Decision:
    name = next((item for item in _RESOLVERS if source.find(_QUANTIZATION, item) is not None), _RESOLVERS[0])
    node = function(source, _QUANTIZATION, name)
    refused = refusing(node, "quantization_config is only supported when quantization")
    if refused:
        return "refused", [(_QUANTIZATION, item) for item in refused]
    asked = [item for item in ast.walk(node) if isinstance(item, ast.If) and mentions(item.test, "quantization")]
    return "combined", [(_QUANTIZATION, item) for item in asked[:1]]


def _quark(source: Source) -> Decision:
    path = source.first(*_AMD_MTP)
    used: list[Place] = [(path, item) for item in mentions(source.tree(path), "align_mtp_quant_config")]
    if used:
        return "aligned", used
    return "as-written", [(path, source.get(path, "DeepSeekV4MTP"))]


FINGERPRINTS: Final = (
    fingerprint(
        "one-sided-exchange",
        "Which activations does --all2all-backend flashinfer_nvlink_one_sided carry?",
        {
            "nvfp4": "NVFP4 only, which no V4 kernel of such a build produces.",
            "nvfp4-mxfp8-bf16": "NVFP4, MXFP8 and BF16, but no FP8 in blocks.",
            "fp8-blocks": "FP8 in blocks, too.",
        },
        _one_sided,
        good=("fp8-blocks",),
        rules=("MO021",),
    ),
    fingerprint(
        "trtllm-fp8-clamp",
        "Does FlashInfer's TRT-LLM kernel for FP8 experts get the checkpoint's SwiGLU limit?",
        {
            "dropped": "It does not: FP8 experts of checkpoints with swiglu_limit write garbled text.",
            "passed": "It does.",
        },
        _clamp,
        good=("passed",),
        rules=("MO026",),
        references=("vllm#42855", "vllm#53411"),
    ),
    fingerprint(
        "quantization-config-beside-method",
        "May --quantization-config stand beside a checkpoint's own method?",
        {
            "refused": "It may not: the launch ends in a ValueError.",
            "combined": "It may; the two are combined.",
        },
        _combined,
        good=("combined",),
        rules=("QN014",),
    ),
    fingerprint(
        "quark-mtp-prefix",
        "Are Quark's lists of the draft's layers read under the names vLLM gives those layers?",
        {
            "as-written": "They are not: layers that Quark excludes are quantised all the same.",
            "aligned": "They are.",
        },
        _quark,
        good=("aligned",),
        rules=("WT006",),
    ),
)
