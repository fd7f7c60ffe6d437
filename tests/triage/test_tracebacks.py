from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dsv4check.triage.frames import short_path
from tests.triage.read import causes, logged, read_text

SITE = "/usr/local/lib/python3.12/dist-packages/"
TRACEBACK = (
    "Traceback (most recent call last):",
    f'  File "{SITE}vllm/v1/engine/core.py", line 1106, in run_engine_core',
    "    engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)",
    "                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
    f'  File "{SITE}vllm/v1/core/kv_cache_utils.py", line 700, in check_enough',
    "    raise ValueError(",
    "ValueError: No available memory for the cache blocks.",
)
PLACES = ("vllm/v1/engine/core.py:run_engine_core", "vllm/v1/core/kv_cache_utils.py:check_enough")
LOGGER = "(EngineCore pid=9) ERROR 11-30 10:00:00 [core.py:1110] "


@pytest.mark.parametrize(
    "prefix", ["", LOGGER, "(EngineCore pid=9) ", "vllm-1  | (EngineCore pid=9) ", "[rank0]: ", "    ", "> "]
)
def test_a_traceback(prefix: str) -> None:
    (event,) = causes(logged(prefix, *TRACEBACK))
    assert (event.kind, event.message) == ("ValueError", "No available memory for the cache blocks.")
    assert event.places == PLACES
    assert [frame.code for frame in event.frames][1] == "raise ValueError("
    assert event.frames[0].line == 1106
    assert event.line.number == 7


@pytest.mark.parametrize("mark", [" ", ": ", "|", ". ", "\t"])
def test_with_numbers_of_lines(mark: str) -> None:
    (event,) = causes("".join(f"{number:4}{mark}{line}\n" for number, line in enumerate(TRACEBACK, 98)))
    assert event.places == PLACES
    assert event.said == "ValueError: No available memory for the cache blocks."


def test_without_indentation() -> None:
    (event,) = causes("".join(f"{line.strip()}\n" for line in TRACEBACK))
    assert event.places == PLACES
    assert event.said == "ValueError: No available memory for the cache blocks."


def test_the_same_error_of_the_logger_and_of_ranks_and_raw() -> None:
    text = logged(LOGGER, "EngineCore failed to start.", *TRACEBACK)
    for rank in range(8):
        text += logged(f"(Worker_TP{rank} pid={rank}) ERROR 11-30 10:00:00 [multiproc_executor.py:971] ", *TRACEBACK)
    text += logged("(EngineCore pid=9) ", "Process EngineCore:", *TRACEBACK)
    (event,) = causes(text)
    assert event.times == 10
    assert event.processes == ("EngineCore", *(f"Worker_TP{rank}" for rank in range(8)))


def test_interleaved_ranks() -> None:
    other = [line.replace("cache blocks", "weights") for line in TRACEBACK]
    text = "".join(
        f"(Worker_TP0 pid=1) {one}\n(Worker_TP1 pid=2) {two}\n" for one, two in zip(TRACEBACK, other, strict=True)
    )
    first, second = causes(text)
    assert first.message.endswith("cache blocks.")
    assert second.message.endswith("weights.")
    assert first.places == second.places == PLACES


def test_chained() -> None:
    second = ("Traceback (most recent call last):", '  File "/a/b.py", line 2, in g', "    h()", "RuntimeError: outer")
    for marker in (
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    ):
        (event,) = causes(logged(LOGGER, *TRACEBACK, "", marker, "", *second))
        assert (event.kind, event.message) == ("RuntimeError", "outer")
        assert event.caused_by is not None
        assert event.caused_by.message == "No available memory for the cache blocks."
        assert event.said == "RuntimeError: outer\nValueError: No available memory for the cache blocks."
        assert event.places == ("/a/b.py:g", *PLACES)


def test_an_exception_group() -> None:
    text = """  + Exception Group Traceback (most recent call last):
  |   File "/a/b.py", line 2, in g
  |     h()
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/a/c.py", line 9, in k
    |     m()
    | ValueError: inner
    +------------------------------------
"""
    (event,) = causes(text)
    assert event.kind == "ExceptionGroup"
    assert event.caused_by is not None
    assert event.caused_by.said == "ValueError: inner"
    assert event.places == ("/a/b.py:g", "/a/c.py:k")


def test_cut_at_the_begin_and_at_the_end() -> None:
    (event,) = causes(logged(LOGGER, *TRACEBACK[4:]))
    assert event.places == PLACES[1:]
    (event,) = causes(logged(LOGGER, *TRACEBACK[:-1]))
    assert (event.kind, event.message) == ("", "")
    assert event.places == PLACES


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: No memory",
        "`ValueError: No memory`",
        "It stops with `ValueError: No memory`",
        "- builtins.ValueError: No memory",
    ],
)
def test_only_the_last_line(text: str) -> None:
    (event,) = causes(text)
    assert (event.kind, event.message, event.frames) == ("ValueError", "No memory", ())


@pytest.mark.parametrize("prefix", ["", LOGGER, "(APIServer pid=1) "])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "pydantic_core._pydantic_core.ValidationError",
            (
                "1 validation error for VllmConfig",
                "  Value error, no [type=value_error, input_value=1]",
                "    For further information visit https://errors.pydantic.dev",
            ),
        ),
        (
            "torch.AcceleratorError",
            (
                "CUDA error: invalid argument",
                "Search for `cudaErrorInvalidValue' in https://docs",
                "CUDA kernel errors might be asynchronously reported",
                "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
            ),
        ),
        (
            "RuntimeError",
            (
                "Worker failed with error 'CUDA error: invalid argument",
                "Search for `x' in y",
                "', please check the stack trace above for the root cause",
            ),
        ),
        ("torch._dynamo.exc.BackendCompilerFailed", ("backend='inductor' raised:", "ValueError: inner text")),
        ("AssertionError", ("",)),
    ],
)
def test_messages_of_several_lines(prefix: str, kind: str, message: tuple[str, ...]) -> None:
    last = f"{kind}: {message[0]}" if message[0] else kind
    (event,) = causes(logged(prefix, *TRACEBACK[:-1], last, *message[1:]))
    assert event.kind == kind.rpartition(".")[2]
    assert event.message == "\n".join(message)
    assert event.places == PLACES


def test_ray_s_wrapper_is_taken_off() -> None:
    text = logged(
        LOGGER,
        *TRACEBACK[:-1],
        "ray.exceptions.RayTaskError(ValueError): ray::RayWorkerWrapper.execute_method() (pid=3103, ip=10.0.0.2)",
        '  File "/x/site-packages/vllm/v1/worker/gpu_worker.py", line 5, in load_model',
        "    self.load()",
        "ValueError: the worker's own text",
    )
    (event,) = causes(text)
    assert (event.kind, event.message) == ("ValueError", "the worker's own text")
    assert event.places == ("vllm/v1/worker/gpu_worker.py:load_model",)


@pytest.mark.parametrize(
    "line",
    [
        "Segmentation fault (core dumped)",
        "!!!!!!! Segfault encountered !!!!!!!",
        "free(): invalid pointer",
        "Killed",
        "bash: line 1:    12 Killed                  vllm serve x",
        "CUDA error (/workspace/csrc/x.cuh:123): invalid argument",
        "Assertion error (csrc/apis/layout.hpp:12): Unknown SF transformation",
        "/workspace/FlashMLA/csrc/sm90/x.cuh:33: void f(): Assertion `a == b' failed.",
        "node:12:34 [3] NCCL WARN Cuda failure 'out of memory'",
        "vllm.service: Main process exited, code=killed, status=9/KILL",
        "vllm-1 exited with code 137",
        "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
    ],
)
def test_errors_that_are_only_lines(line: str) -> None:
    (event,) = causes(f"INFO 11-30 10:00:00 [a.py:1] begin\n{line}\nsome text\n")
    assert (event.kind, event.message) == ("", line)


def test_an_abort_of_native_code() -> None:
    text = """(Worker_TP0 pid=1) INFO 11-30 10:00:00 [a.py:1] begin
terminate called after throwing an instance of 'c10::AcceleratorError'
(Worker_TP0 pid=1) Process VllmWorker-0:
  what():  CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call.

Exception raised from x at /pytorch/c10/cuda/CUDA.h:71 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d
"""
    (event,) = causes(text)
    assert event.kind == ""
    assert event.message.split("\n") == [
        "terminate called after throwing an instance of 'c10::AcceleratorError'",
        "  what():  CUDA error: an illegal memory access was encountered",
        "CUDA kernel errors might be asynchronously reported at some other API call.",
    ]


def test_a_fatal_python_error_has_the_frames_of_its_thread() -> None:
    text = f"""Fatal Python error: Segmentation fault

Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 5 in wait

Current thread 0x00007f01 (most recent call first):
  File "{SITE}vllm/v1/worker/gpu_worker.py", line 77 in load_model
  File "{SITE}vllm/v1/engine/core.py", line 66 in run_engine_core

Extension modules: a, b
"""
    (event,) = causes(text)
    assert event.message.startswith("Fatal Python error: Segmentation fault")
    assert event.places == ("vllm/v1/engine/core.py:run_engine_core", "vllm/v1/worker/gpu_worker.py:load_model")


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp9'",
        "api_server.py: error: argument --kv-cache-dtype: invalid choice: 'fp9'",
        "vllm: error: argument --kv-cache-dtype: invalid choice: 'fp9'",
    ],
)
def test_a_refused_command_line(line: str) -> None:
    (event,) = causes(f"usage: vllm serve [model_tag] [options]\n\n{line}\n")
    assert event.kind == "argparse"
    assert event.said == "error: argument --kv-cache-dtype: invalid choice: 'fp9'"


def test_lines_that_a_terminal_wrapped() -> None:
    whole = logged(LOGGER, *TRACEBACK[:-1], "ValueError: " + "x" * 40 + " and the end of it")
    wrapped = "".join(f"{line[at : at + 80]}\n" for line in whole.splitlines() for at in range(0, len(line), 80))
    (event,) = causes(wrapped)
    assert event.message == "x" * 40 + " and the end of it"
    assert event.places == PLACES
    raw = "\n".join(TRACEBACK).replace("/dist-packages/vllm/v1/core", "/dist-packages/vllm/v1/\ncore")
    assert causes(raw)[0].places == PLACES


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core.py", "vllm/v1/engine/core.py"),
        ("/workspace/vllm/vllm/v1/engine/core.py", "vllm/v1/engine/core.py"),
        ("/opt/vllm/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py", "torch/nn/modules/module.py"),
        ("/opt/vllm/.venv/lib/python3.12/contextlib.py", "contextlib.py"),
        ("/usr/lib/python3.12/multiprocessing/process.py", "multiprocessing/process.py"),
        ("/src/flashinfer/flashinfer/jit/core.py", "flashinfer/jit/core.py"),
        ("vllm/v1/engine/core.py", "vllm/v1/engine/core.py"),
        ("/home/me/serve.py", "/home/me/serve.py"),
        ("/usr/local/bin/vllm", "/usr/local/bin/vllm"),
    ],
)
def test_paths(path: str, short: str) -> None:
    assert short_path(path) == short


def test_a_line_of_the_logger_alone_is_an_error() -> None:
    (event,) = causes(logged(LOGGER, "Something is wrong: no config"))
    assert (event.kind, event.message, event.processes) == ("", "Something is wrong: no config", ("EngineCore",))
    (event,) = causes(logged(LOGGER, "OSError: [Errno 14] Bad address"))
    assert (event.kind, event.message) == ("OSError", "[Errno 14] Bad address")


def test_no_error_no_event() -> None:
    reading = read_text(
        "INFO 11-30 10:00:00 [a.py:1] begin\n(APIServer pid=1) INFO:     Application startup complete.\n"
    )
    assert reading.runs[0].events == ()


def test_a_log_that_was_pasted_as_one_line() -> None:
    flat = " ".join(f"{LOGGER}{line.strip()}" for line in TRACEBACK)
    (event,) = causes(f"it fails: ``` {flat} ```")
    assert event.message == "No available memory for the cache blocks."
    assert event.places == PLACES


def test_records_without_a_time() -> None:
    text = logged("ERROR [multiproc_executor.py:912] ", "WorkerProc failed to start.", *TRACEBACK[1:])
    (event,) = causes(text)
    assert (event.kind, event.places) == ("ValueError", PLACES)
