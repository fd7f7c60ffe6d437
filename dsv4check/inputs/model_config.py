"""Reads a config.json of any DeepSeek-V4 generation into one shape, the way the release at hand reads it.

Three generations exist. *original* (DeepSeek's own files) has ``compress_ratios`` and ``num_hash_layers``;
*transformers* (files saved by transformers' own DeepseekV4Config) has ``layer_types``, ``compress_rates`` and
``mlp_layer_types``; *nested* (V4.1) keeps the text model under ``text_config``. Releases up to 0.32 read V4
with vLLM's config class, which takes every key as it is; 0.33 uses transformers' class, which fills missing
keys with the values of V4-Flash and converts the original names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dsv4check.errors import InputError
from dsv4check.inputs.config_values import check_values
from dsv4check.records import dataclass

MAX_CONFIG_BYTES = 2_000_000
"""Larger than any published config.json by a factor of 200; the file is refused unread beyond that."""

_V4_TYPES = ("deepseek_v4", "deepseek_v41")
_ARCHITECTURE_FAMILY = {
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "DeepseekV4ForConditionalGeneration": "deepseek_v4",
    "DeepseekV41ForCausalLM": "deepseek_v41",
}
_RATIO_OF_LAYER_TYPE = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
LAYER_TYPE_OF_RATIO = {ratio: name for name, ratio in _RATIO_OF_LAYER_TYPE.items()}

# Defaults of transformers' DeepseekV4Config (5.16 to 5.20 agree), which are the values of V4-Flash.
TRANSFORMERS_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "num_experts_per_tok": 6,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "max_position_embeddings": 1048576,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "swiglu_limit": 10.0,
    "sliding_window": 128,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "num_nextn_predict_layers": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
}
_DEFAULT_HASH_LAYERS = 3
_DEFAULT_ROTARY_SHARE = 64 / 512


class OtherModelError(InputError):
    """The config.json is that of another model than DeepSeek-V4."""


@dataclass(frozen=True, slots=True)
class ConfigReading:
    """A config.json as one release sees it."""

    family: str
    """``deepseek_v4`` or ``deepseek_v41``."""
    generation: str
    """``original``, ``transformers`` or ``nested``."""
    raw: Mapping[str, Any]
    """The file with overrides applied."""
    text: Mapping[str, Any]
    """What vLLM's model code sees: for V4.1 the text model's keys with the top-level ones laid over them, for
    transformers' class with its defaults and both spellings of the per-layer lists."""
    compress_ratios: tuple[int, ...]
    """Per target layer, length ``num_hidden_layers`` (shorter when the file's list is)."""
    defaulted: tuple[str, ...] = ()
    """Keys that the file lacks and transformers' class fills with V4-Flash's values."""
    ineffective: tuple[str, ...] = ()
    """Overridden keys that this release does not read any more after loading."""


def parse_config(data: bytes, source: str) -> dict[str, Any]:
    """Decode and parse a config.json.

    ``source`` names the file in messages. Raises InputError with line and column for anything that is no JSON
    object in UTF-8 (a UTF-8 byte order mark is accepted, as transformers would not write one but editors do),
    for NaN and infinities, and for files above 2 MB.
    """
    if len(data) > MAX_CONFIG_BYTES:
        raise InputError(f"{source}: {len(data)} bytes is too large for a config.json (limit {MAX_CONFIG_BYTES})")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{source}: is encoded as UTF-16; expected UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: byte {error.start} is not UTF-8; expected a JSON file") from None
    if not text.strip():
        raise InputError(f"{source}: is empty; expected a JSON object")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{source}: line {error.lineno}, column {error.colno}: not valid JSON ({error.msg})") from None
    except RecursionError:
        raise InputError(f"{source}: is nested too deeply for a config.json") from None
    except ValueError:
        raise InputError(f"{source}: holds a number with too many digits") from None
    if not isinstance(value, dict):
        raise InputError(f"{source}: expected a JSON object, got {_kind(value)}")
    return value


def read_config(
    raw: Mapping[str, Any],
    source: str,
    *,
    transformers_class: bool,
    flat_overrides: Mapping[str, Any] | None = None,
    checked: bool = False,
) -> ConfigReading:
    """Read a parsed config.json as the release does.

    ``raw`` is the file (with what is merged before vLLM sees it); ``transformers_class`` says that the
    release reads V4 with transformers' class (0.33 on); ``flat_overrides`` are the ``--hf-overrides`` keys,
    which vLLM sets as attributes after the class has been built. ``checked``: the values of both were looked at
    before. Raises InputError when this is no DeepSeek-V4 model or a value cannot be used at all.
    """
    overrides = flat_overrides or {}
    if not checked:
        check_values(raw, source)
        check_values(overrides, "--hf-overrides")
    family = _family({**raw, **overrides}, source)
    merged = {**raw, **overrides}
    if family == "deepseek_v41":
        text = _flatten(raw, overrides)
        generation = "nested" if isinstance(raw.get("text_config"), Mapping) else "original"
        ratios = _ratios_of(text)
        return ConfigReading(family, generation, merged, text, _cut(ratios, text))
    generation = "original"
    if "compress_ratios" not in raw and ("layer_types" in raw or "mlp_layer_types" in raw):
        generation = "transformers"
    if not transformers_class:
        text = {"max_position_embeddings": 1048576, "rope_theta": 10000.0, **merged}
        ratios = _ratios_of(text) or _ratios_of_types(text)
        return ConfigReading(family, generation, merged, text, _cut(ratios, text))
    text, defaulted = _as_transformers(raw)
    ineffective = tuple(key for key in ("compress_ratios", "num_hash_layers") if key in overrides)
    text = {**text, **{key: value for key, value in overrides.items() if key not in ineffective}}
    ratios = _ratios_of_types(text)
    return ConfigReading(family, generation, merged, text, _cut(ratios, text), defaulted, ineffective)


def _family(config: Mapping[str, Any], source: str) -> str:
    """The model family, from ``model_type`` or, where that is missing or foreign, from ``architectures``."""
    model_type = config.get("model_type")
    if model_type in _V4_TYPES:
        return str(model_type)
    names = config.get("architectures")
    for name in names if isinstance(names, list) else ():
        if name in _ARCHITECTURE_FAMILY:
            return _ARCHITECTURE_FAMILY[name]
    if model_type is None and "compress_ratios" in config and "hc_mult" in config:
        # No other architecture has both; the file merely lost its names.
        return "deepseek_v4"
    told = f"model_type {model_type!r}" if model_type is not None else "no model_type"
    raise OtherModelError(f"{source}: not a DeepSeek-V4 model ({told}); expected deepseek_v4 or deepseek_v41")


def _flatten(raw: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """V4.1: the text model's keys, the top-level keys over them, and the expert dtype of the quantisation."""
    nested = raw.get("text_config")
    text: dict[str, Any] = dict(nested) if isinstance(nested, Mapping) else {}
    text.pop("model_type", None)
    text |= {key: value for key, value in raw.items() if key not in ("text_config", "vision_config")}
    quantization = text.get("quantization_config")
    if "expert_dtype" not in text and isinstance(quantization, Mapping) and "expert_dtype" in quantization:
        text["expert_dtype"] = quantization["expert_dtype"]
    vision = raw.get("vision_config")
    if isinstance(vision, Mapping):
        text["vision_n_layers"] = vision.get("num_hidden_layers", 0)
        text["vision_max_n_token"] = vision.get("max_image_tokens", 1024)
    return text | dict(overrides)


def _as_transformers(raw: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What transformers' DeepseekV4Config makes of the file, and the keys it had to fill in."""
    defaulted = tuple(key for key in TRANSFORMERS_DEFAULTS if key not in raw)
    text: dict[str, Any] = {**TRANSFORMERS_DEFAULTS, **raw}
    layers = _integer(text.get("num_hidden_layers")) or 0
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    if isinstance(raw.get("compress_rates"), Mapping):
        rates = dict(raw["compress_rates"])
    for key, name in (
        ("compress_rate_csa", "compressed_sparse_attention"),
        ("compress_rate_hca", "heavily_compressed_attention"),
    ):
        if raw.get(key) is not None:
            rates[name] = raw[key]
    text["compress_rates"] = rates
    types = raw.get("layer_types")
    if not isinstance(types, list):
        ratios = raw.get("compress_ratios")
        if isinstance(ratios, list):
            # An unknown ratio is reported elsewhere; here it only has to keep its place.
            types = [LAYER_TYPE_OF_RATIO.get(ratio, f"ratio {ratio}") for ratio in ratios]
        else:
            types = ["heavily_compressed_attention"] * min(layers, 2) + [
                "compressed_sparse_attention" if index % 2 else "heavily_compressed_attention"
                for index in range(max(layers - 2, 0))
            ]
            defaulted += ("compress_ratios",)
    text["layer_types"] = list(types[:layers])
    mlp = raw.get("mlp_layer_types")
    if not isinstance(mlp, list):
        given = _integer(raw.get("num_hash_layers"))
        if given is None:
            defaulted += ("num_hash_layers",)
        hashed = min(layers, _DEFAULT_HASH_LAYERS if given is None else given)
        mlp = ["hash_moe"] * hashed + ["moe"] * (layers - hashed)
    text["mlp_layer_types"] = list(mlp[:layers])
    text["num_hash_layers"] = text["mlp_layer_types"].count("hash_moe")
    head_dim = _integer(text.get("head_dim")) or 0
    share = raw.get("partial_rotary_factor")
    if not isinstance(share, int | float):
        rope = _integer(raw.get("qk_rope_head_dim"))
        share = rope / head_dim if rope is not None and head_dim else _DEFAULT_ROTARY_SHARE
    text["qk_rope_head_dim"] = int(head_dim * share)
    text.setdefault("compress_ratios", list(_ratios_of_types(text)))
    return text, tuple(sorted(set(defaulted)))


def _ratios_of(text: Mapping[str, Any]) -> tuple[int, ...]:
    """``compress_ratios`` as integers; empty when absent."""
    values = text.get("compress_ratios")
    if not isinstance(values, list):
        return ()
    return tuple(int(value) for value in values if isinstance(value, int | float))


def _ratios_of_types(text: Mapping[str, Any]) -> tuple[int, ...]:
    """Ratios from ``layer_types`` and ``compress_rates``; 0 for a type that has no rate."""
    types = text.get("layer_types")
    if not isinstance(types, list):
        return ()
    rates = text.get("compress_rates")
    table: Mapping[str, Any] = rates if isinstance(rates, Mapping) else _RATIO_OF_LAYER_TYPE
    return tuple(_integer(table.get(str(name), 0)) or 0 for name in types)


def _cut(ratios: Sequence[int], text: Mapping[str, Any]) -> tuple[int, ...]:
    """Drop the entries of the draft layers behind the target's."""
    layers = _integer(text.get("num_hidden_layers"))
    return tuple(ratios if layers is None else ratios[:layers])


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _kind(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
