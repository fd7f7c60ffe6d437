"""Validators of config classes that no DeepSeek-V4 decision depends on: profiling, tracing, Mamba switches.

The same in all releases from 0.20.0 to 0.33.0, but for the names of backends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem
from dsv4check.resolve.flag_values import config_problem, where

_RAY = "Unable to use nsight profiling unless workers run with Ray."
_ENDPOINT = "collect_detailed_traces requires `--otlp-traces-endpoint` to be set."
_SSM = (
    "Stochastic rounding for Mamba cache requires the SSM cache to be float16. Please set it explicitly, by specifying "
    "`--mamba-ssm-cache-dtype float16`, or disable stochastic rounding by not specifying "
    "`--enable-mamba-cache-stochastic-rounding`."
)
_CVT = "Stochastic rounding for Mamba cache with triton backend requires compute capability 10.0"


def validator_problems(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """``config/parallel.py``, ``config/observability.py``, ``config/mamba.py`` and ``config/vllm.py``."""
    return [
        *_profiling(deployment),
        *_tracing(deployment),
        *_mamba_backend(deployment, section["mamba_backends"]),
        *_stochastic_rounding(deployment),
        *_replay(deployment),
        *_offload(deployment),
    ]


def _profiling(deployment: Deployment) -> list[Problem]:
    flags = deployment.flags
    executor = flags.values.get("distributed_executor_backend")
    uses_ray = "ray" in (executor, flags.values.get("data_parallel_backend"))
    if flags.get("ray_workers_use_nsight") is not True or uses_ray:
        return []
    return [_refusal(deployment, "ray_workers_use_nsight", _RAY)]


def _tracing(deployment: Deployment) -> list[Problem]:
    flags = deployment.flags
    modules = flags.values.get("collect_detailed_traces")
    if not modules or None in modules:
        return []
    if len(modules) > 1 and any("," in str(module) for module in modules):
        return [_refusal(deployment, "collect_detailed_traces", "Input should be 'model', 'worker' or 'all'")]
    if len(modules) == 1 and "," in str(modules[0]):
        # The text is split only after its parts were compared with the choices.
        error = "collect_detailed_traces.0: Input should be 'model', 'worker' or 'all'"
        return [_refusal(deployment, "collect_detailed_traces", error)]
    if flags.values.get("otlp_traces_endpoint"):
        return []
    return [_refusal(deployment, "collect_detailed_traces", _ENDPOINT)]


def _mamba_backend(deployment: Deployment, known: Sequence[str]) -> list[Problem]:
    name = deployment.flags.values.get("mamba_backend")
    if name is None or str(name).upper() in known:
        return []
    error = f"Unknown Mamba SSU backend: '{str(name).upper()}'. Valid options are: {', '.join(known)}."
    return [_refusal(deployment, "mamba_backend", error)]


def _stochastic_rounding(deployment: Deployment) -> list[Problem]:
    flags = deployment.flags
    dest = "enable_mamba_cache_stochastic_rounding"
    if flags.get(dest) is not True:
        return []
    sm = deployment.hardware.sm
    backend = str(flags.values.get("mamba_backend") or "triton").lower()
    if sm is not None and backend == "triton" and not sm.startswith("10."):
        return [_refusal(deployment, dest, _CVT)]
    if flags.values.get("mamba_ssm_cache_dtype") != "float16":
        return [_refusal(deployment, dest, _SSM)]
    return []


def _replay(deployment: Deployment) -> list[Problem]:
    if deployment.flags.get("use_replayssm") is not True:
        return []
    return [_refusal(deployment, "use_replayssm", "--use-replayssm is only supported for models with an SSM state.")]


def _offload(deployment: Deployment) -> list[Problem]:
    """``config/offload.py``: a group of layers to prefetch must hold the layers that are offloaded of it."""
    flags = deployment.flags
    size = flags.get("offload_group_size", 0)
    number = flags.get("offload_num_in_group", 1)
    if not isinstance(size, int) or not isinstance(number, int) or number <= size:
        return []
    if flags.values.get("offload_backend") != "prefetch" and size <= 0:
        return []
    error = f"offload_num_in_group ({number}) must be <= offload_group_size ({size})"
    dest = "offload_group_size" if flags.given("offload_group_size") else "offload_backend"
    return [_refusal(deployment, dest, error)]


def _refusal(deployment: Deployment, dest: str, error: str) -> Problem:
    data: dict[str, Any] = {"dest": dest, "flag": "--" + dest.replace("_", "-"), "said": error}
    return config_problem("config-validator", error, data, where(deployment, dest))
