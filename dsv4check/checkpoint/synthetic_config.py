"""Cuts a published config.json to other numbers of layers, draft stages and experts."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Final

from dsv4check.checkpoint.tensors import Tensor

_PER_LAYER: Final = ("layer_types", "mlp_layer_types")
_LAYER_IDS: Final = ("kv_source_layer_ids", "index_source_layer_ids")
_QUANTISED_LAYER: Final = re.compile(r"^(.*\blayers\.)(\d+)(\..+)$")
_DSPARK_STAGES: Final = 3
"""Stages of a V4 DSpark draft when the config states none."""


def source_layer(layer: int, published: int) -> int:
    """The published layer that a layer is modelled on: beyond the last one, the last two alternate as they do there."""
    return layer if layer < published else published - 2 + (layer - published) % 2


def text_section(config: Mapping[str, Any]) -> dict[str, Any]:
    """The section with the language model's keys: ``text_config`` where there is one, else the config itself."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else dict(config)


def draft_experts(text: Mapping[str, Any]) -> int:
    """Routed experts of a draft stage."""
    return int(text.get("dspark_n_routed_experts", text["n_routed_experts"]))


def cut_config(
    published: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    layers: int | None,
    stages: int | None,
    experts: int | None,
) -> dict[str, Any]:
    """A copy of the config for other numbers; None leaves one as it is.

    ``tensors`` are the published ones that the config belongs to: they say which kind of draft there is.
    """
    config: dict[str, Any] = copy.deepcopy(dict(published))
    nested = isinstance(config.get("text_config"), dict)
    text = config["text_config"] if nested else config
    if layers is not None:
        _cut_layers(config, text, layers)
    if stages is not None:
        dspark = any(".markov_head." in name for name in tensors)
        _set_stages(text, stages, dspark=dspark, nested=nested)
    if experts is not None:
        text["n_routed_experts"] = experts
        for key, limit in (("num_experts_per_tok", experts), ("dspark_n_routed_experts", experts)):
            if key in text:
                text[key] = min(text[key], limit)
        if "dspark_num_experts_per_tok" in text:
            text["dspark_num_experts_per_tok"] = min(text["dspark_num_experts_per_tok"], draft_experts(text))
    return config


def _cut_layers(config: dict[str, Any], text: dict[str, Any], layers: int) -> None:
    before = text["num_hidden_layers"]
    text["num_hidden_layers"] = layers
    sources = [source_layer(layer, before) for layer in range(layers)]
    ratios = text.get("compress_ratios")
    if isinstance(ratios, list):
        # The entries behind the target's layers are those of the draft.
        text["compress_ratios"] = [ratios[source] for source in sources] + ratios[before:]
    for key in _PER_LAYER:
        if isinstance(text.get(key), list):
            text[key] = [text[key][source] for source in sources]
    if "num_hash_layers" in text:
        text["num_hash_layers"] = min(text["num_hash_layers"], layers)
    for key in _LAYER_IDS:
        if key in text:
            text[key] = [number for number in text[key] if number < layers]
    if "candidate_source_layer_id" in text and text["candidate_source_layer_id"] >= layers:
        text["candidate_source_layer_id"] = max(text.get("index_source_layer_ids", []), default=0)
    if "engram_layer_ids" in text:
        kept = [place for place, number in enumerate(text["engram_layer_ids"]) if number < layers]
        for key in ("engram_layer_ids", "engram_num_embeddings"):
            text[key] = [text[key][place] for place in kept]
    if "dspark_target_layer_ids" in text:
        # They are counted from the last layer; there must be as many, because main_proj is as wide as all of them.
        text["dspark_target_layer_ids"] = [
            max(0, number - before + layers) for number in text["dspark_target_layer_ids"]
        ]
    _cut_quantised_layers(config, before, layers)


def _cut_quantised_layers(config: dict[str, Any], before: int, layers: int) -> None:
    """ModelOpt's list of quantised layers, one entry a layer and module."""
    quant = config.get("quantization_config")
    listed = quant.get("quantized_layers") if isinstance(quant, dict) else None
    if not isinstance(quant, dict) or not isinstance(listed, dict):
        return
    kept: dict[str, Any] = {}
    for name, entry in listed.items():
        found = _QUANTISED_LAYER.match(name)
        if found is None:
            kept[name] = entry
            continue
        for layer in range(layers):
            if source_layer(layer, before) == int(found[2]):
                kept[f"{found[1]}{layer}{found[3]}"] = entry
    quant["quantized_layers"] = kept


def _set_stages(text: dict[str, Any], stages: int, *, dspark: bool, nested: bool) -> None:
    ratios = text.get("compress_ratios")
    if isinstance(ratios, list):
        text["compress_ratios"] = ratios[: text["num_hidden_layers"]] + [0] * stages
    if stages == 0:
        text["num_nextn_predict_layers"] = 0
        for key in [key for key in text if key.startswith("dspark_") or key == "n_mtp_layers"]:
            del text[key]
    elif not dspark or nested:
        text["num_nextn_predict_layers"] = stages
    elif stages != _DSPARK_STAGES or "n_mtp_layers" in text:
        # V4's DSpark asks this key alone, and num_nextn_predict_layers of these configs is 1 whatever there is.
        text["n_mtp_layers"] = stages
