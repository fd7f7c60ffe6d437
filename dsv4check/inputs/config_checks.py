"""What a release would stumble over in a config.json it can read: one Problem for each, with its stage.

Facts come from the area ``config_fields`` of the release (which keys its model code reads without a default,
which architectures and model types it registers) and from transformers' strict DeepseekV4Config, which vLLM
uses from 0.33.0 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dsv4check.inputs.config_sections import (
    nested_ratio_problems,
    quantization_problems,
    ratio_problems,
    rope_problems,
)
from dsv4check.inputs.config_source import STRICT_CLASS, ConfigSource, problem
from dsv4check.inputs.model_config import ConfigReading
from dsv4check.problems import Problem, Stage

_STRICT = "StrictDataclassFieldValidationError"
# fmt: off
_FLOATS = (
    "swiglu_limit", "rms_norm_eps", "hc_eps", "routed_scaling_factor", "attention_dropout",
    "initializer_range", "router_aux_loss_coef", "router_jitter_noise",
)
# fmt: on
# fmt: off
_BOOLEANS = (
    "norm_topk_prob", "use_cache", "tie_word_embeddings", "attention_bias", "mlp_bias",
    "output_router_logits",
)
# fmt: on
# fmt: off
_INTEGERS = (
    "vocab_size", "hidden_size", "moe_intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "q_lora_rank", "num_experts_per_tok", "n_routed_experts",
    "n_shared_experts", "max_position_embeddings", "hc_mult", "hc_sinkhorn_iters", "sliding_window",
    "o_groups", "o_lora_rank", "index_n_heads", "index_head_dim", "index_topk", "num_nextn_predict_layers",
)
# fmt: on
_STRINGS = ("scoring_func", "hidden_act")


def config_problems(reading: ConfigReading, source: ConfigSource) -> tuple[Problem, ...]:
    """Everything in the config that this release refuses, drops or misreads, in the order vLLM meets it.

    A problem of the configuration stage hides the later ones only in vLLM, not here: all are returned.
    """
    found = [*_identity(reading, source), *_overrides(reading, source)]
    if {"config-model-too-new", "config-model-type-missing"} & {item.code for item in found}:
        # The class that would read the rest does not exist or is not found, so nothing below applies.
        return tuple(found)
    if reading.family == "deepseek_v4":
        strict = source.facts.get("config_class") == "transformers"
        found += _strict_types(reading, source) if strict else _missing_fields(reading, source)
        found += ratio_problems(reading, source, strict)
    else:
        found += _missing_fields(reading, source)
        found += nested_ratio_problems(reading, source)
    found += rope_problems(reading, source)
    found += quantization_problems(reading, source)
    found += _sizes(reading, source)
    found += _dtype(reading, source)
    act = reading.text.get("hidden_act")
    if act not in (None, "silu"):
        error = f"Unsupported activation: {act}. Only silu is supported for now."
        found.append(problem(source, "config-hidden-act", Stage.MODEL_INIT, "ValueError", error, value=act))
    return tuple(found)


def _sizes(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """Sizes the layers are not written for."""
    if reading.family != "deepseek_v4":
        return
    head_dim = reading.text.get("head_dim")
    if isinstance(head_dim, int) and head_dim != _HEAD_DIM:
        error = f"Unsupported head_dim for fused quant+cache: {head_dim}"
        data = {"field": "head_dim", "value": head_dim, "wanted": _HEAD_DIM}
        yield problem(source, "config-size-unsupported", Stage.MODEL_INIT, "ValueError", error, **data)
    if reading.text.get("n_shared_experts") == 0:
        error = "integer division or modulo by zero"
        data = {"field": "n_shared_experts", "value": 0, "wanted": "1, or null for none"}
        yield problem(source, "config-size-unsupported", Stage.MODEL_INIT, "ZeroDivisionError", error, **data)


_HEAD_DIM = 512
_TORCH_DTYPES = frozenset(
    {"auto", "bfloat16", "float16", "half", "float32", "float", "float64", "double", "int8", "uint8"}
    | {"float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2"}
)


def _dtype(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """``torch_dtype``: transformers looks the name up in torch while it reads the file."""
    for key in ("torch_dtype", "dtype"):
        value = source.file.get(key)
        if isinstance(value, str) and value.removeprefix("torch.") not in _TORCH_DTYPES:
            data = {"file": source.name, "field": key, "text": f'expected a torch dtype, got "{value}"'}
            error = f"module 'torch' has no attribute '{value}'"
            yield problem(source, "config-value-type", Stage.ENGINE_CONFIG, "AttributeError", error, **data)


def _identity(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """model_type and architectures: does the release know this model at all?"""
    file_type = source.file.get("model_type")
    model_type = reading.raw.get("model_type")
    known = source.facts.get("model_types", ())
    if file_type is None:
        error = f"Unrecognized model in {source.name}. Should have a `model_type` key in its config.json."
        yield problem(source, "config-model-type-missing", Stage.ENGINE_CONFIG, "ValidationError", error)
        return
    unregistered = source.facts.get("config_class") == "transformers" and file_type != "deepseek_v41"
    # transformers' own class is found by the file's type; an override only changes the finished config.
    refused = file_type not in known if unregistered else model_type not in known
    if refused:
        code = "config-model-too-new" if reading.family == file_type else "config-model-type-unknown"
        error = (
            f"The checkpoint you are trying to load has model type `{file_type}` but Transformers does not "
            "recognize this architecture."
        )
        yield problem(source, code, Stage.ENGINE_CONFIG, "ValidationError", error, model_type=file_type)
        if code == "config-model-too-new":
            return
    names = reading.raw.get("architectures")
    supported = source.facts.get("architectures", ())
    if isinstance(names, list) and names:
        names = [_normalised(name, supported) for name in names]
    if names == []:
        error = "No model architectures are specified"
        data = {"architectures": "an empty list"}
        yield problem(source, "config-architecture-unknown", Stage.ENGINE_CONFIG, "ValidationError", error, **data)
    elif not names:
        if source.flags.get("runner", "auto") in (None, "auto"):
            yield problem(source, "config-architectures-missing", Stage.RUNTIME, what="no architectures")
    elif names[0] == _BARE_MODEL:
        yield problem(source, "config-architectures-missing", Stage.RUNTIME, what=f"the architecture {_BARE_MODEL}")
    elif isinstance(names, list) and (found := _foreign_class(reading, source, names)) is not None:
        name, error = found
        data = {"architecture": name, "family": reading.family, "own": _OWN_CLASS[reading.family]}
        exception = "AttributeError" if error else ""
        yield problem(source, "config-architecture-mismatch", Stage.MODEL_INIT, exception, error, **data)
    elif not any(name in supported for name in names):
        error = f"Model architectures {list(names)} are not supported for now."
        yield problem(
            source,
            "config-architecture-unknown",
            Stage.ENGINE_CONFIG,
            "ValidationError",
            error,
            architectures=names,
        )
    vision = reading.text.get("vision_n_layers") or 0
    if reading.family == "deepseek_v4" and vision and not source.facts.get("vision") and source.loads_weights:
        error = "There is no module or parameter named 'vision' in DeepseekV4ForCausalLM."
        yield problem(source, "config-vision-too-new", Stage.WEIGHT_LOAD, "ValueError", error, layers=vision)


def _normalised(name: str, supported: Sequence[str]) -> str:
    """``ModelRegistry._normalize_arch``: an unregistered name counts as its stem's text-generation class."""
    stem = next((name.removesuffix(suffix) for suffix in _GENERATION if name.endswith(suffix)), None)
    generic = f"{stem}ForCausalLM"
    return generic if stem and name not in supported and generic in supported else name


_GENERATION = ("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel")
_BARE_MODEL = "DeepseekV4Model"
_OWN_CLASS = {"deepseek_v4": "DeepseekV4ForCausalLM", "deepseek_v41": "DeepseekV41ForCausalLM"}
_OTHER_CLASSES = (
    *("DeepseekForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"),
    *("DeepSeekMTPModel", "DeepSeekV4MTPModel"),
)
"""Classes of other DeepSeek models (and of drafts) that every release registers."""


def _foreign_class(reading: ConfigReading, source: ConfigSource, names: list[str]) -> tuple[str, str] | None:
    """A registered class that is not this family's: it is built and misses fields. (name, error where known)."""
    supported = source.facts.get("architectures", ())
    name = next((item for item in names if item in supported or item in _OTHER_CLASSES), None)
    if name is None or reading.family not in _OWN_CLASS or reading.raw.get("model_type") != reading.family:
        return None
    if name in _OTHER_CLASSES:
        return name, ""
    if reading.family == "deepseek_v41":
        if name == _OWN_CLASS["deepseek_v41"]:
            return None
        missing = "layer_types" if source.facts.get("config_class") == "transformers" else "num_hash_layers"
        return name, f"'DeepseekV41Config' object has no attribute {missing!r}"
    if name == _OWN_CLASS["deepseek_v41"]:
        return name, "'DeepseekV4Config' object has no attribute 'vision_n_heads'"
    if name == "DeepseekV4ForConditionalGeneration" and "vision_n_layers" not in reading.text:
        return name, "'DeepseekV4Config' object has no attribute 'vision_n_layers'"
    return None


def _overrides(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """--hf-overrides that vLLM takes differently from what they say."""
    if isinstance(source.overrides.get("text_config"), Mapping):
        error = "The text_config extracted from the model config does not have `num_attention_heads` attribute."
        yield problem(source, "config-text-override", Stage.ENGINE_CONFIG, "ValidationError", error)
    for key in reading.ineffective:
        used = "layer_types" if key == "compress_ratios" else "mlp_layer_types"
        yield problem(source, "config-override-no-effect", Stage.ENGINE_CONFIG, field=key, used=used)


def _missing_fields(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """vLLM's own config classes have no defaults: a missing key ends in the worker."""
    nested = reading.family == "deepseek_v41"
    cls = "DeepseekV41Config" if nested else "DeepseekV4Config"
    if reading.generation == "transformers":
        typed = bool(reading.raw.get("mlp_layer_types")) and source.facts.get("layer_types_validated") != "none"
        if typed:
            error = "The `mlp_layer_types` entries must be in ('sparse', 'dense') but got ['hash_moe', ...]"
            yield problem(source, "config-native-resave", Stage.ENGINE_CONFIG, STRICT_CLASS, error)
        else:
            error = f"'{cls}' object has no attribute 'compress_ratios'"
            yield problem(source, "config-native-resave", Stage.MODEL_INIT, "AttributeError", error)
        return
    required = source.facts.get("required_v41" if nested else "required", ())
    yield from _null_fields(reading, source)
    missing = [key for key in required if key not in reading.text]
    if "hidden_size" in missing and not nested:
        # The compile ranges are worked out from it before any layer asks for a field.
        error = "integer division or modulo by zero"
        data = {"fields": ", ".join(missing), "field": "hidden_size"}
        yield problem(source, "config-field-missing", Stage.ENGINE_CONFIG, "ZeroDivisionError", error, **data)
    elif missing:
        error = f"'{cls}' object has no attribute '{missing[0]}'"
        yield problem(
            source,
            "config-field-missing",
            Stage.MODEL_INIT,
            "AttributeError",
            error,
            fields=", ".join(missing),
            field=missing[0],
        )


def _null_fields(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """Null where the model computes with the value; other fields may be null (``n_shared_experts``, ...)."""
    for key in ("compress_ratios", "num_hash_layers", "rope_theta", "hc_mult", "o_groups", "q_lora_rank"):
        if key in reading.raw and reading.raw[key] is None and reading.family == "deepseek_v4":
            where = "--hf-overrides" if key in source.overrides else source.name
            data = {"file": where, "field": key, "text": "expected a value, got null"}
            yield problem(source, "config-value-type", Stage.MODEL_INIT, "TypeError", "", **data)


def _strict_types(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """transformers' strict class: every typed field is checked, missing ones become V4-Flash's values."""
    for key, value in _typed(reading.raw):
        wanted = _wanted(key)
        error = f"Field '{key}' expected {wanted}, got {type(value).__name__} (value: {value!r})"
        yield problem(
            source,
            "config-strict-type",
            Stage.ENGINE_CONFIG,
            _STRICT,
            error,
            field=key,
            wanted=wanted,
            value=value,
        )
    if reading.defaulted:
        essential = [key for key in reading.defaulted if key in _ESSENTIAL]
        if essential:
            yield problem(source, "config-field-defaulted", Stage.ACCURACY, fields=", ".join(essential))


_ESSENTIAL = frozenset(
    [
        "compress_ratios",
        "num_hash_layers",
        "hidden_size",
        "head_dim",
        "num_hidden_layers",
        "num_attention_heads",
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "q_lora_rank",
        "o_lora_rank",
        "o_groups",
        "index_topk",
        "index_n_heads",
        "index_head_dim",
        "hc_mult",
        "sliding_window",
        "compress_rope_theta",
    ]
)


def _typed(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields of the strict class whose value has another type; int is no float there, and bool no int."""
    for key in (*_FLOATS, *_BOOLEANS, *_INTEGERS, *_STRINGS):
        if key not in config:
            continue
        value = config[key]
        wanted: type = float if key in _FLOATS else bool if key in _BOOLEANS else int if key in _INTEGERS else str
        if type(value) is not wanted:
            yield key, value
    for key in ("bos_token_id", "pad_token_id"):
        if config.get(key) is not None and type(config[key]) is not int:
            yield key, config[key]
    for key in ("rope_theta", "compress_rope_theta"):
        if key in config and type(config[key]) not in (int, float):
            yield key, config[key]


def _wanted(key: str) -> str:
    if key in _FLOATS or key.endswith("rope_theta"):
        return "float"
    return "bool" if key in _BOOLEANS else "int" if key in _INTEGERS else "str"
