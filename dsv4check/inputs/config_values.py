"""Refuses values in a config.json that no release could use, naming the place and what was expected there.

What a release takes, or stumbles over later, is left alone here: ``config_checks`` reports that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from dsv4check.errors import InputError

# fmt: off
_POSITIVE = (
    "vocab_size", "hidden_size", "moe_intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "q_lora_rank", "o_lora_rank", "o_groups", "n_routed_experts",
    "num_experts_per_tok", "hc_mult", "hc_sinkhorn_iters", "index_n_heads", "index_head_dim", "index_topk",
    "qk_rope_head_dim", "max_position_embeddings", "dspark_block_size", "dspark_markov_rank",
    "sliding_window", "dspark_n_routed_experts",
)
# fmt: on
# fmt: off
_NOT_NEGATIVE = (
    "num_hash_layers", "num_nextn_predict_layers", "n_shared_experts", "vision_n_layers", "n_mtp_layers",
)
# fmt: on
# fmt: off
_NUMBERS = (
    "rope_theta", "compress_rope_theta", "rms_norm_eps", "hc_eps", "swiglu_limit", "routed_scaling_factor",
)
# fmt: on
_INTEGER_LISTS = (
    "compress_ratios",
    "dspark_target_layer_ids",
    "kv_source_layer_ids",
    "index_source_layer_ids",
)
_STRING_LISTS = ("layer_types", "mlp_layer_types", "architectures")
_SECTIONS = (
    "quantization_config",
    "rope_scaling",
    "rope_parameters",
    "compress_rates",
    "text_config",
    "vision_config",
)
_STRINGS = ("model_type", "expert_dtype", "hidden_act")


def check_values(config: Mapping[str, Any], source: str) -> None:
    """Raise InputError for values that no release could use; what a release might take is left alone."""
    for path, number in _numbers(config):
        if not math.isfinite(number):
            raise InputError(f"{source}: {path}: expected a finite number, got {number}")
    for section, prefix in ((config, ""), (config.get("text_config"), "text_config.")):
        if isinstance(section, Mapping):
            _check_section(section, f"{source}: {prefix}")


def _check_section(section: Mapping[str, Any], place: str) -> None:
    for key in (*_POSITIVE, *_NOT_NEGATIVE):
        _check_integer(section.get(key), f"{place}{key}", least=1 if key in _POSITIVE else 0)
    for key in (*_INTEGER_LISTS, *_STRING_LISTS):
        _check_list(section.get(key), f"{place}{key}", str if key in _STRING_LISTS else int)
    for keys, kinds, wanted in (
        (_NUMBERS, (int, float), "a number"),
        (_SECTIONS, (Mapping,), "an object"),
        (_STRINGS, (str,), "a string"),
    ):
        for key in keys:
            value = section.get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
                raise InputError(f"{place}{key}: expected {wanted}, got {_told(value)}")


def _check_integer(value: object, place: str, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{place}: expected an integer, got {_told(value)}")
    if not least <= value < 2**40:
        bound = "a positive integer" if least else "zero or a positive integer"
        raise InputError(f"{place}: expected {bound}, got {_told(value)}")


def _check_list(value: object, place: str, kind: type) -> None:
    if value is None:
        return
    wanted = "strings" if kind is str else "integers"
    if not isinstance(value, list):
        raise InputError(f"{place}: expected a list of {wanted}, got {_told(value)}")
    if len(value) > 4096:
        raise InputError(f"{place}: {len(value)} entries are too many for a model")
    for index, entry in enumerate(value):
        fits = isinstance(entry, kind) and not isinstance(entry, bool)
        if not fits or (isinstance(entry, int) and not 0 <= entry < 2**40):
            raise InputError(f"{place}[{index}]: expected one of {wanted}, got {_told(entry)}")


def _numbers(value: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    """Every float in the file with its JSON path."""
    if isinstance(value, float):
        yield path, value
    elif depth < 40 and isinstance(value, Mapping):
        for key, entry in value.items():
            name = str(key).encode("ascii", "backslashreplace").decode()
            yield from _numbers(entry, f"{path}.{name}" if path else name, depth + 1)
    elif depth < 40 and isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _numbers(entry, f"{path}[{index}]", depth + 1)


def _told(value: object) -> str:
    """A value as JSON, shortened for a one-line message."""
    text = json.dumps(value, default=str) if not isinstance(value, float) or math.isfinite(value) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
