"""The models of a launch that are loaded from checkpoints: the target and its draft, with the rules for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsv4check.checkpoint.names import NameRules, NameSettings, rules_of
from dsv4check.checkpoint.parameters import ALL, UNQUANTISED, Registered, layer_features, registered
from dsv4check.deployment import Model
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolve.expert_format import expert_format, ignores_experts, quantization, weight_block

MTP: Final = "mtp"
DSPARK: Final = "dspark"


@dataclass(frozen=True, slots=True)
class Part:
    """One model that tensors are loaded into."""

    name: str
    """``target``, ``target_vl``, ``target_v41``, ``mtp``, ``dspark`` or ``dspark_v41``, as the facts call it."""
    rules: NameRules
    model: Registered | None
    """Its parameters; None when they are not known."""
    unknown: str
    """Why they are not known; empty when they are."""
    experts: int
    """Routed experts of a layer."""
    parameters: Mapping[str, Any] | None
    """The facts about its parameters."""

    @property
    def is_draft(self) -> bool:
        """True for the draft of speculative decoding."""
        return self.name.startswith((MTP, DSPARK))


def target_part(
    model: Model, facts: ReleaseFacts, vendor: str | None, *, mega_moe: bool = False, other: str = ""
) -> Part | None:
    """The target; None where the release has no class for it on GPUs of this vendor (None: NVIDIA).

    ``other``: why its parameters are not those that were learned (``other_layers`` in ``resolve/expert_format.py``).
    """
    name = "target_v41" if model.family == "deepseek_v41" else "target_vl" if _has_vision(model, facts) else "target"
    return _part(name, model, facts, vendor, mega_moe, other)


def draft_part(
    method: str,
    model: Model,
    facts: ReleaseFacts,
    vendor: str | None,
    *,
    mega_moe: bool = False,
    other: str = "",
    target: Model | None = None,
) -> Part | None:
    """The draft of ``method`` (``mtp`` or ``dspark``) that ``model``'s config describes; None where there is none.

    ``other`` as for the target. ``target``: the target, where it is another model: vLLM builds the draft in its
    quantisation.
    """
    name = "dspark_v41" if method == DSPARK and model.family == "deepseek_v41" else method
    return _part(name, model, facts, vendor, mega_moe, other, target)


def _has_vision(model: Model, facts: ReleaseFacts) -> bool:
    """True where the release builds V4 with a vision tower (releases without that class build the text model)."""
    known = facts.section("weights").get("names", {}).get("target_vl", {})
    keys = {rules.get("chosen_by") for rules in known.values()} - {None}
    return any((model.integer(key) or 0) > 0 for key in keys)


def _part(
    name: str,
    model: Model,
    facts: ReleaseFacts,
    vendor: str | None,
    mega_moe: bool,
    other: str,
    quantised_as: Model | None = None,
) -> Part | None:
    section = facts.section("weights")
    rules = rules_of(section["names"], name, vendor or "nvidia") if section else None
    layers = model.integer("num_hidden_layers")
    experts = model.integer("n_routed_experts")
    if rules is None or layers is None or experts is None:
        return None
    if name == "dspark_v41":
        experts = model.integer("dspark_n_routed_experts") or experts
    stages = _stages(rules.get("stages", ()), model)
    settings = NameSettings(
        n_routed_experts=experts,
        num_hidden_layers=layers,
        stages=stages,
        expert_dtype=str(model.get("expert_dtype", model.raw.get("expert_dtype", "fp4"))),
        weight_block=weight_block(model),
        quantized=bool(quantization(model)),
        mega_moe=mega_moe,
        confidence_head=model.get("enable_confidence_head", True) is not False,
    )
    key = "dspark_vl" if name == DSPARK and _has_vision(model, facts) else name
    known = facts.section("parameters").get(key)
    target = facts.section("parameters").get("target", {})
    found, unknown = _registered(name, model, quantised_as or model, known, target, layers, stages, vendor, mega_moe)
    if other:
        found, unknown = None, unknown or other
    return Part(name, NameRules(rules, section["loader"], settings), found, unknown, experts, known)


def _stages(keys: Any, model: Model) -> int:
    """Layers of a draft: the first field that the config has, else the number at the end."""
    for key in keys:
        value = key if isinstance(key, int) else model.integer(key)
        if value:
            return int(value)
    return 0


def _registered(
    name: str,
    model: Model,
    quantised_as: Model,
    known: Mapping[str, Any] | None,
    target: Mapping[str, Any],
    layers: int,
    stages: int,
    vendor: str | None,
    mega_moe: bool,
) -> tuple[Registered | None, str]:
    if vendor not in (None, "nvidia"):
        return None, f"the parameters of vLLM's models for {vendor} GPUs have not been learned"
    if known is None:
        return None, "the parameters of this model class have not been learned"
    quantized = bool(quantization(quantised_as))
    reading = expert_format(quantised_as, {})
    if quantized and not reading.native:
        return None, f"the parameters of {reading.method} layers have not been learned"
    block = weight_block(quantised_as)
    if quantized and "block" in known and list(block or ()) != list(known["block"]):
        return None, f"the parameters of layers quantised in blocks of {block} have not been learned"
    if name == MTP:
        features = {layers + stage: frozenset({ALL}) for stage in range(stages)}
    elif name.startswith(DSPARK):
        features = {stage: frozenset({ALL}) for stage in range(stages)}
    else:
        features = dict(enumerate(layer_features(model)))
    experts = reading.stored if quantized else UNQUANTISED
    if experts == "nvfp4":
        # MTP is built with the target's quantisation config; DSpark with one of the draft's own model.
        draft = name.startswith((MTP, DSPARK))
        listed = (
            [f"mtp.{stage}" for stage in range(stages)] if draft else [f"layers.{layer}" for layer in range(layers)]
        )
        ignored = ignores_experts(model if name.startswith(DSPARK) else quantised_as, listed)
        if ignored is None:
            return None, "quantization_config ignores the experts of some layers and not of others"
        if not ignored and draft:
            # What was learned of drafts is for the published lists, which ignore them.
            known = {**known, "experts": {**known["experts"], "nvfp4": (target.get("experts") or {}).get("nvfp4")}}
        elif ignored and not draft:
            return None, "quantization_config ignores the experts of the target"
    vision = model.raw.get("vision_config")
    depth = vision.get("num_hidden_layers") if isinstance(vision, Mapping) else model.get("vision_n_layers", 0)
    found = registered(
        known,
        features,
        experts or "",
        mega_moe=mega_moe,
        vision_layers=depth if isinstance(depth, int) else 0,
        without=("model.confidence_head.",) if model.get("enable_confidence_head", True) is False else (),
    )
    return found, "" if found is not None else f"the parameters of {experts} experts have not been learned"
