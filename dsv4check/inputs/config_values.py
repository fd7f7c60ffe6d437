"""Values in a config.json that no release could use: the place, and what was expected there.

What a release takes, or stumbles over later, is left alone here: ``config_checks`` reports that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from dsv4check.errors import InputError
from dsv4check.records import dataclass

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
NUMBERS = (
    "rope_theta", "compress_rope_theta", "rms_norm_eps", "hc_eps", "swiglu_limit", "routed_scaling_factor",
    "partial_rotary_factor",
)
# fmt: on
_INTEGER_LISTS = ("compress_ratios", "dspark_target_layer_ids", "kv_source_layer_ids", "index_source_layer_ids")
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
_SECTION_STRINGS = (
    ("quantization_config", "quant_method"),
    ("quantization_config", "activation_scheme"),
    ("rope_scaling", "rope_type"),
    ("rope_scaling", "type"),
    ("rope_parameters", "rope_type"),
    ("rope_parameters", "type"),
)
_MAX_LAYERS = 4096
"""Per-layer lists are made in this length: an absurd count would exhaust the memory."""


@dataclass(frozen=True, slots=True)
class ValueIssue:
    """A value that is of no use as it stands."""

    path: tuple[str, ...]
    """Keys down to the value."""
    text: str
    """What was expected there and what stands there."""
    wrong_type: bool
    """False for a value of the right type that lies outside its range."""

    @property
    def place(self) -> str:
        """The path as people write it."""
        return ".".join(self.path)


def check_values(config: Mapping[str, Any], source: str) -> None:
    """Raise InputError for values that no release could use; what a release might take is left alone."""
    for issue in value_issues(config):
        raise InputError(f"{source}: {issue.place}: {issue.text}")


def value_issues(config: Mapping[str, Any]) -> Iterator[ValueIssue]:
    """Values that no release could use, in the file itself and in its ``text_config``."""
    for path, number in _numbers(config):
        if not math.isfinite(number):
            yield ValueIssue((path,), f"expected a finite number, got {number}", wrong_type=False)
    for section, prefix in ((config, ()), (config.get("text_config"), ("text_config",))):
        if isinstance(section, Mapping):
            yield from _section_issues(section, prefix)


def _section_issues(section: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[ValueIssue]:
    for key in (*_POSITIVE, *_NOT_NEGATIVE):
        yield from _integer_issue(section.get(key), (*prefix, key), least=1 if key in _POSITIVE else 0)
    for key in (*_INTEGER_LISTS, *_STRING_LISTS):
        yield from _list_issue(section.get(key), (*prefix, key), str if key in _STRING_LISTS else int)
    for keys, kinds, wanted in (
        (NUMBERS, (int, float), "a number"),
        (_SECTIONS, (Mapping,), "an object"),
        (_STRINGS, (str,), "a string"),
    ):
        for key in keys:
            value = section.get(key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
                yield ValueIssue((*prefix, key), f"expected {wanted}, got {_told(value)}", wrong_type=True)
    for name, key in _SECTION_STRINGS:
        inner = section.get(name)
        value = inner.get(key) if isinstance(inner, Mapping) else None
        if value is not None and not isinstance(value, str):
            yield ValueIssue((*prefix, name, key), f"expected a string, got {_told(value)}", wrong_type=True)
    yield from _size_issues(section, prefix)


def _size_issues(section: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[ValueIssue]:
    """Numbers that later arithmetic could not bear."""
    layers = section.get("num_hidden_layers")
    if isinstance(layers, int) and layers > _MAX_LAYERS:
        yield ValueIssue((*prefix, "num_hidden_layers"), f"{layers} are too many for a model", wrong_type=False)
    share = section.get("partial_rotary_factor")
    if isinstance(share, int | float) and not 0 <= share <= 1:
        text = f"expected a number from 0 to 1, got {_told(share)}"
        yield ValueIssue((*prefix, "partial_rotary_factor"), text, wrong_type=False)


def _integer_issue(value: object, path: tuple[str, ...], least: int) -> Iterator[ValueIssue]:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        yield ValueIssue(path, f"expected an integer, got {_told(value)}", wrong_type=True)
    elif not least <= value < 2**40:
        bound = "a positive integer" if least else "zero or a positive integer"
        yield ValueIssue(path, f"expected {bound}, got {_told(value)}", wrong_type=False)


def _list_issue(value: object, path: tuple[str, ...], kind: type) -> Iterator[ValueIssue]:
    if value is None:
        return
    wanted = "strings" if kind is str else "integers"
    if not isinstance(value, list):
        yield ValueIssue(path, f"expected a list of {wanted}, got {_told(value)}", wrong_type=True)
        return
    if len(value) > _MAX_LAYERS:
        yield ValueIssue(path, f"{len(value)} entries are too many for a model", wrong_type=False)
        return
    for index, entry in enumerate(value):
        fits = isinstance(entry, kind) and not isinstance(entry, bool)
        if not fits or (isinstance(entry, int) and not 0 <= entry < 2**40):
            place = (*path[:-1], f"{path[-1]}[{index}]")
            yield ValueIssue(place, f"expected one of {wanted}, got {_told(entry)}", wrong_type=not fits)
            return


def without_value(config: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """A copy of the config without the value at ``path`` (the whole list, where the path points into one)."""
    key, *rest = path
    key = key.partition("[")[0]
    copy = dict(config)
    if rest and isinstance(copy.get(key), Mapping):
        copy[key] = without_value(copy[key], tuple(rest))
    else:
        copy.pop(key, None)
    return copy


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
