"""The flag table of a release, from its own parser (``children/flags.py`` reads it out).

``dsv4check/releases/flag_table.py`` says what the keys mean.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .release import Release
from .source import LearningError, raises, strings

_CHILD: Final = Path(__file__).parent / "children" / "flags.py"

_ACTIONS: Final[Mapping[str, str | None]] = {
    "_StoreAction": None,
    "DeprecatedLogConfigFileAction": None,
    "BooleanOptionalAction": "bool",
    "EnableDisableAction": "bool",
    "_HelpAction": "help",
    "_StoreTrueAction": "true",
    "_AppendAction": "append",
    "LoRAParserAction": "lora",
}
_KINDS: Final = frozenset(
    {"int", "float", "str", "human_readable_int", "human_readable_int_or_auto", "loads", "lower"}
    | {"union_dict_and_str", "device_ids", "parse_reasoning_parser"}
)
_POSITIONAL: Final = frozenset({"model_tag"})

_STEPS: Final[Mapping[str, str | None]] = {
    "validate_backend_before": "enum",
    "validate_mla_prefill_backend_before": "enum",
    "validate_cudagraph_mode_before": "enum",
    "validate_backend_per_kind_before": "per_kind",
    "validate_mode_before": "mode",
    "_normalize_moe_backend": "lower",
    "_normalize_linear_backend": "lower",
    "_normalize_sparse_indexer_topk_backend": "lower",
    "_to_list_str": "split",
    "_coerce_spec": "quant",
    "_validate_targets": "quant_targets",
    # A dict becomes the class that the field names anyway; the format's own type has checked it.
    "validate_pass_config_before": None,
    "validate_compile_cache_save_format": None,
}
"""vLLM's field validators -> what ``config_json.py`` does for them before (or instead of) the type's check."""
_SKIPS_NONE: Final = "_skip_none_validation"

_CHECKS: Final[Mapping[str, str | None]] = {
    "Async EPLB is only supported": "eplb_policy",
    "communicator is incompatible with": "eplb_communicator",
    "log_balancedness_interval must be": "eplb_log_interval",
    "Unsupported kv_role": "kv_role",
    "Please specify kv_role": "kv_role",
    "Unsupported ec_role": "ec_role",
    "Please specify ec_role": "ec_role",
    "disable_any_whitespace is only": "structured_outputs",
    "disable_additional_properties is only": "structured_outputs",
    "use_fp4_indexer_cache=True conflicts with": "fp4_indexer",
    "torch_profiler_dir ": "profiler_dir",
    "torch_profiler_activities ": "profiler_activities",
    "manager_config requires": "ec_manager",
    "dp_shared_memory requires": "engram_shared",
    "use_thp requires": "engram_thp",
    "logit_sigma cannot be 0": "pooler_sigma",
    "Parameter `normalize` was removed": "pooler_normalize",
    "minimax_m3_indexer_cp requires": "minimax_indexer",
    "Can only specify 'none' or 'all'": "custom_ops_assert",
    "for custom op, ": "custom_ops_syntax",
    "only one base mode": "custom_ops_base",
    "cannot both enable and disable": "custom_ops_conflict",
    "Invalid backend for piecewise": "piecewise_backend",
    "All encoder_cudagraph_token_budgets must": "encoder_budgets",
    "targets is mutually exclusive with": "quant_targets",
    # Not judged: options of profilers, pooling models, video encoders and torch itself.
    "should be callable or a qualified name": None,
    "decoder_replay_cudagraph_capture_sizes must": None,
    "encoder_cudagraph_max_": None,
    "use_inductor_graph_partition is only": None,
    "Cannot set both `": None,
    "logit_scale cannot be 0": None,
    "capture_torch_profiler is only": None,
    "proton": None,
}
"""Part of a message of a class's own checks -> the check of ``config_checks.py`` that stands for it."""

_QUANT_KEY: Final = ("QuantSpec", "quant_key")
"""The class whose fields a plain validator of their type reads (``_coerce_quant_key``)."""


def learn_flags(release: Release) -> dict[str, Any]:
    """The flag table. Raises LearningError for an action, a converter or a validator that has no counterpart here."""
    return build_table(release.source.version, release.run(_CHILD))


def build_table(version: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The flag table from what the parser holds (the answer of ``children/flags.py``)."""
    flags: dict[str, Any] = {}
    for item in raw["flags"]:
        if item["dest"] in _POSITIONAL:
            continue
        if item["dest"] in flags:
            raise LearningError(f"two flags of the parser store to {item['dest']}")
        flags[item["dest"]] = _flag(item)
    configs = {name: _config(name, item) for name, item in raw["classes"].items() if item is not None}
    enums = {name: dict(members) for name, members in raw["enums"].items()}
    if "AttentionBackendEnum" in enums:  # its values are class paths, which no JSON value names
        enums["AttentionBackendEnum"] = dict.fromkeys(enums["AttentionBackendEnum"])
    table = {"release": version, "flags": flags, "configs": configs, "enums": enums, "kinds": raw["kinds"]}
    if raw["quant"] is not None:
        table["quant"] = raw["quant"]
    return table


def _flag(raw: Mapping[str, Any]) -> dict[str, Any]:
    if raw["action"] not in _ACTIONS:
        raise LearningError(f"{raw['options'][0]}: the parser's action {raw['action']} is not known here")
    kind = raw["kind"] or "str"
    bare = kind.removeprefix("opt:")
    if not bare.startswith("dc:") and bare.removeprefix("parse:") not in _KINDS:
        raise LearningError(f"{raw['options'][0]}: the parser's converter {kind} is not known here")
    action = _ACTIONS[raw["action"]]
    found: dict[str, Any] = {"o": raw["options"]}
    if raw["shown"] != raw["options"]:
        found["s"] = raw["shown"]
    if action is not None:
        found["a"] = action
    if action == "bool":
        negative = raw["negative"] or [option for option in raw["options"] if option.startswith("--no-")]
        if negative:
            found["neg"] = sorted(negative)
    if raw["nargs"] not in (None, 0):
        found["n"] = raw["nargs"]
    if kind != "str":
        found["k"] = kind
    if raw["choices"] is not None:
        found["c"] = raw["choices"]
    if action is None and raw["const"] is not None:
        found["cv"] = raw["const"]
    if raw["default"] not in (None, {}):
        found["df"] = raw["default"]
    return found


def _config(name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    before, null_ok = _validators(name, raw)
    fields = {}
    for key, item in raw["fields"].items():
        unknown = [kind for kind in item["metadata"] if kind != "GetPydanticSchema"]
        if unknown:
            raise LearningError(f"{name}.{key}: the annotation {unknown[0]} is not known here")
        field = {"t": "any" if item["metadata"] else item["shape"], **item["bounds"]}
        step = _QUANT_KEY[1] if item["metadata"] and name == _QUANT_KEY[0] else before.get(key)
        if step is not None:
            field["b"] = step
        if key in null_ok:
            field["nn"] = 1
        if item["default"] not in (None, {}, []):
            field["df"] = item["default"]
        if item["required"]:
            field["req"] = 1
        fields[key] = field
    found: dict[str, Any] = {"f": fields}
    after = _checks(name, raw["checks"])
    if after:
        found["after"] = after
    return found


def _validators(name: str, raw: Mapping[str, Any]) -> tuple[dict[str, str], set[str]]:
    """Field -> the step before its type's check, and the fields that take null whatever their type says."""
    before: dict[str, str] = {}
    null_ok: set[str] = set()
    for validator in raw["validators"]:
        fields = list(raw["fields"]) if validator["fields"] == ["*"] else validator["fields"]
        if validator["name"] == _SKIPS_NONE:
            null_ok.update(fields)
            continue
        if validator["name"] not in _STEPS:
            raise LearningError(f"{name}.{validator['name']}: no step stands for this validator of {fields}")
        step = _STEPS[validator["name"]]
        if step == "enum" and "auto" in _texts(validator["source"]):
            step = "enum_auto"
        if step is not None:
            before.update(dict.fromkeys(fields, step))
    return before, null_ok


def _texts(source: str) -> list[str]:
    return strings(ast.parse(textwrap.dedent(source)))


def _checks(name: str, sources: list[str]) -> list[str]:
    """The checks over several keys, by the messages that the class's own validators raise."""
    found: set[str | None] = set()
    for source in sources:
        for _exception, message in raises(ast.parse(textwrap.dedent(source))):
            part = next((part for part in _CHECKS if part in message), None)
            if part is None and message:
                raise LearningError(f"{name}: no check of config_checks.py stands for {message!r}")
            found.add(_CHECKS[part] if part else None)
    return [check for check in dict.fromkeys(_CHECKS.values()) if check in found and check]
