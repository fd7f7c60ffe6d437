"""What happens when a launch meets the checkpoint that lies on this machine: its files, its names, its formats.

Only asked where the checkpoint is known (``Deployment.checkpoint``). Sources: the release's file handling and loaders
(facts ``weights``), the parameters it registers (facts ``parameters``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dsv4check.checkpoint.agreement import Disagreement, disagreements
from dsv4check.checkpoint.content import Content, content_of
from dsv4check.checkpoint.kept import Kept
from dsv4check.checkpoint.loading import Gap, Load, load
from dsv4check.checkpoint.parts import MTP, Part, draft_part, target_part
from dsv4check.checkpoint.tensors import UNLOADABLE, Checkpoint, Defect
from dsv4check.deployment import Deployment, Model
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Draft, NotEvaluated
from dsv4check.resolve.expert_format import other_layers

_BY_NAME: Final = frozenset(
    {"auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer", "runai_streamer_sharded"}
)
"""Load formats that hand a checkpoint's tensors to ``load_weights`` under the names they have in it."""
_NO_FILES: Final = "dummy"
_SHAPES: Final = frozenset(
    {"model_type", "expert_dtype", "quantization_config", "weight_block_size", "vocab_size", "hidden_size"}
)
"""Disagreements after which tensors have other shapes or dtypes than the parameters that are built for them."""
_DRAFT_CODES: Final = (
    *("weights-mtp-on-dspark", "weights-mtp-missing", "weights-dspark-on-other-draft", "weights-dspark-missing"),
    *("weights-draft-quantization-frozen", "spec-mtp-field-missing", "spec-dspark-field-missing"),
)
"""Problems that say by the draft's kind what its names would say once more."""
_OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def checkpoint_problems(
    deployment: Deployment, facts: ReleaseFacts, draft: Draft, known: frozenset[str], *, mega_moe: bool
) -> tuple[tuple[Problem, ...], tuple[NotEvaluated, ...]]:
    """Problems of target and draft with their checkpoints, and what could not be compared.

    ``known``: codes of problems that were found without looking into the checkpoint.
    """
    checkpoint = deployment.checkpoint
    formats = deployment.flags.get("load_format", "auto")
    if checkpoint is None or formats == _NO_FILES:
        return (), ()
    judge = _Judge(deployment, facts, mega_moe)
    problems = [*judge.files(checkpoint, deployment.model)]
    if formats not in _BY_NAME:
        why = f"--load-format {formats} does not load tensors by the names of this checkpoint"
        return tuple(problems), (NotEvaluated("weights by name", why, "leave --load-format out"),)
    content = content_of(checkpoint)
    problems += judge.config(content, deployment.model)
    vendor = deployment.hardware.vendor
    other = other_layers(deployment.flags, facts)
    target = target_part(deployment.model, facts, vendor, mega_moe=mega_moe, other=other)
    if target is not None:
        problems += judge.part(target, checkpoint, deployment.model)
    else:
        why = f"what vLLM {facts.version} loads on {vendor or 'these'} GPUs is not known for this model"
        judge.open.append(NotEvaluated("weights by name", why, "`dsv4check weights` says what is in the checkpoint"))
    if draft.method in ("mtp", "dspark") and not known.intersection(_DRAFT_CODES):
        own = deployment.draft is not None and draft.source == deployment.draft.name
        model = deployment.draft if own and deployment.draft is not None else deployment.model
        source = deployment.draft_checkpoint if own else checkpoint
        if source is not None and (own or draft.source == "target checkpoint"):
            if own:
                problems += judge.files(source, model)
            part = draft_part(
                draft.method, model, facts, vendor, mega_moe=mega_moe, other=other, target=deployment.model
            )
            if part is not None:
                problems += judge.part(part, source, model)
    return tuple(problems), tuple(judge.open)


class _Judge:
    """Turns what is found into problems."""

    def __init__(self, deployment: Deployment, facts: ReleaseFacts, mega_moe: bool) -> None:
        self._deployment = deployment
        self._facts = facts
        self._files = facts.section("weights").get("files", {})
        self._mega_moe = mega_moe
        self.open: list[NotEvaluated] = []

    def files(self, checkpoint: Checkpoint, model: Model) -> Iterator[Problem]:
        """Damaged, missing and superfluous files."""
        origin = Origin("file", checkpoint.source)
        by_kind: dict[str, list[Defect]] = {}
        for defect in checkpoint.defects:
            by_kind.setdefault(defect.kind, []).append(defect)
        missing = by_kind.get("shard-missing", [])
        if missing and checkpoint.partly_there and not self._downloads(model):
            yield self._missing_files(missing, origin)
        damaged = [defect for defect in checkpoint.defects if defect.kind in UNLOADABLE]
        if damaged:
            first = damaged[0]
            data = {"file": first.file, "detail": first.detail, "files": len(damaged), "model": model.name}
            yield Problem("checkpoint-file-damaged", Stage.WEIGHT_LOAD, "SafetensorError", "", data, origin)
        for kind, code in (("duplicate-name", "checkpoint-name-twice"), ("extra-file", "checkpoint-extra-file")):
            found = by_kind.get(kind)
            if found:
                data = {
                    "file": ", ".join(dict.fromkeys(defect.file for defect in found[:3])),
                    "count": sum(max(1, defect.count) for defect in found),
                    "example": next((name for defect in found for name in defect.examples), ""),
                    "model": model.name,
                }
                yield Problem(code, Stage.WEIGHT_LOAD, "", "", data, origin)

    def _missing_files(self, missing: list[Defect], origin: Origin) -> Problem:
        names = [defect.file for defect in missing]
        tensors = sum(defect.count for defect in missing)
        data = {"files": ", ".join(names[:3]), "count": len(names), "tensors": tensors}
        rule = self._files.get("missing_file")
        if rule is None:
            # The release filters the files it finds by the index, and never asks for the others.
            return Problem("checkpoint-shard-missing-silent", Stage.ACCURACY, "", "", data, origin)
        error = rule["message"].format(files="{" + ", ".join(map(repr, names[:3])) + "}")
        return Problem("checkpoint-shard-missing", Stage.WEIGHT_LOAD, rule["exception"], error, data, origin)

    def _downloads(self, model: Model) -> bool:
        """True for a model in the Hub's cache: vLLM fetches what is missing, unless it is told to stay offline."""
        local = os.path.isdir(os.path.expanduser(model.name)) or os.path.isfile(os.path.expanduser(model.name))
        env = self._deployment.env
        return not local and not any(str(env.get(name, "")).lower() in ("1", "true", "yes", "on") for name in _OFFLINE)

    def config(self, content: Content, model: Model) -> Iterator[Problem]:
        """Where config.json and checkpoint say different things: one problem for each thing the config says."""
        grouped: dict[tuple[str, str], list[Disagreement]] = {}
        for item in disagreements(content, model):
            grouped.setdefault((item.what, item.config), []).append(item)
        for (what, config), items in grouped.items():
            data = {
                "what": what,
                "config": config,
                "checkpoint": "; ".join(item.checkpoint for item in items),
                "example": next((f" (for instance {item.example})" for item in items if item.example), ""),
                "model": model.name,
            }
            if what in _SHAPES:
                yield Problem("checkpoint-format-differs", Stage.WEIGHT_LOAD, "", "", data, model.origin)
            else:
                yield Problem("checkpoint-config-differs", Stage.WEIGHT_LOAD, "", "", data, model.origin)

    def part(self, part: Part, checkpoint: Checkpoint, model: Model) -> Iterator[Problem]:
        """Tensors without a parameter, and parameters without a tensor."""
        if part.model is None:
            what = f"which names the {'draft' if part.is_draft else 'target'} has parameters for"
            self.open.append(
                NotEvaluated(what, part.unknown, "`dsv4check rehearse` loads by name with vLLM's own code")
            )
            return
        loaded = _load(checkpoint, part, self._facts.identity, self._mega_moe)
        where = "draft" if part.is_draft else "target"
        origin = Origin("file", checkpoint.source)
        common = {"model": model.name, "vendor": self._deployment.hardware.vendor}
        if loaded.refused:
            first = loaded.refused[0]
            data = common | {
                "tensor": first.first,
                "count": sum(row.count for row in loaded.refused),
                "patterns": ", ".join(row.pattern.replace("{n}", "*") for row in loaded.refused[:4]),
            }
            yield Problem(f"weights-{where}-refused", Stage.WEIGHT_LOAD, first.exception, first.message, data, origin)
        if loaded.gaps:
            yield self._gaps(part, loaded, common, origin)

    def _gaps(self, part: Part, loaded: Load, common: Mapping[str, Any], origin: Origin) -> Problem:
        gaps = loaded.gaps
        data = dict(common) | {
            "count": (loaded.parameters or 0) - loaded.filled,
            "parameters": loaded.parameters,
            "patterns": "; ".join(_words(gap) for gap in gaps[:4]),
            "first": gaps[0].first,
        }
        layer = _empty_layer(part, gaps)
        if layer is not None:
            error = str(part.rules.rules["missing"] or "").format(layer=layer)
            data |= {"draft": common["model"], "layer": layer}
            return Problem("weights-mtp-missing", Stage.WEIGHT_LOAD, "ValueError", error, data, origin)
        rule = self._files.get("missing_parameters")
        if rule is not None and not part.rules.settings.quantized and not part.is_draft:
            error = rule["message"].format(parameters="{" + repr(gaps[0].first) + ", ...}")
            return Problem("weights-target-incomplete", Stage.WEIGHT_LOAD, rule["exception"], error, data, origin)
        where = "draft" if part.is_draft else "target"
        return Problem(f"weights-{where}-uninitialised", Stage.ACCURACY, "", "", data, origin)


def _words(gap: Gap) -> str:
    many = f"{gap.count} x " if gap.count > 1 else ""
    lacking = f" ({gap.lacking})" if gap.lacking else ""
    name = gap.pattern.replace("{n}", "*") if gap.count > 1 else gap.first
    return f"{many}{name}{lacking}"


def _empty_layer(part: Part, gaps: tuple[Gap, ...]) -> int | None:
    """The first MTP layer nothing was loaded into, which the release refuses; None when every layer got something."""
    if part.name != MTP or not part.rules.rules.get("missing") or part.model is None:
        return None
    empty = {name for gap in gaps if not gap.lacking for name in gap.names}
    settings = part.rules.settings
    for layer in range(settings.num_hidden_layers, settings.num_hidden_layers + settings.stages):
        own = {name for name in part.model.names - part.model.not_stored if name.startswith(f"model.layers.{layer}.")}
        if own and own <= empty:
            return layer
    return None


_LOADS: Final[Kept[Load]] = Kept()


def _load(checkpoint: Checkpoint, part: Part, facts: str, mega_moe: bool) -> Load:
    key = (facts, part.name, part.rules.settings, part.model, mega_moe)
    return _LOADS.get(checkpoint, key, lambda: load(checkpoint.tensors, part.rules, part.model, part.experts))
