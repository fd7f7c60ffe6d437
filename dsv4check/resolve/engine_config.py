"""What the config classes and the worker refuse beside parallelism, attention and speculative decoding.

Covers ``ModelConfig`` (length, dtype), ``SchedulerConfig``, ``LoRAConfig``, the mutually exclusive flags of
``EngineArgs.create_engine_config``, the parser and tokenizer names of the API server, and the environment
(``resolve/environment.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Parallelism
from dsv4check.resolve.api_names import parser_problems
from dsv4check.resolve.config_validators import validator_problems
from dsv4check.resolve.environment import environment_problems
from dsv4check.resolve.flag_values import config_problem, integer, where
from dsv4check.resolve.json_values import json_value_problems
from dsv4check.resolve.scheduler_limits import derived_length, scheduler_problems
from dsv4check.resolve.startup_values import value_problems

_BOUNDS = {
    "ge": ("greater_than_equal", "greater than or equal to"),
    "gt": ("greater_than", "greater than"),
    "le": ("less_than_equal", "less than or equal to"),
    "lt": ("less_than", "less than"),
}


def check_engine_config(deployment: Deployment, facts: ReleaseFacts, parallel: Parallelism) -> tuple[Problem, ...]:
    """Every problem of this area, in the order in which vLLM meets them."""
    section = facts.section("engine_config")
    return (
        *parser_problems(deployment, section),
        *value_problems(deployment, section),
        *json_value_problems(deployment, section),
        *validator_problems(deployment, section),
        *environment_problems(deployment, facts),
        *_ranges(deployment, section),
        *_model(deployment, section),
        *scheduler_problems(deployment, section, parallel),
        *_lora_modalities(deployment),
        *_lora(deployment, section),
        *_exclusive(deployment),
        *_sampling(deployment, section, parallel),
    )


def _ranges(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """Flags whose value lies outside the bounds of the config field they become; LoRA's only where it is enabled."""
    problems: list[Problem] = []
    lora = deployment.flags.get("enable_lora") is True
    for dest, bound in section["bounds"].items():
        if bound["class"] == "LoRAConfig" and not lora:
            continue
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
        problems.append(config_problem("value-out-of-range", error, data, where(deployment, dest)))
    return problems + _unbounded_sizes(deployment, section)


def _unbounded_sizes(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """Group sizes below 1 where the field has no bound yet: what follows from them is refused instead."""
    problems: list[Problem] = []
    for dest, error in (
        ("tensor_parallel_size", "Unknown distributed executor backend: None"),
        ("data_parallel_size", "data_parallel_rank (0) must be in the range [0, 0)"),
    ):
        value = integer(deployment, dest)
        if value is None or value >= 1 or dest in section["bounds"]:
            continue
        data: dict[str, Any] = {"flag": "--" + dest.replace("_", "-"), "dest": dest, "value": value, "limit": 1}
        data["words"] = "greater than or equal to"
        problems.append(config_problem("value-out-of-range", error, data, where(deployment, dest)))
    return problems


def _holds(key: str, value: float, limit: float) -> bool:
    if key == "ge":
        return value >= limit
    if key == "gt":
        return value > limit
    return value <= limit if key == "le" else value < limit


def _model(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """ModelConfig: context length, dtype, the sliding-window switch."""
    flags = deployment.flags
    problems: list[Problem] = []
    if flags.get("disable_sliding_window") is True:
        at = where(deployment, "disable_sliding_window")
        if section["disable_sliding_window_crashes"]:
            stage, exception = Stage.ENGINE_CONFIG, "StrictDataclassFieldValidationError"
            error = "Validation error for field 'sliding_window'"
        else:
            # The cache of the window is planned with a window of None.
            stage, exception = Stage.KV_CACHE_INIT, "TypeError"
            error = "unsupported operand type(s) for -: 'NoneType' and 'int'"
        problems.append(Problem("disable-sliding-window", stage, exception, error, {}, at))
    asked = integer(deployment, "max_model_len")
    derived = derived_length(deployment, section)
    origin = where(deployment, "max_model_len")
    if asked == 0:
        error = "max_model_len must be a positive integer, got int: 0. Example: max_model_len=2048"
        problems.append(config_problem("max-model-len-zero", error, {}, origin))
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
        problems.append(config_problem("dtype-unsupported", error, {"dtype": dtype}, where(deployment, "dtype")))
    elif dtype in ("half", "float16"):
        problems.append(Problem("dtype-float16", Stage.WARMUP, "", "", {"dtype": dtype}, where(deployment, "dtype")))
    return problems


def _too_long(deployment: Deployment, asked: int, derived: float, limit: Any, origin: Origin | None) -> Problem:
    data = {"asked": asked, "limit": int(derived)}
    if deployment.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").strip().lower() in ("1", "true"):
        return Problem("max-model-len-forced", Stage.ACCURACY, "", "", data, origin)
    error = (
        f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
        f"(max_position_embeddings={derived} or model_max_length={limit} in model's config.json). "
        "To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
    )
    return config_problem("max-model-len-too-long", error, data, origin)


def _lora_modalities(deployment: Deployment) -> list[Problem]:
    """Adapters by modality need a multimodal model, whether LoRA is enabled or not."""
    multimodal = "vision_config" in deployment.model.raw or deployment.model.family == "deepseek_v41"
    if multimodal or not deployment.flags.values.get("default_mm_loras"):
        return []
    error = "Default modality-specific LoRA(s) were provided for a non multimodal model"
    origin = where(deployment, "default_mm_loras")
    return [Problem("lora-default-mm", Stage.ENGINE_CONFIG, "ValueError", error, {}, origin)]


def _lora(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """LoRA: supported by the V4 class or not, and the sizes of the adapter pool."""
    flags = deployment.flags
    if flags.get("enable_lora") is not True:
        return []
    origin = where(deployment, "enable_lora")
    problems: list[Problem] = []
    loras, cpu = flags.get("max_loras", 1), integer(deployment, "max_cpu_loras")
    if cpu is not None and cpu > 0 and isinstance(loras, int) and cpu < loras:
        error = f"max_cpu_loras ({cpu}) must be >= max_loras ({loras})."
        data = {"cpu": cpu, "loras": loras}
        problems.append(config_problem("lora-cpu-pool", error, data, where(deployment, "max_cpu_loras")))
    if deployment.hardware.vendor not in (None, "nvidia"):
        if deployment.hardware.vendor == "amd" and not _has_vision(deployment):
            problems.append(_lora_refused(deployment, section, "lora-unsupported-rocm", "DeepseekV4ForCausalLM"))
        return problems
    if deployment.model.family == "deepseek_v41":
        return [*problems, _lora_refused(deployment, section, "lora-unsupported-v41", "DeepseekV41ForCausalLM")]
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
        problems.append(config_problem("lora-mega-moe", error, {"backend": backend}, origin))
    return problems


def _lora_refused(deployment: Deployment, section: Mapping[str, Any], code: str, cls: str) -> Problem:
    """A class without LoRA in any release; 0.33 says so before the weights are loaded."""
    origin = where(deployment, "enable_lora")
    if section["lora"]["mega_moe_refused"]:
        error = (
            f"LoRA is not supported for {cls} ({deployment.model.name}). Supported models implement "
            "the `SupportsLoRA` interface. Run this model without `enable_lora`."
        )
        return config_problem(code, error, {}, origin)
    return Problem(code, Stage.WEIGHT_LOAD, "ValueError", f"{cls} does not support LoRA yet.", {}, origin)


def _has_vision(deployment: Deployment) -> bool:
    return deployment.model.family == "deepseek_v41" or "vision_n_layers" in deployment.model.text


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
    tokens = integer(deployment, "max_num_batched_tokens")
    kept = [size for size in sizes if isinstance(size, int) and (tokens is None or size <= tokens)]
    largest = max(kept, default=0)
    if largest == limit:
        return []
    error = (
        f"customized max_cudagraph_capture_size(={limit}) should be consistent with the max value of "
        f"cudagraph_capture_sizes(={largest})"
    )
    origin = where(deployment, "max_cudagraph_capture_size", "compilation_config")
    return [config_problem("capture-sizes-disagree", error, {"limit": limit, "largest": largest}, origin)]


def _sampling(deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism) -> list[Problem]:
    """Batch-sharded sampling and per-request draft metrics, which need something to work on."""
    flags = deployment.flags
    problems: list[Problem] = []
    if section["batch_sharded_sampling"] and flags.get("enable_batch_sharded_sampling") is True:
        reasons = []
        seqs = integer(deployment, "max_num_seqs")
        if parallel.tensor <= 1:
            reasons.append("tensor_parallel_size is 1, so there is nothing to shard")
        elif seqs is not None and seqs < parallel.tensor:
            reasons.append(f"max_num_seqs ({seqs}) is below tensor_parallel_size ({parallel.tensor})")
        if integer(deployment, "max_logprobs") == -1:
            reasons.append("max_logprobs is -1, allowing vocab-size logprob requests")
        if reasons:
            error = (
                "Batch-sharded sampling was explicitly enabled via the --enable-batch-sharded-sampling flag, "
                "but is not supported in this configuration for the following reason(s): "
                f"{'; '.join(reasons)}."
            )
            origin = where(deployment, "enable_batch_sharded_sampling")
            problems.append(config_problem("batch-sharded-sampling", error, {"why": reasons[0]}, origin))
    speculative = any(flags.given(dest) for dest in ("speculative_config", "spec_method", "spec_model"))
    metrics = flags.values.get("per_request_spec_decode_metrics", "none")
    if section["spec_metrics_need_spec"] and metrics not in (None, "none") and not speculative:
        error = (
            "--per-request-spec-decode-metrics requires speculative decoding to be enabled (via --speculative-config)."
        )
        origin = where(deployment, "per_request_spec_decode_metrics")
        problems.append(config_problem("spec-metrics-without-draft", error, {}, origin))
    return problems
