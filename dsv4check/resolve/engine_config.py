"""What the config classes and the worker refuse beside parallelism, attention and speculative decoding.

Covers ``ModelConfig`` (length, dtype), ``SchedulerConfig``, ``LoRAConfig``, the mutually exclusive flags of
``EngineArgs.create_engine_config``, the parser and tokenizer names of the API server, the environment
(``resolve/environment.py``) and weights that cannot fit (``resolve/memory_limits.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Parallelism
from dsv4check.resolve.environment import environment_problems
from dsv4check.resolve.memory_limits import weight_problems
from dsv4check.resolve.parallelism import where

_VALIDATION = "ValidationError"
_GIB = 1024
_BATCHED_MOE = {"deepep_low_latency", "nixl_ep"}
_BOUNDS = {
    "ge": ("greater_than_equal", "greater than or equal to"),
    "gt": ("greater_than", "greater than"),
    "le": ("less_than_equal", "less than or equal to"),
    "lt": ("less_than", "less than"),
}


def check_engine_config(
    deployment: Deployment, facts: ReleaseFacts, parallel: Parallelism
) -> tuple[Problem, ...]:
    """Every problem of this area, in the order in which vLLM meets them."""
    section = facts.section("engine_config")
    return (
        *_parsers(deployment, section),
        *environment_problems(deployment, facts),
        *_ranges(deployment, section),
        *_model(deployment, section),
        *_scheduler(deployment, section, parallel),
        *_lora(deployment, section),
        *_exclusive(deployment),
        *_sampling(deployment, section, parallel),
        *weight_problems(deployment, parallel),
    )


def max_model_len(deployment: Deployment, section: Mapping[str, Any]) -> int | None:
    """The context length of the launch in tokens: as asked for, else the checkpoint's; None when unknown.

    ``auto`` and -1 give the checkpoint's length here; vLLM lowers it later to what the memory allows.
    """
    asked = deployment.flags.values.get("max_model_len")
    if isinstance(asked, int) and asked > 0:
        return asked
    derived = _derived_length(deployment, section)
    return None if derived is None else int(derived)


def _config(code: str, error: str, data: Mapping[str, Any], origin: Origin | None) -> Problem:
    return Problem(code, Stage.ENGINE_CONFIG, _VALIDATION, error, data, origin)


def _int(deployment: Deployment, dest: str) -> int | None:
    """A flag that was given as an integer."""
    value = deployment.flags.values.get(dest)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _parsers(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """Names of tool parser, reasoning parser and tokenizer mode against the release's registries.

    The first two are checked by ``validate_api_server_args`` before the engine is configured; a tokenizer
    mode is looked up when the API server loads the tokenizer. Headless nodes run no API server.
    """
    flags = deployment.flags
    if flags.get("headless") is True:
        return []
    names = section["parsers"]
    problems: list[Problem] = []
    tool = flags.values.get("tool_call_parser")
    plugin = flags.given("tool_parser_plugin")
    known = names["tool"].split()
    if tool is not None and flags.get("enable_auto_tool_choice") is True and not plugin and tool not in known:
        error = f"invalid tool call parser: {tool} (chose from {{ {','.join(known)} }})"
        problems.append(
            Problem(
                "tool-parser-unknown",
                Stage.ARGPARSE,
                "KeyError",
                error,
                _name_data(deployment, str(tool), known),
                where(deployment, "tool_call_parser"),
            )
        )
    reasoning = flags.values.get("reasoning_parser")
    dest = "reasoning_parser"
    if reasoning is None:
        reasoning = flags.section("structured_outputs_config").get("reasoning_parser")
        dest = "structured_outputs_config"
    known = names["reasoning"].split()
    if reasoning and not flags.given("reasoning_parser_plugin") and reasoning not in known:
        error = f"invalid reasoning parser: {reasoning} (chose from {{ {','.join(known)} }})"
        problems.append(
            Problem(
                "reasoning-parser-unknown",
                Stage.ARGPARSE,
                "KeyError",
                error,
                _name_data(deployment, str(reasoning), known),
                where(deployment, dest),
            )
        )
    mode = flags.values.get("tokenizer_mode")
    known = names["tokenizer"].split()
    if mode is not None and mode not in known and flags.get("skip_tokenizer_init") is not True:
        problems.append(
            Problem(
                "tokenizer-mode-unknown",
                Stage.ENGINE_CONFIG,
                "ValueError",
                f"No tokenizer registered for tokenizer_mode={mode!r}.",
                _name_data(deployment, str(mode), known),
                where(deployment, "tokenizer_mode"),
            )
        )
    return problems


def _name_data(deployment: Deployment, name: str, known: list[str]) -> dict[str, Any]:
    """The name, and the one to use instead: the model family's own when it is registered, else the closest."""
    own = deployment.model.family
    close = get_close_matches(name, known, 1, 0.5)
    return {"name": name, "closest": own if own in known else (close[0] if close else known[0])}


def _ranges(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """Flags whose value lies outside the bounds of the config field they become."""
    problems: list[Problem] = []
    for dest, bound in section["bounds"].items():
        value = deployment.flags.values.get(dest)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        failed = next((key for key in _BOUNDS if key in bound and not _holds(key, value, bound[key])), None)
        if failed is None:
            continue
        kind, words = _BOUNDS[failed]
        limit = bound[failed]
        error = (
            f"1 validation error for {bound['class']}\n{dest}\n  Input should be {words} {limit:g} "
            f"[type={kind}, input_value={value!r}, input_type={type(value).__name__}]"
        )
        data = {"flag": "--" + dest.replace("_", "-"), "dest": dest, "value": value, "words": words}
        data["limit"] = limit
        problems.append(_config("value-out-of-range", error, data, where(deployment, dest)))
    return problems


def _holds(key: str, value: float, limit: float) -> bool:
    if key == "ge":
        return value >= limit
    if key == "gt":
        return value > limit
    return value <= limit if key == "le" else value < limit


def _derived_length(deployment: Deployment, section: Mapping[str, Any]) -> float | None:
    """``_get_and_verify_max_len``: the positions the checkpoint was made for, as vLLM derives them."""
    positions = deployment.model.integer("max_position_embeddings")
    if positions is None:
        return None
    rope = deployment.model.get("rope_scaling") or deployment.model.get("rope_parameters")
    rules = section["max_len"]
    if isinstance(rope, Mapping) and not any(isinstance(value, Mapping) for value in rope.values()):
        kind = rope.get("rope_type", rope.get("type"))
        original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
        if rules["yarn_from_original"] and kind == "yarn":
            if not isinstance(original, (int, float)) or not isinstance(factor, (int, float)):
                return None
            return original * factor
    return float(positions) if rules["float"] else positions


def _model(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """ModelConfig: context length, dtype, the sliding-window switch."""
    flags = deployment.flags
    problems: list[Problem] = []
    if section["disable_sliding_window_crashes"] and flags.get("disable_sliding_window") is True:
        problems.append(
            Problem(
                "disable-sliding-window",
                Stage.ENGINE_CONFIG,
                "StrictDataclassFieldValidationError",
                "",
                {},
                where(deployment, "disable_sliding_window"),
            )
        )
    asked = _int(deployment, "max_model_len")
    derived = _derived_length(deployment, section)
    origin = where(deployment, "max_model_len")
    if asked == 0:
        error = "max_model_len must be a positive integer, got int: 0. Example: max_model_len=2048"
        problems.append(_config("max-model-len-zero", error, {}, origin))
    elif asked is not None and derived is not None and asked > derived:
        tokenizer_limit = deployment.model.get("model_max_length")
        if not isinstance(tokenizer_limit, int) or asked > tokenizer_limit:
            problems.append(_too_long(deployment, asked, derived, tokenizer_limit, origin))
    dtype = str(flags.values.get("dtype", "auto")).lower()
    quantised = isinstance(deployment.model.raw.get("quantization_config"), Mapping)
    if dtype in ("float", "float32") and quantised:
        error = (
            "torch.float32 is not supported for quantization method deepseek_v4_fp8. "
            "Supported dtypes: [torch.bfloat16, torch.float16]"
        )
        problems.append(_config("dtype-unsupported", error, {"dtype": dtype}, where(deployment, "dtype")))
    elif dtype in ("half", "float16"):
        problems.append(
            Problem("dtype-float16", Stage.WARMUP, "", "", {"dtype": dtype}, where(deployment, "dtype"))
        )
    return problems


def _too_long(
    deployment: Deployment, asked: int, derived: float, limit: Any, origin: Origin | None
) -> Problem:
    data = {"asked": asked, "limit": int(derived)}
    if deployment.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").strip().lower() in ("1", "true"):
        return Problem("max-model-len-forced", Stage.ACCURACY, "", "", data, origin)
    error = (
        f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
        f"(max_position_embeddings={derived} or model_max_length={limit} in model's config.json). "
        "To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
    )
    return _config("max-model-len-too-long", error, data, origin)


def _default_batched_tokens(
    deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism
) -> int | None:
    """``EngineArgs.get_batch_defaults`` for ``vllm serve``; None when the GPU's memory is not known."""
    hardware = deployment.hardware
    throughput = deployment.flags.get("performance_mode") == "throughput"
    backend = deployment.flags.get("all2all_backend")
    if parallel.data > 1 and parallel.expert_parallel and backend in _BATCHED_MOE:
        return 512 if throughput else 256
    if hardware.memory_mib is None or hardware.vendor != "nvidia":
        return None
    rules = section["batch"]
    small = "a100" in (hardware.name or "").lower() or (
        rules["gb10_small"] and hardware.capability == (12, 1)
    )
    tokens = 2048
    if rules["big_gib"] is not None and hardware.memory_mib >= rules["big_gib"] * _GIB:
        tokens = 16384
    elif hardware.memory_mib >= 70 * _GIB and not small:
        tokens = 8192
    return tokens * 2 if throughput else tokens


def _scheduler(deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism) -> list[Problem]:
    """SchedulerConfig.verify_max_model_len and the partial-prefill switches."""
    flags = deployment.flags
    problems: list[Problem] = []
    length = max_model_len(deployment, section)
    chunked = flags.get("enable_chunked_prefill") is not False
    seqs = _int(deployment, "max_num_seqs")
    tokens = _int(deployment, "max_num_batched_tokens")
    origin = where(deployment, "max_num_batched_tokens", "max_num_seqs")
    if tokens is not None and length is not None and not chunked and tokens < length:
        error = (
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). "
            "This effectively limits the maximum sequence length to max_num_batched_tokens and makes vLLM "
            "reject longer sequences. Please increase max_num_batched_tokens or decrease max_model_len."
        )
        data = {"tokens": tokens, "length": length}
        problems.append(_config("batched-tokens-below-length", error, data, origin))
    budget = tokens
    if budget is None and chunked:
        budget = _default_batched_tokens(deployment, section, parallel)
        if budget is not None and seqs is not None and length is not None:
            budget = min(budget, seqs * length)
    if seqs is not None and budget is not None and 0 < budget < seqs:
        error = f"max_num_batched_tokens ({budget}) must be greater than or equal to max_num_seqs ({seqs})."
        data = {"tokens": budget, "seqs": seqs, "default": tokens is None}
        problems.append(_config("batched-tokens-below-seqs", error, data, origin))
    active = _int(deployment, "max_num_active_seqs")
    if active is not None and seqs is not None and active > seqs:
        error = f"max_num_active_seqs ({active}) cannot be greater than max_num_seqs ({seqs})."
        data = {"active": active, "seqs": seqs}
        problems.append(
            _config("active-seqs-above-seqs", error, data, where(deployment, "max_num_active_seqs"))
        )
    problems += _prefill(deployment, section, length)
    return problems


def _prefill(deployment: Deployment, section: Mapping[str, Any], length: int | None) -> list[Problem]:
    """Partial prefills (flags of 0.20-0.26, refused for every model) and the long-prefill threshold."""
    partial = [_int(deployment, name) for name in ("max_num_partial_prefills", "max_long_partial_prefills")]
    if section["partial_prefills"] and any(value not in (None, 1) for value in partial):
        error = (
            "Concurrent Partial Prefill is not supported. "
            "We recommend to remove Concurrent Partial Prefill from your config."
        )
        origin = where(deployment, "max_num_partial_prefills", "max_long_partial_prefills")
        return [Problem("partial-prefills", Stage.ENGINE_CONFIG, "NotImplementedError", error, {}, origin)]
    threshold = _int(deployment, "long_prefill_token_threshold")
    if section["long_prefill"] != "always" or threshold is None or length is None or threshold <= length:
        return []
    error = f"long_prefill_token_threshold ({threshold}) cannot be greater than the max_model_len ({length})."
    data = {"threshold": threshold, "length": length}
    return [
        _config("long-prefill-above-length", error, data, where(deployment, "long_prefill_token_threshold"))
    ]


def _lora(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """LoRA: supported by the V4 class or not, and the sizes of the adapter pool."""
    flags = deployment.flags
    if flags.get("enable_lora") is not True:
        return []
    origin = where(deployment, "enable_lora")
    problems: list[Problem] = []
    loras, cpu = flags.get("max_loras", 1), _int(deployment, "max_cpu_loras")
    if cpu is not None and cpu > 0 and isinstance(loras, int) and cpu < loras:
        error = f"max_cpu_loras ({cpu}) must be >= max_loras ({loras})."
        data = {"cpu": cpu, "loras": loras}
        problems.append(_config("lora-cpu-pool", error, data, where(deployment, "max_cpu_loras")))
    if deployment.hardware.vendor not in (None, "nvidia"):
        return problems
    if not section["lora"]["supported"]:
        error = "DeepseekV4ForCausalLM does not support LoRA yet."
        problems.append(Problem("lora-unsupported", Stage.WEIGHT_LOAD, "ValueError", error, {}, origin))
    backend = str(flags.section("kernel_config").get("moe_backend", flags.get("moe_backend", "auto")))
    if flags.given("moe_backend"):
        backend = str(flags.get("moe_backend"))
    if section["lora"]["mega_moe_refused"] and backend.replace("-", "_") in _mega_backends():
        error = (
            f"LoRA is not supported with moe_backend={backend!r}. "
            "Disable LoRA or select a MoE backend that supports LoRA."
        )
        problems.append(_config("lora-mega-moe", error, {"backend": backend}, origin))
    return problems


def _mega_backends() -> tuple[str, ...]:
    return (
        "deep_gemm_mega_moe",
        "flashinfer_moe_ep_cutedsl",
        "flashinfer_moe_ep_mega_deep_gemm",
        "aiter_mega_moe",
    )


def _exclusive(deployment: Deployment) -> list[Problem]:
    """The same setting said twice, as a flag and inside a JSON option, and capture sizes that contradict."""
    flags = deployment.flags
    compilation = flags.section("compilation_config")
    kernel = flags.section("kernel_config")
    problems: list[Problem] = []
    for dest, other, holder in (
        ("cudagraph_capture_sizes", "compilation_config", compilation),
        ("max_cudagraph_capture_size", "compilation_config", compilation),
        ("enable_flashinfer_autotune", "kernel_config", kernel),
    ):
        if flags.values.get(dest) is not None and holder.get(dest) is not None:
            error = f"{dest} and {other}.{dest} are mutually exclusive"
            data = {"flag": "--" + dest.replace("_", "-"), "dest": dest, "other": other}
            problems.append(
                Problem(
                    "setting-said-twice",
                    Stage.ENGINE_CONFIG,
                    "ValueError",
                    error,
                    data,
                    where(deployment, dest),
                )
            )
    return problems + _capture_sizes(deployment, compilation)


def _capture_sizes(deployment: Deployment, compilation: Mapping[str, Any]) -> list[Problem]:
    """Both the capture sizes and their maximum given: they must agree (``_set_cudagraph_sizes``)."""
    flags = deployment.flags
    sizes = flags.values.get("cudagraph_capture_sizes", compilation.get("cudagraph_capture_sizes"))
    limit = flags.values.get("max_cudagraph_capture_size", compilation.get("max_cudagraph_capture_size"))
    mode = str(compilation.get("cudagraph_mode", "")).upper()
    eager = flags.get("enforce_eager") is True or mode == "NONE" or flags.get("optimization_level") == 0
    if eager or not isinstance(sizes, (list, tuple)) or not isinstance(limit, int):
        return []
    tokens = _int(deployment, "max_num_batched_tokens")
    kept = [size for size in sizes if isinstance(size, int) and (tokens is None or size <= tokens)]
    largest = max(kept, default=0)
    if largest == limit:
        return []
    error = (
        f"customized max_cudagraph_capture_size(={limit}) should be consistent with the max value of "
        f"cudagraph_capture_sizes(={largest})"
    )
    origin = where(deployment, "max_cudagraph_capture_size", "compilation_config")
    return [_config("capture-sizes-disagree", error, {"limit": limit, "largest": largest}, origin)]


def _sampling(deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism) -> list[Problem]:
    """Batch-sharded sampling and per-request draft metrics, which need something to work on."""
    flags = deployment.flags
    problems: list[Problem] = []
    if section["batch_sharded_sampling"] and flags.get("enable_batch_sharded_sampling") is True:
        reasons = []
        seqs = _int(deployment, "max_num_seqs")
        if parallel.tensor <= 1:
            reasons.append("tensor_parallel_size is 1, so there is nothing to shard")
        elif seqs is not None and seqs < parallel.tensor:
            reasons.append(f"max_num_seqs ({seqs}) is below tensor_parallel_size ({parallel.tensor})")
        if _int(deployment, "max_logprobs") == -1:
            reasons.append("max_logprobs is -1, allowing vocab-size logprob requests")
        if reasons:
            error = (
                "Batch-sharded sampling was explicitly enabled via the --enable-batch-sharded-sampling flag, "
                "but is not supported in this configuration for the following reason(s): "
                f"{'; '.join(reasons)}."
            )
            origin = where(deployment, "enable_batch_sharded_sampling")
            problems.append(_config("batch-sharded-sampling", error, {"why": reasons[0]}, origin))
    speculative = any(flags.given(dest) for dest in ("speculative_config", "spec_method", "spec_model"))
    metrics = flags.values.get("per_request_spec_decode_metrics", "none")
    if section["spec_metrics_need_spec"] and metrics not in (None, "none") and not speculative:
        error = (
            "--per-request-spec-decode-metrics requires speculative decoding to be enabled "
            "(via --speculative-config)."
        )
        origin = where(deployment, "per_request_spec_decode_metrics")
        problems.append(_config("spec-metrics-without-draft", error, {}, origin))
    return problems
