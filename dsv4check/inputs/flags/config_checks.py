"""Checks of vLLM's config dataclasses over several keys at once (``__post_init__``, after-validators).

Each takes the class (for its defaults) and the accepted keys, and returns the message pydantic prints, or
an empty string. Which of them a release has is listed in its flag table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dsv4check.releases.flag_table import ConfigClass

Values = Mapping[str, Any]


def _get(config: ConfigClass, values: Values, key: str) -> Any:
    if key in values:
        return values[key]
    field = config.fields.get(key)
    return field.default if field is not None else None


def _role(prefix: str, roles: str) -> Callable[[ConfigClass, Values], str]:
    def check(config: ConfigClass, values: Values) -> str:
        if values.get(f"{prefix}_connector") is not None and values.get(f"{prefix}_role") is None:
            return (
                f"Value error, Please specify {prefix}_role when {prefix}_connector is set, supported roles are {roles}"
            )
        return ""

    return check


def _eplb_policy(config: ConfigClass, values: Values) -> str:
    if _get(config, values, "use_async") and _get(config, values, "policy") != "default":
        return "Value error, Async EPLB is only supported with the default policy."
    return ""


def _eplb_communicator(config: ConfigClass, values: Values) -> str:
    communicator = values.get("communicator")
    if _get(config, values, "use_async") and communicator in ("torch_nccl", "pynccl"):
        return (
            f"Value error, {communicator} communicator is incompatible with async EPLB due to NCCL "
            "multi-stream conflicts. Use 'torch_gloo' or 'nixl' instead, or leave communicator unset for "
            "automatic selection."
        )
    return ""


def _eplb_log_interval(config: ConfigClass, values: Values) -> str:
    if _get(config, values, "log_balancedness") and (_get(config, values, "log_balancedness_interval") or 0) <= 0:
        return "Value error, log_balancedness_interval must be greater than 0."
    return ""


def _structured_outputs(config: ConfigClass, values: Values) -> str:
    backend = _get(config, values, "backend")
    if values.get("disable_any_whitespace") and backend not in ("xgrammar", "guidance"):
        return "Value error, disable_any_whitespace is only supported for xgrammar and guidance backends."
    if values.get("disable_additional_properties") and backend != "guidance":
        return "Value error, disable_additional_properties is only supported for the guidance backend."
    return ""


def _fp4_indexer(config: ConfigClass, values: Values) -> str:
    dtype = _get(config, values, "indexer_kv_dtype")
    if values.get("use_fp4_indexer_cache") and dtype not in ("auto", "mxfp4"):
        return (
            f"Value error, use_fp4_indexer_cache=True conflicts with indexer_kv_dtype={dtype!r}. "
            "Set only indexer_kv_dtype."
        )
    return ""


def _minimax_indexer(config: ConfigClass, values: Values) -> str:
    dtype = _get(config, values, "indexer_kv_dtype")
    if values.get("minimax_m3_indexer_cp") and dtype not in ("auto", "bf16", "fp8", "fp8_e4m3"):
        return (
            "Value error, minimax_m3_indexer_cp requires a bf16 or fp8 e4m3 index cache "
            f"(indexer_kv_dtype 'auto', 'bf16', 'fp8' or 'fp8_e4m3'), got {dtype!r}"
        )
    return ""


def _profiler_dir(config: ConfigClass, values: Values) -> str:
    profiler, folder = _get(config, values, "profiler"), _get(config, values, "torch_profiler_dir")
    if folder and profiler != "torch":
        return "Value error, torch_profiler_dir is only applicable when profiler is set to 'torch'"
    if profiler == "torch" and not folder:
        return "Value error, torch_profiler_dir must be set when profiler is 'torch'"
    return ""


def _profiler_activities(config: ConfigClass, values: Values) -> str:
    activities = values.get("torch_profiler_activities")
    if activities is None:
        return ""
    if _get(config, values, "profiler") != "torch":
        return "Value error, torch_profiler_activities is only applicable when profiler is set to 'torch'"
    if len(activities) != len(set(activities)):
        return "Value error, torch_profiler_activities must not contain duplicates"
    return ""


def _ec_manager(config: ConfigClass, values: Values) -> str:
    if values.get("encoder_cache_manager_cls") is None and values.get("manager_config"):
        return "Value error, manager_config requires encoder_cache_manager_cls to be set."
    return ""


def _engram_shared(config: ConfigClass, values: Values) -> str:
    if values.get("dp_shared_memory") and not _get(config, values, "cpu_offload"):
        return "Value error, dp_shared_memory requires cpu_offload=True"
    return ""


def _engram_thp(config: ConfigClass, values: Values) -> str:
    if values.get("use_thp") and (not _get(config, values, "cpu_offload") or values.get("dp_shared_memory")):
        return "Value error, use_thp requires cpu_offload=True and dp_shared_memory=False"
    return ""


def _pooler_sigma(config: ConfigClass, values: Values) -> str:
    return "Value error, logit_sigma cannot be 0 (division by zero)" if values.get("logit_sigma") == 0 else ""


def _pooler_normalize(config: ConfigClass, values: Values) -> str:
    if "normalize" in values:
        return "Value error, Parameter `normalize` was removed; use `use_activation` instead."
    return ""


def _two_base_modes(values: Values) -> bool:
    ops = values.get("custom_ops") or []
    return bool(ops.count("none") + ops.count("all") > 1)


def _custom_ops_assert(config: ConfigClass, values: Values) -> str:
    return "Assertion failed, Can only specify 'none' or 'all'" if _two_base_modes(values) else ""


def _custom_ops_syntax(config: ConfigClass, values: Values) -> str:
    for op in values.get("custom_ops") or []:
        if op not in ("all", "none") and (len(op) < 2 or op[0] not in "+-"):
            return (
                f"Value error, Invalid syntax '{op}' for custom op, must be 'all', 'none', '+op' or '-op' "
                "(where 'op' is the registered op name)"
            )
    return ""


def _custom_ops_base(config: ConfigClass, values: Values) -> str:
    if _two_base_modes(values):
        return "Value error, custom_ops can contain only one base mode: 'all' or 'none'"
    return ""


def _custom_ops_conflict(config: ConfigClass, values: Values) -> str:
    ops = values.get("custom_ops") or []
    enabled = {op[1:] for op in ops if op.startswith("+")}
    both = sorted(enabled & {op[1:] for op in ops if op.startswith("-")})
    if both:
        return (
            "Value error, custom_ops cannot both enable and disable the same operation(s): "
            f"{', '.join(both)}. Remove either the '+' or '-' directive"
        )
    return ""


def _piecewise_backend(config: ConfigClass, values: Values) -> str:
    backend = values.get("backend")
    if values.get("mode") == 3 and backend is not None and backend not in ("", "eager", "inductor"):
        return f"Value error, Invalid backend for piecewise compilation: {backend}"
    return ""


def _quant_targets(config: ConfigClass, values: Values) -> str:
    if values.get("targets") is not None and (values.get("linear") is not None or values.get("moe") is not None):
        return "Value error, quantization_config.targets is mutually exclusive with quantization_config.linear/moe"
    return ""


def _encoder_budgets(config: ConfigClass, values: Values) -> str:
    budgets = values.get("encoder_cudagraph_token_budgets")
    if budgets and any(budget <= 0 for budget in budgets):
        return f"Value error, All encoder_cudagraph_token_budgets must be positive, got {budgets}"
    return ""


CHECKS: Final[Mapping[str, Callable[[ConfigClass, Values], str]]] = {
    "eplb_policy": _eplb_policy,
    "eplb_communicator": _eplb_communicator,
    "eplb_log_interval": _eplb_log_interval,
    "kv_role": _role("kv", "('kv_producer', 'kv_both', 'kv_consumer')"),
    "ec_role": _role("ec", "('ec_producer', 'ec_both', 'ec_consumer')"),
    "structured_outputs": _structured_outputs,
    "fp4_indexer": _fp4_indexer,
    "minimax_indexer": _minimax_indexer,
    "profiler_dir": _profiler_dir,
    "profiler_activities": _profiler_activities,
    "ec_manager": _ec_manager,
    "engram_shared": _engram_shared,
    "engram_thp": _engram_thp,
    "pooler_sigma": _pooler_sigma,
    "pooler_normalize": _pooler_normalize,
    "custom_ops_assert": _custom_ops_assert,
    "custom_ops_syntax": _custom_ops_syntax,
    "custom_ops_base": _custom_ops_base,
    "custom_ops_conflict": _custom_ops_conflict,
    "piecewise_backend": _piecewise_backend,
    "encoder_budgets": _encoder_budgets,
    "quant_targets": _quant_targets,
}
