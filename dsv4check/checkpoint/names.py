"""What a vLLM release does with a tensor, by its name in the checkpoint.

The rules are facts of the release (section ``weights``), learned from its mappers and loaders and compared with them in
``tests/learning``. Here they are only applied: nothing is read, and nothing but the name and the settings decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from dsv4check.records import dataclass

_FIRST_LAYER: Final = "layers.0."
_SCALE: Final = ".scale"
_DIGITS: Final = 10
"""Python refuses to read numbers of thousands of digits; no layer has one of ten."""
_DTYPE_WITH_OWN_SCALES: Final = "fp4"
_MATRIX_ORDER: Final = ("w1", "w2", "w3")
"""Order of an expert's matrices in the table that is searched.

Source: ``fused_moe/routed_experts.py:RoutedExperts.make_expert_params_mapping`` and, for MegaMoE,
``models/deepseek_v4/nvidia/model.py:make_deepseek_v4_expert_params_mapping``.
"""

Pairs = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Target:
    """A parameter that a tensor is loaded into."""

    parameter: str
    """Full name, as the model's ``named_parameters`` would give it."""
    shard: int | str | None = None
    """Which part of a fused parameter: a number, or a matrix of an expert; None for all of it."""
    expert: int | None = None
    """Number of the routed expert."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """The tensor is not loaded, and nothing is said about it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The tensor ends the start, whatever parameters the model has."""

    exception: str
    message: str


Outcome = tuple[Target, ...] | Skipped | Refused

_OF_NAME: Final = -1
"""Stands for the number of the expert in the name."""
_Template = tuple[tuple[str, str, int | str | None, int | None], ...] | Skipped | Refused | None
"""(text before the layer's number, text after it, shard, expert) of each target, for all names of a pattern."""


@dataclass(frozen=True, slots=True)
class NameSettings:
    """What the names depend on besides the release, its vendor and the model class."""

    n_routed_experts: int
    num_hidden_layers: int
    stages: int = 0
    """Layers of the draft: the first of the rules' ``stages`` that the config has."""
    expert_dtype: str = "fp4"
    weight_block: tuple[int, ...] | None = None
    """``weight_block_size`` of the quantization."""
    quantized: bool = True
    """The model has a quantization config. Its rules are those of FP8 and Quark."""
    mega_moe: bool = False
    """The experts are those of a MegaMoE kernel with parameters of its own."""
    confidence_head: bool = True
    """The DSpark draft was built with that head."""
    fused_shared: bool = False
    """The shared expert is loaded into parameters of the routed ones."""
    image: bool = True
    """The model takes images (see ``needs`` of the rules for ``image``)."""


_NOT_USED: Final = Skipped("left out by the model's renames")
_UNUSED: Final = Skipped("never used")
_BY_LOADER: Final = Skipped("skipped by the model's loader")
_NO_EXPERT: Final = Skipped("no matrix of a routed expert has this name")
_NO_DRAFT: Final = Skipped("not of this draft")
_NO_STAGE: Final = Skipped("only the first layer's is loaded")
_NO_HEAD: Final = Skipped("the draft has no such head")


def rules_of(names: Mapping[str, Any], part: str, vendor: str) -> Mapping[str, Any] | None:
    """Rules of a model class for a GPU vendor; None where the release has none or does not support it.

    ``names``: ``names`` of the section ``weights``.
    """
    for vendors, rules in names.get(part, {}).items():
        if vendor in vendors.split():
            if "unsupported" in rules:
                return None
            base = rules_of(names, rules["like"], vendor) if "like" in rules else None
            return {**base, **rules} if base else rules
    return None


class NameRules:
    """The rules of one model class under one set of settings."""

    def __init__(self, rules: Mapping[str, Any], loader: Mapping[str, Any], settings: NameSettings) -> None:
        """``rules``: from :func:`rules_of`; ``loader``: ``loader`` of the section ``weights``."""
        self.rules = rules
        self._loader = loader
        self.settings = settings
        self._known: dict[str, _Template] = {}
        self._numbers = frozenset(str(number) for number in range(settings.n_routed_experts))
        self._scales = _Scales(rules["scales"], settings)
        self._fused = _Fused(rules, loader, settings)
        self._layered = "prefixes" in rules
        self._map: Callable[[str], Outcome] = _Draft(rules, settings, self._scales, self._fused).map
        self._inner = ""
        if self._layered:
            target = _Target(rules, loader, settings, self._scales, self._fused)
            self._map, self._inner = target.map, target.inner

    def map(self, name: str) -> Outcome:
        """Where the tensor of this name goes. Nothing but the name decides, so names of one pattern go the same way."""
        layer, rest, expert = "", name, ""
        if self._layered and name.startswith("layers."):
            number, dot, tail = name[7:].partition(".")
            if dot and number.isdecimal():
                layer, rest = number, _FIRST_LAYER + tail
        head, mark, tail = rest.partition(".experts.")
        if mark:
            number, dot, leaf = tail.partition(".")
            if dot and number in self._numbers:
                expert, rest = number, f"{head}.experts.0.{leaf}"
        if rest not in self._known:
            self._known[rest] = self._template(rest, layer, expert)
        known = self._known[rest]
        if isinstance(known, tuple):
            return tuple(
                [
                    Target(before + layer + after, shard, int(expert) if number == _OF_NAME else number)
                    for before, after, shard, number in known
                ]
            )
        return self._map(name) if known is None else known

    def _template(self, name: str, layer: str, expert: str) -> _Template:
        """The outcome for the first layer and expert as text around the layer's number; None when not for all."""
        found = self._map(name)
        if not isinstance(found, tuple):
            return found if isinstance(found, Skipped) or not (layer or expert) else None
        parts = []
        for item in found:
            before, mark, after = item.parameter.partition(_FIRST_LAYER) if layer else (item.parameter, "", "")
            if (layer and (not mark or _FIRST_LAYER in after)) or (expert and item.expert != 0):
                return None
            around = (f"{before}layers.", f".{after}") if layer else (before, "")
            parts.append((*around, item.shard, _OF_NAME if expert else item.expert))
        return tuple(parts)

    def shards(self, parameter: str) -> tuple[int | str, ...]:
        """The parts that a fused parameter is put together from; empty for one that is loaded as a whole."""
        return self._fused.shards(parameter) or self._copies(parameter)

    def _copies(self, parameter: str) -> tuple[int, ...]:
        copied = any(parameter.startswith(new) for _start, new in self.rules.get("copied", ()))
        return tuple(range(self.settings.stages)) if copied else ()

    def resolve(self, target: Target, registered: Collection[str]) -> str | None:
        """The parameter of the model that the loader finds for a target; None when there is none."""
        for name in self._tried(target):
            if name in registered:
                return name
        return None

    def _tried(self, target: Target) -> tuple[str, ...]:
        """Names that are looked for, in order.

        Source: ``_resolve_param_name`` and ``_resolve_scale_name`` of the loaders for ROCm.
        """
        name, fallback = target.parameter, self.rules.get("scale_fallback")
        if not name.startswith(self._inner):
            return (name,)
        if fallback is not None and (fallback["experts"] or target.expert is None):
            first, last = fallback["first_without"], fallback["last_with"]
            before = (name.removesuffix(first),) if first and name.endswith(first) else ()
            return (*before, name, name + last)
        other = self.rules["scales"].get("fallback")
        if other is not None and target.expert is None and name.endswith(other[0]):
            return (name, name.removesuffix(other[0]) + other[1])
        return (name,)

    def refusal(self, target: Target, registered: Collection[str] = ()) -> tuple[str, str] | None:
        """(exception, message) for a target that the model has no parameter for; None when the loader passes over it.

        ``registered``: the model's parameters; they decide which part of a name outside its layers is at fault.
        Source: ``load_weights`` of the model's layers and of drafts, ``AutoWeightsLoader._load_module`` for the rest.
        """
        name = target.parameter
        if name.startswith(self._inner):
            kind = self.rules["unknown" if target.shard is None else "unknown_fused"]
            return None if kind == "skipped" else (kind, repr(name.removeprefix(self._inner)))
        base = ""
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            part = ".".join(parts[:end])
            if part in registered:
                if self._passed_over(name):
                    return None
                said = self._loader["nested"]
                return said["exception"], said["message"].format(name=name, parameter=part)
            if not any(item.startswith(f"{part}.") for item in registered):
                base = part
                break
        if self._passed_over(base):
            return None
        wrapped = self.rules.get("wrapped")
        in_text = wrapped is not None and name.startswith(wrapped)
        owner = self.rules["text_class" if in_text else "class"]
        said = self._loader["unknown"]
        spelled = (base or name).removeprefix(wrapped) if in_text and wrapped else base or name
        return said["exception"], said["message"].format_map({"name": spelled, "class": owner})

    def _passed_over(self, name: str) -> bool:
        """True for a name that leads nowhere and is left out.

        Source: ``AutoWeightsLoader._can_skip`` and ``_can_ignore_unexpected``.
        """
        ends = [*self._loader["ignored_suffixes"], *self.rules["ignored_suffixes"]]
        quantized = self._loader["quantized"]
        wrapped = self.rules.get("wrapped")
        if quantized and self.settings.quantized and self.rules["known_quantization"]:
            ends += quantized["ignored_suffixes"] if wrapped is None or name.startswith(wrapped) else []
        return (
            name.endswith(tuple(ends))
            or name.startswith(tuple(self.rules["ignored_prefixes"]))
            or any(part in f"{name}." for part in self.rules["skipped_substrings"])
        )


class _Scales:
    """Names of scales: what ``.scale`` becomes, by ``expert_dtype``, block size and module."""

    def __init__(self, scales: Mapping[str, Any], settings: NameSettings) -> None:
        four = settings.expert_dtype == _DTYPE_WITH_OWN_SCALES
        self._experts = re.compile(scales["experts_match"])
        self._for_experts = scales["fp4_experts" if four else "other_experts"]
        self._others = scales["others"]
        block = scales.get("others_by_block")
        if block is not None and four and settings.weight_block is not None and list(settings.weight_block) == block[0]:
            self._others = block[1]
        self._special = [(re.compile(old), new) for old, new in scales.get("special", ())]
        self._after = [(re.compile(old), new) for old, new in (scales.get("fp4_after", ()) if four else ())]

    def rename(self, name: str) -> str:
        """The name with its scale spelled as the model does."""
        for pattern, new in self._special:
            name = pattern.sub(new, name)
        if name.endswith(_SCALE):
            suffix = self._for_experts if self._experts.search(name) else self._others
            name = name.removesuffix(_SCALE) + suffix
        for pattern, new in self._after:
            name = pattern.sub(new, name)
        return name


class _Fused:
    """Fused layers and routed experts, which targets and drafts load alike."""

    def __init__(self, rules: Mapping[str, Any], loader: Mapping[str, Any], settings: NameSettings) -> None:
        self._stacked = [
            (part, target, shard)
            for target, parts, shards in rules["stacked"]
            for part, shard in zip(parts, shards, strict=True)
        ]
        self._only_in_layers = rules["stacked_only_in_layers"]
        matrices = rules["experts_mega_moe"] if settings.mega_moe and rules["experts_mega_moe"] else rules["experts"]
        self._matrices = {part: target for target, parts in matrices for part in parts}
        self._expert = re.compile(rf"experts\.(0|[1-9]\d{{0,8}})\.({'|'.join(map(re.escape, self._matrices))})\.")
        self._count = settings.n_routed_experts
        self._into = None
        if settings.fused_shared and rules.get("shared_into_experts"):
            old, new = rules["shared_into_experts"]
            self._into = (old, new.replace("{n_routed_experts}", str(self._count)))
            self._count += 1 if rules["shared_slots"] else 0
        self._shared = (
            loader["fused_shared_experts"] if settings.fused_shared and rules["fused_shared_experts"] else None
        )

    def shards(self, parameter: str) -> tuple[int | str, ...]:
        """The parts of a fused parameter: matrices of an expert, or numbers; empty when it is not fused."""
        if ".experts." in parameter:
            return tuple(part for part, target in self._matrices.items() if target in parameter)
        return tuple(shard for _part, target, shard in self._stacked if f"{target}." in parameter)

    def shared(self, name: str) -> Outcome | str:
        """Where MegaMoE loads a shared expert, or the name to go on with."""
        if self._shared is not None and ".shared_experts." in name:
            return _mega_shared(self._shared, name)
        if self._into is not None:
            name = name.replace(*self._into)
        return name

    def place(self, name: str) -> Outcome:
        """Experts by their table, else a fused layer, else the name itself."""
        if ".experts." in name:
            found = [
                (int(match[1]), _MATRIX_ORDER.index(match[2]), match[0], match[2])
                for match in self._expert.finditer(name)
                if int(match[1]) < self._count
            ]
            if not found:
                return _NO_EXPERT
            number, _order, old, part = min(found)
            return (Target(name.replace(old, self._matrices[part]), part, number),)
        if not self._only_in_layers or name.startswith("model.layers."):
            for part, target, shard in self._stacked:
                if part in name:
                    return (Target(name.replace(part, target), shard),)
        return (Target(name),)


def _mega_shared(rule: Mapping[str, Any], name: str) -> Outcome:
    """Source: ``load_shared_expert_weight`` of the MegaMoE experts."""
    cut, level = rule["level"]
    for parameter, parts in rule["parts"]:
        found = next((part for part in parts if part in name), None)
        if found is not None:
            shard = next((part for part in _MATRIX_ORDER if f".{part}." in name and part != "w2"), "w2")
            mark = rule["scale"][1] if rule["scale"][0] in name else ""
            return (Target(f"{name.partition(cut)[0]}{level}{parameter}{mark}", shard),)
    return Refused(rule["others"]["exception"], rule["others"]["message"].format(name=name))


class _Target:
    """A target: the model's mapper, the loader that walks its modules, and the loader of its layers."""

    def __init__(
        self,
        rules: Mapping[str, Any],
        loader: Mapping[str, Any],
        settings: NameSettings,
        scales: _Scales,
        fused: _Fused,
    ) -> None:
        self._scales = scales
        self._fused = fused
        self._order = loader["order"]
        self._wrapped = rules.get("wrapped", "")
        self.inner = self._wrapped + rules["inner"]
        self._starts = tuple(rules["skipped_starts"])
        self._skipped = tuple(rules["skipped_prefixes"])
        self._parts = tuple(rules["skipped_substrings"])
        self._unused = tuple(loader["unused"])
        kept = rules["kept_when_fused"] if settings.fused_shared else ()
        self._pairs: dict[str, Pairs] = {
            "prefix": [*rules["prefixes"]],
            "substr": [pair for pair in rules["substrings"] if pair[0] not in kept],
            "suffix": [*rules["suffixes"]],
        }
        if "image" in rules and not settings.image:
            self._pairs["prefix"] = [*self._pairs["prefix"], *([start, None] for start in rules["image"]["without"])]
        more = loader["quantized"] if settings.quantized and rules["known_quantization"] else None
        self._patterns = [(re.compile(old), new) for old, new in more["regex"]] if more else []
        self._ends: Pairs = [*more["kv_scales"], *more["suffix"]] if more else []
        if not self._wrapped:
            self._pairs["suffix"] = [*self._pairs["suffix"], *self._ends]

    def map(self, name: str) -> Outcome:
        """Source: ``WeightsMapper.apply`` and ``AutoWeightsLoader.load_weights``, twice below a wrapper."""
        mapped = self._renamed(name)
        if mapped is None:
            return _NOT_USED
        if any(part in mapped for part in self._unused):
            return _UNUSED
        if mapped.startswith(self._skipped) or any(part in mapped for part in self._parts):
            return _BY_LOADER
        if self._wrapped and mapped.startswith(self._wrapped):
            below = self._quantized(mapped.removeprefix(self._wrapped))
            if below is None:
                return _NOT_USED
            mapped = self._wrapped + below
        if f"{mapped}." == self.inner:  # what is below that module then has an empty name
            mapped = self.inner
        if not mapped.startswith(self.inner):
            return (Target(mapped),)
        rest = mapped.removeprefix(self.inner)
        if rest.startswith(self._starts):
            return _BY_LOADER
        found = self._fused.shared(rest)
        if isinstance(found, str):
            found = self._fused.place(found)
        if isinstance(found, tuple):
            return tuple([Target(self.inner + item.parameter, item.shard, item.expert) for item in found])
        return found

    def _renamed(self, name: str) -> str | None:
        """The model's own mapper; every rule that fits is applied in turn."""
        for kind in self._order:
            if kind == "regex":
                name = self._scales.rename(name)
                if not self._wrapped:
                    name = _patterns(self._patterns, name)
                continue
            renamed = _CHANGES[kind](name, self._pairs[kind])
            if renamed is None:
                return None
            name = renamed
        return name

    def _quantized(self, name: str) -> str | None:
        """Rules for quantized checkpoints, which a wrapper's text model applies by itself."""
        return _suffixes(_patterns(self._patterns, name), self._ends)


def _patterns(pairs: Sequence[tuple[re.Pattern[str], str]], name: str) -> str:
    for pattern, new in pairs:
        name = pattern.sub(new, name)
    return name


def _substrings(name: str, pairs: Pairs) -> str | None:
    for old, new in pairs:
        if old in name:
            if new is None:
                return None
            name = name.replace(old, new, 1)
    return name


def _prefixes(name: str, pairs: Pairs) -> str | None:
    for old, new in pairs:
        if name.startswith(old):
            if new is None:
                return None
            name = name.replace(old, new, 1)
    return name


def _suffixes(name: str, pairs: Pairs) -> str | None:
    for old, new in pairs:
        if name.endswith(old):
            if new is None:
                return None
            name = new.join(name.rsplit(old, 1))
    return name


_CHANGES: Final = {"substr": _substrings, "prefix": _prefixes, "suffix": _suffixes}


class _Draft:
    """An MTP or DSpark draft, which reads ``mtp.{i}.`` of the target's checkpoint."""

    def __init__(self, rules: Mapping[str, Any], settings: NameSettings, scales: _Scales, fused: _Fused) -> None:
        self._rules = rules
        self.settings = settings
        self._scales = scales
        self._fused = fused
        self._is_mtp = "block" in rules

    def map(self, name: str) -> Outcome:
        """Source: ``load_weights`` of ``DeepSeekV4MTP`` and ``DSparkDeepseekV4ForCausalLM``."""
        return self._mtp(name) if self._is_mtp else self._dspark(name)

    def _mtp(self, name: str) -> Outcome:
        rules, first = self._rules, self.settings.num_hidden_layers
        number = next((int(part) for part in name.split(".") if part.isdecimal() and len(part) < _DIGITS), 0)
        layer = rules["layers"].replace("{num_hidden_layers+i}", str(first + number))
        name = name.replace(f"mtp.{number}.", layer)
        stage = next(
            (
                stage
                for stage in range(self.settings.stages)
                if name.startswith(tuple([f"{start}{first + stage}." for start in rules["named_layers"]]))
            ),
            None,
        )
        if stage is None:
            return _NO_DRAFT
        layer = rules["layers"].replace("{num_hidden_layers+i}", str(first + stage))
        for old, new in rules["renamed_parts"]:
            name = name.replace(old, new)
        if any(part in name for part in rules["model_level"]):
            name = name.replace(layer, "model.")
        elif not any(part in name for part in rules["layer_level"]):
            name = name.replace(layer, f"{layer}{rules['block']}.")
        if stage and rules["model_level_first_only"] and ".layers" not in name:
            return _NO_STAGE
        return self._placed(name)

    def _dspark(self, name: str) -> Outcome:
        rules = self._rules
        match = re.match(r"mtp\.(\d{1,9})\.(.*)", name)
        if match is None:
            if any(name.startswith(new.removeprefix("model.")) for _start, new in rules["copied"]):
                return Refused("AttributeError", "'Tensor' object has no attribute 'shard_id'")
            return _NO_DRAFT
        stage, rest = int(match[1]), match[2]
        copies = [
            Target(self._replaced(self._scales.rename(new + rest.removeprefix(start))), stage)
            for start, new in rules["copied"]
            if rest.startswith(start) and rest != start and stage < self.settings.stages
        ]
        main = self._stage_name(stage, rest)
        found = self._placed(main) if isinstance(main, str) else main
        return (*found, *copies) if isinstance(found, tuple) else tuple(copies) or found

    def _stage_name(self, stage: int, rest: str) -> str | Skipped:
        rules = self._rules
        if rest.startswith(tuple(rules["dropped"])):
            return _BY_LOADER
        if not self.settings.confidence_head and rest.startswith(tuple(rules["optional"])):
            return _NO_HEAD
        for start, new in rules["renamed_starts"]:
            if rest.startswith(start):
                return str(new + rest.removeprefix(start))
        if rest.startswith(tuple(rules["model_level"])):
            return f"model.{rest}"
        return str(rules["layers"]).replace("{i}", str(stage)) + rest

    def _placed(self, name: str) -> Outcome:
        found = self._fused.shared(self._scales.rename(name))
        if not isinstance(found, str):
            return found
        placed = self._fused.place(self._replaced(found))
        if isinstance(placed, tuple) and placed[0].shard is None:
            renamed = _suffixes(placed[0].parameter, self._rules["suffixes"])
            return (Target(renamed or placed[0].parameter),)
        return placed

    def _replaced(self, name: str) -> str:
        for old, new in self._rules["replaced"]:
            name = name.replace(old, new)
        return name


__all__ = ["NameRules", "NameSettings", "Outcome", "Refused", "Skipped", "Target", "rules_of"]
