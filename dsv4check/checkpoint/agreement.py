"""Where a checkpoint and its config.json say different things.

vLLM builds the model from config.json and then loads what the checkpoint has. Where the two differ it stops at weight
load at best, and at worst starts with parameters that nothing was loaded into.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dsv4check.checkpoint.content import Content
from dsv4check.checkpoint.storage import MIXED, Storage
from dsv4check.deployment import Model
from dsv4check.records import dataclass
from dsv4check.resolve.expert_format import expert_format, quantization, weight_block

_DSPARK_STAGES: Final = 3
"""Stages that vLLM builds where the config states none (``getattr(config, "n_mtp_layers", 3)``)."""
_INDEXED_RATIO: Final = 4
"""Of V4's compression ratios the one whose layers have an indexer."""
_UNQUANTISED: Final = frozenset({"bf16", "f16", "f32"})
_INTEGER_METHODS: Final = frozenset({"gptq", "gptq_marlin", "awq", "awq_marlin", "auto-round", "auto_round"})
_SKIP_LISTS: Final = ("ignore", "ignored_layers", "exclude_modules", "exclude", "modules_to_not_convert")
_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One thing that config.json and checkpoint do not agree about."""

    what: str
    """The key of config.json, or a word for several: ``expert_dtype``, ``num_hidden_layers``, ``dspark``, ..."""
    config: str
    """What the config says, for people."""
    checkpoint: str
    """What the checkpoint has, for people."""
    example: str = ""
    """A tensor that shows it; empty where the point is that there is none."""


def disagreements(content: Content, model: Model) -> tuple[Disagreement, ...]:
    """Compare what a checkpoint holds with the config it is to be loaded with.

    ``model.text`` must be what the release makes of config.json (``inputs.model.load_model``). Where either side does
    not tell, nothing is said. Never raises.
    """
    found = [*_family(content, model), *_experts(content, model), *_dense(content, model), *_sizes(content, model)]
    if content.complete and content.layers:
        found += [*_layers(content, model), *_expert_numbers(content, model), *_layer_kinds(content, model)]
        found += _draft(content, model)
    return tuple(found)


def _family(content: Content, model: Model) -> Iterator[Disagreement]:
    if content.family is not None and content.family != model.family:
        example = next((name for what, name in content.examples.items() if what.startswith("layer ")), "")
        yield Disagreement("model_type", model.family, f"tensors of {content.family}", example)


def _experts(content: Content, model: Model) -> Iterator[Disagreement]:
    """How the routed experts are stored."""
    expected, key, said = _stated_experts(model)
    if not expected:
        return
    target = content.target.experts.storage
    if target.format is not None and target.format not in expected:
        yield Disagreement(key, said, f"routed experts are {_described(target)}", target.example)
    draft = content.draft.experts.storage
    if draft.format is not None and draft.format not in expected and not _draft_left_out(quantization(model)):
        # vLLM reads the draft's experts as it reads the target's.
        yield Disagreement(key, said, f"routed experts of the draft are {_described(draft)}", draft.example)


def _stated_experts(model: Model) -> tuple[frozenset[str], str, str]:
    """Formats that fit the config (none: it does not tell), the key that says so, and how it reads."""
    quant = quantization(model)
    if not quant:
        return _UNQUANTISED, "quantization_config", "no quantization_config: nothing is quantised"
    reading = expert_format(model, {})
    if reading.stored is not None:
        key, said = "quantization_config", f"quant_method {reading.method!r}: {reading.stored} experts"
        if reading.native:
            dtype = model.text.get("expert_dtype", model.raw.get("expert_dtype"))
            said = f"expert_dtype {dtype!r}" if dtype is not None else "no expert_dtype, which means 'fp4'"
            if reading.stored == "nvfp4":
                said += f" with moe_quant_algo {quant.get('moe_quant_algo')!r}"
            else:
                key = "expert_dtype"
            said += f": {reading.stored} experts"
        return frozenset({reading.stored}), key, said
    bits = quant.get("bits")
    if reading.method in _INTEGER_METHODS and bits in (4, 8):
        return frozenset({f"int{bits}"}), "quantization_config", f"quant_method {reading.method!r} with {bits} bits"
    return frozenset(), "", ""


def _described(storage: Storage) -> str:
    if storage.format == MIXED:
        return "mixed: " + ", ".join(f"{name or 'something else'} ({count})" for name, count in storage.formats.items())
    scales = f" with {storage.scale_dtype} scales ({storage.scale_suffix})" if storage.scale_dtype else ""
    return f"{storage.format}{scales}"


def _draft_left_out(quant: Mapping[str, Any]) -> bool:
    """True when the config itself says that the draft is stored another way than the target."""
    for key in _SKIP_LISTS:
        names = quant.get(key)
        if isinstance(names, Sequence) and not isinstance(names, str) and any("mtp" in str(name) for name in names):
            return True
    layers = quant.get("quantized_layers")
    return isinstance(layers, Mapping) and not any("mtp" in str(name) for name in layers)


def _dense(content: Content, model: Model) -> Iterator[Disagreement]:
    """Attention and shared experts, which vLLM's own method always reads as FP8 in blocks."""
    quant = quantization(model)
    if not quant:
        expected, said, block = _UNQUANTISED, "no quantization_config: nothing is quantised", None
    elif expert_format(model, {}).native:
        expected, block = frozenset({"fp8"}), weight_block(model)
        said = f"quant_method {quant.get('quant_method')!r}: linear layers in FP8"
    else:
        return
    for where, stored in (("target", content.target), ("draft", content.draft)):
        for what, storage in (("attention", stored.attention), ("shared experts", stored.shared_experts)):
            if storage.format is not None and storage.format not in expected:
                has = f"{what} of the {where}: {_described(storage)}"
                yield Disagreement("quantization_config", said, has, storage.example)
            elif block is not None and storage.block is not None and storage.block != block:
                has = f"{what} of the {where}: one scale for {storage.block[0]}x{storage.block[1]} values"
                yield Disagreement("weight_block_size", str(list(block)), has, storage.example)


def _sizes(content: Content, model: Model) -> Iterator[Disagreement]:
    """Vocabulary and hidden size."""
    for role, shape in (("embedding", content.embedding), ("head", content.head)):
        if shape is None or len(shape) != 2:
            continue
        for key, size in (("vocab_size", shape[0]), ("hidden_size", shape[1])):
            stated = model.integer(key)
            if stated is not None and stated != size:
                yield Disagreement(key, str(stated), f"{role} is {shape[0]}x{shape[1]}", content.examples[role])


def _layers(content: Content, model: Model) -> Iterator[Disagreement]:
    stated = model.integer("num_hidden_layers")
    if stated is None:
        return
    last = content.layers[-1]
    if last + 1 != stated:
        has = f"layers up to {last}" if last + 1 > stated else f"no layer after {last}"
        yield Disagreement("num_hidden_layers", str(stated), has, content.examples[f"layer {last}"])
    if content.holes:
        yield Disagreement("num_hidden_layers", str(stated), f"no tensor of layer {_list(content.holes)}")


def _expert_numbers(content: Content, model: Model) -> Iterator[Disagreement]:
    key = "n_routed_experts"
    draft_key = "dspark_n_routed_experts" if model.integer("dspark_n_routed_experts") is not None else key
    for name, experts, where in (
        (key, content.target.experts, "layer"),
        (draft_key, content.draft.experts, "draft stage"),
    ):
        stated = model.integer(name)
        wrong = [number for number, count in experts.by_layer.items() if count != stated]
        if stated is not None and wrong:
            has = f"{experts.by_layer[wrong[0]]} experts in {where} {_list(wrong)}"
            yield Disagreement(name, str(stated), has, experts.storage.example)


def _layer_kinds(content: Content, model: Model) -> Iterator[Disagreement]:
    """Layers that have, or should have, tensors of their own: hash routing, compressor, indexer, n-gram tables."""
    layers = min(model.integer("num_hidden_layers") or 0, content.layers[-1] + 1)
    checks: list[tuple[str, str, tuple[int, ...], set[int] | None]] = [
        ("hash", "gate.tid2eid", content.hash_layers, _hash_layers(model, layers)),
    ]
    if model.family == "deepseek_v41":
        for key, what, present in (
            ("kv_source_layer_ids", "compressor", content.compressor_layers),
            ("index_source_layer_ids", "indexer", content.indexer_layers),
            ("engram_layer_ids", "engram", content.engram_layers),
        ):
            checks.append((what, key, present, _numbers(model.get(key))))
    else:
        ratios = dict(enumerate(model.compress_ratios[:layers]))
        layers = min(layers, len(ratios))
        compressed = {number for number, ratio in ratios.items() if ratio > 1}
        indexed = {number for number, ratio in ratios.items() if ratio == _INDEXED_RATIO}
        checks.append(("compressor", "compress_ratios", content.compressor_layers, compressed if ratios else None))
        checks.append(("indexer", "compress_ratios", content.indexer_layers, indexed if ratios else None))
    for what, key, present, stated in checks:
        if stated is None:
            continue
        name = ("num_hash_layers" if "num_hash_layers" in model.text else "mlp_layer_types") if what == "hash" else key
        more = [number for number in present if number not in stated and number < layers]
        less = sorted(number for number in stated - set(present) if number < layers and number not in content.holes)
        if more:
            has = f"tensors of it in layer {_list(more)}"
            yield Disagreement(name, f"no {_WORDS[what]} there", has, content.examples[f"{what} {more[0]}"])
        if less:
            yield Disagreement(name, f"{_WORDS[what]} in layer {_list(less)}", "no tensor of it there")


_WORDS: Final = {
    "hash": "routing by token id (gate.tid2eid)",
    "compressor": "KV compressor",
    "indexer": "indexer",
    "engram": "n-gram table",
}


def _hash_layers(model: Model, layers: int) -> set[int] | None:
    types = model.get("mlp_layer_types")
    if isinstance(types, Sequence) and not isinstance(types, str):
        return {number for number, name in enumerate(types) if name == "hash_moe"}
    count = model.integer("num_hash_layers")
    return None if count is None else set(range(min(count, layers)))


def _numbers(value: Any) -> set[int] | None:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    return {item for item in value if isinstance(item, int) and not isinstance(item, bool)}


def _draft(content: Content, model: Model) -> Iterator[Disagreement]:
    """Kind and number of draft stages."""
    kind = content.draft_kind
    keys = sorted(key for key in model.text if key.startswith("dspark_"))
    stated = model.integer("num_nextn_predict_layers")
    example = content.examples.get(f"stage {content.stages[0]}", "") if content.stages else ""
    if kind is None:
        return
    if keys and kind != "dspark":
        has = "no draft weights" if kind == "none" else "the weights of an MTP draft"
        yield Disagreement("dspark", f"a DSpark draft ({', '.join(keys[:3])}, ...)", has, example)
        return
    if kind == "dspark" and not keys:
        yield Disagreement("dspark", "no dspark_* keys, so no DSpark draft", "the weights of a DSpark draft", example)
        return
    if kind == "none":
        if stated:
            said = f"{stated} draft layer{'s' * (stated > 1)}"
            yield Disagreement("num_nextn_predict_layers", said, "no draft weights")
        return
    key, number = "num_nextn_predict_layers", stated
    if kind == "dspark":
        key, number = _dspark_stages(model)
    if number is not None and content.stages != tuple(range(number)):
        has = f"draft stage {_list(content.stages)}"
        yield Disagreement(key, f"{number} draft stage{'s' * (number != 1)}, numbered from 0", has, example)


def _dspark_stages(model: Model) -> tuple[str, int]:
    """The key that states DSpark's stages, and their number: V4 asks ``n_mtp_layers`` only, V4.1 has a second key."""
    keys = ("n_mtp_layers", "num_nextn_predict_layers") if model.family == "deepseek_v41" else ("n_mtp_layers",)
    for key in keys:
        number = model.integer(key)
        if number is not None:
            return key, number
    return "n_mtp_layers", _DSPARK_STAGES


def _list(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_SHOWN])
    return f"{shown} and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else shown
