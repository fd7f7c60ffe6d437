"""What each GPU holds, from config.json alone: the tensors that it implies, on the stages and ranks that have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dsv4check.checkpoint.parameters import ALL, ENGRAM, SCORED, UNQUANTISED, layer_features
from dsv4check.deployment import Deployment, Model
from dsv4check.memory.records import StageWeights
from dsv4check.memory.weights_shapes import EXPERTS, Shapes, UnknownSizeError, vision_sizes
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Draft, Parallelism
from dsv4check.resolve.expert_format import expert_format, ignores_experts, quantization, weight_block
from dsv4check.resolve.placement import Placement, Tower

_F32: Final = 4
_MTP_BLOCK: Final = "mtp_block."
"""What MTP's modules have before the names of a decoder layer's."""
_CONFIDENCE: Final = "model.confidence_head.proj.weight"
_CONTEXT_COPY: Final = "model.context_wkv_proj.weight"
_VISION_SEPARATORS: Final[Mapping[str, int]] = {"deepseek_v4": 4, "deepseek_v41": 3}
"""Embeddings around an image: start, end, new line, and in V4 padding."""


def target_weights(
    deployment: Deployment,
    facts: ReleaseFacts,
    parallel: Parallelism,
    layers: Sequence[int],
    placement: Placement,
    *,
    mega_moe: bool,
) -> tuple[int, tuple[StageWeights, ...]] | None:
    """Bytes of the target's tensors, and what a GPU of each stage holds of them; ``layers``: how many each stage has.

    None where the facts do not know the model or its quantisation, or config.json lacks a number.
    """
    try:
        return _target(deployment, facts, parallel, layers, placement, mega_moe)
    except UnknownSizeError:
        return None


def draft_weights(
    draft: Draft,
    model: Model,
    deployment: Deployment,
    facts: ReleaseFacts,
    parallel: Parallelism,
    placement: Placement,
    *,
    mega_moe: bool,
) -> tuple[int, int] | None:
    """Bytes of the tensors of an MTP or DSpark draft, and what a GPU of the last stage holds of them.

    ``model`` is the target where the draft is part of its checkpoint. None as for the target.
    """
    try:
        return _draft(draft, model, deployment, facts, parallel, placement, mega_moe)
    except UnknownSizeError:
        return None


@dataclass(slots=True)
class _Sum:
    """Bytes of whole tensors by how GPUs share them; with what one GPU holds of them."""

    cut_modules: frozenset[str]
    placement: Placement
    parallel: Parallelism
    routed: int
    """Routed experts of a layer."""
    experts: int = 0
    cut: int = 0
    whole: int = 0
    elsewhere: int = 0
    """In host memory."""

    def add(self, parts: Iterable[tuple[str, int]], inside: str = "") -> None:
        """Count modules; ``inside``: stands before their names."""
        for module, size in parts:
            if module == EXPERTS:
                self.experts += size
            elif module in self.placement.elsewhere:
                self.elsewhere += size
            elif inside + module in self.cut_modules and module not in self.placement.whole:
                self.cut += size
            else:
                self.whole += size

    @property
    def total(self) -> int:
        return self.experts + self.cut + self.whole + self.elsewhere

    def held(self) -> StageWeights:
        """Bytes of one GPU."""
        held, stored = self.placement.experts_held(self.routed, self.parallel)
        tensor = self.parallel.tensor
        return StageWeights(-(-self.experts * held // stored), -(-self.cut // tensor), self.whole)


def _target(
    deployment: Deployment,
    facts: ReleaseFacts,
    parallel: Parallelism,
    layers: Sequence[int],
    placement: Placement,
    mega_moe: bool,
) -> tuple[int, tuple[StageWeights, ...]] | None:
    model = deployment.model
    seeing = bool(vision_sizes(model)) and (model.family == "deepseek_v41" or _sees(facts))
    name = "target_v41" if model.family == "deepseek_v41" else "target_vl" if seeing else "target"
    known = facts.section("parameters").get(name)
    shapes = _shapes(model, model, known, mega_moe=mega_moe)
    if known is None or shapes is None:
        return None
    routed, cut = shapes.number("n_routed_experts"), frozenset(known["cut"])
    features = layer_features(model)
    if len(features) != sum(layers) or not _all_alike(shapes, sum(layers)):
        return None
    sums = [_Sum(cut, placement, parallel, routed) for _stage in layers]
    decoders: dict[tuple[frozenset[str], int], tuple[tuple[str, int], ...]] = {}
    number = 0
    for stage, count in zip(sums, layers, strict=True):
        for layer in range(number, number + count):
            key = (features[layer], model.compress_ratios[layer])
            if key not in decoders:
                decoders[key] = tuple(shapes.layer(key[0], experts=routed, ratio=key[1], image_bias=seeing))
            stage.add(decoders[key])
            if ENGRAM in features[layer]:
                stage.add(shapes.engram(layer))
        number += count
    outer = "language_model." if name != "target" else ""
    sums[0].add([("model.embed_tokens", shapes.vocabulary())], outer)
    # What several stages have counts once in the checkpoint.
    copies = 0
    if placement.embedding_twice:
        sums[-1].add([("model.embed_tokens", shapes.vocabulary())], outer)
        copies += shapes.vocabulary()
    stream_head = 0 if name == "target_v41" else shapes.stream_head()
    sums[-1].add([("lm_head", shapes.vocabulary()), ("model.norm", shapes.norm())], outer)
    for stage in sums:
        stage.whole += stream_head
    copies += (len(sums) - 1) * stream_head
    if seeing:
        tower = list(shapes.vision(vision_sizes(model), _VISION_SEPARATORS[model.family]))
        towers = {Tower.EVERY: len(sums), Tower.FIRST: 1, Tower.NONE: 0}[placement.tower]
        for stage in sums[:towers]:
            stage.add(tower)
        copies += (towers - 1) * sum(size for _module, size in tower)
    return sum(stage.total for stage in sums) - copies, tuple(stage.held() for stage in sums)


def _draft(
    draft: Draft,
    model: Model,
    deployment: Deployment,
    facts: ReleaseFacts,
    parallel: Parallelism,
    placement: Placement,
    mega_moe: bool,
) -> tuple[int, int] | None:
    target = deployment.model
    method = draft.method
    v41 = model.family == "deepseek_v41"
    seeing = v41 or (bool(vision_sizes(model)) and _sees(facts))
    name = "mtp" if method == "mtp" else "dspark_v41" if v41 else "dspark_vl" if seeing else "dspark"
    known = facts.section("parameters").get(name)
    shapes = _shapes(model, target, known, mega_moe=mega_moe)
    if known is None or shapes is None:
        return None
    stages = draft.layers
    if shapes.experts == "nvfp4":
        # DSpark is built with the quantisation config of the draft's own model.
        left_out = ignores_experts(model if method == "dspark" else target, [f"mtp.{one}" for one in range(stages)])
        if left_out is None:
            return None
        if left_out:
            shapes = Shapes(model, "mxfp4", shapes.block, shapes.scale)
    routed = shapes.number("n_routed_experts")
    if name == "dspark_v41":
        routed = model.integer("dspark_n_routed_experts") or routed
    found = _Sum(frozenset(known["cut"]), placement, parallel, routed)
    image_bias = seeing and method == "dspark"
    layer = tuple(shapes.layer(frozenset({ALL, SCORED}), experts=routed, image_bias=image_bias))
    for _stage in range(stages):
        found.add(layer, _MTP_BLOCK if method == "mtp" else "")
    copies = 0
    if method == "mtp":
        found.add([("extras", stages * shapes.mtp_extras())])
    else:
        confidence = _CONFIDENCE in known["model"] and model.get("enable_confidence_head", True) is not False
        found.add(shapes.dspark_extras(stream_head=not v41, confidence=confidence))
        copies = shapes.context_copies(stages) if _CONTEXT_COPY in known["model"] else 0
    return found.total, found.held().total + copies


def _all_alike(shapes: Shapes, layers: int) -> bool:
    """False where NVFP4 leaves out the experts of some layers of the target."""
    if shapes.experts != "nvfp4":
        return True
    return ignores_experts(shapes.model, [f"layers.{layer}" for layer in range(layers)]) is False


def _sees(facts: ReleaseFacts) -> bool:
    """True where the release builds V4 with a vision tower; before, it builds the text model."""
    return "target_vl" in facts.section("parameters")


def _shapes(model: Model, quantised_as: Model, known: Mapping[str, Any] | None, *, mega_moe: bool) -> Shapes | None:
    """Shapes of a model that vLLM builds in the quantisation of ``quantised_as``; None where that is not known."""
    if known is None:
        return None
    formats: Mapping[str, Any] = known.get("experts") or {}
    if not quantization(quantised_as):
        return Shapes(model, UNQUANTISED, None, 0) if UNQUANTISED in formats and not mega_moe else None
    reading, block = expert_format(quantised_as, {}), weight_block(quantised_as)
    known_block = known.get("block")
    if (
        not reading.native
        or reading.stored not in formats
        or block is None
        or (known_block is not None and tuple(known_block) != block)
        or (mega_moe and (reading.stored != "mxfp4" or "experts_mega_moe" not in known))
    ):
        return None
    scale = 1 if quantization(quantised_as).get("scale_fmt") == "ue8m0" else _F32
    return Shapes(model, str(reading.stored), block, scale)
