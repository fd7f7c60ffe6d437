from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dsv4check.triage.records import ErrorEvent, LogLine, Run
from dsv4check.triage.root_cause import ordered_causes
from tests.triage.read import causes, logged

CORE = "(EngineCore pid=9) ERROR 11-30 10:00:05 [core.py:1110] "
API = "(APIServer pid=1) "
FRAME = ("Traceback (most recent call last):", '  File "/x/site-packages/vllm/v1/a.py", line 2, in g', "    h()")
ENGINE_FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
WORKER_FAILED = (
    "Exception: WorkerProc initialization failed due to an exception in a background process. "
    "See stack trace for root cause."
)


def worker(rank: int, *lines: str, level: str = "ERROR", module: str = "multiproc_executor.py:971") -> str:
    return logged(f"(Worker_TP{rank} pid={rank + 20}) {level} 11-30 10:00:00 [{module}] ", *lines)


def test_the_worker_s_error_comes_before_what_points_to_it() -> None:
    text = (
        worker(0, "WorkerProc failed to start.", *FRAME, "KeyError: 'layers.0.mlp'")
        + logged(CORE, "EngineCore failed to start.", *FRAME, WORKER_FAILED)
        + logged("(EngineCore pid=9) ", "Process EngineCore:", *FRAME, WORKER_FAILED)
        + logged(API, *FRAME, ENGINE_FAILED)
    )
    first, *others = causes(text)
    assert first.said == "KeyError: 'layers.0.mlp'"
    assert not first.consequence
    assert [event.consequence for event in others] == [True, True]


def test_an_error_of_the_engine_itself() -> None:
    text = logged(CORE, "EngineCore failed to start.", *FRAME, "ValueError: no memory") + logged(
        API, *FRAME, ENGINE_FAILED
    )
    first, second = causes(text)
    assert first.message == "no memory"
    assert second.consequence


def test_what_the_engine_quotes_is_real_only_without_the_original() -> None:
    quote = (
        "RuntimeError: Worker failed with error 'AssertionError: auto_functionalized was not removed', "
        "please check the stack trace above for the root cause"
    )
    (alone,) = causes(logged(CORE, *FRAME, quote))
    assert not alone.consequence
    text = worker(0, "WorkerProc hit an exception.", *FRAME, "AssertionError: auto_functionalized was not removed")
    first, second = causes(text + logged(CORE, *FRAME, quote))
    assert (first.kind, first.consequence) == ("AssertionError", False)
    assert second.consequence


@pytest.mark.parametrize(
    "last",
    [
        "TimeoutError: RPC call to sample_tokens timed out.",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, remote process exited",
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4000",
    ],
)
def test_ranks_that_wait_follow_from_the_one_that_failed(last: str) -> None:
    waiting = worker(1, *FRAME, last)
    (alone,) = causes(waiting)
    assert not alone.consequence
    first, second = causes(
        waiting + worker(3, *FRAME, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    )
    assert first.kind == "OutOfMemoryError"
    assert second.consequence


def test_noise_of_the_end_is_last() -> None:
    text = (
        logged(CORE, *FRAME, "KeyboardInterrupt")
        + "[rank0]:[W424 10:12:58.1 ProcessGroupNCCL.cpp:1575] Warning: destroy_process_group() was not called\n"
        + worker(0, *FRAME, "ValueError: real")
        + logged(
            API,
            *FRAME,
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
            "See stack trace (above) for the root cause.",
        )
    )
    assert [event.kind for event in causes(text)] == ["ValueError", "EngineDeadError", "KeyboardInterrupt"]


def test_what_the_process_survived_is_not_the_cause() -> None:
    text = (
        worker(0, *FRAME, "ModuleNotFoundError: No module named 'x'")
        + worker(
            0, "Model loading took 84.2 GiB memory and 30 seconds", level="INFO", module="gpu_model_runner.py:4837"
        )
        + worker(0, *FRAME, "ValueError: real")
    )
    first, second = causes(text)
    assert (first.message, first.survived) == ("real", False)
    assert (second.kind, second.survived) == ("ModuleNotFoundError", True)


def test_another_process_that_goes_on_proves_nothing() -> None:
    text = worker(0, *FRAME, "ValueError: real") + worker(
        1, "Model loading took 84.2 GiB memory and 30 seconds", level="INFO", module="gpu_model_runner.py:4837"
    )
    (event,) = causes(text)
    assert not event.survived


def test_refused_requests_are_survived() -> None:
    up = "(APIServer pid=1) INFO:     Application startup complete.\n"
    answered = '(APIServer pid=1) INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    refused = logged("(APIServer pid=1) ERROR 11-30 10:00:00 [serving.py:7] ", *FRAME, "ValueError: too long")
    (event,) = causes(up + answered * 200 + refused + answered)
    assert event.survived
    first, second = causes(up + refused + answered + worker(0, *FRAME, "AssertionError: fatal"))
    assert (first.message, second.message) == ("fatal", "too long")


def test_a_worker_that_was_killed_without_a_word() -> None:
    killed = "Worker proc VllmWorker-3 died unexpectedly (exit code: -9), shutting down executor."
    text = logged(CORE, killed) + logged(
        CORE, "EngineCore encountered a fatal error.", *FRAME, "RuntimeError: Executor failed."
    )
    assert [event.message for event in causes(text)] == [killed, "Executor failed."]


def test_a_compiler_that_failed_is_no_consequence() -> None:
    last = (
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
        "CalledProcessError: Command '['/usr/bin/gcc', 'x.c']' returned non-zero exit status 1.",
    )
    (event,) = causes(logged("[rank0]: ", *FRAME, *last))
    assert not event.consequence
    assert event.message.endswith("exit status 1.")
    assert event.places == ("vllm/v1/a.py:g",)


def test_the_order_of_records_that_were_made_by_hand() -> None:
    def event(message: str, **more: bool) -> ErrorEvent:
        return ErrorEvent("RuntimeError", message, LogLine("-", 1, message), **more)

    run = Run(
        None, (), (event("Engine core initialization failed."), event("a", survived=True), event("b"), event("c"))
    )
    assert [item.message for item in ordered_causes(run)] == ["b", "c", "Engine core initialization failed.", "a"]
