"""The parameters that a release registers for a model: what a checkpoint has to fill.

Which parameters a layer has follows from what the config says about it (its compress ratio, hash routing, ...).
The facts (section ``parameters``) say which ones come with which of these features; they were learned by building
the models with vLLM's own code (``dsv4check/learning/sections/parameters.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dsv4check.deployment import Model
from dsv4check.records import dataclass

ALL: Final = "all"
COMPRESSED: Final = "compressed"
"""Keys and values are compressed (V4: compress ratio above 1)."""
INDEXED: Final = "indexed"
"""The layer selects states with an indexer of its own (V4: compress ratio 4)."""
HASHED: Final = "hashed"
"""Experts are chosen by the token's id (``hash_moe``)."""
SCORED: Final = "scored"
"""Experts are chosen by score: every layer that is not hashed."""
KV_SOURCE: Final = "kv_source"
INDEX_SOURCE: Final = "index_source"
ENGRAM: Final = "engram"
"""V4.1: the layer compresses / indexes for those that share with it, or looks n-grams up."""
FEATURES: Final = (ALL, COMPRESSED, INDEXED, HASHED, SCORED, KV_SOURCE, INDEX_SOURCE, ENGRAM)

UNQUANTISED: Final = "unquantised"


def layer_features(model: Model) -> tuple[frozenset[str], ...]:
    """Features of each layer of the target, by the config."""
    hashed = hash_layers(model)
    sources = {
        KV_SOURCE: _layer_ids(model, "kv_source_layer_ids"),
        INDEX_SOURCE: _layer_ids(model, "index_source_layer_ids"),
        ENGRAM: _layer_ids(model, "engram_layer_ids"),
    }
    found = []
    for layer, ratio in enumerate(model.compress_ratios):
        features = {ALL, HASHED if layer in hashed else SCORED}
        if model.family == "deepseek_v4":
            features |= ({COMPRESSED} if ratio > 1 else set()) | ({INDEXED} if ratio == 4 else set())
        features |= {name for name, layers in sources.items() if layer in layers}
        found.append(frozenset(features))
    return tuple(found)


def hash_layers(model: Model) -> frozenset[int]:
    """Numbers of the layers that route by hash: ``mlp_layer_types``, else the first ``num_hash_layers``."""
    types = model.get("mlp_layer_types")
    if isinstance(types, Sequence) and not isinstance(types, str):
        return frozenset(layer for layer, kind in enumerate(types) if kind == "hash_moe")
    return frozenset(range(model.integer("num_hash_layers") or 0))


def _layer_ids(model: Model, key: str) -> frozenset[int]:
    value = model.get(key)
    return frozenset(value) if isinstance(value, Sequence) and not isinstance(value, str) else frozenset()


@dataclass(frozen=True, slots=True)
class Registered:
    """The parameters of one model: the target or a draft."""

    names: frozenset[str]
    """Full names, as ``named_parameters`` gives them."""
    not_stored: frozenset[str]
    """Those of them that no published checkpoint has; they are shared, tied or never read."""
    may_lack: frozenset[str]
    """Fused ones of which a layer may need only a part."""


def registered(
    rules: Mapping[str, Any],
    layers: Mapping[int, frozenset[str]],
    experts: str,
    *,
    mega_moe: bool = False,
    vision_layers: int = 0,
    without: tuple[str, ...] = (),
) -> Registered | None:
    """All parameters of a model.

    ``rules`` is one entry of the ``parameters`` facts (``target``, ``mtp``, ...); ``layers`` maps the number of a
    layer, as it stands in parameter names, to its features; ``experts`` is the format of the routed experts
    (``mxfp4``, ``fp8``, ``nvfp4``) or ``unquantised``; ``without`` are starts of names that the config turns off. None
    when the facts do not know that format or kernel.
    """
    leaves = (rules.get("experts") or {}).get(experts)
    level = rules.get("experts_mega_moe" if mega_moe else "experts_at")
    if leaves is None or level is None or (mega_moe and experts != "mxfp4"):
        return None
    scale = f".{rules['linear_scale']}" if experts == UNQUANTISED else None

    def kept(names: Sequence[str]) -> Iterator[str]:
        return (name for name in names if scale is None or not name.endswith(scale))

    inside = {feature: tuple(kept(names)) for feature, names in rules["layers"].items()}
    inside[ALL] = (*inside[ALL], *(f"{level}{leaf}" for leaf in leaves))
    found = set(kept(rules["model"]))
    for number, features in layers.items():
        found.update(f"{rules['prefix']}{number}.{name}" for feature in features for name in inside.get(feature, ()))
    for number in range(vision_layers):
        found.update(f"{rules['vision_prefix']}{number}.{name}" for name in rules.get("vision", ()))
    if without:
        found = {name for name in found if not name.startswith(without)}

    def among(key: str) -> frozenset[str]:
        listed = set(rules.get(key, ()))
        return frozenset(
            name for name in found if name in listed or name.removeprefix(rules["prefix"]).partition(".")[2] in listed
        )

    return Registered(frozenset(found), among("not_stored"), among("may_lack"))
