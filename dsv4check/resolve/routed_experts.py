"""``--enable-return-routed-experts``: what may not be combined with it (``config/vllm.py``).

Nothing is refused in 0.20; 0.21 lists what is "not yet validated" (``_validate_return_routed_experts``), async
scheduling included, which is on unless it is switched off. From 0.22 to 0.30 the checks stand in
``VllmConfig.__post_init__``, from 0.31 on in ``_verify_aux_output_compatibility``, which also wants the V2 runner and
prefix caching.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Draft, Parallelism, Runner
from dsv4check.resolve.async_scheduling import async_scheduling
from dsv4check.resolve.flag_values import config_problem, where
from dsv4check.resolve.kv_connector import connector_names, find_connector

_DISAGGREGATED = ("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MoRIIOConnector", "MooncakeConnector")
_WITH = "--enable-return-routed-experts is incompatible with "


def routed_expert_problems(
    deployment: Deployment, facts: ReleaseFacts, draft: Draft, parallel: Parallelism, runner: Runner
) -> list[Problem]:
    """The first refusal of the release; facts from ``engine_config.routed_experts``."""
    rules: Mapping[str, Any] = facts.section("engine_config").get("routed_experts") or {}
    if not rules or deployment.flags.get("enable_return_routed_experts") is not True:
        return []
    if rules["checks"] == "unvalidated":
        found = _unvalidated(deployment, facts, draft, parallel)
    else:
        found = _first(deployment, facts, parallel, runner, rules)
    if found is None:
        return []
    error, other, dest = found
    data = {"other": other, "dest": dest, "reason": error}
    return [config_problem("routed-experts-refused", error, data, where(deployment, "enable_return_routed_experts"))]


def _unvalidated(
    deployment: Deployment, facts: ReleaseFacts, draft: Draft, parallel: Parallelism
) -> tuple[str, str, str] | None:
    """(error, what it meets, the flag of that) of 0.21, which names everything at once."""
    sizes = (
        ("pipeline parallelism", "pipeline_parallel_size", parallel.pipeline),
        ("prefill context parallelism", "prefill_context_parallel_size", parallel.prefill_context),
        ("decode context parallelism", "decode_context_parallel_size", parallel.decode_context),
    )
    met = [(f"{words} ({dest}={size})", words, dest) for words, dest, size in sizes if size > 1]
    if async_scheduling(deployment, facts, draft):
        met.append(("async scheduling", "async scheduling", "async_scheduling"))
    if not met:
        return None
    error = (
        f"--enable-return-routed-experts is not yet validated with: {', '.join(text for text, _, _ in met)}. "
        "Disable these features or omit --enable-return-routed-experts."
    )
    return error, " and ".join(words for _, words, _ in met), met[0][2]


def _first(
    deployment: Deployment, facts: ReleaseFacts, parallel: Parallelism, runner: Runner, rules: Mapping[str, Any]
) -> tuple[str, str, str] | None:
    """(error, what it meets, the flag of that)."""
    flags = deployment.flags
    auxiliary = rules["checks"] == "auxiliary"
    if auxiliary and runner.name == "v1":
        error = "AuxOutput Connector requires Model Runner V2; set VLLM_USE_V2_MODEL_RUNNER=1."
        return error, "the V1 model runner", ""
    if auxiliary and flags.get("enable_prefix_caching") is False:
        return "AuxOutput Connector requires prefix caching.", "--no-enable-prefix-caching", "enable_prefix_caching"
    if auxiliary and flags.section("speculative_config").get("enable_adaptive_verification") is True:
        error = f"{_WITH}adaptive speculative verification."
        return error, "adaptive verification", "speculative_config"
    if parallel.pipeline > 1:
        error = f"{_WITH}pipeline parallelism (PP > 1)."
        return error, "--pipeline-parallel-size", "pipeline_parallel_size"
    context = rules.get("context")
    if context and (parallel.decode_context > 1 or parallel.prefill_context > 1):
        dest = "decode_context_parallel_size" if parallel.decode_context > 1 else "prefill_context_parallel_size"
        return f"{_WITH}{context}", "context parallelism", dest
    return _connector(deployment, facts, auxiliary)


def _connector(deployment: Deployment, facts: ReleaseFacts, auxiliary: bool) -> tuple[str, str, str] | None:
    """Any connector of ``--kv-transfer-config``; from 0.31 on those for disaggregated prefill."""
    connector = find_connector(deployment, facts.section("connectors"))
    if connector is None or connector.from_offload_flag:
        # The offloading flag becomes a connector only after this check up to 0.30, and none of those later.
        return None
    if not auxiliary:
        error = f"{_WITH}KV connectors (PD disaggregation, KV cache offload)."
        return error, "--kv-transfer-config", "kv_transfer_config"
    names = connector_names(connector)
    listed = next((name for name in _DISAGGREGATED if name in names), None)
    if listed is None:
        return None
    error = f"{_WITH}{listed}; PD auxiliary output is not supported."
    return error, listed, "kv_transfer_config"
