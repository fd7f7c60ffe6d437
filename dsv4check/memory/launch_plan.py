"""The cache plan of a launch: its layers on their stages, planned in the release's way."""

from __future__ import annotations

from dsv4check.deployment import Deployment
from dsv4check.memory.cache_plan import CacheLayer, UnplannedError, plan_cache
from dsv4check.memory.model_layers import model_layers
from dsv4check.memory.promotion import promoted
from dsv4check.memory.records import CachePlan
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Draft, KvCache, Parallelism
from dsv4check.resolve.parallelism import pipeline_layers


def plan_of(
    deployment: Deployment, facts: ReleaseFacts, parallel: Parallelism, draft: Draft, kv_cache: KvCache, *, hybrid: bool
) -> CachePlan:
    """The cache plan of a DeepSeek-V4 launch; ``hybrid``: with the hybrid KV-cache manager.

    Raises UnplannedError where the release makes none, or none is known.
    """
    if parallel.decode_context > 1:
        raise UnplannedError("decode context parallelism shares the context out in a way that is not modelled")
    style = facts.section("cache_planning")
    layers = planned_layers(deployment, facts, parallel, kv_cache, hybrid=hybrid)
    ranks = parallel.prefill_context if style["context_ranks"] == "dcp_pcp" else 1
    return plan_cache(layers, parallel.pipeline, style, retained=_retained(deployment, draft), context_ranks=ranks)


def planned_layers(
    deployment: Deployment, facts: ReleaseFacts, parallel: Parallelism, kv_cache: KvCache, *, hybrid: bool
) -> tuple[CacheLayer, ...]:
    """Every cache layer as it is planned. Raises UnplannedError."""
    stages = pipeline_layers(deployment, parallel)
    style = facts.section("cache_planning")
    if not style or not kv_cache.layers or not stages:
        raise UnplannedError("the layers of its KV cache are not known")
    ratios = deployment.model.compress_ratios
    if len(ratios) != sum(stages):
        raise UnplannedError(f"config.json has {len(ratios)} compress ratios for {sum(stages)} layers")
    kinds = kv_cache.layers
    if not hybrid:
        layout = "packed" if "fp8_ds_mla" in (kv_cache.layout, kv_cache.resolved_dtype) else "plain"
        kinds = promoted(kinds, style["promotion"], facts.section("kv_cache")[layout]["alignment"])
    return model_layers(kinds, ratios, stages)


def retained_tokens(modules: int, tokens: int) -> int:
    """Tokens of drafts that a window keeps: those after the first, where several MTP modules work one after another."""
    return tokens - 1 if min(modules, tokens) > 1 else 0


def _retained(deployment: Deployment, draft: Draft) -> int:
    """``SpeculativeConfig.use_multi_module_mtp``, which a number of modules in --hf-overrides does not reach."""
    if draft.method != "mtp" or "num_nextn_predict_layers" in deployment.flags.section("hf_overrides"):
        return 0
    modules = deployment.model.integer("num_nextn_predict_layers") or 1
    return retained_tokens(modules, draft.num_speculative_tokens or 1)
