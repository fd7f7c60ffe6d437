"""Errors that are no Python exceptions: aborts of native code, signals, compilers, containers, command lines."""

from __future__ import annotations

import re
from typing import Final

_LITERALS: Final = (
    "terminate called after throwing an instance of",
    "terminate called without an active exception",
    "Fatal Python error: ",
    "Segmentation fault",
    "Segfault encountered",
    "Bus error",
    "Illegal instruction",
    "Aborted (core dumped)",
    "Floating point exception (core dumped)",
    "OOMKilled",
    "OOM killer",
    "OOM Killed",
    "oom_kill",
    "Out Of Memory",
    "oom-kill",
    "Out of memory: Killed process",
    "CUDA error (",
    "CUDA error: ",
    "CUDA driver error",
    "cuda error: ",
    "CUDA Error: ",
    "CUDA failure ",
    "NVSHMEM error",
    "HIP error: ",
    "Assertion error (",
    "Assertion failed",
    "NCCL WARN",
    "NCCL error",
    "ncclSystemError",
    "ncclInternalError",
    "ncclUnhandledCudaError",
    "nvshmem",
    "Watchdog caught collective operation timeout",
    "free(): ",
    "malloc(): ",
    "malloc_consolidate(): ",
    "double free or corruption",
    "corrupted size vs. prev_size",
    "munmap_chunk(): ",
    "stack smashing detected",
    "ptxas fatal",
    "ptxas error",
    "nvcc fatal",
    "nvlink error",
    "NVRTC compilation failed",
    "NVCC compilation failed",
    "code=killed, status=",
    "code=dumped, status=",
    "exit code: -",
    "exitcode: -",
    "Error response from daemon",
    "undefined symbol: ",
    "cannot open shared object file",
    "No space left on device",
    "DeepEP error",
    "no kernel image is available",
)
_ALONE: Final = re.compile(
    r"^(?:\S{0,80}:? ?(?:line )?\d{0,6}:? {1,30}\d{0,9} {0,30})?(?:Killed|Terminated|Aborted)(?: {1,40}\S.{0,200})?$"
)
_EXITED: Final = re.compile(r"exit(?:ed)? (?:with )?(?:code|status) \(?(?:-\d{1,3}|1[23]\d|2[0-5]\d)\b", re.IGNORECASE)
_ASSERT: Final = re.compile(r"\.(?:cu|cuh|cpp|cc|c|h|hpp|inl):\d{1,6}.{0,400}Assertion .{0,2000}failed")
_COMPILER: Final = re.compile(
    r"^\S{1,400}\.(?:cu|cuh|cpp|cc|c|h|hpp)(?:\(\d{1,6}\)|:\d{1,6}(?::\d{1,6})?): (?:fatal )?error:? "
)
_ARGPARSE: Final = re.compile(r"^(?P<program>[\w./-]{1,200}(?: [\w-]{1,40}){0,3}): error: (?P<message>.*)$")
_LAUNCHERS: Final = re.compile(r"(?:^|/)(?:vllm|__main__\.py|api_server(?:\.py)?|[\w-]{1,60}\.py)$")
_NOISE: Final = ("NCCL INFO", "nvshmem_init", "INFO nvshmem", "NVSHMEM INFO")


def is_native_error(text: str) -> bool:
    """True for a line that says a native error or the end of a process by a signal."""
    if len(text) > 4_000:
        text = text[:4_000]
    if any(literal in text for literal in _LITERALS):
        if "nvshmem" in text and "rror" not in text and "WARN" not in text:
            return False
        return not any(noise in text for noise in _NOISE)
    if "ssertion" in text and _ASSERT.search(text):
        return True
    if "rror" in text and _COMPILER.match(text):
        return True
    if text.endswith(("Killed", "Terminated", "Aborted")) or "Killed " in text:
        return _ALONE.match(text.strip()[:400]) is not None
    return "xit" in text and _EXITED.search(text[:400]) is not None


def refused_command_line(text: str, *, after_usage: bool) -> str | None:
    """``error: ...`` of a command line parser; None for any other line."""
    if ": error: " not in text[:400]:
        return None
    found = _ARGPARSE.match(text.strip())
    if found is None:
        return None
    program = found["program"].split(" ", 1)[0]
    return f"error: {found['message']}" if after_usage or _LAUNCHERS.search(program) else None
