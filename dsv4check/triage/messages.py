"""Messages of several lines: which line still belongs to an error, and which begins something else."""

from __future__ import annotations

import re
from typing import Final

from dsv4check.triage.events import Draft
from dsv4check.triage.frames import exception_of
from dsv4check.triage.native import is_native_error
from dsv4check.triage.prefixes import PlainLine

_MESSAGE_LINES: Final = 60
_STACK_GAP: Final = 12

# First lines of records that vLLM's own handlers log: another record, though of the same statement.
_TITLE: Final = re.compile(
    r"(?:EngineCore (?:failed to start|encountered)|WorkerProc (?:failed|hit an)|RayWorkerProc failed"
    r"|Worker proc \S+ died|AsyncLLM output_handler failed|Error executing method|Exception in worker)"
)
_STOP: Final = re.compile(
    r"\s*(?:Process [\w-]{1,60}:$|Exception in thread|Exception ignored|usage: |\[rank\d|#{1,6} |[$%] "
    r"|\S{1,60}@\S{1,80}[:$#]|/\S{1,400}\.py:\d{1,6}: |Loading |Capturing |nanobind: |-{3,}|={3,}"
    r"|[\w.-]{1,80} exited with code|frame #\d"
    r"|Exception raised from|ERROR conda|srun: |slurmstepd|\S{1,80}:\d{1,8}:\d{1,8} \[\d{1,3}\] NCCL )"
)
# Their messages end with another exception's type and text.
_QUOTING: Final = ("BackendCompilerFailed", "CompilationError", "InductorError", "RayTaskError", "TorchRuntimeError")
_LONG_NATIVE: Final = ("terminate called", "Fatal Python error", "NVRTC", "NVCC")
_CUDA_ADVICE: Final = (
    "CUDA kernel errors",
    "For debugging consider",
    "Compile with `TORCH",
    "Search for `",
    "Device-side assert",
)


def only_announced(draft: Draft, line: PlainLine, stripped: str) -> bool:
    """True for an exception right behind the line that announces its traceback, which somebody cut out."""
    if draft.style != "logged" or len(draft.message) > 1 or not _TITLE.match(draft.message[0]):
        return False
    return line.module == draft.line.module and exception_of(stripped) is not None


def continues(draft: Draft, line: PlainLine, stripped: str) -> bool:
    """True when the line belongs to the message that is read."""
    if _TITLE.match(stripped):
        return False
    if draft.line.module or line.module:
        return line.module == draft.line.module and line.level == draft.line.level
    if len(draft.message) > _MESSAGE_LINES or line.level:
        return False
    fatal = bool(draft.message) and draft.message[0].startswith("Fatal Python error")
    if not stripped:
        return fatal and draft.last - draft.first < _STACK_GAP
    if _STOP.match(stripped) or stripped.startswith("terminate called"):
        return False
    if draft.style == "native" and not draft.message[0].startswith(_LONG_NATIVE):
        return stripped.startswith(_CUDA_ADVICE)
    quotes = draft.message[-1].endswith(":") or draft.kind.startswith(_QUOTING)
    if exception_of(stripped) is not None and not quotes:
        return False
    # What is indented goes on, whatever it says: pydantic's own lines quote assertions.
    own = draft.style == "native" or draft.kind == "ValidationError" or line.text.startswith("  ")
    return own or not is_native_error(stripped)


def unwrap_ray(draft: Draft) -> None:
    """Ray's wrapper around a worker's exception whose traceback was left out."""
    if not draft.kind.startswith("RayTaskError"):
        return
    for at in range(len(draft.message) - 1, 0, -1):
        found = exception_of(draft.message[at])
        if found is not None:
            draft.kind, first = found
            draft.message[: at + 1] = [first]
            draft.frames.clear()
            return
