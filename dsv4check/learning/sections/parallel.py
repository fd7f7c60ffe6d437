"""``parallel``: what a release checks about the parallel sizes, the launch's geometry and expert parallelism."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from ..release import Release
from ..source import LearningError, Refusal, Source, ancestors, names, refusal, refusals

_PARALLEL = "config/parallel.py"
_VALIDATOR = "ParallelConfig._validate_parallel_config"
_ENGINE_ARGS = "engine/arg_utils.py"
_CREATE = "EngineArgs.create_engine_config"
_MODELS = ("models/deepseek_v4/nvidia/model.py", "model_executor/models/deepseek_v4.py")
_MODEL_CLASS = "DeepseekV4ForCausalLM"


def learn(release: Release) -> dict[str, Any]:
    """The section of one release, from its text alone."""
    source = release.source
    return {
        **_context_parallel(source),
        **_launch(source),
        **_expert_balance(source),
        **_microbatches(source),
        **_model(source),
        "moonep": _moonep(source),
    }


def _one_of(place: str, node: ast.AST, wordings: Mapping[str, str]) -> tuple[str, Refusal]:
    """The value whose wording the code has, and the refusal that has it."""
    for part, value in wordings.items():
        found = refusal(node, part)
        if found is not None:
            return value, found
    raise LearningError(f"{place}: none of the messages {list(wordings)}")


def _context_parallel(source: Source) -> dict[str, Any]:
    """``ParallelConfig._validate_parallel_config``, ``VllmConfig.__post_init__`` and the sliding window's KV cache."""
    validator = source.get(_PARALLEL, _VALIDATOR)
    wording, _ = _one_of(
        f"{_PARALLEL} {_VALIDATOR}", validator, {"When PCP is enabled, DCP must be": "pcp", "bydcp_size={}": "old"}
    )
    path, place = "v1/kv_cache_interface.py", "SlidingWindowSpec.max_memory_usage_bytes"
    errors = {}
    for key, field in (("dcp", "decode_context_parallel_size"), ("pcp", "prefill_context_parallel_size")):
        errors[key] = next((r.message for r in refusals(source.get(path, place)) if field in r.test), None)
    if errors["dcp"] is None:
        raise LearningError(f"{path} {place}: decode context parallelism is not refused")
    return {
        "dcp_text": wording,
        "dcp_a2a_needs_dcp": refusal(validator, "requires decode_context_parallel_size > 1") is not None,
        "pcp_with_dp": refusal(validator, "PCP does not support data parallelism") is None,
        "pcp_needs_v2": _needs_v2_runner(source),
        "context_parallel_error": errors,
    }


def _needs_v2_runner(source: Source) -> bool:
    """True when the V1 runner is refused with prefill context parallelism: by name, or in the list of what V1 lacks."""
    path = "config/vllm.py"
    if refusal(source.get(path, "VllmConfig.__post_init__"), "Prefill context parallelism requires Model Runner V2"):
        return True
    lacking = source.find(path, "VllmConfig._get_v1_model_runner_unsupported_features")
    return lacking is not None and "prefill_context_parallel_size" in names(lacking)


def _launch(source: Source) -> dict[str, Any]:
    """``EngineArgs.create_engine_config`` (ranks of a multi-node launch) and ``vllm serve`` (load-balancing modes)."""
    create = source.get(_ENGINE_ARGS, _CREATE)
    command = "entrypoints/cli/serve.py ServeSubcommand.cmd"
    modes, _ = _one_of(
        command,
        source.get(*command.split()),
        {"more than one data parallel load balancing mode": "multi", "both external and hybrid": "two"},
    )
    return {
        "geometry": _geometry(create),
        "nnodes_counts_pcp": _counts_prefill_context(create),
        "external_lb_overrides_rank": _overrides_rank(create),
        "start_rank_zero_is_hybrid": _start_rank_zero(create),
        "multi_port_lb": modes == "multi",
    }


def _geometry(create: ast.AST) -> str:
    """The exception of the launch checks. Each class has wordings of its own, all of which must be there."""
    place = f"{_ENGINE_ARGS} {_CREATE}"
    uneven = [item for item in refusals(create) if "% self.nnodes" in item.test]
    if not uneven:
        raise LearningError(f"{place}: the division of the world by nnodes is not checked")
    wordings = {
        "AssertionError": (
            "nnodes > 1 is only supported with data_parallel_backend=mp",
            "must be divisible by nnodes=",
            "must be less than nnodes=",
            "data_parallel_size_local must be 1 or None",
            "data_parallel_size_local must be set to use data_parallel_hybrid_lb",
        ),
        "ValueError": (
            "requires `--data-parallel-backend mp`",
            "must evenly divide the total world size",
            "`--node-rank` must be between 0 and",
            "an external data-parallel rank requires",
            "`--data-parallel-hybrid-lb` requires",
        ),
    }
    exception = uneven[0].exception
    for part in wordings.get(exception, ("an AssertionError or a ValueError for nnodes",)):
        found = refusal(create, part)
        if found is None or found.exception != exception:
            raise LearningError(f"{place}: {exception} '{part}' is not there")
    return exception


def _assignments(node: ast.AST, name: str) -> list[ast.expr]:
    """Values of all assignments to a name or to an attribute of ``self``."""
    targets = (name, f"self.{name}")
    return [
        item.value
        for item in ast.walk(node)
        if isinstance(item, ast.Assign) and any(ast.unparse(target) in targets for target in item.targets)
    ]


def _counts_prefill_context(create: ast.AST) -> bool:
    values = _assignments(create, "world_size_within_dp")
    if not values:
        raise LearningError(f"{_ENGINE_ARGS} {_CREATE}: world_size_within_dp is not worked out")
    return any("prefill_context_parallel_size" in names(value) for value in values)


def _overrides_rank(create: ast.AST) -> bool:
    """True when the rank inferred from the node replaces one that was given."""

    def inferred(statement: ast.stmt) -> bool:
        values = _assignments(statement, "data_parallel_rank")
        return any("inferred_data_parallel_rank" in names(value) for value in values)

    for item in ast.walk(create):
        if not isinstance(item, ast.If) or not {"data_parallel_size", "data_parallel_external_lb"} <= names(item.test):
            continue
        for statement in item.body:
            if isinstance(statement, ast.Assign) and inferred(statement):
                return True
            if isinstance(statement, ast.If) and inferred(statement) and "data_parallel_rank" in names(statement.test):
                return False
    raise LearningError(f"{_ENGINE_ARGS} {_CREATE}: external load balancing does not infer data_parallel_rank")


def _start_rank_zero(create: ast.AST) -> bool:
    """True when ``--data-parallel-start-rank 0`` counts as given."""
    for item in ast.walk(create):
        if isinstance(item, ast.If) and {"data_parallel_start_rank", "headless"} <= names(item.test):
            return "data_parallel_start_rank is not None" in ast.unparse(item.test)
    raise LearningError(f"{_ENGINE_ARGS} {_CREATE}: data_parallel_start_rank does not turn hybrid load balancing on")


def _expert_balance(source: Source) -> dict[str, Any]:
    """Expert load balancing and its elastic form: ParallelConfig, the model's MoE layers and the V1 runner's step."""
    validator = source.get(_PARALLEL, _VALIDATOR)
    wording, _ = _one_of(
        f"{_PARALLEL} {_VALIDATOR}",
        validator,
        {
            "EPLB requires tensor, prefill-context, or data parallelism": "pcp",
            "EPLB requires tensor_parallel_size or data_parallel_size": "tp_dp",
        },
    )
    path = source.first(*_MODELS)
    takes_part = "MixtureOfExperts" in ancestors(source, path, _MODEL_CLASS)
    layer = "model_executor/layers/fused_moe/layer.py"
    _, even = _one_of(layer, source.tree(layer), {"EPLB currently only supports even distribution": "even"})
    return {
        "eplb_size_text": wording,
        "eplb_protocol": takes_part,
        "eplb_assert": "" if takes_part else _balancer_assertion(source),
        "eplb_even": even.exception,
        "eplb_fused_divisor": "tp" if _divides_by_tensor_size(source, path) else "none",
        "elastic_hybrid_only": _elastic_refuses_hybrid_only(source),
    }


def _balancer_assertion(source: Source) -> str:
    """What ``GPUModelRunner.eplb_step`` asserts about the model."""
    path, place = "v1/worker/gpu_model_runner.py", "GPUModelRunner.eplb_step"
    for item in ast.walk(source.get(path, place)):
        if isinstance(item, ast.Assert) and names(item.test) & {"is_mixture_of_experts", "_moe_model"}:
            return f"assert {ast.unparse(item.test)}"
    raise LearningError(f"{path} {place}: the model is not asserted to be a mixture of experts")


def _divides_by_tensor_size(source: Source, path: str) -> bool:
    """True when the layers without mega kernel want the physical experts to divide by the tensor-parallel size."""
    layer = source.get(path, "DeepseekV4MoE")
    return any("n_physical_experts % " in item.test and "tp_size" in item.test for item in refusals(layer))


def _elastic_refuses_hybrid_only(source: Source) -> bool:
    place = "ParallelConfig.__post_init__"
    found = refusal(source.get(_PARALLEL, place), "Elastic EP is not compatible with")
    if found is None or "data_parallel_hybrid_lb" not in found.test:
        raise LearningError(f"{_PARALLEL} {place}: elastic EP is not refused with hybrid load balancing")
    return "data_parallel_external_lb" not in found.test


def _microbatches(source: Source) -> dict[str, Any]:
    """Dual batch overlap: the all-to-all backends of ``VllmConfig.__post_init__``, thresholds of ParallelConfig."""
    path, place = "config/vllm.py", "VllmConfig.__post_init__"
    post_init = source.get(path, place)
    wording, found = _one_of(
        f"{path} {place}",
        post_init,
        {
            "all2all backends on this platform. {} is not supported.": "platform",
            "all2all backends. {} is not supported.": "three",
            "all2all backend. {} is not supported.": "two",
        },
    )
    if not found.message.startswith("Microbatching currently only supports the "):
        raise LearningError(f"{path} {place}: the refusal of microbatches has other words: {found.message}")
    thresholds = refusal(source.get(_PARALLEL, "ParallelConfig._verify_args"), "dbo_prefill_token_threshold must be at")
    return {
        "dbo_text": wording,
        "dbo_backends": _allowed(found.test, post_init, f"{path} {place}"),
        "dbo_threshold": thresholds is not None,
    }


def _allowed(test: str, function: ast.AST, place: str) -> list[str]:
    """The list that an assertion ``name in list`` compares with; of several, the one for NVIDIA's platform."""
    compared = ast.parse(test, mode="eval").body
    if isinstance(compared, ast.Compare):
        candidates: list[ast.expr] = [compared.comparators[0]]
        if isinstance(candidates[0], ast.Name):
            others = _rocm_branches(function)
            candidates = [
                value
                for value in _assignments(function, candidates[0].id)
                if not any(value in other for other in others)
            ]
        if len(candidates) == 1 and isinstance(candidates[0], ast.List):
            return [str(ast.literal_eval(item)) for item in candidates[0].elts]
    raise LearningError(f"{place}: the list of all-to-all backends for microbatches cannot be read")


def _rocm_branches(function: ast.AST) -> list[set[ast.AST]]:
    """Every node below an ``if`` that asks for another platform than CUDA."""
    return [
        {inner for statement in item.body for inner in ast.walk(statement)}
        for item in ast.walk(function)
        if isinstance(item, ast.If) and names(item.test) & {"is_rocm", "is_xpu", "is_cpu"}
    ]


def _model(source: Source) -> dict[str, Any]:
    """``ModelConfig.verify_with_parallel_config`` asks the registry for interfaces of the model's class."""
    bases = ancestors(source, source.first(*_MODELS), _MODEL_CLASS)
    if not bases:
        raise LearningError(f"{source.first(*_MODELS)} {_MODEL_CLASS}: no base classes")
    path, place = "config/model.py", "ModelConfig.verify_with_parallel_config"
    verify = source.get(path, place)
    if refusal(verify, "Pipeline parallelism is not supported for this model") is None:
        raise LearningError(f"{path} {place}: pipeline parallelism is not checked")
    asked = "enable_hc_sp" in names(verify)
    if asked and refusal(verify, "--enable-hc-sp is not supported for this model") is None:
        raise LearningError(f"{path} {place}: --enable-hc-sp is read but not refused")
    return {"pipeline": "SupportsPP" in bases, "hc_sp": asked and "SupportsHCSP" not in bases}


def _moonep(source: Source) -> bool:
    """True when ``VllmConfig.__post_init__`` refuses quantised models with the all-to-all backend moonep."""
    path, place = "config/vllm.py", "VllmConfig.__post_init__"
    if "moonep" not in source.literal(_PARALLEL, "All2AllBackend"):
        return False
    found = refusal(source.get(path, place), "moonep all2all backend currently supports unquantized")
    if found is None:
        raise LearningError(f"{path} {place}: moonep is a backend but quantised models are not refused")
    return True
