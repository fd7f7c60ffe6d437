"""Conditions of the kernels that replace the whole expert layer: DeepGEMM MegaMoE and FlashInfer MoE-EP.

In 0.29 to 0.31 FlashInfer's MoE-EP kernels share MegaMoE's path through the model; from 0.32 on they are
ordinary entries of the selection functions. The checks stand in ``DeepseekV4MoE.__init__``, in
``DeepseekV4MegaMoEExperts`` (whose device check runs after the weights are loaded up to 0.32, before that
from 0.33) and, for FlashInfer, in ``utils/flashinfer_moe_ep.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.resolution import Moe, Parallelism
from dsv4check.resolve.expert_format import ExpertFormat

_FLASHINFER: Final = "flashinfer_moe_ep"
_DEEP_GEMM: Final = "deep_gemm_mega_moe"
_FLASHINFER_CAPABILITIES: Final = frozenset({(10, 0), (10, 3)})
_TILE: Final = 128
"""MegaMoE's tile: hidden and intermediate sizes must be multiples of it."""


def uses_mega_moe(moe: Moe | None, parallel: Parallelism | None) -> bool:
    """True when the experts are MegaMoE's own layer, whose parameters have names of their own.

    Such a kernel is called as it was asked for (``DEEP_GEMM_MEGA_MOE``, and in 0.29 to 0.31 FlashInfer's
    ``FLASHINFER_MOE_EP_MEGA_...``); no kernel that the selection functions choose has ``MEGA`` in its name. Where
    something stands in the kernel's way the layer is still the one that would be built.
    """
    if moe is None:
        return False
    if moe.backend is not None:
        return "MEGA" in moe.backend
    return moe.requested == _DEEP_GEMM and parallel is not None and parallel.expert_parallel


def mega_problems(
    deployment: Deployment,
    section: Mapping[str, Any],
    name: str,
    experts: ExpertFormat,
    parallel: Parallelism,
    origin: Origin | None,
) -> tuple[Problem, ...]:
    """Everything that stops this launch on the way to the kernel, in the order in which vLLM checks it."""
    mega = section["mega"]
    model = deployment.model
    capability = deployment.hardware.capability
    data: dict[str, Any] = {
        "requested": name,
        "gpu": deployment.hardware.name or "this GPU",
        "sm": deployment.hardware.sm,
        "ranks": parallel.expert_parallel_size,
    }

    def problem(code: str, exception: str, error: str, stage: Stage = Stage.MODEL_INIT, **more: Any) -> Problem:
        return Problem(code, stage, exception, error, {**data, **more}, origin)

    found: list[Problem] = []
    if not parallel.expert_parallel and mega["requires_ep"]:
        error = (
            "DeepSeek V4 MegaMoE currently requires expert parallel. Enable it with "
            "--enable-expert-parallel, or pick a different moe backend."
        )
        found.append(problem("mega-moe-needs-ep", "NotImplementedError", error))
    if name.startswith(_FLASHINFER):
        found += _flashinfer(deployment, name, capability, problem)
    scoring = model.get("scoring_func", "sqrtsoftplus")
    if scoring != "sqrtsoftplus":
        error = "DeepSeek V4 MegaMoE currently supports sqrtsoftplus routing only."
        found.append(problem("mega-moe-routing", "NotImplementedError", error, scoring=scoring))
    if mega["norm_check"] and model.get("norm_topk_prob") is False:
        error = "DeepSeek V4 MegaMoE requires normalized top-k probabilities."
        found.append(problem("mega-moe-norm", "NotImplementedError", error))
    if experts.stored == "fp8" and experts.native:
        found.append(_fp8_experts(problem, name, checked=bool(mega["fp4_check"])))
    routed = model.integer("n_routed_experts")
    eplb = deployment.flags.get("enable_eplb") is True
    if routed and not eplb and parallel.expert_parallel and routed % parallel.expert_parallel_size:
        ranks = parallel.expert_parallel_size
        error = ""
        if mega["experts_text"]:
            error = f"n_physical_experts={routed} must be divisible by ep_size={ranks}. Adjust num_redundant_experts."
        found.append(problem("mega-moe-experts-uneven", "AssertionError", error, experts=routed))
    if experts.stored == "nvfp4":
        found += _nvfp4_experts(problem, name)
    found += _runtime(deployment, mega, name, capability, problem)
    return tuple(found)


def _flashinfer(
    deployment: Deployment, name: str, capability: tuple[int, int] | None, problem: Callable[..., Problem]
) -> list[Problem]:
    """``validate_fi_moe_ep_config`` of 0.29 to 0.31."""
    found: list[Problem] = []
    if capability is not None and capability not in _FLASHINFER_CAPABILITIES:
        error = (
            f"moe_backend='{name}' is only supported on compute capability 10.0, 10.3 (SM100/SM103), "
            f"but this device is {capability[0]}.{capability[1]}."
        )
        found.append(problem("moe-ep-device", "ValueError", error))
    if deployment.flags.get("enable_eplb") is True:
        error = f"EPLB is not supported with moe_backend='{name}'"
        found.append(problem("moe-ep-eplb", "NotImplementedError", error))
    return found


def _fp8_experts(problem: Callable[..., Problem], name: str, *, checked: bool) -> Problem:
    if checked:
        error = (
            "DeepSeek V4 MegaMoE only supports fp4 experts; got expert_dtype='fp8'. "
            f"Drop --kernel-config moe_backend={name} for this checkpoint."
        )
        return problem("mega-moe-fp8-experts", "NotImplementedError", error)
    return problem("mega-moe-fp8-experts", "ValueError", "", Stage.WEIGHT_LOAD)


def _nvfp4_experts(problem: Callable[..., Problem], name: str) -> list[Problem]:
    if name == _DEEP_GEMM:
        return [problem("mega-moe-nvfp4-experts", "ValueError", "", Stage.WEIGHT_LOAD)]
    if name == "flashinfer_moe_ep_mega_deep_gemm":
        error = (
            "NVFP4-quantized expert checkpoint requires moe_backend=flashinfer_moe_ep_mega_cutedsl, got a "
            "backend using megakernel 'deep_gemm_mega'"
        )
        return [problem("moe-ep-nvfp4-experts", "ValueError", error)]
    return []


def _runtime(
    deployment: Deployment,
    mega: Mapping[str, Any],
    name: str,
    capability: tuple[int, int] | None,
    problem: Callable[..., Problem],
) -> list[Problem]:
    """The kernel's own conditions: GPU family and tile size."""
    found: list[Problem] = []
    stage = Stage(mega["device_stage"])
    if not name.startswith(_FLASHINFER) and capability is not None and capability[0] != 10:
        error = "DeepGEMM MegaMoE requires SM100 GPUs."
        found.append(problem("mega-moe-device", "NotImplementedError", error, stage))
    hidden = deployment.model.integer("hidden_size")
    inter = deployment.model.integer("moe_intermediate_size")
    if (hidden and hidden % _TILE) or (inter and inter % _TILE):
        error = "DeepGEMM MegaMoE requires hidden and intermediate sizes to be multiples of 128."
        found.append(problem("mega-moe-sizes", "ValueError", error, stage, hidden=hidden, intermediate=inter))
    return found
