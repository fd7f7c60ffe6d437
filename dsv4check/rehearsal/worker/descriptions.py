"""What vLLM decided, as plain data: the engine config, KV-cache specs and cache tensors."""

from __future__ import annotations

from typing import Any

from . import flashmla
from .ranks import uses_v2_runner


def describe_config(config: Any) -> dict[str, Any]:
    """The decisions of the engine config that people ask about."""
    parallel, scheduler, cache, model = (
        config.parallel_config,
        config.scheduler_config,
        config.cache_config,
        config.model_config,
    )
    backend = getattr(getattr(config, "attention_config", None), "backend", None)
    speculative = config.speculative_config
    return {
        "cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size,
        "attention_backend": getattr(backend, "name", None),
        "runner": "v2" if uses_v2_runner(config) else "v1",
        "max_model_len": model.max_model_len,
        "quantization": model.quantization,
        "tensor": parallel.tensor_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
        "data": parallel.data_parallel_size,
        "expert_parallel": parallel.enable_expert_parallel,
        "executor": str(parallel.distributed_executor_backend),
        "hybrid_manager_disabled": scheduler.disable_hybrid_kv_cache_manager,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "speculative": None
        if speculative is None
        else {"method": speculative.method, "tokens": speculative.num_speculative_tokens},
    }


def planned_specs(planned: Any, specs: dict[str, Any]) -> dict[str, Any]:
    """Layer name -> the spec the plan gives it: a promoted sliding window is no longer what the layer said."""
    final = dict(specs)
    for group in planned.kv_cache_groups:
        per_layer = getattr(group.kv_cache_spec, "kv_cache_specs", None)
        for name in group.layer_names:
            final[name] = per_layer[name] if per_layer else group.kv_cache_spec
    return final


def group_summary(group: Any) -> dict[str, Any]:
    """A KV-cache group of a plan."""
    return {
        "layers": len(group.layer_names),
        "spec": type(group.kv_cache_spec).__name__,
        "block_size": group.kv_cache_spec.block_size,
    }


_SPEC_FIELDS = ("block_size", "head_size", "cache_dtype_str", "alignment", "compress_ratio", "tokens_per_state")


def spec_summary(specs: dict[str, Any], backends: dict[str, str]) -> list[dict[str, Any]]:
    """Each different spec once, with the number of layers that have it."""
    counts: dict[tuple[tuple[str, str], ...], int] = {}
    records: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for name, spec in specs.items():
        record = {
            "spec": type(spec).__name__,
            "backend": backends.get(name, ""),
            "page_bytes": spec.page_size_bytes,
            "dtype": str(getattr(spec, "dtype", "")).removeprefix("torch."),
            **{key: getattr(spec, key) for key in _SPEC_FIELDS if getattr(spec, key, None) is not None},
        }
        key = tuple((field, str(value)) for field, value in record.items())
        records[key] = record
        counts[key] = counts.get(key, 0) + 1
    return [{**record, "layers": counts[key]} for key, record in records.items()]


def tensor_summary(caches: dict[str, Any], specs: dict[str, Any]) -> list[dict[str, Any]]:
    """Each different cache tensor once: shape without the number of blocks, strides, dtype, and an example layer."""
    seen: dict[str, dict[str, Any]] = {}
    for name, cache in caches.items():
        if not hasattr(cache, "stride"):
            continue
        record = flashmla.describe(cache)
        key = f"{type(specs.get(name)).__name__} {record}"
        entry = seen.setdefault(key, {"layer": name, **record, "layers": 0})
        entry["layers"] += 1
    return list(seen.values())
