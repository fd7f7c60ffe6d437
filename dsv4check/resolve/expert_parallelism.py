"""Expert parallelism beside the kernels: load balancing, elastic size, microbatches, all-to-all names.

``ParallelConfig`` checks most of it; the model's MoE layers check that the experts divide evenly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.resolution import Parallelism
from dsv4check.resolve.flag_values import config_problem, where


def expert_problems(deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism) -> list[Problem]:
    """All problems of this area, in ParallelConfig's order."""
    return [
        *_elastic(deployment, section, parallel),
        *_eplb(deployment, section, parallel),
        *_microbatches(deployment, section),
        *_all2all(deployment, section),
    ]


def _eplb(deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism) -> list[Problem]:
    """Expert load balancing: ParallelConfig's conditions, then the model's."""
    flags = deployment.flags
    origin = where(deployment, "enable_eplb", "eplb_config")
    redundant = flags.section("eplb_config").get("num_redundant_experts", 0)
    redundant = redundant if isinstance(redundant, int) else 0
    if flags.get("enable_eplb") is not True:
        if not redundant:
            return []
        error = (
            f"num_redundant_experts is set to {redundant} but EPLB is not enabled. "
            "Either enable EPLB or unset num_redundant_experts."
        )
        return [config_problem("eplb-redundant-without-eplb", error, {"redundant": redundant}, origin)]
    if not parallel.expert_parallel:
        return [config_problem("eplb-needs-ep", "enable_expert_parallel must be True to use EPLB.", {}, origin)]
    if parallel.expert_parallel_size <= 1:
        return [config_problem("eplb-single-rank", _eplb_size_error(section, parallel), {}, origin)]
    if not section["eplb_protocol"]:
        # Nor does the model make room for redundant experts, so their number is never divided.
        return [
            Problem(
                "eplb-not-implemented",
                Stage.WARMUP,
                "AssertionError",
                "",
                {"assertion": section["eplb_assert"]},
                origin,
            )
        ]
    uneven = _uneven_experts(deployment, section, parallel, redundant, origin)
    return [] if uneven is None else [uneven]


def _eplb_size_error(section: Mapping[str, Any], parallel: Parallelism) -> str:
    if section["eplb_size_text"] == "pcp":
        return (
            "EPLB requires tensor, prefill-context, or data parallelism, "
            f"but got TP={parallel.tensor}, PCP={parallel.prefill_context}, DP={parallel.data}."
        )
    return (
        "EPLB requires tensor_parallel_size or data_parallel_size to be greater than 1, "
        f"but got TP={parallel.tensor},DP={parallel.data}."
    )


def _uneven_experts(
    deployment: Deployment,
    section: Mapping[str, Any],
    parallel: Parallelism,
    redundant: int,
    origin: Origin | None,
) -> Problem | None:
    """EPLB wants the same number of physical experts on every rank."""
    routed = deployment.model.integer("n_routed_experts")
    if routed is None:
        return None
    physical = routed + redundant
    ranks = parallel.expert_parallel_size
    if section["eplb_fused_divisor"] == "tp" and physical % parallel.tensor:
        exception = "AssertionError"
        error = (
            f"n_physical_experts={physical} must be divisible by tp_size={parallel.tensor}. "
            "Adjust num_redundant_experts."
        )
    elif physical % ranks:
        exception = section["eplb_even"]
        error = "EPLB currently only supports even distribution of experts across ranks."
        if exception == "ValueError":
            error += f" Got {physical} experts and {ranks} EP ranks."
    else:
        return None
    data = {"physical": physical, "ranks": ranks, "redundant": redundant, "fitting": -routed % ranks}
    return Problem("eplb-experts-uneven", Stage.MODEL_INIT, exception, error, data, origin)


def _elastic(deployment: Deployment, section: Mapping[str, Any], parallel: Parallelism) -> list[Problem]:
    """``--enable-elastic-ep``: the conditions ParallelConfig checks first."""
    flags = deployment.flags
    if flags.get("enable_elastic_ep") is not True:
        return []
    origin = where(deployment, "enable_elastic_ep")
    if flags.get("enable_eplb") is not True:
        error = "Elastic EP is only supported with enable_eplb=True."
        return [config_problem("elastic-ep-refused", error, {}, origin)]
    if parallel.pipeline > 1:
        error = f"Elastic EP is not supported with pipeline parallelism (pipeline_parallel_size={parallel.pipeline})."
        return [config_problem("elastic-ep-refused", error, {}, origin)]
    return []


def _microbatches(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """Dual batch overlap: only some all-to-all backends can run two microbatches."""
    flags = deployment.flags
    ubatch = flags.get("ubatch_size", 0)
    dbo = flags.get("enable_dbo") is True
    if not dbo and not (isinstance(ubatch, int) and ubatch > 1):
        return []
    if deployment.hardware.vendor not in (None, "nvidia"):
        return []
    origin = where(deployment, "enable_dbo", "ubatch_size")
    problems: list[Problem] = []
    count = 2 if dbo else ubatch
    thresholds = [flags.get("dbo_decode_token_threshold", 32), flags.get("dbo_prefill_token_threshold", 512)]
    if section["dbo_threshold"] and min(thresholds) < count:
        error = (
            "dbo_decode_token_threshold and dbo_prefill_token_threshold must be at least "
            f"the number of microbatches ({count})."
        )
        problems.append(config_problem("dbo-threshold", error, {"count": count}, origin))
    backend = str(flags.get("all2all_backend", "allgather_reducescatter"))
    if backend in ("naive", "pplx"):
        backend = "allgather_reducescatter"
    allowed = section["dbo_backends"]
    if backend not in allowed:
        error = f"Assertion failed, {_dbo_error(section['dbo_text'], backend, allowed)}"
        data = {"backend": backend, "allowed": ", ".join(allowed)}
        problems.append(config_problem("dbo-all2all", error, data, origin))
    return problems


def _dbo_error(wording: str, backend: str, allowed: list[str]) -> str:
    if wording == "platform":
        return (
            f"Microbatching currently only supports the {', '.join(allowed)} all2all backends "
            f"on this platform. {backend} is not supported."
        )
    names = ", ".join(allowed[:-1]) + ("," if len(allowed) > 2 else "") + f" and {allowed[-1]}"
    plural = "s" if wording == "three" else ""
    return f"Microbatching currently only supports the {names} all2all backend{plural}. {backend} is not supported."


def _all2all(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """Names that are no longer there, and MoonEP, which takes unquantised models only."""
    flags = deployment.flags
    backend = flags.values.get("all2all_backend")
    origin = where(deployment, "all2all_backend")
    if backend in ("naive", "pplx"):
        return [
            Problem(
                "all2all-removed",
                Stage.ENGINE_CONFIG,
                "",
                f"The '{backend}' all2all backend has been removed. Falling back to 'allgather_reducescatter'.",
                {"backend": backend},
                origin,
            )
        ]
    quantised = isinstance(deployment.model.raw.get("quantization_config"), Mapping)
    if backend == "moonep" and section["moonep"] and quantised:
        error = "The moonep all2all backend currently supports unquantized BF16 models only"
        return [config_problem("moonep-quantized", error, {}, origin)]
    return []
