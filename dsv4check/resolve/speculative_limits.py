"""What speculative decoding takes out of the scheduler's batch, and the graph sizes it leaves.

Sources: ``engine/arg_utils.py:get_batch_defaults`` (defaults of ``vllm serve``), ``config/vllm.py:
_set_max_num_scheduled_tokens`` and ``_validate_adaptive_verification``, ``config/compilation.py:
adjust_cudagraph_sizes_for_spec_decode``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem, Stage
from dsv4check.resolution import Parallelism
from dsv4check.resolve.speculative_config import SpecConfig
from dsv4check.resolve.speculative_fields import origin

_BATCHED_DP_ALL2ALL = ("deepep_low_latency", "nixl_ep")
_BATCHED_DP_TOKENS = 256
"""``SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP``, in every release."""

_DEFAULT_TOKENS_OF_A_SEQUENCE = (8, 16)
"""2048 for 256 sequences or 8192 for 1024, and 16384 for 1024 on the largest GPUs."""

_SMALL_BUDGET = 8192
"""Below this vLLM itself warns that the token budget is small."""

_FULL_MODES = ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


def batch_limits(
    deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism
) -> tuple[int | None, int | None]:
    """(max_num_batched_tokens, max_num_seqs) of ``vllm serve``; None where the GPU's memory would decide."""
    flags = deployment.flags
    tokens, seqs = (
        _integer(flags.values.get("max_num_batched_tokens")),
        _integer(flags.values.get("max_num_seqs")),
    )
    if tokens is not None and seqs is not None:
        return tokens, seqs
    default_tokens, default_seqs = _defaults(deployment, section)
    if flags.get("all2all_backend") in _BATCHED_DP_ALL2ALL and parallel.expert_parallel and parallel.data > 1:
        default_tokens = _BATCHED_DP_TOKENS
    factor = 2 if flags.get("performance_mode") == "throughput" else 1
    if tokens is None and default_tokens is not None:
        tokens = default_tokens * factor
        length = _integer(flags.values.get("max_model_len"))
        if flags.values.get("enable_chunked_prefill") is False:
            if length is None:
                return None, seqs
            tokens = max(tokens, length)
        seqs_bound = seqs if seqs is not None else (default_seqs or 0) * factor
        if length is not None and length > 0 and seqs_bound:
            tokens = min(tokens, seqs_bound * length)
    if seqs is None and default_seqs is not None:
        seqs = default_seqs * factor
        if tokens is not None:
            seqs = min(seqs, tokens)
    return tokens, seqs


def _defaults(deployment: Deployment, section: Mapping[str, Any]) -> tuple[int | None, int | None]:
    hardware = deployment.hardware
    if hardware.memory_mib is None:
        return None, None
    gib = hardware.memory_mib / 1024
    slow = "a100" in (hardware.name or "").lower()
    if section.get("gb10_small") and hardware.capability == (12, 1):
        slow = True
    for least, tokens, seqs in section.get("batch_defaults") or ():
        # The tier for the very large GPUs has no exception by name.
        if gib >= least and (least == 0 or least >= 160 or not slow):
            return tokens, seqs
    return None, None


def profile_problems(
    deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism, config: SpecConfig
) -> tuple[Problem, ...]:
    """Do the draft's tokens of the profiling run differ from the target's, where 0.29.0 takes them for the same.

    That run has ``min(tokens, seqs)`` requests, for each of which a DSpark draft has ``num_speculative_tokens`` queries
    (``v1/worker/gpu/model_runner.py:_dummy_run``, ``spec_decode/dspark/speculator.py``). Eight draft tokens fit
    the usual 8192 tokens for 1024 sequences by chance.
    """
    count = config.tokens
    if config.method != "dspark" or count is None or parallel.data < 2:
        return ()
    tokens, seqs = batch_limits(deployment, section, parallel)
    if tokens is None or seqs is None:
        same = count in _DEFAULT_TOKENS_OF_A_SEQUENCE
    else:
        same = min(tokens, seqs) * count == tokens
    if same:
        return ()
    data = {"tokens": count, "max_num_batched_tokens": tokens, "max_num_seqs": seqs}
    where = origin(deployment.flags, "num_speculative_tokens")
    return (Problem("dspark-profile-tokens", Stage.WARMUP, "AssertionError", "", data, where),)


def budget_problems(
    deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism, config: SpecConfig
) -> tuple[Problem, ...]:
    """Is there room for draft tokens in the batch; at most one problem."""
    count = config.tokens
    if count is None or config.method is None:
        return ()
    tokens, seqs = batch_limits(deployment, section, parallel)
    if tokens is None:
        return ()
    scheduled = _integer(deployment.flags.values.get("max_num_scheduled_tokens"))
    rule = section.get("token_budget")
    data: dict[str, Any] = {
        "tokens": count,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "method": config.method,
    }
    if rule == "lookahead":
        return _lookahead(deployment, config, tokens, scheduled, data)
    slots = _slots(config, count, rule)
    if rule == "per_batch":
        if tokens <= slots:
            error = (
                "VllmConfig does not have enough slots to schedule a token and support the speculative "
                f"decoding settings. Got max_num_batched_tokens={tokens} and scheduled_token_delta={slots}."
            )
            return (_refusal(deployment, error, data | {"needed": slots + 1, "seqs_fit": None}),)
        return ()
    if seqs is None or slots == 0:
        return ()
    delta = slots * seqs
    left = tokens - delta if scheduled is None else scheduled
    data |= {
        "slots": slots,
        "reserved": delta,
        "left": left,
        "needed": delta + 1,
        "seqs_fit": max((tokens - 1) // slots, 1),
    }
    if left <= 0:
        error = (
            f"max_num_scheduled_tokens is set to {left} based on the speculative decoding settings, "
            "which does not allow any tokens to be scheduled. Increase max_num_batched_tokens to accommodate "
            "the additional draft token slots, or decrease num_speculative_tokens or max_num_seqs."
        )
        return (_refusal(deployment, error, data),)
    if scheduled is not None and tokens < scheduled + delta:
        error = (
            "VllmConfig received max_num_scheduled_tokens but it does not have enough slots to support the "
            f"speculative decoding settings. It should be greater by at least {delta}, but got "
            f"max_num_batched_tokens={tokens} and max_num_scheduled_tokens={scheduled}."
        )
        return (_refusal(deployment, error, data),)
    if left < _SMALL_BUDGET and left < tokens:
        return (
            Problem(
                "spec-token-budget-small",
                Stage.RUNTIME,
                "",
                f"max_num_scheduled_tokens is set to {left} based on the speculative decoding settings.",
                data,
                origin(deployment.flags, "num_speculative_tokens"),
            ),
        )
    return ()


def lora_problems(
    deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism, config: SpecConfig
) -> tuple[Problem, ...]:
    """With LoRA the batch must hold a whole speculative row of every sequence (``create_engine_config``)."""
    tokens, seqs = batch_limits(deployment, section, parallel)
    if not deployment.flags.values.get("enable_lora") or tokens is None or seqs is None or config.tokens is None:
        return ()
    needed = seqs * (config.tokens + 1)
    if tokens >= needed:
        return ()
    data = {
        "tokens": config.tokens,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "needed": needed,
        "seqs_fit": max(tokens // (config.tokens + 1), 1),
    }
    error = "Consider increasing max_num_batched_tokens or decreasing num_speculative_tokens"
    place = origin(deployment.flags, "num_speculative_tokens")
    return (Problem("spec-lora-budget", Stage.ENGINE_CONFIG, "ValueError", error, data, place),)


def _slots(config: SpecConfig, count: int, rule: str | None) -> int:
    """Extra rows a sequence may need in the target's batch while drafting."""
    if rule == "per_batch" and config.method == "dflash":
        return count
    if rule == "per_batch" and config.method == "draft_model":
        return count if config.parallel_drafting else 1
    slots = count - 1 if config.parallel_drafting else 0
    return slots + (1 if config.method == "draft_model" else 0)


def _lookahead(
    deployment: Deployment, config: SpecConfig, tokens: int, scheduled: int | None, data: dict[str, Any]
) -> tuple[Problem, ...]:
    count = config.tokens or 0
    if config.method == "dflash":
        ahead = count + 1
    elif config.method in ("eagle", "eagle3", "mtp", "dspark", "draft_model"):
        ahead = count
    else:
        ahead = 0
    if tokens > ahead:
        return ()
    error = (
        "VllmConfig does not have enough slots to schedule a token and support the speculative decoding "
        f"settings. Got max_num_batched_tokens={tokens} and num_lookahead_tokens={ahead}."
    )
    return (_refusal(deployment, error, data | {"needed": ahead + 1, "seqs_fit": None}),)


def _refusal(deployment: Deployment, error: str, data: Mapping[str, Any]) -> Problem:
    return Problem(
        "spec-token-budget",
        Stage.ENGINE_CONFIG,
        "ValidationError",
        error,
        data,
        origin(deployment.flags, "num_speculative_tokens"),
    )


def graph_mode(deployment: Deployment) -> str | None:
    """CUDA graph mode the user asked for, upper case; None when the release decides."""
    flags = deployment.flags
    if flags.values.get("enforce_eager") is True:
        return "NONE"
    mode = flags.section("compilation_config").get("cudagraph_mode")
    if isinstance(mode, str):
        return mode.upper()
    level = flags.values.get("optimization_level")
    return {0: "NONE", 1: "PIECEWISE"}.get(level) if isinstance(level, int) else None


def adaptive_problems(
    deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism, config: SpecConfig
) -> tuple[Problem, ...]:
    """Preconditions of adaptive verification outside the speculative config itself (0.29 and later)."""
    adaptive = section.get("adaptive")
    if not adaptive or adaptive.get("checked_by") != "validator":
        return ()
    if not config.values.get("enable_adaptive_verification"):
        return ()
    mode = graph_mode(deployment)
    error = reason = None
    if deployment.flags.values.get("enable_lora"):
        reason, error = "LoRA", "Adaptive verification is not currently compatible with LoRA"
    elif adaptive.get("full_graphs") and mode is not None and mode not in _FULL_MODES:
        reason = f"CUDA graph mode {mode}"
        error = (
            "Adaptive verification requires full CUDA graphs. Use cudagraph mode FULL, FULL_DECODE_ONLY, or "
            "FULL_AND_PIECEWISE, or disable adaptive verification."
        )
    elif not adaptive.get("full_graphs") and mode == "NONE":
        reason = "eager execution"
        error = "Adaptive verification is not currently compatible with enforce_eager/cudagraph_mode=none"
    elif parallel.pipeline > 1:
        reason = "pipeline parallelism"
        error = "Adaptive verification is not currently compatible with pipeline parallelism"
    if error is None:
        return ()
    return (
        Problem(
            "spec-adaptive-preconditions",
            Stage.ENGINE_CONFIG,
            "ValidationError",
            error,
            {"reason": reason},
            origin(deployment.flags, "enable_adaptive_verification"),
        ),
    )


def capture_size_problems(deployment: Deployment, tokens: int | None) -> tuple[Problem, ...]:
    """Graph sizes are rounded to whole decode rows of ``tokens + 1`` tokens; one of them must survive."""
    if tokens is None or tokens < 1:
        return ()
    mode = graph_mode(deployment)
    if mode is not None and mode not in _FULL_MODES:
        return ()
    flags = deployment.flags
    compilation = flags.section("compilation_config")
    sizes = flags.values.get("cudagraph_capture_sizes") or compilation.get("cudagraph_capture_sizes")
    largest = _integer(flags.values.get("max_cudagraph_capture_size") or compilation.get("max_cudagraph_capture_size"))
    if largest is None and isinstance(sizes, list | tuple) and sizes and all(type(x) is int for x in sizes):
        largest = max(sizes)
    if largest is None or largest <= 0 or largest >= tokens + 1:
        return ()
    listed = sorted(sizes) if isinstance(sizes, list | tuple) else f"up to {largest}"
    error = (
        f"No valid cudagraph sizes after rounding to multiple of {tokens + 1} (num_speculative_tokens + 1 or "
        f"tp if sequence parallelism is enabled) please adjust num_speculative_tokens ({tokens}) or "
        f"max_cudagraph_capture_size ({largest}) or cudagraph_capture_sizes ({listed})"
    )
    use = flags.use("max_cudagraph_capture_size") or flags.use("cudagraph_capture_sizes")
    return (
        Problem(
            "spec-capture-sizes",
            Stage.KV_CACHE_INIT,
            "ValueError",
            error,
            {"tokens": tokens, "largest": largest, "needed": tokens + 1},
            use.origin if use else origin(flags, "num_speculative_tokens"),
        ),
    )


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
