"""How vLLM prints a failure at each stage: the root cause, and what its other processes say afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from dsv4check.problems import Stage
from tests.triage.log_launch import Launch
from tests.triage.log_records import LogError
from tests.triage.log_startup import API, configure
from tests.triage.log_table import LogFrame, frames_of
from tests.triage.log_writer import Writer, traceback

PYTHON = "/usr/lib/python3.12"
MAIN = LogFrame("/usr/local/bin/vllm", 10, "<module>", "sys.exit(main())")
UVLOOP = (
    LogFrame("uvloop/__init__.py", 96, "run", "return __asyncio.run("),
    LogFrame(f"{PYTHON}/asyncio/runners.py", 195, "run", "return runner.run(main)"),
    LogFrame(f"{PYTHON}/asyncio/runners.py", 118, "run", "return self._loop.run_until_complete(task)"),
    LogFrame("uvloop/loop.pyx", 1518, "uvloop.loop.Loop.run_until_complete"),
    LogFrame("uvloop/__init__.py", 48, "wrapper", "return await main"),
)
ENTER = LogFrame(f"{PYTHON}/contextlib.py", 210, "__aenter__", "return await anext(self.gen)")
EXIT = LogFrame(f"{PYTHON}/contextlib.py", 144, "__exit__", "next(self.gen)")
BOOTSTRAP = (
    LogFrame(f"{PYTHON}/multiprocessing/process.py", 314, "_bootstrap", "self.run()"),
    LogFrame(f"{PYTHON}/multiprocessing/process.py", 108, "run", "self._target(*self._args, **self._kwargs)"),
)
NO_GRAD = LogFrame("torch/utils/_contextlib.py", 124, "decorate_context", "return func(*args, **kwargs)")
CALL = (
    LogFrame("torch/nn/modules/module.py", 1779, "_wrapped_call_impl", "return self._call_impl(*args, **kwargs)"),
    LogFrame("torch/nn/modules/module.py", 1790, "_call_impl", "return forward_call(*args, **kwargs)"),
)
PYDANTIC = LogFrame(
    "pydantic/_internal/_dataclasses.py",
    121,
    "__init__",
    "s.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs)",
)
ENGINE_SIDE = re.compile(
    r"KV cache is needed|larger than the available|No available memory|HMA|hash_block_size|scheduler_block_size"
    r"|kv_connector_extra_config|KV_CACHE_LAYOUT|No common block size|get_kv_cache"
)
"""Texts of failures while the KV cache is planned, which happens in the engine's own process."""
CONFIG_STACKS = {
    "ModelConfig": ("config_model", "config_model_made"),
    "SpeculativeConfig": ("config_draft", "config_draft_made"),
    "ParallelConfig": ("config_parallel",),
    "SchedulerConfig": ("config_scheduler",),
    "CacheConfig": ("config_cache",),
    "VllmConfig": ("config_all",),
}


def fail(writer: Writer, error: LogError) -> None:
    """Adds the failure to what was written so far."""
    writer.wait(2)
    if not error.kind and error.fatal and error.stage.order > Stage.ENGINE_CONFIG.order:
        aborted(writer, error)
        return
    if error.message.startswith("Timed out waiting for engine core"):
        server_gives_up(writer, error.said)
        return
    PRINTED[error.stage](writer, error)


def frames(launch: Launch, *parts: str | LogFrame) -> tuple[LogFrame, ...]:
    found: list[LogFrame] = []
    for part in parts:
        found.extend([part] if isinstance(part, LogFrame) else frames_of(launch.release, [part]))
    if launch.vendor == "amd":
        found = [replace(frame, path=frame.path.replace("/nvidia/", "/amd/")) for frame in found]
    return tuple(found)


def serve_stack(launch: Launch) -> tuple[LogFrame, ...]:
    inner = frames(launch, "run_server", "run_server_worker", ENTER, "build_client", ENTER)
    return (*frames(launch, MAIN, "main", "serve"), *UVLOOP, *inner)


def refused(writer: Writer, error: LogError) -> None:
    """The parser prints its usage line and one line, or an exception goes through it."""
    if error.kind == "argparse":
        writer.raw("", f"usage: vllm serve [model_tag] [options]\n{error.said}")
        return
    inside = any(frame.function == "parse_args" for frame in error.frames)
    stack = frames(writer.launch, MAIN, "main_parse", *(() if inside else ("parse_args",)))
    writer.raw("", traceback((*stack, *error.frames), error.said))


def configuring(writer: Writer, error: LogError) -> None:
    launch = writer.launch
    found = re.search(r"validation errors? for (\w+)", error.message)
    name = found.group(1) if found and found.group(1) in CONFIG_STACKS else "VllmConfig"
    if name == "VllmConfig":
        configure(writer)
    inner = CONFIG_STACKS[name]
    if error.frames and error.frames[0].path.endswith("engine/arg_utils.py"):
        inner = {"create_engine_config": (), "create_speculative_config": ("config_draft",)}.get(
            error.frames[0].function, inner[:1]
        )
    stack = [*serve_stack(launch), *frames(launch, "create_config", *inner)]
    if error.short_kind == "ValidationError":
        stack.append(PYDANTIC)
    writer.raw(API, traceback([*stack, *error.frames], error.said))


def constructing(writer: Writer, error: LogError) -> None:
    launch = writer.launch
    stack = [*loading(launch), *frames(launch, "loader_model", "loader_create", "model_init", "causal_init")]
    if of_draft(error):
        from_start(writer, error, loading_draft(launch))
        return
    inner = ["layers_init", "layer_made", "layer_moe" if "moe" in error.message.lower() else "layer_init"]
    own = any(frame.path.startswith("vllm/v1/") for frame in error.frames[:1])
    from_start(writer, error, [*loading(launch)] if own else [*stack, *frames(launch, *inner)])


def reading(writer: Writer, error: LogError) -> None:
    launch = writer.launch
    if of_draft(error):
        from_start(writer, error, (*loading_draft(launch), *frames(launch, "loader_weights", "default_weights")))
        return
    stack = [*loading(launch), *frames(launch, "loader_weights", "default_weights", "causal_weights")]
    from_start(writer, error, stack)


def of_draft(error: LogError) -> bool:
    """True for what the draft model's own code says: the main model is loaded by then."""
    return any(re.search(r"[/_](mtp|dspark)\b|/spec_decode/", frame.path) for frame in error.frames)


def loading_draft(launch: Launch) -> tuple[LogFrame, ...]:
    return frames(launch, "worker_load", "runner_draft_v2" if launch.second_runner else "runner_draft", "traced")


def loading(launch: Launch) -> tuple[LogFrame, ...]:
    runner = "runner_load_v2" if launch.second_runner else "runner_load"
    return frames(launch, "worker_load", runner, "traced")


def from_start(writer: Writer, error: LogError, stack: Iterable[LogFrame]) -> None:
    """The worker does not get ready: each rank says why, then the engine, then the server."""
    launch = writer.launch
    own = tuple(stack)
    if not launch.workers:
        head = (*engine_head(launch), *frames(launch, "engine_executor", "traced", "executor", "uniproc"))
        for engine in launch.engines:
            text = traceback((*head, *own, *error.frames), error.said)
            writer.log(engine, "engine_failed", f"EngineCore failed to start.\n{text}", "ERROR")
        for engine in launch.engines:
            again = (*BOOTSTRAP, *frames(launch, "engine_raise"), *head, *own, *error.frames)
            writer.raw(engine, f"Process {engine}:\n{traceback(again, error.said)}")
        server_gives_up(writer)
        return
    head = frames(launch, "worker_main", "traced", "worker_made", "traced")
    text = traceback((*head, *own, *error.frames), error.said)
    writer.everyone(launch.workers, "worker_failed", f"WorkerProc failed to start.\n{text}", "ERROR")
    said = (
        "WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
    )
    last = frames(launch, "engine_executor", "traced", "executor", "executor_wait", "wait")
    engine_gives_up(writer, last, f"Exception: {said}")
    server_gives_up(writer)


def engine_head(launch: Launch) -> tuple[LogFrame, ...]:
    run = "engine_run_dp" if len(launch.engines) > 1 else "engine_run"
    return frames(launch, run, "traced", "engine_proc")


def engine_gives_up(writer: Writer, last: tuple[LogFrame, ...], said: str) -> None:
    launch = writer.launch
    writer.wait(1)
    head = engine_head(launch)
    for engine in launch.engines:
        text = traceback((*head, *last), said)
        writer.log(engine, "engine_failed", f"EngineCore failed to start.\n{text}", "ERROR")
    writer.burst += 1
    for engine in launch.engines:
        again = (*BOOTSTRAP, *frames(launch, "engine_raise"), *head, *last)
        writer.raw(engine, f"Process {engine}:\n{traceback(again, said)}")


def server_gives_up(writer: Writer, said: str = "") -> None:
    launch = writer.launch
    writer.wait(2)
    kind = "client_kind_dp" if len(launch.engines) > 1 else "client_kind"
    stack = frames(launch, "from_config", "llm_from_config", "llm_made", "traced", kind, "traced", "client_made")
    last = frames(launch, "client_launch", EXIT, "launch", "startup")
    failed = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    writer.raw(API, traceback((*serve_stack(launch), *stack, *last), said or failed))
    if launch.workers:
        warning = (
            f"UserWarning: resource_tracker: There appear to be {len(launch.workers)} leaked shared_memory objects"
        )
        place = f"{PYTHON}/multiprocessing/resource_tracker.py:279"
        writer.raw(
            "",
            f"{place}: {warning} to clean up at shutdown\n  warnings.warn('resource_tracker: There appear to be %d '",
        )


def planning(writer: Writer, error: LogError) -> None:
    """The KV cache is planned by the engine, allocated and reshaped by the workers."""
    launch = writer.launch
    in_engine = ENGINE_SIDE.search(error.message) or any("/v1/core/" in frame.path for frame in error.frames)
    if in_engine:
        last = frames(launch, "engine_cache", "traced", "engine_plan")
        if "needed" in error.message:
            last = (*last, *frames(launch, "plan"))
        engine_gives_up(writer, (*last, *error.frames), error.said)
        server_gives_up(writer)
        return
    allocate = ("allocate_v2",) if launch.second_runner else ("allocate",)
    in_call(writer, error, frames(launch, "worker_allocate", *allocate), ("engine_allocate", "executor_allocate"))


def first_forward(writer: Writer, error: LogError) -> None:
    launch = writer.launch
    names = ("profile_v2", "dummy_v2", "execute_v2") if launch.second_runner else ("profile", "dummy")
    runner = frames(launch, NO_GRAD, "worker_profile", names[0], NO_GRAD, *names[1:])
    model = (*CALL, *frames(launch, "causal_forward"), *CALL, *frames(launch, "model_forward"), *CALL)
    layer = frames(launch, "layer_kind", "layer_forward")
    in_call(writer, error, (*runner, *model, *layer), ("engine_profile", "executor_profile"))


def capturing(writer: Writer, error: LogError) -> None:
    launch = writer.launch
    last = "capture_v2" if launch.second_runner else "capture"
    stack = frames(launch, "worker_warm_up", "worker_capture", NO_GRAD, last)
    above = ("engine_warm", "executor_warm") if frames(launch, "engine_warm") else ("engine_allocate", "executor_warm")
    in_call(writer, error, stack, above)


def in_call(writer: Writer, error: LogError, stack: tuple[LogFrame, ...], above: tuple[str, ...]) -> None:
    """A call of the engine fails in the workers: they say it twice, with the note that holds the same traceback."""
    launch = writer.launch
    engine = frames(launch, "engine_cache", "traced", *above)
    if not launch.workers:
        engine_gives_up(writer, (*engine, *frames(launch, "uniproc_rpc"), *stack, *error.frames), error.said)
        server_gives_up(writer)
        return
    workers_say(writer, error, stack)
    engine_gives_up(writer, (*engine, *answer(launch)), worker_failed(error))
    server_gives_up(writer)


def workers_say(writer: Writer, error: LogError, stack: tuple[LogFrame, ...]) -> None:
    launch = writer.launch
    own = traceback((*frames(launch, "worker_turn", "worker_loop"), *stack, *error.frames), error.said)
    text = f"WorkerProc hit an exception.\n{own}\n{own}\n"
    writer.everyone(launch.workers, "worker_hit", text, "ERROR")


def answer(launch: Launch) -> tuple[LogFrame, ...]:
    return frames(launch, "rpc", "future_result", "future_wait", "response")


def worker_failed(error: LogError) -> str:
    message = error.message or ""
    return f"RuntimeError: Worker failed with error '{message}', please check the stack trace above for the root cause"


def running(writer: Writer, error: LogError) -> None:
    """A step fails after the server has answered requests."""
    launch = writer.launch
    names = ("execute_v2",) if launch.second_runner else ("execute",)
    model = (*CALL, *frames(launch, "causal_forward"), *CALL, *frames(launch, "model_forward"), *CALL)
    stack = (*frames(launch, NO_GRAD, "worker_execute", NO_GRAD, *names), *model, *frames(launch, "layer_forward"))
    head = frames(launch, "engine_loop", "busy_loop", "engine_step", "step")
    if error.message.startswith("RPC call to"):
        # The workers hang: the engine alone says so.
        last, said = (*head, *frames(launch, "rpc")), error.said
    elif launch.workers:
        workers_say(writer, error, stack)
        writer.wait(1)
        last, said = (*head, *answer(launch)), worker_failed(error)
    else:
        last, said = (*head, *stack, *error.frames), error.said
    for engine in launch.engines:
        text = f"EngineCore encountered a fatal error.\n{traceback(last, said)}"
        writer.log(engine, "engine_fatal", text, "ERROR")
    dead = (
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
        "See stack trace (above) for the root cause."
    )
    handler = LogFrame(
        "vllm/v1/engine/async_llm.py", 660, "output_handler", "outputs = await engine_core.get_output_async()"
    )
    client = LogFrame(
        "vllm/v1/engine/core_client.py", 1030, "get_output_async", "raise self._format_exception(outputs) from None"
    )
    text = f"AsyncLLM output_handler failed.\n{traceback((handler, client), dead)}"
    writer.log(API, "handler_failed", text, "ERROR")
    writer.raw(API, 'INFO:     192.0.2.15:41131 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error')
    for engine in launch.engines:
        again = (*BOOTSTRAP, *frames(launch, "engine_raise"), *last)
        writer.raw(engine, f"Process {engine}:\n{traceback(again, said)}")
    writer.raw(API, "INFO:     Shutting down\nINFO:     Waiting for application shutdown.")
    writer.raw(API, "INFO:     Application shutdown complete.\nINFO:     Finished server process [1]")


def aborted(writer: Writer, error: LogError) -> None:
    """Native code ends a worker's process: its own line, and what the engine sees of it."""
    launch = writer.launch
    writer.raw(launch.runners[0], error.said)
    writer.wait(1)
    if launch.workers:
        text = "Worker proc VllmWorker-0 died unexpectedly, shutting down executor."
        writer.log(launch.engines[0], "worker_died", text, "ERROR")
    if error.stage.order >= Stage.RUNTIME.order:
        writer.raw(API, "INFO:     Shutting down\nINFO:     Waiting for application shutdown.")
        return
    server_gives_up(writer)


PRINTED = {
    Stage.ARGPARSE: refused,
    Stage.ENGINE_CONFIG: configuring,
    Stage.MODEL_INIT: constructing,
    Stage.WEIGHT_LOAD: reading,
    Stage.KV_CACHE_INIT: planning,
    Stage.WARMUP: first_forward,
    Stage.CUDAGRAPH: capturing,
    Stage.RUNTIME: running,
    Stage.ACCURACY: running,
}
