"""Names of a draft's tensors, from ``mtp.{i}.`` in the target's checkpoint to its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dsv4check.checkpoint.name_changes import Fused, Scales, change_suffix
from dsv4check.checkpoint.name_outcomes import (
    BY_LOADER,
    MAX_DIGITS,
    NO_DRAFT,
    NO_HEAD,
    NO_STAGE,
    NameSettings,
    Outcome,
    Refused,
    Skipped,
    Target,
)


class DraftNames:
    """An MTP or DSpark draft, which reads ``mtp.{i}.`` of the target's checkpoint."""

    def __init__(self, rules: Mapping[str, Any], settings: NameSettings, scales: Scales, fused: Fused) -> None:
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
        number = next((int(part) for part in name.split(".") if part.isdecimal() and len(part) < MAX_DIGITS), 0)
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
            return NO_DRAFT
        layer = rules["layers"].replace("{num_hidden_layers+i}", str(first + stage))
        for old, new in rules["renamed_parts"]:
            name = name.replace(old, new)
        if any(part in name for part in rules["model_level"]):
            name = name.replace(layer, "model.")
        elif not any(part in name for part in rules["layer_level"]):
            name = name.replace(layer, f"{layer}{rules['block']}.")
        if stage and rules["model_level_first_only"] and ".layers" not in name:
            return NO_STAGE
        return self._placed(name)

    def _dspark(self, name: str) -> Outcome:
        rules = self._rules
        match = re.match(r"mtp\.(\d{1,9})\.(.*)", name)
        if match is None:
            if any(name.startswith(new.removeprefix("model.")) for _start, new in rules["copied"]):
                return Refused("AttributeError", "'Tensor' object has no attribute 'shard_id'")
            return NO_DRAFT
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
            return BY_LOADER
        if not self.settings.confidence_head and rest.startswith(tuple(rules["optional"])):
            return NO_HEAD
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
            renamed = change_suffix(placed[0].parameter, self._rules["suffixes"])
            return (Target(renamed or placed[0].parameter),)
        return placed

    def _replaced(self, name: str) -> str:
        for old, new in self._rules["replaced"]:
            name = name.replace(old, new)
        return name
