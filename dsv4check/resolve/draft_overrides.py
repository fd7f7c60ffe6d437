"""Keys of the speculative config that change how the draft model itself is built.

``kv_cache_dtype``, ``moe_backend`` and ``use_local_argmax_reduction`` reach the draft through the runner's own
loader: ``v1/spec_decode/llm_base_proposer.py`` (V1), ``v1/worker/gpu/spec_decode/eagle/utils.py`` and
``dspark/utils.py`` (V2; from 0.31 on ``SpeculativeConfig.apply_draft_overrides``). Where a loader does not pass a
key on, the draft takes the target's setting. All of this happens after the target's weights were loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem, Stage
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Attention, Draft, Runner
from dsv4check.resolve.flag_values import where
from dsv4check.resolve.kv_dtype import refusal
from dsv4check.resolve.speculative_fields import origin

_DRAFT_CLASSES: Mapping[str, str] = {
    "mtp": "DeepSeekV4MTP",
    "dspark": "DSparkDeepseekV4ForCausalLM",
}


def draft_override_problems(
    deployment: Deployment, facts: ReleaseFacts, draft: Draft, runner: Runner, attention: Attention
) -> list[Problem]:
    """What stops the draft from being built or started with the keys it was given."""
    vendor = deployment.hardware.vendor
    if draft.method not in _DRAFT_CLASSES or vendor not in (None, "nvidia", "amd"):
        return []
    section = facts.section("spec_decode")
    reach: Mapping[str, Any] = (section.get("draft_overrides") or {}).get(runner.name) or {}
    if vendor == "amd":
        able = draft.method in section.get("draft_top_tokens_rocm", ())
        return [] if able else _local_argmax(deployment, draft, reach)
    return [
        *_kv_dtype(deployment, facts, draft, reach, attention),
        *_local_argmax(deployment, draft, reach),
        *_other_layout(deployment, facts, draft, runner, attention),
    ]


def _kv_dtype(
    deployment: Deployment, facts: ReleaseFacts, draft: Draft, reach: Mapping[str, Any], attention: Attention
) -> list[Problem]:
    """The draft's layers resolve their dtype as the target's do, so the packed layout takes fp8 names only."""
    asked = draft.config.get("kv_cache_dtype")
    if draft.method not in (reach.get("kv_cache_dtype") or ()) or not isinstance(asked, str):
        return []
    wanted = draft.config.get("attention_backend")
    if isinstance(wanted, str) and wanted != (attention.backend or ""):
        return []  # a class of its own, whose layout may differ from the target's
    found = refusal(deployment, facts, asked, attention.layout)
    if found is None:
        return []
    exception, error = found
    data = {"dtype": asked, "method": draft.method}
    place = origin(deployment.flags, "kv_cache_dtype")
    return [Problem("draft-kv-dtype-refused", Stage.WEIGHT_LOAD, exception, error, data, place)]


def _other_layout(
    deployment: Deployment, facts: ReleaseFacts, draft: Draft, runner: Runner, attention: Attention
) -> list[Problem]:
    """The V1 runner's MTP draft gets the GPU's usual attention class, whatever backend the target is pinned to.

    Beside a target with plain rows that is FlashMLA's, which refuses the cache dtype, or rewrites it for both of them
    before the specs are made: the windows then have packed pages. Up to 0.26 the planner finds no page of the
    full-attention group that could hold those.
    """
    wanted = draft.config.get("attention_backend")
    if draft.method != "mtp" or runner.name != "v1" or attention.layout != "plain" or isinstance(wanted, str):
        return []
    dtype = str(deployment.flags.get("kv_cache_dtype", "auto"))
    data = {"dtype": dtype, "target": attention.backend}
    place = where(deployment, "attention_backend", "attention_config")
    found = refusal(deployment, facts, dtype, "fp8_ds_mla")
    if found is not None:
        return [Problem("draft-layout-refuses-dtype", Stage.WEIGHT_LOAD, *found, data, place)]
    if facts.section("cache_planning").get("grouping") == "padded-tuples":
        return [Problem("draft-rewrites-cache-dtype", Stage.KV_CACHE_INIT, "AssertionError", "", data, place)]
    return [Problem("draft-mixes-cache-layouts", Stage.WARMUP, "", "", data, place)]


def _local_argmax(deployment: Deployment, draft: Draft, reach: Mapping[str, Any]) -> list[Problem]:
    """``use_local_argmax_reduction`` needs a method that few draft classes of V4 have."""
    if draft.config.get("use_local_argmax_reduction") is not True or not reach.get("local_argmax"):
        return []
    error = (
        f"use_local_argmax_reduction is enabled but draft model {_DRAFT_CLASSES[str(draft.method)]} does not "
        "implement get_top_tokens()."
    )
    if reach["local_argmax"] == "greedy" and draft.config.get("draft_sample_method") == "probabilistic":
        error = "use_local_argmax_reduction is not compatible with draft_sample_method='probabilistic'."
    place = origin(deployment.flags, "use_local_argmax_reduction")
    data = {"method": draft.method}
    return [Problem("draft-local-argmax", Stage.WEIGHT_LOAD, "ValueError", error, data, place)]
