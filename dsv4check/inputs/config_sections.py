"""Checks of config.json's per-layer lists, rotary scaling and quantisation section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsv4check.inputs.config_source import STRICT_CLASS, ConfigSource, problem
from dsv4check.inputs.model_config import LAYER_TYPE_OF_RATIO, ConfigReading
from dsv4check.problems import Problem, Stage

_SCALED_ROPE = ("yarn", "linear", "dynamic", "llama3", "longrope")


def ratio_problems(reading: ConfigReading, source: ConfigSource, strict: bool) -> Iterator[Problem]:
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
    odd = [
        value
        for value in checked
        if (value not in LAYER_TYPE_OF_RATIO if strict else value > 1 and value not in (4, 128))
    ]
    if odd:
        stage, exception = (Stage.ENGINE_CONFIG, "KeyError") if strict else (Stage.MODEL_INIT, "AssertionError")
        error = str(odd[0]) if strict else ""
        yield problem(source, "config-compress-ratio-value", stage, exception, error, value=odd[0])
    if len(listed) < layers:
        yield from _too_few(reading, source, len(listed), strict)


def _too_few(reading: ConfigReading, source: ConfigSource, count: int, strict: bool) -> Iterator[Problem]:
    """Fewer entries than layers. An override of the layer count comes after the strict class has looked."""
    layers = reading.text["num_hidden_layers"]
    of_file = source.file.get("num_hidden_layers", layers)
    if strict and count < of_file:
        error = f"`num_hidden_layers` ({of_file}) must equal `len(layer_types)` ({count})."
        stage, exception = Stage.ENGINE_CONFIG, STRICT_CLASS
    else:
        error, stage, exception = "list index out of range", Stage.MODEL_INIT, "IndexError"
    yield problem(source, "config-compress-ratio-count", stage, exception, error, count=count, layers=layers)


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
            yield problem(source, "config-compress-ratio-value", Stage.ENGINE_CONFIG, STRICT_CLASS, error, value=bad[0])
        if len(names) < layers:
            yield from _too_few(reading, source, len(names), strict=True)


def nested_ratio_problems(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """V4.1 knows the ratios 0, 1 and 2; a layer without an entry counts as 0."""
    for layer, value in enumerate(reading.compress_ratios):
        if value not in (0, 1, 2):
            error = (
                f"DeepSeek V4.1 layer {layer} has compress_ratio={value}; "
                "only 0 (sliding window), 1 and 2 are supported."
            )
            yield problem(source, "config-compress-ratio-value", Stage.MODEL_INIT, "ValueError", error, value=value)
            return


def rope_problems(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """Rotary scaling: factor is read without a default; without scaling long contexts go wrong silently."""
    rope = reading.raw.get("rope_scaling") or reading.raw.get("rope_parameters")
    if not rope and reading.family == "deepseek_v41":
        rope = reading.text.get("rope_scaling") or reading.text.get("rope_parameters")
    if not rope:
        yield problem(source, "config-rope-scaling-missing", Stage.ACCURACY)
        return
    compress = rope.get("compress")
    used = compress if isinstance(compress, Mapping) else rope
    kind = used.get("rope_type", used.get("type", "default"))
    if kind in _SCALED_ROPE and "factor" not in used:
        error = f"Missing required keys in `rope_parameters` for 'rope_type'='{kind}': {{'factor'}}"
        yield problem(source, "config-rope-factor-missing", Stage.ENGINE_CONFIG, "KeyError", error, kind=kind)


def quantization_problems(reading: ConfigReading, source: ConfigSource) -> Iterator[Problem]:
    """The quantisation section, as far as it stops the launch whatever its method."""
    section = reading.text.get("quantization_config")
    reads_scale_fmt = bool(source.facts.get("scale_fmt_read"))
    if not isinstance(section, Mapping):
        if reads_scale_fmt:
            error = "'DeepseekV4Config' object has no attribute 'quantization_config'"
            yield problem(source, "config-quantization-missing", Stage.MODEL_INIT, "AttributeError", error)
        elif source.loads_weights:
            yield problem(source, "config-quantization-missing", Stage.WEIGHT_LOAD, "KeyError")
        return
    method = section.get("quant_method")
    if reads_scale_fmt and "scale_fmt" in source.unknown:
        yield problem(source, "config-scale-fmt-unknown", Stage.MODEL_INIT, method=method)
    elif reads_scale_fmt and "scale_fmt" not in section:
        yield problem(source, "config-scale-fmt-missing", Stage.MODEL_INIT, "KeyError", "'scale_fmt'", method=method)
    if not method and not (isinstance(section.get("producer"), Mapping) and section.get("quantization")):
        if source.loads_weights:
            yield problem(source, "config-quantization-missing", Stage.WEIGHT_LOAD, "KeyError")
        return
    if method not in ("fp8", "deepseek_v4_fp8"):
        return
    yield from _block_fp8(section, source)
    dtype = reading.text.get("expert_dtype", "fp4")
    if source.facts.get("expert_dtype_checked") and dtype not in ("fp4", "fp8"):
        error = f"Unsupported DeepSeek V4 expert_dtype={dtype!r}; expected one of ('fp4', 'fp8')."
        yield problem(source, "config-expert-dtype", Stage.MODEL_INIT, "ValueError", error, value=dtype)


def _block_fp8(section: Mapping[str, Any], source: ConfigSource) -> Iterator[Problem]:
    """Fp8Config's own checks."""
    scheme = section.get("activation_scheme")
    block = section.get("weight_block_size")
    stage, exception = Stage.ENGINE_CONFIG, "ValueError"
    if "activation_scheme" not in section:
        error = "Cannot find any of ['activation_scheme'] in the model's quantization config."
        yield problem(source, "config-activation-scheme", stage, exception, error, value="missing")
    elif scheme not in ("static", "dynamic"):
        error = f"Unsupported activation scheme {scheme}"
        yield problem(source, "config-activation-scheme", stage, exception, error, value=scheme)
    elif isinstance(block, list) and len(block) != 2:
        error = f"The quantization block size of weight must have 2 dimensions, but got {len(block)} dimensions"
        yield problem(source, "config-weight-block-size", stage, exception, error, value=len(block))
    elif block is not None and scheme != "dynamic":
        error = (
            "The block-wise quantization only supports dynamic activation scheme for now, but got "
            f"{scheme} activation scheme."
        )
        yield problem(source, "config-activation-scheme", stage, exception, error, value=scheme)
