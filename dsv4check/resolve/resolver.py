"""All decisions of one launch, taken in the order in which each needs the one before."""

from __future__ import annotations

from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.memory.fit import Decisions, memory_of
from dsv4check.memory.records import Memory
from dsv4check.problems import Problem
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import HIDDEN_STATES, Attention, Draft, KvCache, LayerKind, NotEvaluated, Resolution
from dsv4check.resolve.attention import backend_name_problems, resolve_attention
from dsv4check.resolve.block_size import block_size_problems, resolve_block_size
from dsv4check.resolve.cache_layout import bytes_per_token, cache_layers, main_bytes_per_state
from dsv4check.resolve.connectors import check_connectors
from dsv4check.resolve.draft import resolve_draft
from dsv4check.resolve.draft_overrides import draft_override_problems
from dsv4check.resolve.engine_config import check_engine_config
from dsv4check.resolve.engram import engram_problems
from dsv4check.resolve.kernel_support import kernel_facts
from dsv4check.resolve.kv_dtype import resolve_kv_dtype
from dsv4check.resolve.mega_moe import uses_mega_moe
from dsv4check.resolve.memory_problems import memory_problems, weight_problems
from dsv4check.resolve.moe_backend import resolve_moe
from dsv4check.resolve.parallelism import resolve_parallel
from dsv4check.resolve.replay import replay_problems
from dsv4check.resolve.routed_experts import routed_expert_problems
from dsv4check.resolve.runner import resolve_runner

_MIB = 1 << 20

_V41 = NotEvaluated(
    "KV cache layout and attention class",
    "DeepSeek-V4.1 has caches of its own (compress ratios 1 and 2, shared sources) that are not modelled",
    "run the checks that depend on them with a DeepSeek-V4 model",
)
_NOT_CUDA = NotEvaluated(
    "KV cache layout, attention class and MoE backend",
    "only vLLM's CUDA path is modelled, and this GPU runs another",
    "check the rules that name this platform; the rest needs a real start",
)
_ROCM = Attention(None, None, None, layout="fp8_ds_mla", padded_q_heads=None, local_q_heads=None)
"""What is known of V4's layers on ROCm: one class, whose states are packed like FlashMLA's."""


def resolve(deployment: Deployment, facts: ReleaseFacts) -> Resolution:
    """What the release does with this deployment. Pure: no I/O, no torch."""
    problems: list[Problem] = [*deployment.flags.problems, *deployment.model.problems]
    notes: list[NotEvaluated] = []
    parallel, found = resolve_parallel(deployment, facts)
    problems += found
    draft, found = resolve_draft(deployment, facts, parallel)
    problems += found
    runner, found = resolve_runner(deployment, facts, draft, parallel)
    problems += found
    problems += routed_expert_problems(deployment, facts, draft, parallel, runner)
    problems += replay_problems(deployment, facts, draft, runner)
    problems += check_engine_config(deployment, facts, parallel)
    found, connector_facts = check_connectors(deployment, facts, parallel)
    problems += found

    cuda = deployment.hardware.vendor in (None, "nvidia")
    attention, kv_cache, moe = None, None, None
    if deployment.model.family != "deepseek_v4":
        notes.append(_V41)
        problems += backend_name_problems(deployment, facts)
        problems += engram_problems(deployment, parallel)
    elif not cuda:
        notes.append(_NOT_CUDA)
        if deployment.hardware.vendor == "amd":
            problems += backend_name_problems(deployment, facts)
            problems += resolve_kv_dtype(deployment, facts, _ROCM).problems
            problems += draft_override_problems(deployment, facts, draft, runner, _ROCM)
    else:
        attention, found = resolve_attention(deployment, facts, parallel)
        problems += found
        kv_cache, found = _kv_cache(deployment, facts, attention, draft)
        problems += found
        problems += block_size_problems(deployment, facts, kv_cache.block_size, runner)
        problems += draft_override_problems(deployment, facts, draft, runner, attention)
        if deployment.hardware.vendor is None:
            notes.append(_gpu_missing(attention, kv_cache))
    if cuda:
        moe, found = resolve_moe(deployment, facts, parallel, runner.name)
        problems += found

    hybrid = connector_facts["hybrid_manager_disabled"] is not True
    decided = Decisions(parallel, draft, runner, attention, kv_cache, moe, hybrid)
    memory, more = memory_of(deployment, facts, decided)
    if deployment.hardware.vendor == "amd":
        if memory is not None:
            problems += weight_problems(deployment, memory, decided)
        # Too little of it is known to be shown.
        memory = None
    else:
        notes += more
        if memory is not None:
            problems += memory_problems(deployment, facts, memory, decided)

    if deployment.checkpoint is not None:
        # Most launches name a checkpoint that is not on this machine, and need not import this.
        from dsv4check.resolve.checkpoint_problems import checkpoint_problems

        known = frozenset(problem.code for problem in problems)
        mega_moe = uses_mega_moe(moe, parallel)
        found, more = checkpoint_problems(deployment, facts, draft, known, mega_moe=mega_moe)
        problems += found
        notes += more

    values: dict[str, Any] = dict(connector_facts)
    values |= kernel_facts(deployment, facts, attention, draft)
    values |= _cache_facts(kv_cache, memory)
    values["bf16_backend"] = _bf16_backend(deployment, facts)
    return Resolution(
        release=facts.version,
        kv_cache=kv_cache,
        attention=attention,
        runner=runner,
        draft=draft,
        moe=moe,
        parallel=parallel,
        problems=tuple(problems),
        not_evaluated=tuple(notes),
        facts=values,
        memory=memory,
    )


def _kv_cache(
    deployment: Deployment, facts: ReleaseFacts, attention: Attention, draft: Draft
) -> tuple[KvCache, tuple[Problem, ...]]:
    dtype = resolve_kv_dtype(deployment, facts, attention)
    block_size = resolve_block_size(deployment, facts)
    layers: tuple[LayerKind, ...] = ()
    if dtype.resolved is not None and block_size is not None:
        layers = cache_layers(
            deployment,
            facts,
            attention,
            dtype.resolved,
            block_size,
            draft.layers,
            draft.hidden_state_layers,
        )
    cache = KvCache(
        requested_dtype=dtype.requested,
        resolved_dtype=dtype.resolved,
        torch_dtype=dtype.torch_dtype,
        layout=attention.layout if dtype.resolved is not None else None,
        block_size=block_size,
        bytes_per_state=main_bytes_per_state(layers),
        rewrites=dtype.rewrites,
        layers=layers,
        bytes_per_token=bytes_per_token(layers) if layers else None,
    )
    return cache, dtype.problems


def _cache_facts(cache: KvCache | None, memory: Memory | None) -> dict[str, Any]:
    """Values that the KV-cache rules quote.

    ``c128_view_bytes``: what a view over 1,000 blocks of the C128 cache would need if its blocks were counted
    with the block size instead of the storage block size (vllm#38831 without vllm#43988).
    ``hidden_states_mib``: a block of the cache for hidden states; ``checked_block_mib``: what vLLM counts for every
    block when it checks that one request fits.
    """
    values: dict[str, Any] = {}
    layer = next((item for item in cache.layers if item.kind == "main_c128"), None) if cache else None
    if layer is not None and layer.states_per_block > 0:
        factor = layer.block_size // layer.states_per_block
        blocks = 1000
        values |= {
            "c128_storage_block": layer.states_per_block,
            "c128_block_factor": factor,
            "c128_page": layer.padded_page_bytes,
            "c128_view_bytes": (blocks * factor - 1) * layer.padded_page_bytes + layer.page_bytes,
            "c128_allocated_bytes": blocks * layer.padded_page_bytes,
        }
    hidden = next((item for item in cache.layers if item.kind == HIDDEN_STATES), None) if cache else None
    if hidden is not None:
        values["hidden_states_mib"] = round(hidden.padded_page_bytes / _MIB, 1)
        if memory is not None and memory.plan is not None:
            values["checked_block_mib"] = round(max(memory.plan.checked_strides) / _MIB, 1)
    return values


def _bf16_backend(deployment: Deployment, facts: ReleaseFacts) -> str:
    """Whether a backend that stores bfloat16 rows exists here: ``yes``, ``no``, or ``depends`` on the unknown GPU.

    The plain-row class exists from 0.23 and has kernels for SM10x only.
    """
    major = deployment.hardware.sm_major
    if "plain" not in facts.section("kv_cache") or deployment.hardware.vendor == "amd":
        return "no"
    if major is None:
        return "depends"
    return "yes" if major == 10 else "no"


def _gpu_missing(attention: Attention, cache: KvCache) -> NotEvaluated:
    open_answers = ["whether this GPU has the kernels", "MoE backend"]
    if attention.cls is None:
        open_answers.insert(0, "attention class")
    if cache.resolved_dtype is None:
        open_answers.insert(0, "KV-cache dtype and page sizes")
    return NotEvaluated(
        ", ".join(open_answers),
        "no GPU was named and none was found on this machine",
        "give --gpu, e.g. --gpu H200 or --gpu sm90",
    )
