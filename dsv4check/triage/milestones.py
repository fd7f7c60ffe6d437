"""How far a start of vLLM got: by the lines each stage prints, and by the functions a traceback passes through."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from dsv4check.problems import Stage
from dsv4check.triage.records import ErrorEvent, LogLine, Milestone, Run

MILESTONES: Final[tuple[tuple[str, str, Stage, str], ...]] = (
    # words of the releases' code, expression, the stage that is under way from then on, what is reached
    ("Automatically detected platform", "", Stage.ARGPARSE, "vLLM is imported, its arguments are not yet read"),
    ("vLLM server version", "", Stage.ENGINE_CONFIG, "the command line is read"),
    ("  version ", r"[█▀▄]\s+version\s", Stage.ENGINE_CONFIG, "the command line is read"),
    ("non-default args: ", r"non-default args: \{", Stage.ENGINE_CONFIG, "the command line is read"),
    ("Resolved architecture: ", "", Stage.ENGINE_CONFIG, "the model's config is read, the engine is being configured"),
    ("Using max model len ", "", Stage.ENGINE_CONFIG, "the model's config is read, the engine is being configured"),
    (
        "Chunked prefill is enabled with",
        "",
        Stage.ENGINE_CONFIG,
        "the model's config is read, the engine is being configured",
    ),
    ("Initializing a V1 LLM engine (v", "", Stage.MODEL_INIT, "the engine is configured, its workers are starting"),
    ("world_size=", r"world_size=\d+ rank=\d+", Stage.MODEL_INIT, "workers are running, the model is not yet built"),
    (" is assigned as ", r"rank \d+ in world size \d+ is assigned as", Stage.MODEL_INIT, "workers are connected"),
    ("Starting to load model ", "", Stage.MODEL_INIT, "workers are connected, the model is being built"),
    (
        " attention backend out of potential backends",
        "",
        Stage.MODEL_INIT,
        "the model is being built, its attention backend is chosen",
    ),
    ("Mxfp4 MoE backend", r"Using '?[\w ]+'? Mxfp4 MoE backend", Stage.MODEL_INIT, "the model is being built"),
    (
        "Filesystem type for checkpoints: ",
        "",
        Stage.WEIGHT_LOAD,
        "the model is built, its weights are being loaded",
    ),
    (
        "Loading safetensors checkpoint shards",
        r"Loading safetensors \w[\w ]+:?\s*\d*",
        Stage.WEIGHT_LOAD,
        "the model is built, its weights are being loaded",
    ),
    (
        "Loading weights took ",
        r"Loading weights took [\d.]+",
        Stage.WEIGHT_LOAD,
        "the weights are read, they are being processed",
    ),
    ("Loading drafter model", "", Stage.WEIGHT_LOAD, "the target's weights are loaded, the draft is being loaded"),
    ("draft model loaded: ", "", Stage.WEIGHT_LOAD, "the draft's weights are loaded"),
    (
        "Model loading took ",
        r"Model loading took (?P<weights>[\d.]+) GiB",
        Stage.KV_CACHE_INIT,
        "weights loaded ({weights} GiB), KV cache not yet allocated",
    ),
    (
        "Dynamo bytecode transform time",
        "",
        Stage.WARMUP,
        "weights loaded, the model is being compiled in its first forward pass",
    ),
    (
        "Compiling a graph for compile range",
        "",
        Stage.WARMUP,
        "weights loaded, the model is being compiled in its first forward pass",
    ),
    (
        "torch.compile and initial profiling/warmup ",
        "",
        Stage.KV_CACHE_INIT,
        "the first forward pass is done, memory is being measured",
    ),
    (
        "Available KV cache memory: ",
        r"Available KV cache memory: (?P<memory>-?[\d.]+) GiB",
        Stage.KV_CACHE_INIT,
        "memory measured ({memory} GiB for the KV cache), KV cache not yet allocated",
    ),
    (
        "KV cache size: ",
        r"KV cache size: (?P<tokens>[\d,]+) tokens",
        Stage.KV_CACHE_INIT,
        "KV cache planned ({tokens} tokens), it is being allocated",
    ),
    ("Maximum concurrency for ", "", Stage.KV_CACHE_INIT, "KV cache planned, it is being allocated"),
    ("Compile and warming up model for size ", "", Stage.WARMUP, "KV cache allocated, kernels are being warmed up"),
    (
        "Warming up ",
        r"Warming up (?:FlashInfer|DeepSeek|CuTeDSL|ll_bf16|[A-Z]\w+ kernels)",
        Stage.WARMUP,
        "KV cache allocated, kernels are being warmed up",
    ),
    (
        "Capturing CUDA graphs",
        r"Capturing (?:\w+ )?CUDA [Gg]raphs?",
        Stage.CUDAGRAPH,
        "kernels warmed up, CUDA graphs are being captured",
    ),
    (
        "Graph capturing finished in ",
        r"Graph capturing finished in \d+ secs",
        Stage.CUDAGRAPH,
        "CUDA graphs captured, the engine is not yet ready",
    ),
    (
        "init engine (profile, create kv cache, warmup model) took ",
        "",
        Stage.RUNTIME,
        "the engine is ready, the server is not yet up",
    ),
    ("Starting vLLM server on ", r"Starting vLLM (?:API )?server", Stage.RUNTIME, "the engine is ready"),
    ("", r"Application startup complete", Stage.RUNTIME, "the server is up"),
    (
        "",
        r"Avg prompt throughput: [\d.]+ tokens/s|\"POST /v1/\S+ HTTP/[\d.]+\" 200",
        Stage.RUNTIME,
        "requests are served",
    ),
)
"""In the order of a start. Uvicorn's own lines, and those of requests, have no words in vLLM's code."""

_COMPILED: Final = tuple(re.compile(pattern or re.escape(words)) for words, pattern, _, _ in MILESTONES)
_ANY: Final = re.compile("|".join(f"(?:{re.sub(r'[?]P<[a-z]+>', '?:', item.pattern)})" for item in _COMPILED))

_PARSER: Final = "argparse"
_FRAMES: Final[tuple[tuple[re.Pattern[str], Stage], ...]] = tuple(
    (re.compile(pattern), stage)
    for pattern, stage in (
        (
            r"(?:argparse|argparse_utils|flexible_argument_parser)\.py:|:parse_args$|:validate_parsed_serve_args$",
            Stage.ARGPARSE,
        ),
        (
            r":create_engine_config$|:create_(?:model|speculative)_config$|^vllm/config/\w+\.py:__post_init__$",
            Stage.ENGINE_CONFIG,
        ),
        (
            r":(?:init_device|init_worker_distributed_environment|_make_model_runner|_init_workspace_and_model_runner)$",
            Stage.MODEL_INIT,
        ),
        (r"^vllm/v1/worker/.*:load_model$|:initialize_model$", Stage.MODEL_INIT),
        (r":load_weights$|:process_weights_after_loading$|:_?(?:safetensors|pt)_weights_iterator$", Stage.WEIGHT_LOAD),
        (r"spec_decode/.*:(?:load_model|_get_model|_create_draft_vllm_config)$", Stage.WEIGHT_LOAD),
        (
            r":(?:determine_available_memory|_initialize_kv_caches|initialize_from_config|get_kv_cache_specs?)$",
            Stage.KV_CACHE_INIT,
        ),
        (
            r":(?:initialize_kv_cache|initialize_kv_cache_tensors|get_kv_cache_configs?|init_attn_backend)$",
            Stage.KV_CACHE_INIT,
        ),
        (
            r":(?:initialize_attn_backend|check_enough_kv_cache_memory|_check_enough_kv_cache_memory)$",
            Stage.KV_CACHE_INIT,
        ),
        (r":(?:profile_run|_dummy_run|compile_or_warm_up_model|_compile_or_warm_up_model)$", Stage.WARMUP),
        (r":(?:kernel_warmup|warmup_kernels|execute_dummy_batch)$|^vllm/model_executor/warmup/", Stage.WARMUP),
        (
            r":(?:capture_model|profile_cudagraph_memory|_warmup_and_capture|_capture_cudagraphs|capture_graphs?)$",
            Stage.CUDAGRAPH,
        ),
    )
)
_SERVING: Final = re.compile(
    r":(?:run_busy_loop|_process_engine_step|step|step_with_batch_queue|execute_model|sample_tokens|output_handler"
    r"|chat_completion|create_chat_completion|create_completion|generate)$"
)
_NOTHING: Final = "the log does not show how far the start got"


def stage_reached(run: Run, error: ErrorEvent | None) -> Milestone:
    """The stage that was under way when ``error`` came, or when the log ended.

    The functions of the traceback decide; without any that tell, the lines of the start do.
    """
    lines = run.lines if error is None else _before(run.lines, error.line)
    shown = _last(lines)
    if error is not None:
        stage = _of_error(error)
        if stage is not None:
            # A line of a later stage is another process's: it does not say how far the failed one got.
            fits = shown is not None and shown.stage.order <= stage.order
            reached = shown.reached if fits and shown is not None else f"stopped in {_IN_WORDS[stage]}"
            return Milestone(stage, reached, shown.line if fits and shown is not None else error.line)
    return shown or Milestone(Stage.ARGPARSE, _NOTHING, shown=False)


_IN_WORDS: Final = {
    Stage.ARGPARSE: "reading the command line",
    Stage.ENGINE_CONFIG: "configuring the engine",
    Stage.MODEL_INIT: "building the model",
    Stage.WEIGHT_LOAD: "loading the weights",
    Stage.KV_CACHE_INIT: "measuring memory and allocating the KV cache",
    Stage.WARMUP: "the first forward passes",
    Stage.CUDAGRAPH: "capturing CUDA graphs",
    Stage.RUNTIME: "serving",
    Stage.ACCURACY: "serving",
}


def _before(lines: Iterable[LogLine], last: LogLine) -> list[LogLine]:
    """The lines in front of an error. Another file's lines stand before or behind it as the files were given."""
    found = []
    passed = False
    for line in lines:
        if line.source == last.source:
            if line.number > last.number:
                break
            passed = True
        elif passed:
            break
        found.append(line)
    return found


def _last(lines: Iterable[LogLine]) -> Milestone | None:
    best = -1
    found: tuple[LogLine, re.Match[str]] | None = None
    for line in lines:
        text = line.text[:2000]
        if _ANY.search(text) is None:
            continue
        for index in range(len(_COMPILED) - 1, max(best, 0) - 1, -1):
            match = _COMPILED[index].search(text)
            if match is not None:
                best, found = index, (line, match)
                break
    if found is None:
        return None
    _, _, stage, reached = MILESTONES[best]
    return Milestone(stage, reached.format(**found[1].groupdict()), found[0])


def _of_error(error: ErrorEvent) -> Stage | None:
    if error.kind == _PARSER:
        return Stage.ARGPARSE
    found: Stage | None = None
    serving = False
    for place in error.places:
        for pattern, stage in _FRAMES:
            if pattern.search(place) and (found is None or stage.order > found.order):
                found = stage
        serving = serving or bool(_SERVING.search(place))
    return Stage.RUNTIME if found is None and serving else found
