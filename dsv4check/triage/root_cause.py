"""Which error came first and which only follows from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dsv4check.triage.events import same_text
from dsv4check.triage.records import ErrorEvent, Run

# What vLLM's parent processes say when another process failed.
_POINTERS: Final = re.compile(
    r"Engine core initialization failed"
    r"|Frontend process failed during engine core"
    r"|Failed (?:core|frontend) proc"
    r"|WorkerProc initialization failed due to an exception"
    r"|Worker proc \S+ died unexpectedly"
    r"|RayWorkerProc rank=\S+ died unexpectedly"
    r"|Engine ?[Cc]ore (?:encountered an issue|encountered a fatal error|failed to start|died unexpectedly)"
    r"|WorkerProc (?:failed|hit an exception)"
    r"|AsyncLLM output_handler failed"
    r"|^Executor failed"
    r"|Exception occurred while running API servers"
    r"|Process \S+ \(PID: \d+\) died"
    r"|DP Coordinator .{0,60}(?:died|exited|failed)"
    r"|[Ee]ngine core proc\S* .{0,60}died"
    r"|See (?:root cause|stack trace) \(?above"
    r"|Application startup failed\. Exiting"
    r"|exited with code [01]\b|code=exited, status=[01]\b"
    r"|ChildFailedError|^Dumping (?:input data|scheduler (?:output|stats)|pool stats)"
)
_NOISE: Final = re.compile(
    r"leaked (?:shared_memory|semaphore)|destroy_process_group\(\) was not called|Broken ?[Pp]ipe"
    r"|[Ss]hutting down|Server shutting down|cancelled|Cancelled|SIGTERM|SIGINT|Terminated$|status=15"
    r"|HeartbeatMonitor|TCPStore.{0,200}(?:recvValue|sendBytes|recvVector) failed"
    r"|Failed to check the \"should dump\" flag"
)
_DIED: Final = "died unexpectedly"
_NOISE_KINDS: Final = frozenset(
    {"KeyboardInterrupt", "CancelledError", "SystemExit", "BrokenPipeError", "ProcessExitedException", "GeneratorExit"}
)
_POINTER_KINDS: Final = frozenset({"EngineDeadError", "ActorDiedError", "RayActorError", "ChildFailedError"})

# What ranks say that wait for one that is gone; the cause itself when nothing else is in the log.
_WAITING: Final = re.compile(
    r"RPC call to \S+ timed out|sample_tokens timed out|execute_model timed out"
    r"|NCCL (?:WARN|error)|ncclRemoteError|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ProcessGroupNCCL"
    r"|Watchdog caught collective|[Cc]onnection (?:reset|closed|refused)|TCPStore|Gloo|gloo|Socket Timeout|wait timeout"
    r"|DistStoreError|DistBackendError|DistNetworkError|terminate called|Timed out (?:after|waiting)|timed out waiting"
    r"|exit(?:ed with)? ?code:? -?\d+|exitcode|exited with code 1[34]\d|code=(?:killed|dumped)|[Kk]illed|core dumped"
    r"|unspecified launch failure"
)
_WAITING_KINDS: Final = frozenset(
    {"TimeoutError", "DistStoreError", "DistBackendError", "DistNetworkError", "Empty", "EOFError"}
)
_QUOTED: Final = re.compile(r"Worker failed with error '(?P<text>[\s\S]{0,8000}?)'?, please check", re.DOTALL)


def mark_consequences(events: Sequence[ErrorEvent]) -> tuple[ErrorEvent, ...]:
    """The events, those marked that only point to another one or follow from it."""
    own = [_judge(event) for event in events]
    real = [event for event, judged in zip(events, own, strict=True) if judged == "real" and not event.survived]
    said = [same_text(event.said) for event in real]
    marked = []
    for event, judged in zip(events, own, strict=True):
        if judged == "quoted":
            consequence = _is_said(event, said)
        elif judged == "waiting":
            consequence = bool(real)
        else:
            consequence = judged != "real"
        marked.append(event if event.consequence == consequence else replace(event, consequence=consequence))
    return tuple(marked)


def ordered_causes(run: Run) -> tuple[ErrorEvent, ...]:
    """The errors of a start: what ended it first, then what followed from that, what vLLM survived, and noise."""
    events = mark_consequences(run.events)
    ranked = sorted(enumerate(events), key=lambda item: (_rank(item[1]), item[0]))
    return tuple(event for _, event in ranked)


def _rank(event: ErrorEvent) -> int:
    if _is_noise(event):
        return 4
    if event.survived:
        return 3
    if not event.consequence:
        # A traceback without its last line says less than any whole error.
        return 0 if event.kind or event.message else 1
    return 2


def _judge(event: ErrorEvent) -> str:
    """``real``, ``pointer``, ``noise``, ``quoted`` (a worker's error in other words) or ``waiting``."""
    if _is_noise(event):
        return "noise"
    text = event.message[:4_000]
    if "Worker failed with error '" in text:
        return "quoted"
    if event.kind in _POINTER_KINDS or _POINTERS.search(text):
        return "pointer"
    if event.caused_by is not None and _judge_text(event.caused_by) == "real":
        return "real"
    return _judge_text(event)


def _judge_text(event: ErrorEvent) -> str:
    if event.kind in _WAITING_KINDS or _WAITING.search(event.message[:4_000]):
        return "waiting"
    return "real"


def _is_noise(event: ErrorEvent) -> bool:
    if _DIED in event.message:
        return False
    return event.kind in _NOISE_KINDS or (not event.frames and _NOISE.search(event.message[:2_000]) is not None)


def _is_said(event: ErrorEvent, said: Sequence[str]) -> bool:
    """True when another error says what this one quotes."""
    found = _QUOTED.search(event.message)
    quoted = found["text"] if found is not None else event.message.partition("Worker failed with error '")[2]
    piece = same_text(quoted.strip().partition("\n")[0])[:120]
    # A worker hands on the message, or the type and the message.
    bare = piece.partition(": ")[2] if re.match(r"[\w.]+: ", piece) else ""
    return any(piece in other or (len(bare) > 8 and bare in other) for other in said) if piece.strip() else bool(said)
