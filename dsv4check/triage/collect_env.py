"""Packages and variables around a launch: vLLM's ``collect_env``, lists of pip, uv and conda, warnings in the log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dsv4check.inputs.packages import normalise_name
from dsv4check.report.masking import masked_env
from dsv4check.triage.records import Fact, LogReading, Run
from dsv4check.triage.version_banner import place

_VERSION: Final = r"(?P<version>\d{1,6}(?:\.\d{1,9}){0,5}[\w.+!-]{0,60})"
_PINNED: Final = re.compile(
    rf"^[\s>|]*\[(?:pip3?|uv)\] (?P<name>[A-Za-z0-9][\w.-]{{0,80}}) ?== ?{_VERSION}", re.MULTILINE
)
_CONDA: Final = re.compile(rf"^[\s>|]*\[conda\] (?P<name>[A-Za-z0-9][\w.-]{{0,80}})\s{{1,60}}{_VERSION}", re.MULTILINE)
KNOWN: Final = (
    "torch|torchvision|torchaudio|triton|triton-kernels|transformers|tokenizers|flashinfer-python|flashinfer-cubin"
    "|flashinfer-jit-cache|flashinfer|deep[-_]gemm|deep[-_]ep|flash[-_]mla|flash-attn|flash-attn-4|tilelang|nixl"
    "|nixl-cu1[23]|lmcache|mooncake-transfer-engine|nvidia-cutlass-dsl|nvidia-cudnn-frontend|nvidia-nccl-cu1[23]"
    "|apache-tvm-ffi|quack-kernels|xgrammar|llguidance|ray|compressed-tensors|numpy|pydantic|fastapi|safetensors"
    "|huggingface[-_]hub|vllm-ascend|instanttensor|fastsafetensors|runai-model-streamer"
)
_COLUMN: Final = re.compile(rf"^[ \t>|]*(?P<name>{KNOWN})[ \t|]{{2,60}}{_VERSION}", re.MULTILINE | re.IGNORECASE)
_NAME_BEFORE: Final = re.compile(rf"(?<![\w.-])(?P<name>{KNOWN}) ?\Z", re.IGNORECASE)
_VERSION_BEHIND: Final = re.compile(rf" ?{_VERSION}")
_TORCH: Final = re.compile(rf"^[\s>|]*PyTorch version\s*: *{_VERSION}", re.MULTILINE)
_SECTION: Final = re.compile(r"^[ \t>|]*(?:=+\s*\n[ \t>|]*)?Environment Variables[ \t]*\n[ \t>|=]*\n?", re.MULTILINE)
_OLD_SECTION: Final = re.compile(r"^[ \t>|]*(?=(?:NVIDIA|VLLM|CUDA|NCCL|PYTORCH|TORCH)[A-Z_]*=)", re.MULTILINE)
_TOPOLOGY: Final = "GPU Topology"
"""Stands in front of the variables in the output of older releases, which has no heading for them."""
_ASSIGNED: Final = re.compile(r"[ \t>|]*(?P<name>[A-Z][A-Z0-9_]{2,80})=(?P<value>[^\n]{0,400})(?:\n|$)")
_UNKNOWN: Final = re.compile(r"Unknown vLLM environment variable detected: (?P<name>VLLM_[A-Z0-9_]{1,80})")
_EXPORTED: Final = re.compile(
    r"^[ \t>|$#]*(?:export|ENV)[ \t]+(?P<name>[A-Z][A-Z0-9_]{2,80})[= ]"
    r"(?P<value>\"[^\"\n]{0,400}\"|'[^'\n]{0,400}'|[^\s;&#\n]{0,400})",
    re.MULTILINE,
)
RELEVANT: Final = re.compile(
    r"(?:VLLM_|NCCL_|GLOO_|PYTORCH_(?:CUDA_|HIP_)?ALLOC|TORCH_CUDA_ARCH|TORCH_NCCL|FLASHINFER_|DG_|DEEP_GEMM|DEEP_EP|NVSHMEM_|UCX_"
    r"|NIXL_|LMCACHE_|MOONCAKE_|TILELANG_|TRITON_|CUDA_(?:VISIBLE|DEVICE|LAUNCH|HOME)|HIP_VISIBLE|ASCEND_|HCCL_|HF_HUB_"
    r"|HF_HOME|SAFETENSORS_|PYTHONHASHSEED|OMP_NUM_THREADS|LD_PRELOAD|NVTE_|AITER_|ROCR_|ZE_AFFINITY)"
)
_BY_VLLM: Final = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "CUDA_MODULE_LOADING": "LAZY",
    "NCCL_CUMEM_ENABLE": "0",
    "CUDA_HOME": None,
}
"""Variables that vLLM or PyTorch set themselves before ``collect_env`` lists them; None: whatever the value."""
_MOST: Final = 500


def package_facts(reading: LogReading) -> Iterator[Fact]:
    """Packages and their versions, strongest kind of text first."""
    head = reading.head
    for how, pattern in (("collect_env", _PINNED), ("collect_env", _CONDA), ("package list", _COLUMN)):
        for count, match in enumerate(pattern.finditer(head)):
            if count >= _MOST:
                break
            name = normalise_name(match["name"])
            if name != "vllm":
                yield Fact(f"package {name}", match["version"].rstrip(".-"), how, place(reading, match.start()))
    yield from _pinned(reading)
    torch = _TORCH.search(head)
    if torch is not None:
        yield Fact("package torch", torch["version"], "collect_env", place(reading, torch.start()))


def _pinned(reading: LogReading) -> Iterator[Fact]:
    """``name==version`` anywhere: in a command of pip, in a sentence."""
    head, at, found = reading.head, -1, 0
    while found < _MOST and (at := head.find("==", at + 1)) >= 0:
        name = _NAME_BEFORE.search(head[max(0, at - 60) : at])
        version = _VERSION_BEHIND.match(head, at + 2) if name is not None else None
        if name is not None and version is not None:
            found += 1
            text = version["version"].rstrip(".-")
            yield Fact(f"package {normalise_name(name['name'])}", text, "package list", place(reading, at))


def variable_facts(reading: LogReading, run: Run) -> Iterator[Fact]:
    """Environment variables; those of a command stand in the command."""
    head = reading.head
    for section in (_SECTION, _OLD_SECTION):
        start = section.search(head)
        if start is not None and (section is _SECTION or _TOPOLOGY in head[: start.start()]):
            yield from _listed(reading, start.end())
            break
    for count, match in enumerate(_EXPORTED.finditer(head)):
        if count >= _MOST:
            break
        value = match["value"].strip("\"'")
        if counts(match["name"], value, "command"):
            yield Fact(f"env {match['name']}", value, "command", place(reading, match.start()))
    for line in run.lines:
        unknown = _UNKNOWN.search(line.text) if "Unknown vLLM" in line.text else None
        if unknown is not None:
            yield Fact(f"env {unknown['name']}", "", "log line", line)


def _listed(reading: LogReading, start: int) -> Iterator[Fact]:
    at = start
    for _ in range(_MOST):
        match = _ASSIGNED.match(reading.head, at)
        if match is None:
            return
        at = match.end()
        value = match["value"].strip()
        if counts(match["name"], value, "collect_env"):
            yield Fact(f"env {match['name']}", value, "collect_env", place(reading, match.start()))


def counts(name: str, value: str, how: str) -> bool:
    """False for secrets, for what says nothing about a launch, and for what vLLM sets itself."""
    if not RELEVANT.match(name) or "vllm serve" in value or masked_env({name: value})[name] != value or "$" in value:
        return False
    return how != "collect_env" or name not in _BY_VLLM or _BY_VLLM[name] not in (None, value)
