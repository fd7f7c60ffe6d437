"""Names of a target's tensors, from the checkpoint to its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dsv4check.checkpoint.name_changes import CHANGES, Fused, Pairs, Scales, change_suffix, substitute
from dsv4check.checkpoint.name_outcomes import BY_LOADER, NOT_USED, UNUSED, NameSettings, Outcome, Target


class TargetNames:
    """A target: the model's mapper, the loader that walks its modules, and the loader of its layers."""

    def __init__(
        self,
        rules: Mapping[str, Any],
        loader: Mapping[str, Any],
        settings: NameSettings,
        scales: Scales,
        fused: Fused,
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
            return NOT_USED
        if any(part in mapped for part in self._unused):
            return UNUSED
        if mapped.startswith(self._skipped) or any(part in mapped for part in self._parts):
            return BY_LOADER
        if self._wrapped and mapped.startswith(self._wrapped):
            below = self._quantized(mapped.removeprefix(self._wrapped))
            if below is None:
                return NOT_USED
            mapped = self._wrapped + below
        if f"{mapped}." == self.inner:  # what is below that module then has an empty name
            mapped = self.inner
        if not mapped.startswith(self.inner):
            return (Target(mapped),)
        rest = mapped.removeprefix(self.inner)
        if rest.startswith(self._starts):
            return BY_LOADER
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
                    name = substitute(self._patterns, name)
                continue
            renamed = CHANGES[kind](name, self._pairs[kind])
            if renamed is None:
                return None
            name = renamed
        return name

    def _quantized(self, name: str) -> str | None:
        """Rules for quantized checkpoints, which a wrapper's text model applies by itself."""
        return change_suffix(substitute(self._patterns, name), self._ends)
