"""What targets and drafts share: changes of names, names of scales, fused layers and routed experts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dsv4check.checkpoint.name_outcomes import NO_EXPERT, NameSettings, Outcome, Refused, Target

_SCALE: Final = ".scale"
_DTYPE_WITH_OWN_SCALES: Final = "fp4"
_MATRIX_ORDER: Final = ("w1", "w2", "w3")
"""Order of an expert's matrices in the table that is searched.

Source: ``fused_moe/routed_experts.py:RoutedExperts.make_expert_params_mapping`` and, for MegaMoE,
``models/deepseek_v4/nvidia/model.py:make_deepseek_v4_expert_params_mapping``.
"""

Pairs = Sequence[Sequence[Any]]


class Scales:
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


class Fused:
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
                return NO_EXPERT
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


def substitute(pairs: Sequence[tuple[re.Pattern[str], str]], name: str) -> str:
    """Replace every pattern in turn."""
    for pattern, new in pairs:
        name = pattern.sub(new, name)
    return name


def change_substring(name: str, pairs: Pairs) -> str | None:
    """Replace each part that is in the name, once; None where the rule drops the tensor."""
    for old, new in pairs:
        if old in name:
            if new is None:
                return None
            name = name.replace(old, new, 1)
    return name


def change_prefix(name: str, pairs: Pairs) -> str | None:
    """Replace each start that the name has; None where the rule drops the tensor."""
    for old, new in pairs:
        if name.startswith(old):
            if new is None:
                return None
            name = name.replace(old, new, 1)
    return name


def change_suffix(name: str, pairs: Pairs) -> str | None:
    """Replace each end that the name has; None where the rule drops the tensor."""
    for old, new in pairs:
        if name.endswith(old):
            if new is None:
                return None
            name = new.join(name.rsplit(old, 1))
    return name


CHANGES: Final = {"substr": change_substring, "prefix": change_prefix, "suffix": change_suffix}
