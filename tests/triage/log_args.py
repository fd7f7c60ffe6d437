"""The ``non-default args`` dictionary and the engine's config line, as the releases print them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.triage.log_launch import Launch

GRAPH_MODES = {"NONE": "0", "PIECEWISE": "1", "FULL": "2", "FULL_DECODE_ONLY": "(2, 0)", "FULL_AND_PIECEWISE": "(2, 1)"}
COMPILE_MODES = {0: "NONE", 1: "STOCK_TORCH_COMPILE", 2: "DYNAMO_TRACE_ONCE", 3: "VLLM_COMPILE"}
CLASSES = {
    "kv_transfer_config": "KVTransferConfig",
    "kv_events_config": "KVEventsConfig",
    "attention_config": "AttentionConfig",
    "kernel_config": "KernelConfig",
    "structured_outputs_config": "StructuredOutputsConfig",
    "eplb_config": "EPLBConfig",
    "profiler_config": "ProfilerConfig",
}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "KVTransferConfig": {
        "kv_connector": None,
        "engine_id": "5b1d2a0c-9f57-4f0e-8a55-0c2f4a7be0d1",
        "kv_buffer_device": "cuda",
        "kv_buffer_size": 1000000000.0,
        "kv_role": None,
        "kv_rank": None,
        "kv_parallel_size": 1,
        "kv_ip": "127.0.0.1",
        "kv_port": 14579,
        "kv_connector_extra_config": {},
        "kv_connector_module_path": None,
        "enable_permute_local_kv": False,
        "kv_load_failure_policy": "fail",
    },
    "AttentionConfig": {"backend": None, "flash_attn_version": None, "use_prefill_decode_attention": False},
    "EPLBConfig": {"window_size": 1000, "step_interval": 3000, "num_redundant_experts": 0, "log_balancedness": False},
}
"""Fields that are printed though nobody gave them."""
COMPILATION: Mapping[str, Any] = {
    "mode": None,
    "debug_dump_path": None,
    "cache_dir": "",
    "compile_cache_save_format": "binary",
    "backend": "inductor",
    "custom_ops": [],
    "ir_enable_torch_wrap": None,
    "splitting_ops": None,
    "compile_mm_encoder": False,
    "cudagraph_mm_encoder": False,
    "compile_sizes": None,
    "compile_ranges_endpoints": None,
    "inductor_compile_config": {"enable_auto_functionalized_v2": False, "size_asserts": False},
    "inductor_passes": {},
    "cudagraph_mode": None,
    "cudagraph_num_of_warmups": 0,
    "cudagraph_capture_sizes": None,
    "cudagraph_copy_inputs": False,
    "use_inductor_graph_partition": None,
    "pass_config": {},
    "max_cudagraph_capture_size": None,
    "dynamic_shapes_config": {},
    "local_cache_dir": None,
    "fast_moe_cold_start": None,
}
SECRET = frozenset({"api_key", "hf_token", "watermark_config"})


def non_default_args(launch: Launch) -> str:
    """What differs from the release's defaults, in the order of its parser."""
    flags = launch.report.deployment.flags
    parts = {"model_tag": repr(launch.model)}
    order = {dest: number for number, dest in enumerate(flags.defaults)}
    for dest in sorted(flags.values, key=lambda name: order.get(name, len(order))):
        value = flags.values[dest]
        if dest in ("model", "model_tag", "config") or value == flags.defaults.get(dest):
            continue
        parts[dest] = shown(launch, dest, value)
    parts["model"] = repr(launch.model)
    return "{" + ", ".join(f"{name!r}: {value}" for name, value in parts.items()) + "}"


def shown(launch: Launch, dest: str, value: Any) -> str:
    if dest in SECRET and not launch.decorated:
        return "'***'"
    if dest == "served_model_name" and isinstance(value, str):
        return repr([value])
    if not isinstance(value, Mapping):
        return repr(value)
    if dest == "compilation_config":
        return compilation(value)
    if dest in CLASSES:
        return record(CLASSES[dest], value)
    return repr(plain(value))


def record(name: str, value: Mapping[str, Any]) -> str:
    fields = {**FIELDS.get(name, {}), **plain(value)}
    return f"{name}({', '.join(f'{key}={item!r}' for key, item in fields.items())})"


def compilation(value: Mapping[str, Any]) -> str:
    parts = []
    for key, item in {**COMPILATION, **plain(value)}.items():
        text = repr(item)
        if key == "cudagraph_mode" and item in GRAPH_MODES:
            text = f"<CUDAGraphMode.{item}: {GRAPH_MODES[item]}>"
        elif key == "mode" and not isinstance(item, bool) and item in COMPILE_MODES:
            text = f"<CompilationMode.{COMPILE_MODES[item]}: {item}>"
        parts.append(f"{key!r}: {text}")
    return "{" + ", ".join(parts) + "}"


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def engine_config(launch: Launch) -> str:
    """The text behind ``Initializing a V1 LLM engine (v...) with config:``."""
    draft = launch.flag("speculative_config")
    drafting = "None"
    if isinstance(draft, Mapping) and draft:
        method, tokens = draft.get("method"), draft.get("num_speculative_tokens")
        drafting = f"SpeculativeConfig(method={method!r}, model={launch.model!r}, num_spec_tokens={tokens})"
    cache = launch.report.resolution.kv_cache
    dtype = launch.flag("kv_cache_dtype", "auto")
    quantization = launch.flag("quantization") or "deepseek_v4_fp8"
    served = launch.flag("served_model_name")
    served = served[0] if isinstance(served, list) and served else served or launch.model
    eager = bool(launch.flag("enforce_eager"))
    values = {
        "model": repr(launch.model),
        "speculative_config": drafting,
        "tokenizer": repr(launch.flag("tokenizer") or launch.model),
        "skip_tokenizer_init": False,
        "tokenizer_mode": launch.flag("tokenizer_mode", "auto"),
        "revision": None,
        "tokenizer_revision": None,
        "trust_remote_code": bool(launch.flag("trust_remote_code")),
        "dtype": "torch.bfloat16",
        "max_seq_len": max_length(launch),
        "download_dir": None,
        "load_format": launch.flag("load_format", "auto"),
        "tensor_parallel_size": launch.size("tensor_parallel_size"),
        "pipeline_parallel_size": launch.size("pipeline_parallel_size"),
        "data_parallel_size": launch.size("data_parallel_size"),
        "decode_context_parallel_size": launch.size("decode_context_parallel_size"),
        "dcp_comm_backend": "ag_rs",
        "disable_custom_all_reduce": bool(launch.flag("disable_custom_all_reduce")),
        "quantization": quantization,
        "quantization_config": None,
        "enforce_eager": eager,
        "kv_cache_dtype": dtype if cache is None else cache.requested_dtype or dtype,
        "device_config": "cuda",
        "structured_outputs_config": "StructuredOutputsConfig(backend='auto', disable_any_whitespace=False, "
        f"reasoning_parser={launch.flag('reasoning_parser') or ''!r}, enable_in_reasoning=False)",
        "observability_config": "ObservabilityConfig(show_hidden_metrics_for_version=None, kv_cache_metrics=False)",
        "seed": launch.flag("seed", 0) or 0,
        "served_model_name": served,
        "enable_prefix_caching": launch.flag("enable_prefix_caching", True) is not False,
        "enable_chunked_prefill": launch.flag("enable_chunked_prefill", True) is not False,
        "pooler_config": None,
        "compilation_config": compilation({"mode": 0 if eager else 3, "cudagraph_mode": graph_mode(launch)}),
        "kernel_config": "KernelConfig(enable_flashinfer_autotune=True, moe_backend='auto')",
    }
    return ", ".join(f"{name}={value}" for name, value in values.items())


def graph_mode(launch: Launch) -> str:
    if launch.flag("enforce_eager"):
        return "NONE"
    given = launch.flag("compilation_config")
    mode = given.get("cudagraph_mode") if isinstance(given, Mapping) else None
    return mode if mode in GRAPH_MODES else "FULL_AND_PIECEWISE"


def max_length(launch: Launch) -> int:
    value = launch.flag("max_model_len")
    return value if isinstance(value, int) and value > 0 else 1048576
