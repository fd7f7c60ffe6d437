"""The lines of a start, up to the stage at which it fails."""

from __future__ import annotations

import math

from dsv4check.problems import Stage
from tests.triage.log_args import engine_config, graph_mode, max_length, non_default_args
from tests.triage.log_launch import Launch
from tests.triage.log_table import has_message
from tests.triage.log_writer import Writer

BANNER = """
       █     █     █▄   ▄█
 ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}
  █▄█▀ █     █     █     █  model   {model}
   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀
"""
SHARDS = 46
API = "APIServer"


def start(writer: Writer, until: Stage) -> None:
    """Everything up to where a failure of this stage begins; the whole start for those of a running server."""
    if until is Stage.ARGPARSE:
        return
    for stage, lines in STEPS:
        if stage.order > until.order:
            return
        lines(writer)


def begin(writer: Writer) -> None:
    launch = writer.launch
    writer.log(API, "banner", BANNER.format(version=launch.version, model=launch.model))
    writer.log(API, "args", f"non-default args: {non_default_args(launch)}")
    for name in launch.env:
        if name.startswith("VLLM_") and any(item.rule.startswith("EV") for item in launch.report.findings):
            writer.log(API, "unknown_env", f"Unknown vLLM environment variable detected: {name}", "WARNING")


def configure(writer: Writer) -> None:
    launch = writer.launch
    writer.wait(7)
    architecture = "DeepseekV41ForCausalLM" if "V4.1" in launch.model else "DeepseekV4ForCausalLM"
    writer.log(API, "architecture", f"Resolved architecture: {architecture}")
    writer.log(API, "max_len", f"Using max model len {max_length(launch)}")
    if str(launch.flag("kv_cache_dtype")).startswith("fp8"):
        text = f"Using {launch.flag('kv_cache_dtype')} data type to store kv cache. It reduces the GPU memory footprint"
        writer.log(API, "fp8_cache", f"{text} and boosts the performance. Meanwhile, it may cause accuracy drop")
    draft = launch.report.resolution.draft
    if draft is not None and draft.method:
        name = "DSparkDeepseekV4ForCausalLM" if draft.method == "dspark" else "DeepSeekV4MTPModel"
        writer.log(API, "architecture", f"Resolved architecture: {name}")
    tokens = launch.flag("max_num_batched_tokens") or 8192
    writer.log(API, "chunked", f"Chunked prefill is enabled with max_num_batched_tokens={tokens}.")
    if has_message(launch.release, "asynchronous"):
        writer.log(API, "asynchronous", "Asynchronous scheduling is enabled.")
    if launch.flag("enforce_eager"):
        text = "Enforce eager set, disabling torch.compile and CUDAGraphs. This is equivalent to setting"
        writer.log(API, "eager", f"{text} -cc.mode=none -cc.cudagraph_mode=none", "WARNING")


def engines(writer: Writer) -> None:
    launch = writer.launch
    writer.wait(11)
    text = f"Initializing a V1 LLM engine (v{launch.version}) with config: {engine_config(launch)}"
    for engine in launch.engines:
        writer.log(engine, "engine", text)
    writer.wait(9)
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    world = math.prod(launch.size(name) for name in sizes)
    for rank, process in enumerate(launch.runners[: launch.hosted]):
        text = f"world_size={world} rank={rank} local_rank={rank} distributed_init_method=tcp://127.0.0.1:41797"
        writer.log(process, "distributed", f"{text} backend=nccl")
    if len(launch.runners) > 1:
        writer.log(launch.runners[0], "nccl", "vLLM is using nccl==2.28.9")
    expert = bool(launch.flag("enable_expert_parallel"))
    for rank, process in enumerate(launch.runners):
        text = f"rank {rank} in world size {world} is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank {rank}"
        writer.log(process, "rank", f"{text}, EP rank {rank if expert else 'N/A'}, EPLB rank N/A")


def build(writer: Writer) -> None:
    launch = writer.launch
    writer.wait(5)
    first = launch.runners[0]
    if launch.second_runner:
        writer.log(first, "load_v2", "Loading model from scratch...")
    else:
        writer.log(first, "load", f"Starting to load model {launch.model}...")


def load(writer: Writer) -> None:
    launch = writer.launch
    first = launch.runners[0]
    cache, moe, attention = (getattr(launch.report.resolution, name) for name in ("kv_cache", "moe", "attention"))
    writer.wait(4)
    if cache is not None and cache.layout == "fp8_ds_mla":
        writer.log(first, "packed_cache", "Using DeepSeek's fp8_ds_mla KV cache format.")
    if attention is not None and attention.requested and attention.backend:
        text = f"Using {attention.backend} attention backend out of potential backends: ['{attention.backend}']."
        writer.log(first, "attention", text)
    if moe is not None and moe.backend:
        writer.log(first, "moe", f"Using '{moe.backend}' Mxfp4 MoE backend.")
    size = 145.3 if "Pro" not in launch.model else 795.1
    text = f"Filesystem type for checkpoints: EXT4. Checkpoint size: {size:.2f} GiB. Available RAM: 1802.44 GiB."
    writer.log(first, "filesystem", text)


def progress(writer: Writer, upto: int = SHARDS) -> None:
    """tqdm's bar: one line for the log driver, its states one after another behind carriage returns."""
    first = writer.launch.runners[0]
    bars = ["", "Loading safetensors checkpoint shards:   0% Completed | 0/46 [00:00<?, ?it/s]"]
    for done in range(6, upto + 1, 8):
        share, left = done * 100 // SHARDS, (SHARDS - done) // 3
        bars.append(
            f"Loading safetensors checkpoint shards: {share:3d}% Completed | {done}/46 "
            f"[00:{done // 3:02d}<00:{left:02d},  2.8{done % 10}it/s]"
        )
    if upto == SHARDS:
        bars.append("Loading safetensors checkpoint shards: 100% Completed | 46/46 [00:13<00:00,  3.42it/s]")
    writer.raw(first, "\r".join(bars))
    writer.raw(first, "")


def loaded(writer: Writer) -> None:
    launch = writer.launch
    progress(writer)
    writer.wait(14)
    first = launch.runners[0]
    writer.log(first, "weights", "Loading weights took 13.47 seconds")
    draft = launch.report.resolution.draft
    if draft is not None and draft.method and not launch.second_runner:
        writer.log(first, "drafter", "Loading drafter model...")
    weights = 20.06 if len(launch.runners) >= 8 else round(146 / max(1, len(launch.runners)), 2)
    if launch.second_runner:
        writer.log(first, "model_loaded_v2", f"Model loading took {weights} GiB and 16.703192 seconds")
    else:
        writer.log(first, "model_loaded", f"Model loading took {weights} GiB memory and 16.703192 seconds")


def compile_model(writer: Writer) -> None:
    launch = writer.launch
    writer.wait(6)
    if graph_mode(launch) != "NONE":
        first = launch.runners[0]
        folder = "/root/.cache/vllm/torch_compile_cache/df32cd4368/rank_0_0/backbone"
        writer.log(first, "compile_cache", f"Using cache directory: {folder} for vLLM's torch.compile")
        writer.log(first, "dynamo", "Dynamo bytecode transform time: 9.41 s")
        writer.wait(31)


def cache(writer: Writer) -> None:
    launch = writer.launch
    writer.wait(3)
    for process in launch.runners:
        writer.log(process, "available", "Available KV cache memory: 98.41 GiB")
    tokens, length = "15,163,417", max_length(launch)
    plan = launch.report.resolution.memory
    if plan is not None and getattr(plan, "log_tokens", None) is not None:
        tokens = f"{plan.log_tokens.low:,}"
    many = f"Maximum concurrency for {length:,} tokens per request: 14.46x"
    same = launch.release not in ("0.20.0",) and combined(launch)
    for engine in launch.engines:
        if same:
            writer.log(engine, "cache_size", f"GPU KV cache size: {tokens} tokens, {many}")
        else:
            writer.log(engine, "cache_size", f"GPU KV cache size: {tokens} tokens")
            writer.log(engine, "concurrency", many)


def combined(launch: Launch) -> bool:
    from tests.triage.log_table import module_of

    return module_of(launch.release, "cache_size") == module_of(launch.release, "concurrency")


def capture(writer: Writer) -> None:
    if graph_mode(writer.launch) == "NONE":
        return
    writer.wait(2)
    first = writer.launch.runners[0]
    bars = [""]
    for kind, total in (("(mixed prefill-decode, PIECEWISE)", 51), ("(decode, FULL)", 35)):
        for done in (0, total // 2, total):
            share = done * 100 // total
            bar = "█" * (share // 10)
            bars.append(
                f"Capturing CUDA graphs {kind}: {share:3d}%|{bar:<10}| {done}/{total} [00:0{done % 9}<00:00,  9.1it/s]"
            )
    writer.raw(first, "\r".join(bars))


def captured(writer: Writer) -> None:
    launch = writer.launch
    writer.wait(21)
    first = launch.runners[0]
    if graph_mode(launch) != "NONE":
        message = "captured_v2" if launch.second_runner else "captured"
        writer.log(first, message, "Graph capturing finished in 21 secs, took 1.93 GiB")
    for engine in launch.engines:
        writer.log(engine, "engine_ready", "init engine (profile, create kv cache, warmup model) took 84.63 s")


def serving(writer: Writer) -> None:
    launch = writer.launch
    writer.wait(3)
    writer.log(API, "tasks", "Supported tasks: ['generate']")
    writer.log(API, "serving", f"Starting vLLM server on http://0.0.0.0:{launch.flag('port') or 8000}")
    writer.log(API, "routes", "Available routes are:")
    writer.log(API, "routes", "Route: /v1/chat/completions, Methods: POST")
    writer.raw(API, "INFO:     Started server process [1]")
    writer.raw(API, "INFO:     Waiting for application startup.")
    writer.raw(API, "INFO:     Application startup complete.")


def traffic(writer: Writer, rounds: int = 3) -> None:
    for number in range(rounds):
        writer.wait(10)
        port = 41120 + number
        writer.raw(API, f'INFO:     192.0.2.15:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK')
        rate, share = 412.7 + 31.4 * number, 0.4 + number
        text = f"Engine 000: Avg prompt throughput: {rate:.1f} tokens/s"
        text += f", Avg generation throughput: {rate / 3:.1f} tokens/s"
        running = f"Running: {number + 2} reqs, Waiting: 0 reqs, GPU KV cache usage: {share:.1f}%"
        writer.log(API, "traffic", f"{text}, {running}, Prefix cache hit rate: 21.0%")
        draft = writer.launch.report.resolution.draft
        if draft is not None and draft.method:
            text = "SpecDecoding metrics: Mean acceptance length: 2.41, Accepted throughput: 61.32 tokens/s"
            rest = "Drafted throughput: 130.10 tokens/s, Accepted: 613 tokens, Drafted: 1301 tokens"
            rates = "Per-position acceptance rate: 0.712, 0.401, Avg Draft acceptance rate: 47.1%"
            writer.log(API, "draft_metrics", f"{text}, {rest}, {rates}")


STEPS = (
    (Stage.ENGINE_CONFIG, begin),
    (Stage.MODEL_INIT, configure),
    (Stage.MODEL_INIT, engines),
    (Stage.MODEL_INIT, build),
    (Stage.WEIGHT_LOAD, load),
    (Stage.KV_CACHE_INIT, loaded),
    (Stage.KV_CACHE_INIT, compile_model),
    (Stage.CUDAGRAPH, cache),
    (Stage.CUDAGRAPH, capture),
    (Stage.RUNTIME, captured),
    (Stage.RUNTIME, serving),
    (Stage.RUNTIME, traffic),
)
"""What each stage's failures have behind them. First forward passes (warm-up) run while memory is profiled."""
