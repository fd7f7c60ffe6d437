"""Context length and batch sizes: ModelConfig's length, EngineArgs' defaults, SchedulerConfig's checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem, Stage
from dsv4check.resolution import Parallelism
from dsv4check.resolve.flag_values import config_problem, integer, where

_GIB = 1024
_BATCHED_MOE = {"deepep_low_latency", "nixl_ep"}


def max_model_len(deployment: Deployment, section: Mapping[str, Any]) -> int | None:
    """The context length of the launch in tokens: as asked for, else the checkpoint's; None when unknown.

    ``auto`` and -1 give the checkpoint's length here; vLLM lowers it later to what the memory allows.
    """
    asked = deployment.flags.values.get("max_model_len")
    if isinstance(asked, int) and asked > 0:
        return asked
    derived = derived_length(deployment, section)
    return None if derived is None else int(derived)


def derived_length(deployment: Deployment, section: Mapping[str, Any]) -> float | None:
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


def _default_batched_tokens(deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism) -> int | None:
    """``EngineArgs.get_batch_defaults`` for ``vllm serve``; None when the GPU's memory is not known."""
    hardware = deployment.hardware
    throughput = deployment.flags.get("performance_mode") == "throughput"
    backend = deployment.flags.get("all2all_backend")
    if parallel.data > 1 and parallel.expert_parallel and backend in _BATCHED_MOE:
        return 512 if throughput else 256
    # What an AMD APU reports depends on how its memory was shared out.
    known = hardware.vendor == "nvidia" or (hardware.vendor == "amd" and not hardware.unified_memory)
    if hardware.memory_mib is None or not known:
        return None
    rules = section["batch"]
    small = "a100" in (hardware.name or "").lower() or (rules["gb10_small"] and hardware.capability == (12, 1))
    tokens = 2048
    if rules["big_gib"] is not None and hardware.memory_mib >= rules["big_gib"] * _GIB:
        tokens = 16384
    elif hardware.memory_mib >= 70 * _GIB and not small:
        tokens = 8192
    return tokens * 2 if throughput else tokens


def scheduler_problems(deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism) -> list[Problem]:
    """SchedulerConfig.verify_max_model_len and the partial-prefill switches."""
    flags = deployment.flags
    problems: list[Problem] = []
    length = max_model_len(deployment, section)
    chunked = flags.get("enable_chunked_prefill") is not False
    seqs = integer(deployment, "max_num_seqs")
    tokens = integer(deployment, "max_num_batched_tokens")
    origin = where(deployment, "max_num_batched_tokens", "max_num_seqs")
    if tokens is not None and length is not None and not chunked and tokens < length:
        error = (
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). "
            "This effectively limits the maximum sequence length to max_num_batched_tokens and makes vLLM "
            "reject longer sequences. Please increase max_num_batched_tokens or decrease max_model_len."
        )
        data = {"tokens": tokens, "length": length}
        problems.append(config_problem("batched-tokens-below-length", error, data, origin))
    budget = tokens
    if budget is None and chunked:
        budget = _default_batched_tokens(deployment, section, parallel)
        if budget is not None and seqs is not None and length is not None:
            budget = min(budget, seqs * length)
    if seqs is not None and budget is not None and 0 < budget < seqs:
        error = f"max_num_batched_tokens ({budget}) must be greater than or equal to max_num_seqs ({seqs})."
        data = {"tokens": budget, "seqs": seqs, "default": tokens is None}
        problems.append(config_problem("batched-tokens-below-seqs", error, data, origin))
    active = integer(deployment, "max_num_active_seqs")
    if active is not None and seqs is not None and active > seqs:
        error = f"max_num_active_seqs ({active}) cannot be greater than max_num_seqs ({seqs})."
        data = {"active": active, "seqs": seqs}
        problems.append(config_problem("active-seqs-above-seqs", error, data, where(deployment, "max_num_active_seqs")))
    problems += _prefill(deployment, section, length)
    return problems


def _prefill(deployment: Deployment, section: Mapping[str, Any], length: int | None) -> list[Problem]:
    """Partial prefills (flags of 0.20-0.26, refused for every model) and the long-prefill threshold."""
    partial = [integer(deployment, name) for name in ("max_num_partial_prefills", "max_long_partial_prefills")]
    if section["partial_prefills"] and any(value not in (None, 1) for value in partial):
        error = (
            "Concurrent Partial Prefill is not supported. "
            "We recommend to remove Concurrent Partial Prefill from your config."
        )
        origin = where(deployment, "max_num_partial_prefills", "max_long_partial_prefills")
        return [Problem("partial-prefills", Stage.ENGINE_CONFIG, "NotImplementedError", error, {}, origin)]
    threshold = integer(deployment, "long_prefill_token_threshold")
    if section["long_prefill"] != "always" or threshold is None or length is None or threshold <= length:
        return []
    error = f"long_prefill_token_threshold ({threshold}) cannot be greater than the max_model_len ({length})."
    data = {"threshold": threshold, "length": length}
    return [config_problem("long-prefill-above-length", error, data, where(deployment, "long_prefill_token_threshold"))]
