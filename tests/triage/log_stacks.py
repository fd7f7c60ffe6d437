"""What is recorded of each release: log messages that a start prints, and frames of the tracebacks it can end with.

A stack is a list of frame names; a frame has one place for each layout of the package, the first one found counts.
"""

from __future__ import annotations

from dataclasses import dataclass

MESSAGES: dict[str, tuple[tuple[str, ...], str]] = {
    "banner": (
        ("entrypoints/utils.py", "entrypoints/serve/utils/api_utils.py", "entrypoints/common/startup.py"),
        "lgr.info(message",
    ),
    "args": (
        ("entrypoints/utils.py", "entrypoints/serve/utils/api_utils.py", "entrypoints/common/startup.py"),
        "non-default args",
    ),
    "unknown_env": (("envs.py", "platforms/interface.py"), "Unknown vLLM environment variable detected"),
    "architecture": (("config/model.py",), "Resolved architecture: %s"),
    "max_len": (("config/model.py",), "Using max model len %s"),
    "fp8_cache": (("config/cache.py",), "data type to store kv cache"),
    "chunked": (("config/scheduler.py",), "Chunked prefill is enabled"),
    "asynchronous": (("config/vllm.py",), "Asynchronous scheduling is"),
    "eager": (("config/vllm.py",), "Enforce eager set, disabling torch.compile"),
    "engine": (("v1/engine/core.py",), "Initializing a V1 LLM engine"),
    "multiproc": (("v1/executor/multiproc_executor.py",), "local_world_size=%d"),
    "distributed": (("distributed/parallel_state.py",), "distributed_init_method=%s backend=%s"),
    "nccl": (("distributed/device_communicators/pynccl.py",), "vLLM is using nccl"),
    "rank": (("distributed/parallel_state.py",), "is assigned as"),
    "load": (("v1/worker/gpu_model_runner.py",), "Starting to load model"),
    "load_v2": (("v1/worker/gpu/model_runner.py",), "Loading model from scratch"),
    "attention": (("platforms/cuda.py",), "attention backend out of potential backends"),
    "packed_cache": (
        ("models/deepseek_v4/attention.py", "model_executor/layers/deepseek_v4_attention.py"),
        "fp8_ds_mla KV cache format",
    ),
    "moe": (("model_executor/layers/fused_moe/oracle/mxfp4.py",), "_make_log_backend"),
    "filesystem": (("model_executor/model_loader/weight_utils.py",), "Filesystem type for checkpoints"),
    "weights": (("model_executor/model_loader/default_loader.py",), "Loading weights took"),
    "model_loaded": (("v1/worker/gpu_model_runner.py",), "Model loading took"),
    "model_loaded_v2": (("v1/worker/gpu/model_runner.py",), "Model loading took"),
    "drafter": (("v1/worker/gpu_model_runner.py",), "Loading drafter model"),
    "compile_cache": (("compilation/backends.py",), "for vLLM's torch.compile"),
    "dynamo": (("compilation/backends.py",), "Dynamo bytecode transform time"),
    "available": (("v1/worker/gpu_worker.py",), "Available KV cache memory"),
    "cache_size": (("v1/core/kv_cache_utils.py", "v1/engine/core.py"), "KV cache size: %s tokens"),
    "concurrency": (("v1/core/kv_cache_utils.py", "v1/engine/core.py"), "Maximum concurrency for"),
    "captured": (("v1/worker/gpu_model_runner.py",), "Graph capturing finished"),
    "captured_v2": (("v1/worker/gpu/model_runner.py",), "Graph capturing finished"),
    "engine_ready": (("v1/engine/core.py",), "init engine (profile, create kv cache, warmup model) took %.2f s'"),
    "tasks": (("entrypoints/openai/api_server.py", "entrypoints/launchers/api_server/entry.py"), "Supported tasks"),
    "serving": (
        ("entrypoints/openai/api_server.py", "entrypoints/launchers/api_server/entry.py"),
        "Starting vLLM server on",
    ),
    "routes": (("entrypoints/launcher.py", "entrypoints/**/*.py"), "Available routes are:"),
    "worker_failed": (("v1/executor/multiproc_executor.py",), "WorkerProc failed to start."),
    "worker_hit": (("v1/executor/multiproc_executor.py",), "WorkerProc hit an exception."),
    "worker_died": (("v1/executor/multiproc_executor.py",), "died unexpectedly"),
    "engine_failed": (("v1/engine/core.py",), "EngineCore failed to start."),
    "engine_fatal": (("v1/engine/core.py",), "EngineCore encountered a fatal error."),
    "handler_failed": (("v1/engine/async_llm.py",), "AsyncLLM output_handler failed."),
    "traffic": (("v1/metrics/loggers.py",), "log_parts"),
    "draft_metrics": (("v1/spec_decode/metrics.py",), "SpecDecoding metrics"),
}


@dataclass(frozen=True, slots=True)
class PlaceOfFrame:
    """Where a frame may be: a function of a file, and the line in it that calls the next frame."""

    path: str
    owner: str
    function: str
    code: str


def at(path: str, function: str, code: str) -> PlaceOfFrame:
    owner, _, name = function.rpartition(".")
    return PlaceOfFrame(path, owner, name, code)


API = ("entrypoints/openai/api_server.py", "entrypoints/launchers/api_server/entry.py")
MODEL = ("model_executor/models/deepseek_v4.py", "models/deepseek_v4/nvidia/model.py")
WORKER = "v1/worker/gpu_worker.py"
RUNNER = "v1/worker/gpu_model_runner.py"
RUNNER_V2 = "v1/worker/gpu/model_runner.py"
MULTIPROC = "v1/executor/multiproc_executor.py"
ENGINE = "v1/engine/core.py"
CLIENT = "v1/engine/core_client.py"


def _api(function: str, code: str) -> list[PlaceOfFrame]:
    return [at(path, function, code) for path in API]


def _model(function: str, code: str) -> list[PlaceOfFrame]:
    return [at(path, function, code) for path in MODEL]


FRAMES: dict[str, list[PlaceOfFrame]] = {
    "main": [at("entrypoints/cli/main.py", "main", r"args\.dispatch_function\(args\)")],
    "main_parse": [at("entrypoints/cli/main.py", "main", r"args = parser\.parse_args\(\)")],
    "parse_args": [
        at("utils/argparse_utils.py", "FlexibleArgumentParser.parse_args", r"return super\(\)\.parse_args\("),
    ],
    "serve": [at("entrypoints/cli/serve.py", "ServeSubcommand.cmd", r"uvloop\.run\(run_server\(args\)\)")],
    "run_server": _api("run_server", r"await run_server_worker\("),
    "run_server_worker": _api("run_server_worker", r"async with build_async_engine_client\("),
    "build_client": _api("build_async_engine_client", r"async with build_async_engine_client_from_engine_args\("),
    "create_config": _api("build_async_engine_client_from_engine_args", r"vllm_config = engine_args\.create_engine"),
    "from_config": _api("build_async_engine_client_from_engine_args", r"async_llm = AsyncLLM\.from_vllm_config\("),
    "config_model": [at("engine/arg_utils.py", "EngineArgs.create_engine_config", r"= self\.create_model_config\(\)")],
    "config_model_made": [at("engine/arg_utils.py", "EngineArgs.create_model_config", r"return ModelConfig\(")],
    "config_draft": [
        at("engine/arg_utils.py", "EngineArgs.create_engine_config", r"= self\.create_speculative_config\("),
    ],
    "config_draft_made": [
        at("engine/arg_utils.py", "EngineArgs.create_speculative_config", r"return SpeculativeConfig\("),
    ],
    "config_parallel": [at("engine/arg_utils.py", "EngineArgs.create_engine_config", r"parallel_config = Parallel")],
    "config_scheduler": [at("engine/arg_utils.py", "EngineArgs.create_engine_config", r"scheduler_config = Sched")],
    "config_cache": [at("engine/arg_utils.py", "EngineArgs.create_engine_config", r"cache_config = CacheConfig\(")],
    "config_all": [at("engine/arg_utils.py", "EngineArgs.create_engine_config", r"config = VllmConfig\(")],
    "llm_from_config": [at("v1/engine/async_llm.py", "AsyncLLM.from_vllm_config", r"return cls\(")],
    "llm_made": [at("v1/engine/async_llm.py", "AsyncLLM.__init__", r"self\.engine_core = EngineCoreClient\.make")],
    "client_kind": [at(CLIENT, "EngineCoreClient.make_async_mp_client", r"return AsyncMPClient\(")],
    "client_kind_dp": [at(CLIENT, "EngineCoreClient.make_async_mp_client", r"return DPLBAsyncMPClient\(")],
    "client_made": [at(CLIENT, "AsyncMPClient.__init__", r"super\(\)\.__init__\(")],
    "client_launch": [at(CLIENT, "MPClient.__init__", r"with launch_core_engines\(")],
    "launch": [at("v1/engine/utils.py", "launch_core_engines", r"wait_for_engine_startup\(")],
    "startup": [at("v1/engine/utils.py", "wait_for_engine_startup", r'raise RuntimeError\(\n +"Engine core init')],
    "engine_run": [at(ENGINE, "EngineCoreProc.run_engine_core", r"engine_core = EngineCoreProc\(")],
    "engine_run_dp": [at(ENGINE, "EngineCoreProc.run_engine_core", r"engine_core = DPEngineCoreProc\(")],
    "engine_raise": [at(ENGINE, "EngineCoreProc.run_engine_core", r"^ +raise e$")],
    "engine_proc": [at(ENGINE, "EngineCoreProc.__init__", r"super\(\)\.__init__\(")],
    "engine_executor": [at(ENGINE, "EngineCore.__init__", r"self\.model_executor = executor_class\(")],
    "engine_cache": [at(ENGINE, "EngineCore.__init__", r"= self\._initialize_kv_caches\(")],
    "engine_profile": [
        at(ENGINE, "EngineCore._initialize_kv_caches", r"= self\.model_executor\.determine_available_memory\("),
    ],
    "engine_plan": [at(ENGINE, "EngineCore._initialize_kv_caches", r"kv_cache_configs = get_kv_cache_configs\(")],
    "engine_allocate": [
        at(ENGINE, "EngineCore._initialize_kv_caches", r"self\.model_executor\.initialize_from_config\("),
    ],
    "plan": [
        at("v1/core/kv_cache_utils.py", "get_kv_cache_configs", r"check_enough.*\("),
        at("v1/core/kv_cache_planning.py", "get_kv_cache_configs", r"check_enough.*\("),
    ],
    "engine_loop": [at(ENGINE, "EngineCoreProc.run_engine_core", r"engine_core\.run_busy_loop\(\)")],
    "busy_loop": [at(ENGINE, "EngineCoreProc.run_busy_loop", r"self\._process_engine_step\(\)")],
    "engine_step": [at(ENGINE, "EngineCoreProc._process_engine_step", r"= self\.step_fn\(\)")],
    "step": [
        at(ENGINE, "EngineCore.step_with_batch_queue", r"model_output = future\.result\(\)"),
        at(ENGINE, "EngineCore.step", r"model_output = future\.result\(\)"),
    ],
    "executor": [
        at("v1/executor/abstract.py", "Executor.__init__", r"self\._init_executor\(\)"),
    ],
    "executor_wait": [
        at(MULTIPROC, "MultiprocExecutor._init_executor", r"WorkerProc\.wait_for_ready\("),
        at(MULTIPROC, "MultiprocExecutor._init_executor", r"self\._start_workers|wait_for_ready"),
    ],
    "wait": [at(MULTIPROC, "WorkerProc.wait_for_ready", r"raise e from None")],
    "executor_profile": [at("v1/executor/abstract.py", "Executor.determine_available_memory", r"self\.collective_rpc")],
    "executor_allocate": [
        at("v1/executor/abstract.py", "Executor.initialize_from_config", r'self\.collective_rpc\("initialize_from'),
    ],
    "engine_warm": [
        at(ENGINE, "EngineCore._initialize_kv_caches", r"self\.model_executor\.compile_or_warm_up_model\("),
    ],
    "traced": [at("tracing/otel.py", "instrument_otel", r"^ +return func\(\*args, \*\*kwargs\)")],
    "executor_warm": [
        at("v1/executor/abstract.py", "Executor.initialize_from_config", r"compilation_times: .* = self\.collective"),
        at("v1/executor/abstract.py", "Executor.compile_or_warm_up_model", r"compilation_times: .* = self\.collective"),
    ],
    "rpc": [at(MULTIPROC, "MultiprocExecutor.collective_rpc", r"future\.result\(\)")],
    "future_result": [at(MULTIPROC, "FutureWrapper.result", r"return super\(\)\.result\(")],
    "future_wait": [at(MULTIPROC, "FutureWrapper._wait_for_response", r"self\.get_response\(\)")],
    "response": [
        at(MULTIPROC, "MultiprocExecutor.collective_rpc", r"raise RuntimeError\(\n +f\"Worker failed with error"),
    ],
    "uniproc": [at("v1/executor/uniproc_executor.py", "UniProcExecutor._init_executor", r"worker\.load_model\(\)")],
    "uniproc_rpc": [at("v1/executor/uniproc_executor.py", "UniProcExecutor.collective_rpc", r"result = run_method\(")],
    "worker_main": [at(MULTIPROC, "WorkerProc.worker_main", r"worker = WorkerProc\(")],
    "worker_made": [at(MULTIPROC, "WorkerProc.__init__", r"self\.worker\.load_model\(\)")],
    "worker_load": [at(WORKER, "Worker.load_model", r"self\.model_runner\.load_model\(")],
    "runner_load": [at(RUNNER, "GPUModelRunner.load_model", r"model_loader\.load_model\(")],
    "runner_load_v2": [at(RUNNER_V2, "GPUModelRunner.load_model", r"model_loader\.load_model\(")],
    "runner_draft": [at(RUNNER, "GPUModelRunner.load_model", r"self\.drafter\.load_model\(")],
    "runner_draft_v2": [at(RUNNER_V2, "GPUModelRunner.load_model", r"self\.speculator\.load_model\(")],
    "loader_model": [
        at("model_executor/model_loader/base_loader.py", "BaseModelLoader.load_model", r"model = initialize_model\("),
        at("model_executor/model_loader/base_loader.py", "BaseModelLoader.load_model", r"model = self\.create_model\("),
    ],
    "loader_create": [
        at("model_executor/model_loader/base_loader.py", "BaseModelLoader.create_model", r"initialize_model\("),
    ],
    "loader_weights": [
        at("model_executor/model_loader/base_loader.py", "BaseModelLoader.load_model", r"self\.load_weights\("),
    ],
    "model_init": [
        at("model_executor/model_loader/utils.py", "initialize_model", r"model_class\(vllm_config=vllm_config, prefix"),
    ],
    "default_weights": [
        at(
            "model_executor/model_loader/default_loader.py", "DefaultModelLoader.load_weights", r"model\.load_weights\("
        ),
    ],
    "causal_init": _model("DeepseekV4ForCausalLM.__init__", r"self\.model = self\.model_cls\("),
    "causal_weights": _model("DeepseekV4ForCausalLM.load_weights", r"= loader\.load_weights\("),
    "layers_init": _model("DeepseekV4Model.__init__", r"= make_layers\("),
    "layer_made": _model("DeepseekV4Model.__init__", r"lambda prefix: DeepseekV4DecoderLayer\("),
    "layer_init": _model("DeepseekV4DecoderLayer.__init__", r"self\.attn = "),
    "layer_moe": _model("DeepseekV4DecoderLayer.__init__", r"self\.ffn = "),
    "causal_forward": _model("DeepseekV4ForCausalLM.forward", r"hidden_states = self\.model\("),
    "model_forward": _model("DeepseekV4Model.forward", r"= layer\("),
    "layer_kind": _model("DeepseekV4DecoderLayer.forward", r"return self\._forward_cuda\("),
    "layer_forward": [
        *_model("DeepseekV4DecoderLayer.forward", r"x = self\.attn\("),
        *_model("DeepseekV4DecoderLayer._forward_cuda", r"x = self\.attn\("),
    ],
    "worker_turn": [at(MULTIPROC, "WorkerProc.worker_busy_loop", r"self\._execute_worker_rpc\(")],
    "worker_loop": [
        at(MULTIPROC, "WorkerProc.worker_busy_loop", r"output = func\(\*args"),
        at(MULTIPROC, "WorkerProc._execute_worker_rpc", r"output = func\(\*args"),
    ],
    "worker_profile": [at(WORKER, "Worker.determine_available_memory", r"self\.model_runner\.profile_run\(")],
    "profile": [at(RUNNER, "GPUModelRunner.profile_run", r"= self\._dummy_run\(")],
    "profile_v2": [at(RUNNER_V2, "GPUModelRunner.profile_run", r"= self\._dummy_run\(")],
    "dummy": [at(RUNNER, "GPUModelRunner._dummy_run", r"outputs = self\.model\(")],
    "dummy_v2": [at(RUNNER_V2, "GPUModelRunner._dummy_run", r"self\.execute_model\(")],
    "execute_v2": [at(RUNNER_V2, "GPUModelRunner.execute_model", r"model_output = self\.model\(")],
    "worker_allocate": [at(WORKER, "Worker.initialize_from_config", r"self\.model_runner\.initialize_kv_cache\(")],
    "allocate": [at(RUNNER, "GPUModelRunner.initialize_kv_cache", r"= self\.initialize_kv_cache_tensors\(")],
    "allocate_v2": [at(RUNNER_V2, "GPUModelRunner.initialize_kv_cache", r"= init_kv_cache\(")],
    "worker_warm_up": [at(WORKER, "Worker.compile_or_warm_up_model", r"self\._compile_or_warm_up_model\(")],
    "worker_warm": [
        at(WORKER, "Worker.compile_or_warm_up_model", r"kernel_warmup\(self\)"),
        at(WORKER, "Worker._compile_or_warm_up_model", r"kernel_warmup\(self\)"),
    ],
    "worker_capture": [
        at(WORKER, "Worker.compile_or_warm_up_model", r"= self\.model_runner\.capture_model\(\)"),
        at(WORKER, "Worker._compile_or_warm_up_model", r"= self\.model_runner\.capture_model\(\)"),
    ],
    "capture": [at(RUNNER, "GPUModelRunner.capture_model", r"self\._capture_cudagraphs\(")],
    "capture_v2": [at(RUNNER_V2, "GPUModelRunner.capture_model", r"self\.cudagraph_manager\.capture\(")],
    "worker_execute": [at(WORKER, "Worker.execute_model", r"= self\.model_runner\.execute_model\(")],
    "execute": [at(RUNNER, "GPUModelRunner.execute_model", r"model_output = self\._model_forward\(")],
}
