"""Whether the expert weights of a checkpoint fit the parameters a release builds for them.

Two things decide it: the format the release takes the experts for (``resolve/expert_format.py``), and whether
tensor parallelism cuts block-quantised FP8 weights at block borders. The routed experts are cut by the
FusedMoE layer, the shared expert by two ordinary linear layers (``validate_fp8_block_shape``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Parallelism
from dsv4check.resolve.expert_format import ExpertFormat, weight_block

_NO_WEIGHTS: Final = "dummy"
"""Load format that never opens the checkpoint."""


def weight_problems(
    deployment: Deployment, facts: ReleaseFacts, experts: ExpertFormat, parallel: Parallelism
) -> tuple[Problem, ...]:
    """Problems of the checkpoint's quantisation with this release and this tensor parallelism."""
    section = facts.section("moe")
    problems = [
        *_flag(deployment, section, experts),
        *_online_config(deployment, section, experts),
        *_shared_expert(deployment, section, experts, parallel),
        *_routed_block(deployment, section, experts, parallel),
        *_misread(deployment, experts),
    ]
    return tuple(problems)


def _flag(deployment: Deployment, section: Mapping[str, Any], experts: ExpertFormat) -> list[Problem]:
    """``--quantization``: the checkpoint's own method wins, except where the release refuses the pair."""
    value = deployment.flags.values.get("quantization")
    if not isinstance(value, str) or not experts.native or value in ("fp8", "deepseek_v4_fp8"):
        return []
    use = deployment.flags.use("quantization")
    origin = use.origin if use is not None else None
    data = {"value": value, "method": experts.method}
    stage = Stage.ENGINE_CONFIG
    if value in section.get("quantization_refused", ()):
        error = (
            "Setting `quantization_config` for online quantization when the model checkpoint already has a "
            "`quantization_config` is not supported"
        )
        return [Problem("online-quantization-refused", stage, "ValidationError", error, data, origin)]
    if value in section.get("quantization_taken", ()):
        return []
    return [Problem("quantization-flag-ignored", stage, "", "", data, origin)]


def _online_config(deployment: Deployment, section: Mapping[str, Any], experts: ExpertFormat) -> list[Problem]:
    """``--quantization-config`` on a quantised checkpoint: composed with it from 0.30 on, unused before."""
    value = deployment.flags.values.get("quantization_config")
    if not section.get("online_composed") or not isinstance(value, Mapping) or not experts.native:
        return []
    if any(value.get(key) is not None for key in ("linear", "moe", "targets")):
        return []
    use = deployment.flags.use("quantization_config")
    error = (
        "OnlineQuantizationConfig requires at least one of quantization_config.linear, quantization_config.moe, or "
        "quantization_config.targets to be set."
    )
    origin = use.origin if use is not None else None
    return [Problem("quantization-config-empty", Stage.ENGINE_CONFIG, "ValidationError", error, {}, origin)]


def schema_problem(deployment: Deployment) -> Problem:
    """``--quantization humming``, which does overrule the checkpoint's method.

    humming-kernels has weight schemas by quant_method, and none for the name V4's config was given by then.
    """
    use = deployment.flags.use("quantization")
    error = "unsupported weight quant_method: deepseek_v4_fp8"
    data = {"value": deployment.flags.get("quantization")}
    origin = use.origin if use is not None else None
    return Problem("quantization-without-schema", Stage.MODEL_INIT, "ValueError", error, data, origin)


def _shared_expert(
    deployment: Deployment, section: Mapping[str, Any], experts: ExpertFormat, parallel: Parallelism
) -> list[Problem]:
    """The shared expert's down projection is cut into ``size / TP`` columns, whole blocks only.

    Releases that pad the shard (``shared_expert_padded``) build it anyway (``resolve/draft.py`` looks at what their
    drafts' loaders do about it).
    """
    block = weight_block(deployment.model)
    inter = deployment.model.integer("moe_intermediate_size")
    shared = deployment.model.integer("n_shared_experts")
    tensor = parallel.tensor
    padded = section.get("shared_expert_padded")
    if padded or not experts.native or block is None or not inter or not shared or tensor == 1:
        return []
    size = inter * shared
    if size % tensor or (size // tensor) % block[1] == 0:
        return []
    share = size // tensor
    data = {
        "size": size,
        "inter": inter,
        "shared": shared,
        "tp": tensor,
        "share": share,
        "block": block[1],
        "fitting": _largest_fitting(size, block[1], tensor),
    }
    origin = _tensor_origin(deployment)
    error = f"Weight input_size_per_partition = {share} is not divisible by weight quantization block_k = {block[1]}."
    return [Problem("shared-expert-block", Stage.MODEL_INIT, "ValueError", error, data, origin)]


def cut_inside_blocks(deployment: Deployment, experts: ExpertFormat, parallel: Parallelism) -> bool:
    """True when tensor parallelism cuts block-quantised FP8 experts inside a block.

    Without expert parallelism every rank of TP x DP holds a slice of each expert.
    """
    block = weight_block(deployment.model)
    inter = deployment.model.integer("moe_intermediate_size")
    if experts.name != "fp8" or not experts.native or block is None or not inter or parallel.expert_parallel:
        return False
    ranks = parallel.tensor * parallel.data
    return inter % ranks == 0 and (inter // ranks) % block[0] != 0


def _routed_block(
    deployment: Deployment, section: Mapping[str, Any], experts: ExpertFormat, parallel: Parallelism
) -> list[Problem]:
    """``Fp8MoEMethod.create_weights`` before the release that refines the block scales instead."""
    if not section.get("fp8_expert_block_checked") or not cut_inside_blocks(deployment, experts, parallel):
        return []
    inter = deployment.model.integer("moe_intermediate_size") or 0
    block = (weight_block(deployment.model) or (1, 1))[0]
    ranks = parallel.tensor * parallel.data
    share = inter // ranks
    error = (
        f"The output_size of gate's and up's weight = {share} is not divisible by "
        f"weight quantization block_n = {block}."
    )
    data = {
        "inter": inter,
        "ranks": ranks,
        "share": share,
        "block": block,
        "fitting": _largest_fitting(inter, block, ranks),
    }
    origin = _tensor_origin(deployment)
    return [Problem("fp8-expert-block", Stage.MODEL_INIT, "ValueError", error, data, origin)]


def _misread(deployment: Deployment, experts: ExpertFormat) -> list[Problem]:
    """A release that knows nothing of the format builds MXFP4 parameters, and the tensors do not fit."""
    if experts.stored is None or experts.name == experts.stored or not experts.native:
        return []
    if deployment.flags.get("load_format") == _NO_WEIGHTS:
        return []
    data = {"stored": experts.stored, "read": experts.name}
    return [Problem("experts-misread", Stage.WEIGHT_LOAD, "", "", data)]


def _largest_fitting(size: int, block: int, below: int) -> int:
    """The largest number of ranks under ``below`` that cuts ``size`` into whole blocks."""
    fits = (ranks for ranks in range(below - 1, 0, -1) if size % ranks == 0 and (size // ranks) % block == 0)
    return next(fits, 1)


def _tensor_origin(deployment: Deployment) -> Origin | None:
    use = deployment.flags.use("tensor_parallel_size")
    return use.origin if use is not None else None
