"""What each GPU of a launch holds of the model's weights, and of the draft's.

From the headers of the checkpoint on this machine where it is whole, else from config.json (``weights_config.py``).
Which parameters tensor parallelism cuts is a fact of the release (section ``parameters``). Sizes are those of the
tensors as stored; vLLM keeps nearly all of them in their own dtype (token tables of hash routing are half as wide:
below 0.1 % of a GPU's weights with TP 8). Offloading weights to host memory is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dsv4check.checkpoint.parameters import ALL, ENGRAM, SCORED, UNQUANTISED, layer_features
from dsv4check.deployment import Deployment, Model, ServeFlags
from dsv4check.errors import InputError
from dsv4check.memory.records import StageWeights, Weights
from dsv4check.memory.weights_config import EXPERTS, Shapes, UnknownSizeError, vision_sizes
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Draft, Parallelism
from dsv4check.resolve.expert_format import (
    expert_format,
    ignores_experts,
    other_layers,
    quantization,
    weight_block,
)
from dsv4check.resolve.parallelism import pipeline_layers
from dsv4check.resolve.placement import Placement, Tower, placement_of

_F32: Final = 4
_METHODS: Final = ("mtp", "dspark")
"""Drafts whose tensors stand beside the target's, as ``mtp.*``."""
_WITHOUT_WEIGHTS: Final = ("ngram", "ngram_gpu", "suffix", "extract_hidden_states")
_TARGET: Final = "target checkpoint"
_MTP_BLOCK: Final = "mtp_block."
"""What MTP's modules have before the names of a decoder layer's."""
_CONFIDENCE: Final = "model.confidence_head.proj.weight"
_CONTEXT_COPY: Final = "model.context_wkv_proj.weight"
_VISION_SEPARATORS: Final[Mapping[str, int]] = {"deepseek_v4": 4, "deepseek_v41": 3}
"""Embeddings around an image: start, end, new line, and in V4 padding."""


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


def weights_of(
    deployment: Deployment,
    facts: ReleaseFacts,
    parallel: Parallelism,
    draft: Draft,
    *,
    mega_moe: bool,
    kernel: str | None = None,
) -> Weights | None:
    """Weights of a launch on NVIDIA GPUs, by pipeline stage.

    ``kernel``: vLLM's name of the experts' kernel (``Moe.backend``), which decides how their slices are padded; None:
    they count as stored. Answers None where neither checkpoint nor config.json tells: another quantisation method, a
    model that the release has no class for, a number that is missing, GPUs of another vendor.
    """
    try:
        return _Question(deployment, facts, parallel, draft, mega_moe, kernel).answer()
    except (UnknownSizeError, ZeroDivisionError, OverflowError):
        return None


class _Question:
    """One launch."""

    def __init__(
        self,
        deployment: Deployment,
        facts: ReleaseFacts,
        parallel: Parallelism,
        draft: Draft,
        mega_moe: bool,
        kernel: str | None,
    ) -> None:
        self._deployment = deployment
        self._facts = facts
        self._parallel = parallel
        self._draft = draft
        self._mega_moe = mega_moe
        self._kernel = kernel

    def answer(self) -> Weights | None:
        """Weights, or None."""
        deployment = self._deployment
        layers = pipeline_layers(deployment, self._parallel)
        placement = placement_of(
            deployment, self._facts, self._parallel, self._draft, mega_moe=self._mega_moe, kernel=self._kernel
        )
        if (
            layers is None
            or placement is None
            or deployment.hardware.vendor not in (None, "nvidia")
            or other_layers(deployment.flags, self._facts)
        ):
            return None
        found = self._from_checkpoint(layers, placement) or self._from_config(layers, placement)
        if found is None:
            return None
        source, size, stages = found
        draft_size, share = self._draft_weights(placement)
        last = stages[-1]
        stages = (*stages[:-1], StageWeights(last.experts, last.cut, last.whole, share))
        return Weights(source, size, draft_size, stages)

    def _from_checkpoint(
        self, layers: tuple[int, ...], placement: Placement
    ) -> tuple[str, int, tuple[StageWeights, ...]] | None:
        checkpoint = self._deployment.checkpoint
        if checkpoint is None or checkpoint.without_shape:
            return None
        # Most launches name a checkpoint that is not on this machine, and need not import this.
        from dsv4check.memory.weights_checkpoint import target_weights

        found = target_weights(
            checkpoint, self._deployment, self._facts, self._parallel, layers, placement, mega_moe=self._mega_moe
        )
        return None if found is None else ("checkpoint", *found)

    def _from_config(
        self, layers: tuple[int, ...], placement: Placement
    ) -> tuple[str, int, tuple[StageWeights, ...]] | None:
        model = self._deployment.model
        seeing = bool(vision_sizes(model)) and (model.family == "deepseek_v41" or _sees(self._facts))
        name = "target_v41" if model.family == "deepseek_v41" else "target_vl" if seeing else "target"
        known = self._facts.section("parameters").get(name)
        shapes = _shapes(model, model, known, mega_moe=self._mega_moe)
        if known is None or shapes is None:
            return None
        routed, cut = shapes.number("n_routed_experts"), frozenset(known["cut"])
        features = layer_features(model)
        if len(features) != sum(layers) or not _all_alike(shapes, sum(layers)):
            return None
        sums = [_Sum(cut, placement, self._parallel, routed) for _stage in layers]
        image_bias = seeing
        decoders: dict[tuple[frozenset[str], int], tuple[tuple[str, int], ...]] = {}
        number = 0
        for stage, count in zip(sums, layers, strict=True):
            for layer in range(number, number + count):
                key = (features[layer], model.compress_ratios[layer])
                if key not in decoders:
                    decoders[key] = tuple(shapes.layer(key[0], experts=routed, ratio=key[1], image_bias=image_bias))
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
        return "config", sum(stage.total for stage in sums) - copies, tuple(stage.held() for stage in sums)

    def _draft_weights(self, placement: Placement) -> tuple[int | None, int]:
        """Bytes of the draft (None: not known), and what a GPU of the last stage holds of them."""
        draft, deployment = self._draft, self._deployment
        if draft.method is None or draft.method in _WITHOUT_WEIGHTS:
            return 0, 0
        if draft.method not in _METHODS:
            return None, 0
        own = draft.source != _TARGET
        model = deployment.model if not own else _draft_model(deployment, draft.source)
        if model is None:
            return None, 0
        checkpoint = deployment.draft_checkpoint if own else deployment.checkpoint
        if checkpoint is not None and not checkpoint.without_shape:
            from dsv4check.memory.weights_checkpoint import draft_weights

            found = draft_weights(
                checkpoint,
                draft.method,
                model,
                deployment,
                self._facts,
                self._parallel,
                placement,
                mega_moe=self._mega_moe,
            )
            if found is not None:
                return found
        try:
            return self._draft_from_config(draft.method, model, placement)
        except UnknownSizeError:
            return None, 0

    def _draft_from_config(self, method: str, model: Model, placement: Placement) -> tuple[int | None, int]:
        target = self._deployment.model
        v41 = model.family == "deepseek_v41"
        seeing = v41 or (bool(vision_sizes(model)) and _sees(self._facts))
        name = method if method == "mtp" else "dspark_v41" if v41 else "dspark_vl" if seeing else method
        known = self._facts.section("parameters").get(name)
        shapes = _shapes(model, target, known, mega_moe=self._mega_moe)
        if known is None or shapes is None:
            return None, 0
        stages = self._draft.layers
        if shapes.experts == "nvfp4":
            # DSpark is built with the quantisation config of the draft's own model.
            left_out = ignores_experts(model if method == "dspark" else target, [f"mtp.{one}" for one in range(stages)])
            if left_out is None:
                return None, 0
            if left_out:
                shapes = Shapes(model, "mxfp4", shapes.block, shapes.scale)
        routed = shapes.number("n_routed_experts")
        if name == "dspark_v41":
            routed = model.integer("dspark_n_routed_experts") or routed
        found = _Sum(frozenset(known["cut"]), placement, self._parallel, routed)
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


def _draft_model(deployment: Deployment, name: str | None) -> Model | None:
    """The model a draft of its own is: found on this machine, or published."""
    if deployment.draft is not None and deployment.draft.name == name:
        return deployment.draft
    # Rare: a launch that names a draft model that is not on this machine.
    from dsv4check.inputs.checkpoint import find_published
    from dsv4check.inputs.model import load_model

    entry = find_published(name or "")
    if entry is None or entry.trust == "assumed":
        return None
    try:
        return load_model(entry.id, flags=ServeFlags(entry.id), release=deployment.vllm.release)
    except InputError:
        return None
