"""Parameters that each model registers, by what the config says of a layer: learned by building the models.

Source: the constructors of the target and draft classes, run on the meta device by the rehearsal's worker with the
published configs. A published checkpoint is loaded into them as well: what it does not fill is ``not_stored``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsv4check.checkpoint.parameters import ALL, FEATURES, UNQUANTISED, layer_features
from dsv4check.checkpoint.published import few_experts, published_tensors
from dsv4check.deployment import Model, ServeFlags
from dsv4check.inputs.checkpoint import bundled_config, deep_merge
from dsv4check.inputs.model import load_model
from dsv4check.rehearsal.protocol import Launch, Rehearsal, RehearsedStage, SimulatedDevice
from dsv4check.releases.facts import known_releases

from ..release import Release
from ..source import LearningError
from .spec_decode.draft import dspark_path

V41_FOLDER: Final = "models/deepseek_v41"
_TOKENS: Final = 5
_STAGES: Final = 3
"""Stages of the published DSpark drafts."""
Rehearse = Callable[[Launch], Rehearsal]
_FLASH: Final = "deepseek-ai/DeepSeek-V4-Flash"
_DSPARK: Final = "deepseek-ai/DeepSeek-V4-Flash-0731"
_V41: Final = "deepseek-ai/DeepSeek-V4.1-Flash"
_VL: Final = "deepseek-ai/DeepSeek-V4-Flash-Vision-Exp"
_VL_FILES: Final = ("models/deepseek_v4/common/vl_model.py", "models/deepseek_v4/nvidia/vl_model.py")
_FP8: Final = "deepseek-ai/DeepSeek-V4-Flash-Base"
_NVFP4: Final = "nvidia/DeepSeek-V4-Flash-NVFP4"
_SPLIT: Final = 8
"""Tensor parallel size of the launches that are compared with those on fewer GPUs."""
_LAYER: Final = re.compile(r"(.*?\blayers\.)(\d+)\.(.*)")
_VISION: Final = re.compile(r"(vision\.blocks\.)(\d+)\.(.*)")
_EXPERTS: Final = re.compile(r"(.*\.experts\.(?:\w+\.)?)(w\d+_\w+)$")


@dataclass(frozen=True)
class _Build:
    """What the worker told about one launch: per part (``target``, ``draft``) its parameters and what filled them."""

    parts: Mapping[str, Mapping[str, Any]]

    def names(self, part: str) -> Mapping[str, tuple[str, list[int]]]:
        """Parameter -> (dtype, shape)."""
        found: Mapping[str, tuple[str, list[int]]] = self.parts[part]["trace"]["parameters"]
        return found

    def missing(self, part: str) -> list[str]:
        """Parameters that no tensor reached."""
        loaded = {name for _tensor, _experts, names in self.parts[part]["trace"]["loaded"] for name in names}
        return sorted(set(self.names(part)) - loaded)

    def uneven(self, part: str) -> list[str]:
        """Fused parameters that get more tensors in some layers than in others, by their name inside a layer."""
        counts: dict[str, Counter[str]] = {}
        for tensor, _experts, names in self.parts[part]["trace"]["loaded"]:
            for name in names if ".experts." not in tensor else ():
                counts.setdefault(_inside(name), Counter())[name] += 1
        return sorted(name for name, found in counts.items() if len(set(found.values())) > 1)


def learn(release: Release) -> dict[str, Any]:
    """``target``, ``mtp``; where there are, ``dspark``, those of V4.1 (``_v41``) and with vision (``_vl``).

    Each has ``prefix`` (of a layer), ``model`` (names outside of layers), ``layers`` (names inside one, by feature),
    ``experts_at`` / ``experts_mega_moe`` (where the routed experts' parameters are) and ``experts`` (their names by
    format), ``linear_scale`` (the leaf that quantised linear layers have beside ``weight``), ``not_stored``,
    ``may_lack`` (fused parameters of which some layers need only a part) and
    ``cut`` (module -> axis that tensor parallelism divides); V4.1 also ``vision`` (names of one block) and ``block``
    (the ``weight_block_size`` with which linear scales have that leaf).
    """
    source = release.source
    with release.rehearsals() as rehearse:
        found = _v4(rehearse, "mtp", _FLASH, 1)
        if dspark_path(source) is not None:
            found |= {"dspark": _v4(rehearse, "dspark", _DSPARK, _TOKENS)["dspark"]}
            if source.has(f"{V41_FOLDER}/__init__.py"):
                found |= _v41(rehearse)
            if any(source.has(path) for path in _VL_FILES):
                found |= _v4_vl(rehearse)
    return found


def _v4(rehearse: Rehearse, method: str, model_id: str, tokens: int) -> dict[str, Any]:
    draft = ("--speculative-config", json.dumps({"method": method, "num_speculative_tokens": tokens}))
    split = ("--tensor-parallel-size", str(_SPLIT))
    one = _build(rehearse, model_id, *draft)
    parallel = _build(rehearse, model_id, *draft, *split)
    mega = _build(
        rehearse, model_id, *draft, *split, "--enable-expert-parallel", "--moe-backend", "deep_gemm_mega_moe", sm="10.0"
    )
    formats = {"mxfp4": one}
    for name, other, sm in (("fp8", _FP8, "9.0"), ("nvfp4", _NVFP4, "10.0")):
        # The published draft and sizes, with the quantisation that the other checkpoint states.
        changes = {key: bundled_config(other).get(key) for key in ("quantization_config", "expert_dtype")}
        formats[name] = _build(rehearse, model_id, *draft, *split, changes=changes, sm=sm)
    model = _model(model_id)
    depth = model.integer("num_hidden_layers") or 0
    if method == "mtp":
        layers = {depth + stage: frozenset({ALL}) for stage in range(model.integer("num_nextn_predict_layers") or 0)}
    else:
        layers = {stage: frozenset({ALL}) for stage in range(_STAGES)}
    found = {}
    for part, name, features in (
        ("target", "target", dict(enumerate(layer_features(model)))),
        (method, "draft", layers),
    ):
        found[part] = _describe(one, parallel, name, features)
        experts = {key: _expert_leaves(built.names(name)) for key, built in formats.items()}
        found[part] |= {"experts_mega_moe": _expert_level(mega.names(name)), "experts": experts}
    bare = _try(rehearse, model_id, *split, changes={"quantization_config": None})
    if bare is not None:
        found["target"]["experts"][UNQUANTISED] = _expert_leaves(bare.names("target"))
        _check_unquantised(found["target"], one.names("target"), bare.names("target"))
    return found


def _v4_vl(rehearse: Rehearse) -> dict[str, Any]:
    draft = ("--speculative-config", json.dumps({"method": "dspark", "num_speculative_tokens": _STAGES}))
    one = _build(rehearse, _VL, *draft)
    parallel = _build(rehearse, _VL, *draft, "--tensor-parallel-size", str(_SPLIT))
    stages = {stage: frozenset({ALL}) for stage in range(_STAGES)}
    found = {}
    for part, name, features in (
        ("target_vl", "target", dict(enumerate(layer_features(_model(_VL))))),
        ("dspark_vl", "draft", stages),
    ):
        found[part] = _describe(one, parallel, name, features) | {"experts": {"mxfp4": _expert_leaves(one.names(name))}}
    return found


def _v41(rehearse: Rehearse) -> dict[str, Any]:
    draft = ("--speculative-config", json.dumps({"method": "dspark", "num_speculative_tokens": _TOKENS}))
    one = _build(rehearse, _V41, *draft, sm="10.0")
    parallel = _build(rehearse, _V41, *draft, "--tensor-parallel-size", str(_SPLIT), sm="10.0")
    model = _model(_V41)
    block = model.raw["quantization_config"]["weight_block_size"]
    stages = {stage: frozenset({ALL}) for stage in range(model.integer("num_nextn_predict_layers") or 0)}
    found = {}
    for part, name, features in (
        ("target_v41", "target", dict(enumerate(layer_features(model)))),
        ("dspark_v41", "draft", stages),
    ):
        found[part] = _describe(one, parallel, name, features)
        found[part] |= {"experts": {"mxfp4": _expert_leaves(one.names(name))}, "block": list(block)}
    return found


def _model(model_id: str) -> Model:
    return load_model(model_id, flags=ServeFlags(model=model_id), release=known_releases()[-1])


def _build(
    rehearse: Rehearse, model_id: str, *words: str, changes: Mapping[str, Any] | None = None, sm: str = "9.0"
) -> _Build:
    """Build and load one launch. Raises LearningError when vLLM does not get that far."""
    config = deep_merge(bundled_config(model_id), changes or {})
    checkpoint = published_tensors(model_id)
    assert checkpoint is not None
    records = tuple((name, item.dtype, item.shape) for name, item in few_experts(checkpoint.tensors).items())
    launch = Launch(
        entrypoint="serve",
        argv=("{model:0}", "--kv-cache-dtype", "fp8", *words),
        device=SimulatedDevice(sm),
        models=((model_id, config),),
        weights=(records,),
        trace_weights=True,
    )
    answer = rehearse(launch)
    parts = answer.result(RehearsedStage.WEIGHT_LOAD).detail
    wanted = {"target", "draft"} if "--speculative-config" in words else {"target"}
    if any("trace" not in parts.get(part, {}) for part in wanted):
        stopped = answer.unavailable or answer.failure
        said = f"{stopped.stage.value}: {stopped.exception} {stopped.message}" if stopped else "nothing was loaded"
        raise LearningError(f"{model_id} {' '.join(words)}: {said[:300]}")
    return _Build({part: parts[part] for part in wanted})


def _try(rehearse: Rehearse, model_id: str, *words: str, changes: Mapping[str, Any]) -> _Build | None:
    try:
        return _build(rehearse, model_id, *words, changes=changes)
    except LearningError:
        return None  # such a model cannot be built in this release, so nobody asks for its parameters


def _describe(one: _Build, parallel: _Build, part: str, features: Mapping[int, frozenset[str]]) -> dict[str, Any]:
    names = one.names(part)
    prefix, inside, outside = _split(names)
    if set(inside) != set(features):
        raise LearningError(f"{part}: expected parameters of layers {sorted(features)}, got {sorted(inside)}")
    plain = {number: {name for name in found if not _EXPERTS.match(name)} for number, found in inside.items()}
    level = _expert_level(names)
    vision = sorted({match[3] for name in outside if (match := _VISION.match(name))})
    described: dict[str, Any] = {
        "prefix": prefix,
        "model": sorted(name for name in outside if not _VISION.match(name)),
        "layers": _by_feature(plain, features),
        "experts_at": level,
        "linear_scale": _linear_scale(names),
        "not_stored": sorted({_inside(name) for name in one.missing(part)}),
        "may_lack": one.uneven(part),
        "cut": _cut(names, parallel.names(part)),
    }
    if vision:
        blocks = {match[1] for name in outside if (match := _VISION.match(name))}
        described |= {"vision_prefix": blocks.pop(), "vision": vision}
    return described


def _split(names: Iterable[str]) -> tuple[str, dict[int, set[str]], set[str]]:
    """(prefix of layers, layer -> names inside it, other names)."""
    prefixes: set[str] = set()
    inside: dict[int, set[str]] = {}
    outside: set[str] = set()
    for name in names:
        match = _LAYER.match(name)
        if match is None or _VISION.match(name):
            outside.add(name)
        else:
            prefixes.add(match[1])
            inside.setdefault(int(match[2]), set()).add(match[3])
    if len(prefixes) != 1:
        raise LearningError(f"expected layers under one name, got {sorted(prefixes)}")
    return prefixes.pop(), inside, outside


def _inside(name: str) -> str:
    match = _LAYER.match(name)
    return match[3] if match and not _VISION.match(name) else name


def _by_feature(inside: Mapping[int, set[str]], features: Mapping[int, frozenset[str]]) -> dict[str, list[str]]:
    """Feature -> names that exactly the layers with that feature have."""
    layers_of = {feature: {layer for layer in features if feature in features[layer]} for feature in FEATURES}
    found: dict[str, list[str]] = {}
    for name in sorted(set().union(*inside.values())):
        where = {layer for layer in inside if name in inside[layer]}
        feature = next((key for key in FEATURES if layers_of[key] == where), None)
        if feature is None:
            raise LearningError(f"{name} is in layers {sorted(where)}, which no known feature explains")
        found.setdefault(feature, []).append(name)
    return {feature: found[feature] for feature in FEATURES if feature in found}


def _expert_level(names: Iterable[str]) -> str:
    levels = {match[1] for name in names if (match := _EXPERTS.match(_inside(name)))}
    if len(levels) != 1:
        raise LearningError(f"expected the routed experts under one name, got {sorted(levels)}")
    return levels.pop()


def _expert_leaves(names: Iterable[str]) -> list[str]:
    return sorted({match[2] for name in names if (match := _EXPERTS.match(_inside(name)))})


def _linear_scale(names: Iterable[str]) -> str:
    """The leaf beside ``weight`` that quantised linear layers have, as the attention's output shows it."""
    found = {name.rpartition(".")[2] for name in names if name.rpartition(".")[0].endswith("attn.wo_b")} - {"weight"}
    if len(found) != 1:
        raise LearningError(f"attn.wo_b: expected a weight and a scale, got {sorted(found)}")
    return found.pop()


def _check_unquantised(rules: Mapping[str, Any], quantised: Iterable[str], bare: Iterable[str]) -> None:
    """Without quantisation exactly the linear scales and what belongs to the experts' format are gone."""
    scale = f".{rules['linear_scale']}"
    expected = {name for name in quantised if not name.endswith(scale) and not _EXPERTS.match(_inside(name))}
    got = {name for name in bare if not _EXPERTS.match(_inside(name))}
    if got != expected:
        raise LearningError(f"an unquantised model differs by more than its scales: {sorted(got ^ expected)[:6]}")


def _cut(one: Mapping[str, Any], parallel: Mapping[str, Any]) -> dict[str, int]:
    """Module (inside a layer, or of the model) -> the axis that tensor parallelism divides; routed experts aside."""
    found: dict[str, int] = {}
    for name, (_dtype, shape) in one.items():
        axes = [axis for axis, sizes in enumerate(zip(shape, parallel[name][1], strict=True)) if len(set(sizes)) > 1]
        inside = _inside(name)
        if _EXPERTS.match(inside):
            continue
        block = _VISION.match(inside)
        module = (f"{block[1]}{block[3]}" if block else inside).rpartition(".")[0]
        if len(axes) > 1:
            raise LearningError(f"{name}: divided along {axes}")
        if axes and found.setdefault(module, axes[0]) != axes[0]:
            raise LearningError(f"{module}: its parameters are divided along different axes")
    return dict(sorted(found.items()))
