"""The tiers behind vLLM's CPU offload (``TieringOffloadingSpec``): file system, object store, other instances.

Facts from ``v1/kv_offload/factory.py`` and ``v1/kv_offload/tiering``. All of it is created with the scheduler's side
of the connector, once the cache is planned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.resolve.flag_values import reads_as_int

PLAIN: Final = "CPUOffloadingSpec"
"""The default: host memory alone."""
TIERING: Final = "TieringOffloadingSpec"
_SEED: Final = "PYTHONHASHSEED"
_POLICIES: Final = ("lru", "arc")
"""What every release can evict by."""
_SIZES: Final = ("cpu_bytes_to_use", "cpu_bytes_to_use_per_rank")
_WORDS: Final = re.compile(r"\s*(?P<number>\d{1,9}(\.\d{1,9})?)\s*(?P<prefix>[kmgtKMGT])?(?P<binary>i)?[bB]?\s*")
_LEAST_REFUSED: Final = 2
"""From this store_threshold on the tiers refuse it."""


def spec_name(extra: Mapping[str, Any]) -> str:
    """The spec that ``kv_connector_extra_config`` asks for."""
    return str(extra.get("spec_name", PLAIN))


def spec_problem(rules: Mapping[str, Any], extra: Mapping[str, Any], origin: Origin | None) -> Problem | None:
    """A spec that the release does not register: nothing else of the offload is looked at then."""
    name = spec_name(extra)
    if name in ((PLAIN, TIERING) if rules["tiering"] else (PLAIN,)) or extra.get("spec_module_path") is not None:
        return None
    return _refusal((f"this release has no spec {name}", "ValueError", f"Unsupported spec type: {name}"), origin)


def size_problem(extra: Mapping[str, Any], origin: Origin | None) -> Problem | None:
    """A size in words: vLLM takes ``int()`` of it, so ``100GB`` stops the start."""
    for key in _SIZES:
        size = extra.get(key)
        if isinstance(size, str) and not reads_as_int(size):
            data = {"key": key, "size": size, "bytes": _bytes(size)}
            error = f"invalid literal for int() with base 10: {size!r}"
            return Problem("offload-size-in-words", Stage.KV_CACHE_INIT, "ValueError", error, data, origin)
    return None


def _bytes(text: str) -> int:
    """What was meant, as far as it can be told; 16 GiB otherwise."""
    found = _WORDS.fullmatch(text)
    if found is None:
        return 1 << 34
    base = 1024 if found["binary"] else 1000
    return int(float(found["number"]) * base ** " kmgt".index((found["prefix"] or " ").lower()))


def tier_problems(
    deployment: Deployment, rules: Mapping[str, Any], extra: Mapping[str, Any], origin: Origin | None
) -> list[Problem]:
    """What vLLM refuses about the host memory and the tiers behind it: the first of it, as vLLM stops there."""
    name = spec_name(extra)
    if name not in (PLAIN, TIERING):
        return []
    refused = next(_refused(rules, extra) if name == TIERING else _policy(extra), None)
    if refused is not None:
        return [_refusal(refused, origin)]
    if name == TIERING and _SEED not in deployment.env and any(_seeds(rules, extra)):
        error = "PYTHONHASHSEED must be set for P2P KV offload so that block hashes match across instances."
        return [Problem("offload-tier-seed", Stage.KV_CACHE_INIT, "ValueError", error, {}, origin)]
    return []


def _refusal(refused: tuple[str, str, str], origin: Origin | None) -> Problem:
    what, exception, error = refused
    return Problem("offload-tier-refused", Stage.KV_CACHE_INIT, exception, error, {"what": what}, origin)


def _seeds(rules: Mapping[str, Any], extra: Mapping[str, Any]) -> Iterator[bool]:
    for tier in extra.get("secondary_tiers", []):
        kind = tier.get("type") if isinstance(tier, Mapping) else None
        yield bool(isinstance(kind, str) and rules["tiers"].get(kind, {}).get("seed"))


def _policy(extra: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    policy = extra.get("eviction_policy", "lru")
    if policy not in _POLICIES and extra.get("cache_policy_module_path") is None:
        what = f"there is no eviction_policy {policy} ({' and '.join(_POLICIES)})"
        yield what, "ValueError", f"Unknown cache policy: {policy!r}."


def _refused(rules: Mapping[str, Any], extra: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What is wrong, the exception and its words."""
    configs = extra.get("secondary_tiers", [])
    if not isinstance(configs, list):
        error = "secondary_tiers must be a list of tier configurations"
        yield "secondary_tiers is no list", "ValueError", error
        return
    threshold = extra.get("store_threshold", 0)
    if isinstance(threshold, int) and threshold >= _LEAST_REFUSED:
        error = "store_threshold is not supported for TieringOffloadingSpec"
        yield f"store_threshold {threshold} does not go with tiers", "ValueError", error
    yield from _policy(extra)
    for config in configs:
        if isinstance(config, Mapping):
            yield from _tier(rules["tiers"], config)


def _tier(tiers: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    kind = config.get("type")
    if not kind:
        yield "a tier has no type", "ValueError", "Secondary tier configuration must include 'type'"
        return
    if not isinstance(kind, str) or kind not in tiers:
        if config.get("module_path") is None:
            what = f"this release has no tier {kind} (it has {', '.join(tiers)})"
            yield what, "ValueError", f"Unknown secondary tier type: {kind!r}."
        return
    missing = [key for key in tiers[kind]["needs"] if key not in config]
    if missing:
        error = f"__init__() missing 1 required positional argument: {missing[0]!r}"
        yield f"the tier {kind} needs {' and '.join(missing)}", "TypeError", error
    takes = tiers[kind]["takes"]
    for key in [] if takes is None else config:
        if key not in takes:
            error = f"__init__() got an unexpected keyword argument {key!r}"
            yield f"the tier {kind} of this release takes no {key}", "TypeError", error
