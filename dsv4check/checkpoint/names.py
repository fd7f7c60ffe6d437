"""What a vLLM release does with a tensor, by its name in the checkpoint.

The rules are facts of the release (section ``weights``), learned from its mappers and loaders and compared with them in
``tests/learning``. Here they are only applied: nothing is read, and nothing but the name and the settings decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from dsv4check.checkpoint.name_changes import Fused, Scales
from dsv4check.checkpoint.name_draft import DraftNames
from dsv4check.checkpoint.name_outcomes import NameSettings, Outcome, Refused, Skipped, Target
from dsv4check.checkpoint.name_target import TargetNames

_SHARED: Final = re.compile(r"(.*\blayers\.(\d{1,9})\.)")
_FIRST_LAYER: Final = "layers.0."
_OF_NAME: Final = -1
"""Stands for the number of the expert in the name."""
_Template = tuple[tuple[str, str, int | str | None, int | None], ...] | Skipped | Refused | None
"""(text before the layer's number, text after it, shard, expert) of each target, for all names of a pattern."""


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
        self._scales = Scales(rules["scales"], settings)
        self._fused = Fused(rules, loader, settings)
        self._layered = "prefixes" in rules
        self._map: Callable[[str], Outcome] = DraftNames(rules, settings, self._scales, self._fused).map
        self._inner = ""
        if self._layered:
            target = TargetNames(rules, loader, settings, self._scales, self._fused)
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
            layer = self._missing_layer(name, registered)
            if layer is not None:
                return "IndexError", f"index {layer} is out of range"
            kind = self.rules["unknown" if target.shard is None else "unknown_fused"]
            return None if kind == "skipped" else (kind, repr(name.removeprefix(self._inner)))
        base: str | None = None
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
        base = name if base is None else base
        if self._passed_over(base):
            return None
        wrapped = self.rules.get("wrapped")
        in_text = wrapped is not None and name.startswith(wrapped)
        owner = self.rules["text_class" if in_text else "class"]
        said = self._loader["unknown"]
        spelled = base.removeprefix(wrapped) if in_text and wrapped else base
        return said["exception"], said["message"].format_map({"name": spelled, "class": owner})

    def optional(self) -> tuple[str, ...]:
        """Starts of parameters that the model gives up when the checkpoint has nothing for them.

        Source: the end of ``load_weights`` of DSpark, which drops a confidence head without weights.
        """
        return tuple(f"model.{start}" for start in self.rules.get("optional", ()))

    def _missing_layer(self, name: str, registered: Collection[str]) -> int | None:
        """The layer of a shared expert that the model does not have: releases that can fuse it look for it first."""
        if not self.rules["fused_shared_experts"] or ".shared_experts." not in name:
            return None
        found = _SHARED.match(name)
        if found is None or any(item.startswith(found[1]) for item in registered):
            return None
        return int(found[2])

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


__all__ = ["NameRules", "NameSettings", "Outcome", "Refused", "Skipped", "Target", "rules_of"]
