"""Logs of something else: another engine, a plugin that decides in vLLM's place, another model.

The texts of hazards are vLLM's and PyTorch's, so they turn up there as well, with other causes.
"""

from __future__ import annotations

import re
from typing import Final

from dsv4check.engine.rule import Rule
from dsv4check.triage.records import ErrorEvent, Stated

_ENGINES: Final = {
    "sglang": "SGLang",
    "vllm_ascend": "vLLM-Ascend, a plugin that decides in vLLM's place",
    "lmdeploy": "LMDeploy",
    "tensorrt_llm": "TensorRT-LLM",
    "ktransformers": "KTransformers",
}
_PACKAGE: Final = re.compile(rf"(?:^|/)({'|'.join(_ENGINES)})/")
_V4: Final = re.compile(r"deepseek[-_ .]?v4|\bv4[-_.](?:flash|pro)|dsv4|\bds[-_]?v?4\b", re.IGNORECASE)
_OTHER_MODEL: Final = re.compile(
    r"qwen|llama|\bglm|kimi|mistral|mixtral|gemma|minimax|gpt[-_]oss|\bphi[-_]?\d|nemotron|ernie|internlm|granite"
    r"|hunyuan|step[-_]?\d|mimo|deepseek[-_ ]?(?:v[23]|r1|coder|ocr|vl|llm|math|prover)",
    re.IGNORECASE,
)
_OF_ANY_MODEL: Final = frozenset({"host", "flags", "environment"})


def foreign(stated: Stated, error: ErrorEvent | None) -> str:
    """What else the log is about, in a sentence; empty for a DeepSeek-V4 launch of vLLM, or where nothing tells."""
    for frame in error.frames if error is not None else ():
        package = _PACKAGE.search(frame.path)
        if package is not None:
            return f"the traceback is of {_ENGINES[package[1]]}: only faults of flags and of the machine are looked for"
    architecture = stated.observed.get("architecture", "")
    if architecture and not _V4.search(architecture):
        return _other_model(architecture)
    name = stated.model or ""
    if _OTHER_MODEL.search(name) and not _V4.search(name):
        return _other_model(name)
    return ""


def rules_for_foreign(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules that hold whatever is served."""
    return tuple(rule for rule in rules if rule.area in _OF_ANY_MODEL)


def _other_model(name: str) -> str:
    return f"the log is of {name}, which is no DeepSeek-V4: only faults of flags and of the machine are looked for"
