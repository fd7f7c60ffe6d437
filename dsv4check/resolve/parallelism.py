"""Sizes of the parallel groups, and what V4 or ParallelConfig refuses about them.

vLLM takes these decisions in this order: ``EngineArgs.create_engine_config`` works out the data-parallel
launch (``resolve/launch_geometry.py``), ``ParallelConfig`` validates the sizes (``__post_init__`` first, then
the validators), ``ModelConfig.verify_with_parallel_config`` compares them with the model, and the worker
builds the layers. A ValueError or AssertionError inside the config classes reaches the user as a pydantic
ValidationError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Parallelism
from dsv4check.resolve.expert_parallelism import expert_problems
from dsv4check.resolve.flag_values import config_problem, size, where
from dsv4check.resolve.launch_geometry import launch_problems

_VALIDATION = "ValidationError"


def resolve_parallel(deployment: Deployment, facts: ReleaseFacts) -> tuple[Parallelism, tuple[Problem, ...]]:
    """Sizes of the groups and every problem that follows from them alone.

    A size that is not a positive integer counts as 1 here; the value itself is reported by
    ``resolve/engine_config.py``. Heads and output groups are None when config.json does not give them.
    """
    tensor = size(deployment, "tensor_parallel_size")
    pipeline = size(deployment, "pipeline_parallel_size")
    data = size(deployment, "data_parallel_size")
    decode_context = size(deployment, "decode_context_parallel_size")
    prefill_context = size(deployment, "prefill_context_parallel_size")
    expert = deployment.flags.get("enable_expert_parallel") is True
    heads = deployment.model.integer("num_attention_heads")
    groups = deployment.model.integer("o_groups")
    world = tensor * pipeline * prefill_context
    parallel = Parallelism(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        decode_context=decode_context,
        prefill_context=prefill_context,
        expert_parallel=expert,
        expert_parallel_size=tensor * data * prefill_context if expert else 1,
        world_size=world,
        total=world * data,
        local_heads=heads // tensor if heads and heads % tensor == 0 else None,
        local_o_groups=groups // tensor if groups else None,
    )
    section = facts.section("parallel")
    problems = [
        *launch_problems(deployment, section, parallel),
        *expert_problems(deployment, section, parallel),
        *_context(deployment, section, parallel),
        *_model(deployment, section, parallel),
        *_numa(deployment),
    ]
    return parallel, tuple(problems)


def _model(deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism) -> list[Problem]:
    """``verify_with_parallel_config`` and the constructors of the attention layers."""
    tensor = parallel.tensor
    heads = deployment.model.integer("num_attention_heads")
    groups = deployment.model.integer("o_groups")
    origin = where(deployment, "tensor_parallel_size")
    problems: list[Problem] = []
    if section.get("hc_sp") and deployment.flags.get("enable_hc_sp") is True and tensor > 1:
        problems.append(
            Problem(
                "hc-sp-unsupported",
                Stage.ENGINE_CONFIG,
                _VALIDATION,
                "--enable-hc-sp is not supported for this model",
                {},
                where(deployment, "enable_hc_sp"),
            )
        )
    if heads and heads % tensor:
        problems.append(
            Problem(
                "heads-not-divisible",
                Stage.ENGINE_CONFIG,
                _VALIDATION,
                f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({tensor}).",
                {
                    "heads": heads,
                    "tp": tensor,
                    "lower": _divisor_below(heads, tensor, groups),
                    "higher": _divisor_above(heads, tensor, groups),
                },
                origin,
            )
        )
    elif groups and groups < tensor:
        problems.append(
            Problem(
                "o-groups-below-tp",
                Stage.WEIGHT_LOAD,
                "ZeroDivisionError",
                "integer division or modulo by zero",
                {"tp": tensor, "groups": groups, "data": tensor // groups},
                origin,
            )
        )
    if parallel.pipeline > 1 and not section["pipeline"]:
        problems.append(
            Problem(
                "pp-unsupported",
                Stage.ENGINE_CONFIG,
                "NotImplementedError",
                "Pipeline parallelism is not supported for this model. "
                "Supported models implement the `SupportsPP` interface.",
                {"pp": parallel.pipeline, "tp": tensor * parallel.pipeline},
                where(deployment, "pipeline_parallel_size"),
            )
        )
    problems += _layer_partition(deployment, parallel)
    return problems


def _divisor_below(heads: int, tensor: int, groups: int | None) -> int:
    """The largest usable tensor-parallel size below ``tensor``."""
    limit = min(tensor, groups or tensor)
    return max(candidate for candidate in range(1, limit + 1) if heads % candidate == 0)


def _divisor_above(heads: int, tensor: int, groups: int | None) -> int:
    """The smallest usable size above ``tensor``, or the largest below where there is none."""
    limit = min(heads, groups or heads)
    above = (candidate for candidate in range(tensor, limit + 1) if heads % candidate == 0)
    return next(above, _divisor_below(heads, tensor, groups))


def pipeline_layers(deployment: Deployment, parallel: Parallelism) -> tuple[int, ...] | None:
    """Layers of each pipeline stage; None when config.json or ``VLLM_PP_LAYER_PARTITION`` does not give them, and
    where there are more stages than layers.

    Source: ``distributed/utils.py:get_pp_indices``.
    """
    layers, stages = deployment.model.integer("num_hidden_layers"), parallel.pipeline
    if layers is None or stages > layers:
        return None
    text = deployment.env.get("VLLM_PP_LAYER_PARTITION")
    if text is not None and stages > 1:
        stated = _stated_partition(text, layers, stages)
        return None if isinstance(stated, str) else stated
    share, rest = divmod(layers, stages)
    # What is left over goes to the stages before the last, which has the head to compute, from there backwards.
    return tuple(share + (stages - 1 - rest <= stage < stages - 1) for stage in range(stages))


def _stated_partition(text: str, layers: int, stages: int) -> tuple[int, ...] | str:
    """The layers of each stage, or what vLLM says about the text."""
    try:
        parts = tuple(int(part) for part in text.split(","))
    except ValueError:
        return f"Invalid partition string: {text}"
    if len(parts) != stages:
        return f"len(partitions)={len(parts)} does not match pp_size={stages}."
    if sum(parts) != layers:
        return f"sum(partitions)={sum(parts)} does not match num_hidden_layers={layers}."
    return parts


def _layer_partition(deployment: Deployment, parallel: Parallelism) -> list[Problem]:
    """``VLLM_PP_LAYER_PARTITION``, read by ``distributed/utils.py:get_pp_indices`` when layers are made."""
    text = deployment.env.get("VLLM_PP_LAYER_PARTITION")
    layers = deployment.model.integer("num_hidden_layers")
    if text is None or layers is None or parallel.pipeline <= 1:
        return []
    error = _stated_partition(text, layers, parallel.pipeline)
    if not isinstance(error, str):
        return []
    share, rest = divmod(layers, parallel.pipeline)
    even = [share + (index >= parallel.pipeline - rest) for index in range(parallel.pipeline)]
    return [
        Problem(
            "pp-layer-partition",
            Stage.MODEL_INIT,
            "ValueError",
            error,
            {"value": text, "layers": layers, "pp": parallel.pipeline, "even": ",".join(map(str, even))},
            Origin("env", "VLLM_PP_LAYER_PARTITION"),
        )
    ]


def _context(deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism) -> list[Problem]:
    """Decode and prefill context parallelism: V4's window and compressor groups support neither."""
    dcp, pcp, tensor = parallel.decode_context, parallel.prefill_context, parallel.tensor
    problems: list[Problem] = []
    dcp_origin = where(deployment, "decode_context_parallel_size")
    pcp_origin = where(deployment, "prefill_context_parallel_size")
    backend = deployment.flags.get("dcp_comm_backend")
    if section["dcp_a2a_needs_dcp"] and backend == "a2a" and dcp <= 1:
        problems.append(
            config_problem(
                "dcp-backend-without-dcp",
                "dcp_comm_backend='a2a' requires decode_context_parallel_size > 1.",
                {},
                where(deployment, "dcp_comm_backend"),
            )
        )
    refused = _context_sizes(section, tensor, pcp, dcp)
    if refused:
        problems.append(
            config_problem("dcp-not-divisible", refused, {"tp": tensor, "dcp": dcp, "pcp": pcp}, dcp_origin)
        )
    elif dcp > 1:
        problems.append(
            Problem(
                "dcp-unsupported",
                Stage.KV_CACHE_INIT,
                "AssertionError",
                section["context_parallel_error"]["dcp"],
                {"dcp": dcp},
                dcp_origin,
            )
        )
    if pcp > 1 and parallel.data > 1 and not section["pcp_with_dp"]:
        problems.append(
            config_problem(
                "pcp-with-dp",
                "PCP does not support data parallelism yet.",
                {"pcp": pcp, "dp": parallel.data},
                pcp_origin,
            )
        )
    elif pcp > 1 and not refused:
        problems.append(Problem("pcp-unsupported", Stage.KV_CACHE_INIT, "", "", {"pcp": pcp, "tp": tensor}, pcp_origin))
    return problems


def _context_sizes(section: Mapping[str, Any], tensor: int, pcp: int, dcp: int) -> str:
    """What ParallelConfig says about the combination; empty when it accepts it."""
    if section["dcp_text"] == "old":
        return f"tp_size={tensor} must be divisible bydcp_size={dcp}." if tensor % dcp else ""
    if pcp == 1:
        return f"tp_size={tensor} must be divisible by dcp_size={dcp}." if tensor % dcp else ""
    valid = sorted({1, pcp, tensor * pcp})
    if dcp in valid:
        return ""
    return (
        "When PCP is enabled, DCP must be disabled, span the PCP axis, or span the full TP x PCP axis. "
        f"Got TP={tensor}, PCP={pcp}, DCP={dcp}; valid DCP sizes are {valid}."
    )


def _numa(deployment: Deployment) -> list[Problem]:
    """NUMA lists without the switch that makes use of them."""
    flags = deployment.flags
    given = [dest for dest in ("numa_bind_nodes", "numa_bind_cpus") if flags.given(dest)]
    if not given or flags.get("numa_bind") is True:
        return []
    error = "numa_bind_nodes and numa_bind_cpus require numa_bind=True."
    return [config_problem("numa-bind-missing", error, {}, where(deployment, *given))]
