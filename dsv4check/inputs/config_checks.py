"""What a release would stumble over in a config.json it can read: one Problem for each, with its stage.

Facts come from the area ``config_fields`` of the release (which keys its model code reads without a default,
which architectures and model types it registers) and from transformers' strict DeepseekV4Config, which vLLM
uses from 0.33.0 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsv4check.deployment import ServeFlags
from dsv4check.inputs.model_config import LAYER_TYPE_OF_RATIO, ConfigReading
from dsv4check.problems import Origin, Problem, Stage

_STRICT = "StrictDataclassFieldValidationError"
_STRICT_CLASS = "StrictDataclassClassValidationError"
_FLOATS = (
    "swiglu_limit rms_norm_eps hc_eps routed_scaling_factor attention_dropout initializer_range "
    "router_aux_loss_coef router_jitter_noise"
).split()
_BOOLEANS = "norm_topk_prob use_cache tie_word_embeddings attention_bias mlp_bias output_router_logits".split()
_INTEGERS = (
    "vocab_size hidden_size moe_intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "q_lora_rank num_experts_per_tok n_routed_experts n_shared_experts max_position_embeddings hc_mult "
    "hc_sinkhorn_iters sliding_window o_groups o_lora_rank index_n_heads index_head_dim index_topk "
    "num_nextn_predict_layers"
).split()
_STRINGS = ("scoring_func", "hidden_act")
# Keys that older releases need and transformers' class derives or fills, so that losing them matters.
_SCALED_ROPE = ("yarn", "linear", "dynamic", "llama3", "longrope")
_TYPE_NAMES = {type(None): "NoneType"}


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """What the checks need beside the reading itself."""

    facts: Mapping[str, Any]
    """The release's ``config_fields`` section."""
    file: Mapping[str, Any]
    """config.json before ``--hf-overrides``."""
    flags: ServeFlags
    name: str
    """The model as given on the command line."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """``--hf-overrides``."""
    origin: Origin = field(default_factory=lambda: Origin("model"))


def config_problems(reading: ConfigReading, source: ConfigSource) -> tuple[Problem, ...]:
    """Everything in the config that this release refuses, drops or misreads, in the order vLLM meets it.

    A problem of the configuration stage hides the later ones only in vLLM, not here: all are returned.
    """
    found = [*_identity(reading, source), *_overrides(reading, source)]
    if any(problem.code in ("config-model-too-new", "config-model-type-missing") for problem in found):
        # The class that would read the rest does not exist or is not found, so nothing below applies.
        return tuple(found)
    if reading.family == "deepseek_v4":
        strict = source.facts.get("config_class") == "transformers"
        found += _strict_types(reading, source) if strict else _missing_fields(reading, source)
        found += _ratios(reading, source, strict)
    else:
        found += _missing_fields(reading, source)
        found += _nested_ratios(reading, source)
    found += _rope(reading, source)
    found += _quantization(reading, source)
    act = reading.text.get("hidden_act")
    if act not in (None, "silu"):
        error = f"Unsupported activation: {act}. Only silu is supported for now."
        found.append(_problem(source, "config-hidden-act", Stage.MODEL_INIT, "ValueError", error, value=act))
    return tuple(found)


def _problem(
    source: ConfigSource, code: str, stage: Stage, exception: str = "", error: str = "", **data: Any
) -> Problem:
    return Problem(code, stage, exception, error, data, source.origin)


def _identity(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """model_type and architectures: does the release know this model at all?"""
    file_type = source.file.get("model_type")
    model_type = reading.raw.get("model_type")
    known = source.facts.get("model_types", ())
    if file_type is None:
        error = f"Unrecognized model in {source.name}. Should have a `model_type` key in its config.json."
        yield _problem(source, "config-model-type-missing", Stage.ENGINE_CONFIG, "ValidationError", error)
        return
    unregistered = source.facts.get("config_class") == "transformers" and file_type != "deepseek_v41"
    refused = model_type not in known or (unregistered and file_type not in known)
    if refused:
        code = "config-model-too-new" if reading.family == file_type else "config-model-type-unknown"
        error = (
            f"The checkpoint you are trying to load has model type `{file_type}` but Transformers does not "
            "recognize this architecture."
        )
        yield _problem(source, code, Stage.ENGINE_CONFIG, "ValidationError", error, model_type=file_type)
        if code == "config-model-too-new":
            return
    names = reading.raw.get("architectures")
    supported = source.facts.get("architectures", ())
    if not names:
        if source.flags.get("runner", "auto") in (None, "auto"):
            yield _problem(source, "config-architectures-missing", Stage.ENGINE_CONFIG)
    elif not any(name in supported for name in names):
        error = f"Model architectures {list(names)} are not supported for now."
        yield _problem(
            source, "config-architecture-unknown", Stage.ENGINE_CONFIG, "ValidationError", error, architectures=names
        )
    vision = reading.text.get("vision_n_layers") or 0
    if reading.family == "deepseek_v4" and vision and not source.facts.get("vision") and _loads(source):
        error = "There is no module or parameter named 'vision' in DeepseekV4ForCausalLM."
        yield _problem(source, "config-vision-too-new", Stage.WEIGHT_LOAD, "ValueError", error, layers=vision)


def _overrides(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """--hf-overrides that vLLM takes differently from what they say."""
    if isinstance(source.overrides.get("text_config"), Mapping):
        error = "The text_config extracted from the model config does not have `num_attention_heads` attribute."
        yield _problem(source, "config-text-override", Stage.ENGINE_CONFIG, "ValidationError", error)
    for key in reading.ineffective:
        used = "layer_types" if key == "compress_ratios" else "mlp_layer_types"
        yield _problem(source, "config-override-no-effect", Stage.ENGINE_CONFIG, field=key, used=used)


def _missing_fields(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """vLLM's own config classes have no defaults: a missing key ends in the worker."""
    nested = reading.family == "deepseek_v41"
    cls = "DeepseekV41Config" if nested else "DeepseekV4Config"
    if reading.generation == "transformers":
        typed = bool(reading.raw.get("mlp_layer_types")) and source.facts.get("layer_types_validated") != "none"
        if typed:
            error = "The `mlp_layer_types` entries must be in ('sparse', 'dense') but got ['hash_moe', ...]"
            yield _problem(source, "config-native-resave", Stage.ENGINE_CONFIG, _STRICT_CLASS, error)
        else:
            error = f"'{cls}' object has no attribute 'compress_ratios'"
            yield _problem(source, "config-native-resave", Stage.MODEL_INIT, "AttributeError", error)
        return
    required = source.facts.get("required_v41" if nested else "required", ())
    missing = [key for key in required if key not in reading.text]
    if missing:
        error = f"'{cls}' object has no attribute '{missing[0]}'"
        yield _problem(
            source,
            "config-field-missing",
            Stage.MODEL_INIT,
            "AttributeError",
            error,
            fields=", ".join(missing),
            field=missing[0],
        )


def _strict_types(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """transformers' strict class: every typed field is checked, missing ones become V4-Flash's values."""
    for key, value in _typed(reading.raw):
        wanted = _wanted(key)
        error = f"Field '{key}' expected {wanted}, got {_type_name(value)} (value: {value!r})"
        yield _problem(
            source, "config-strict-type", Stage.ENGINE_CONFIG, _STRICT, error, field=key, wanted=wanted, value=value
        )
    if reading.defaulted:
        essential = [key for key in reading.defaulted if key in _ESSENTIAL]
        if essential:
            yield _problem(source, "config-field-defaulted", Stage.ACCURACY, fields=", ".join(essential))


_ESSENTIAL = frozenset(
    "compress_ratios num_hash_layers hidden_size head_dim num_hidden_layers num_attention_heads n_routed_experts "
    "num_experts_per_tok moe_intermediate_size q_lora_rank o_lora_rank o_groups index_topk index_n_heads "
    "index_head_dim hc_mult sliding_window compress_rope_theta".split()
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
    for key in ("rope_theta", "compress_rope_theta"):
        if key in config and type(config[key]) not in (int, float):
            yield key, config[key]


def _wanted(key: str) -> str:
    if key in _FLOATS or key.endswith("rope_theta"):
        return "float"
    return "bool" if key in _BOOLEANS else "int" if key in _INTEGERS else "str"


def _type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def _ratios(reading: ConfigReading, source: ConfigSource, strict: bool) -> Iterator[Problem]:
    """Compress ratios: the values there are kernels for, and one for every layer."""
    layers = reading.text.get("num_hidden_layers")
    if not isinstance(layers, int) or reading.generation == "transformers":
        if strict:
            yield from _layer_types(reading, source, layers)
        return
    listed = source.file.get("compress_ratios") if strict else reading.raw.get("compress_ratios")
    if not isinstance(listed, list):
        return
    checked = listed if strict else listed[:layers]
    odd = [value for value in checked if (value not in LAYER_TYPE_OF_RATIO if strict else value > 1 and value not in (4, 128))]
    if odd:
        stage, exception = (Stage.ENGINE_CONFIG, "KeyError") if strict else (Stage.MODEL_INIT, "AssertionError")
        error = str(odd[0]) if strict else ""
        yield _problem(source, "config-compress-ratio-value", stage, exception, error, value=odd[0])
    if len(listed) < layers:
        yield from _too_few(reading, source, len(listed), strict)


def _too_few(reading: ConfigReading, source: ConfigSource, count: int, strict: bool) -> Iterator[Problem]:
    """Fewer entries than layers. An override of the layer count comes after the strict class has looked."""
    layers = reading.text["num_hidden_layers"]
    of_file = source.file.get("num_hidden_layers", layers)
    if strict and count < of_file:
        error = f"`num_hidden_layers` ({of_file}) must equal `len(layer_types)` ({count})."
        stage, exception = Stage.ENGINE_CONFIG, _STRICT_CLASS
    else:
        error, stage, exception = "list index out of range", Stage.MODEL_INIT, "IndexError"
    yield _problem(source, "config-compress-ratio-count", stage, exception, error, count=count, layers=layers)


def _layer_types(reading: ConfigReading, source: ConfigSource, layers: object) -> Iterator[Problem]:
    """Files in transformers' own form, read by transformers' class."""
    for key, allowed in (
        ("layer_types", tuple(LAYER_TYPE_OF_RATIO.values())),
        ("mlp_layer_types", ("hash_moe", "moe")),
    ):
        names = source.file.get(key)
        if not isinstance(names, list) or not isinstance(layers, int):
            continue
        kept = names[: source.file.get("num_hidden_layers", layers)]
        bad = [name for name in kept if name not in allowed]
        if bad:
            error = f"`{key}` entries must be one of {allowed} for DeepSeek-V4; got {bad}."
            yield _problem(
                source, "config-compress-ratio-value", Stage.ENGINE_CONFIG, _STRICT_CLASS, error, value=bad[0]
            )
        if len(names) < layers:
            yield from _too_few(reading, source, len(names), strict=True)


def _nested_ratios(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """V4.1 knows the ratios 0, 1 and 2; a layer without an entry counts as 0."""
    for layer, value in enumerate(reading.compress_ratios):
        if value not in (0, 1, 2):
            error = f"DeepSeek V4.1 layer {layer} has compress_ratio={value}; only 0 (sliding window), 1 and 2 are"
            yield _problem(
                source, "config-compress-ratio-value", Stage.MODEL_INIT, "ValueError", error, value=value
            )
            return


def _rope(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """Rotary scaling: factor is read without a default; without scaling long contexts go wrong silently."""
    rope = reading.raw.get("rope_scaling") or reading.raw.get("rope_parameters")
    if not rope and reading.family == "deepseek_v41":
        rope = reading.text.get("rope_scaling") or reading.text.get("rope_parameters")
    if not rope:
        yield _problem(source, "config-rope-scaling-missing", Stage.ACCURACY)
        return
    compress = rope.get("compress")
    used = compress if isinstance(compress, Mapping) else rope
    kind = used.get("rope_type", used.get("type", "default"))
    if kind in _SCALED_ROPE and "factor" not in used:
        error = f"Missing required keys in `rope_parameters` for 'rope_type'='{kind}': {{'factor'}}"
        yield _problem(source, "config-rope-factor-missing", Stage.ENGINE_CONFIG, "KeyError", error, kind=kind)


def _loads(source: ConfigSource) -> bool:
    """False when the launch loads no weights (``--load-format dummy``)."""
    return source.flags.get("load_format") != "dummy"


def _quantization(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """The quantisation section, as far as it stops the launch whatever its method."""
    section = reading.text.get("quantization_config")
    reads_scale_fmt = bool(source.facts.get("scale_fmt_read"))
    if not isinstance(section, Mapping):
        if reads_scale_fmt:
            error = "'DeepseekV4Config' object has no attribute 'quantization_config'"
            yield _problem(source, "config-quantization-missing", Stage.MODEL_INIT, "AttributeError", error)
        elif _loads(source):
            yield _problem(source, "config-quantization-missing", Stage.WEIGHT_LOAD, "KeyError")
        return
    if reads_scale_fmt and "scale_fmt" not in section:
        method = section.get("quant_method")
        yield _problem(source, "config-scale-fmt-missing", Stage.MODEL_INIT, "KeyError", "'scale_fmt'", method=method)
    method = section.get("quant_method")
    if not method and not (isinstance(section.get("producer"), Mapping) and section.get("quantization")):
        if _loads(source):
            yield _problem(source, "config-quantization-missing", Stage.WEIGHT_LOAD, "KeyError")
        return
    if method not in ("fp8", "deepseek_v4_fp8"):
        return
    yield from _block_fp8(section, source)
    dtype = reading.text.get("expert_dtype", "fp4")
    if source.facts.get("expert_dtype_checked") and dtype not in ("fp4", "fp8"):
        error = f"Unsupported DeepSeek V4 expert_dtype={dtype!r}; expected one of ('fp4', 'fp8')."
        yield _problem(source, "config-expert-dtype", Stage.MODEL_INIT, "ValueError", error, value=dtype)


def _block_fp8(section: Mapping[str, Any], source: ConfigSource) -> Iterator[Problem]:
    """Fp8Config's own checks."""
    scheme = section.get("activation_scheme", "dynamic")
    block = section.get("weight_block_size")
    stage, exception = Stage.ENGINE_CONFIG, "ValueError"
    if scheme not in ("static", "dynamic"):
        error = f"Unsupported activation scheme {scheme}"
        yield _problem(source, "config-activation-scheme", stage, exception, error, value=scheme)
    elif isinstance(block, list) and len(block) != 2:
        error = f"The quantization block size of weight must have 2 dimensions, but got {len(block)} dimensions"
        yield _problem(source, "config-weight-block-size", stage, exception, error, value=len(block))
    elif block is not None and scheme != "dynamic":
        error = (
            "The block-wise quantization only supports dynamic activation scheme for now, but got "
            f"{scheme} activation scheme."
        )
        yield _problem(source, "config-activation-scheme", stage, exception, error, value=scheme)
