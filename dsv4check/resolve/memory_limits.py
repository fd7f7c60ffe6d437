"""Weights against the memory of one GPU: a lower bound that no launch can get below.

Counted are only the large matrices whose shape config.json gives: routed experts (spread over TP x DP x PCP,
whether by expert or by column), the attention projections, the shared expert, embedding and head. Everything
that is sharded is divided by the largest group that could share it, draft layers and small tensors are left
out, and pipeline stages are taken at their average, so the true need is always larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem, Stage
from dsv4check.resolution import Parallelism

_MIB = 1024 * 1024
_GIB = 1024 * _MIB
_EXPERT_BYTES = {"fp4": 0.5 + 1 / 32, "fp8": 1.0, "nvfp4": 0.5 + 1 / 16}
_OFFLOAD_FLAGS = ("cpu_offload_gb", "offload_backend", "offload_group_size", "kv_cache_memory_bytes")


def weight_problems(deployment: Deployment, parallel: Parallelism) -> list[Problem]:
    """``weights-exceed-gpu`` when even the lower bound is larger than one GPU's memory."""
    memory = deployment.hardware.memory_mib
    flags = deployment.flags
    offloads = any(flags.values.get(dest) for dest in _OFFLOAD_FLAGS[:-1])
    if memory is None or offloads or str(flags.get("load_format", "auto")) == "dummy":
        return []
    need = weight_bytes_per_gpu(deployment, parallel)
    if need is None or need <= memory * _MIB:
        return []
    whole = weight_bytes_per_gpu(deployment, _alone(parallel))
    data = {
        "need_gib": round(need / _GIB, 1),
        "memory_gib": round(memory / 1024, 1),
        "whole_gib": round((whole or need) / _GIB, 1),
        "gpus": parallel.total,
        "tp": _next_size(deployment, parallel, memory),
    }
    error = "CUDA out of memory."
    return [Problem("weights-exceed-gpu", Stage.WEIGHT_LOAD, "torch.OutOfMemoryError", error, data)]


def weight_bytes_per_gpu(deployment: Deployment, parallel: Parallelism) -> float | None:
    """Lower bound of the weights on one GPU in bytes.

    None when the format of the experts is not known, or a size is beyond what a float holds.
    """
    try:
        return _weight_bytes_per_gpu(deployment, parallel)
    except OverflowError:
        return None


def _weight_bytes_per_gpu(deployment: Deployment, parallel: Parallelism) -> float | None:
    model = deployment.model
    per_value = _expert_bytes(deployment)
    get = model.integer
    layers, hidden, inter = get("num_hidden_layers"), get("hidden_size"), get("moe_intermediate_size")
    experts = get("n_routed_experts")
    if per_value is None or not layers or not hidden or not inter or not experts:
        return None
    routed = layers * experts * 3 * hidden * inter * per_value
    shared = layers * (get("n_shared_experts") or 0) * 3 * hidden * inter
    attention = layers * _attention_values(deployment, hidden)
    vocabulary = 2 * (get("vocab_size") or 0) * hidden * 2 / max(parallel.pipeline, 1)
    split = parallel.tensor * parallel.data * parallel.prefill_context
    per_stage = (routed / split + (shared + attention) / parallel.tensor) / parallel.pipeline
    return float(per_stage + vocabulary / parallel.tensor)


def _attention_values(deployment: Deployment, hidden: int) -> int:
    """Weights of one layer's projections, all of them FP8 (one byte a value)."""
    get = deployment.model.integer
    heads, head_dim = get("num_attention_heads") or 0, get("head_dim") or 0
    q_rank, o_rank, groups = get("q_lora_rank") or 0, get("o_lora_rank") or 0, get("o_groups") or 0
    query = hidden * q_rank + q_rank * heads * head_dim
    output = o_rank * heads * head_dim + groups * o_rank * hidden
    return query + output


def _expert_bytes(deployment: Deployment) -> float | None:
    """Bytes a routed expert's value takes in the checkpoint, scales included."""
    quant = deployment.model.raw.get("quantization_config")
    if not isinstance(quant, Mapping):
        quant = deployment.model.text.get("quantization_config")
    if not isinstance(quant, Mapping):
        return None
    method = str(quant.get("quant_method", "")).lower()
    algorithm = str(quant.get("moe_quant_algo", quant.get("quant_algo", ""))).upper()
    if "NVFP4" in algorithm:
        return _EXPERT_BYTES["nvfp4"]
    dtype: Any = deployment.model.get("expert_dtype", quant.get("expert_dtype"))
    return _EXPERT_BYTES.get(str(dtype)) if method == "fp8" else None


def _alone(parallel: Parallelism) -> Parallelism:
    return Parallelism(1, 1, 1, 1, 1, False, 1, 1, 1, None, None)


def _next_size(deployment: Deployment, parallel: Parallelism, memory: int) -> int:
    """The smallest tensor-parallel size (a power of two) whose weights leave a tenth of the GPU free."""
    groups = deployment.model.integer("o_groups") or 8
    size = parallel.tensor
    while size < groups:
        size *= 2
        grown = Parallelism(
            size, parallel.pipeline, parallel.data, 1, parallel.prefill_context, False, 1, 1, 1, None, None
        )
        need = weight_bytes_per_gpu(deployment, grown)
        if need is not None and need <= 0.9 * memory * _MIB:
            return size
    return max(groups, parallel.tensor)
