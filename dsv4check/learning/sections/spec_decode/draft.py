"""How the runners build the draft model: overrides, pipeline, weights of its experts, and who has a DSpark draft.

Sources: ``v1/spec_decode/llm_base_proposer.py`` (V1 runner), ``v1/worker/gpu/spec_decode/`` (V2 runner), the V4 models
under ``models/deepseek_v4/`` (``model_executor/models/deepseek_v4*.py`` before), ``config/speculative.py``.
"""

from __future__ import annotations

import ast
from typing import Any, Final

from ...source import LearningError, Source, names, strings
from .config import frozen_quantization, learn_dspark_tokens
from .fields import CONFIG, has_field, methods
from .queries import calls, class_, function, keyword, raised, text
from .vendors import files_by_vendor

V1_PROPOSER: Final = "v1/spec_decode/llm_base_proposer.py"
V1_RUNNER: Final = "v1/worker/gpu_model_runner.py"
V2_FOLDER: Final = "v1/worker/gpu/spec_decode"
V4_FOLDER: Final = "models/deepseek_v4"
MTP_CLASS: Final = "DeepSeekV4MTP"
DSPARK_CLASS: Final = "DSparkDeepseekV4ForCausalLM"

_LOADERS: Final = {
    "mtp": (f"{V2_FOLDER}/eagle/utils.py", "load_eagle_model"),
    "dspark": (f"{V2_FOLDER}/dspark/utils.py", "load_dspark_model"),
}
"""Loaders of the V2 runner. MTP's speculator calls the one that Eagle's does."""

_TOP_TOKENS: Final = "get_top_tokens"


def target_path(source: Source) -> str:
    """File of the V4 target model."""
    return source.first(f"{V4_FOLDER}/nvidia/model.py", "model_executor/models/deepseek_v4.py")


def mtp_path(source: Source) -> str:
    """File of the V4 MTP draft."""
    return source.first(f"{V4_FOLDER}/nvidia/mtp.py", "model_executor/models/deepseek_v4_mtp.py")


def dspark_path(source: Source) -> str | None:
    """File of the V4 DSpark draft on NVIDIA GPUs; None where the method does not exist."""
    return f"{V4_FOLDER}/nvidia/dspark.py" if "dspark" in methods(source) else None


def learn_overrides(source: Source) -> dict[str, Any]:
    """``draft_overrides``: which keys of the speculative config reach the draft, by runner."""
    drafts = ["mtp", *(["dspark"] if dspark_path(source) else [])]
    v1 = _local_argmax(source, V1_PROPOSER)
    v2 = _local_argmax(source, f"{V2_FOLDER}/speculator.py") if source.has(f"{V2_FOLDER}/speculator.py") else {}
    if has_field(source, "kv_cache_dtype"):
        proposer = function(source, V1_PROPOSER, "SpecDecodeBaseProposer._create_draft_vllm_config")
        reached = [name for name in drafts if _v1_drafts(source, name) and _reads(proposer, "kv_cache_dtype")]
        v1 |= {"kv_cache_dtype": reached} if reached else {}
        reached = [name for name in drafts if loader_reads_key(source, name, "kv_cache_dtype")]
        v2 |= {"kv_cache_dtype": reached} if reached else {}
    return {"draft_overrides": {"v1": v1, "v2": v2}}


def v2_loader(source: Source, method: str) -> ast.FunctionDef:
    """The V2 runner's function that builds the draft of a method."""
    return function(source, *_LOADERS[method])


def loader_reads_key(source: Source, method: str, key: str) -> bool:
    """True when the V2 runner's loader of a method takes this key of the speculative config for its draft."""
    loader = v2_loader(source, method)
    if _reads(loader, key):
        return True
    if not calls(loader, "apply_draft_overrides"):
        return False
    function(source, CONFIG, "SpeculativeConfig.apply_draft_overrides")
    return key in strings(source.get(CONFIG, "_DRAFT_VLLM_CONFIG_OVERRIDES"))


def _reads(node: ast.AST, key: str) -> bool:
    """True when the code reads this attribute."""
    return any(isinstance(item, ast.Attribute) and item.attr == key for item in ast.walk(node))


def _v1_drafts(source: Source, method: str) -> bool:
    """True when the V1 runner has a proposer for the method: its own class, or Eagle's for MTP."""
    runner = names(source.tree(V1_RUNNER))
    if method == "mtp":
        eagle = function(source, CONFIG, "SpeculativeConfig.use_eagle")
        return "EagleProposer" in runner and method in strings(eagle)
    return any(name.lower() == f"{method}proposer" for name in runner)


def _local_argmax(source: Source, path: str) -> dict[str, Any]:
    """``local_argmax``: is the option refused for a draft without its method, always or only with greedy drafting.

    Empty where the runner does not look at the option, or where every V4 draft has the method.
    """
    if not source.has(path) or "use_local_argmax_reduction" not in names(source.tree(path)):
        return {}
    drafts = [(mtp_path(source), MTP_CLASS), *((path, DSPARK_CLASS) for path in [dspark_path(source)] if path)]
    if all(_TOP_TOKENS in names(class_(source, *place)) | _defines(class_(source, *place)) for place in drafts):
        return {}
    tree = source.tree(path)
    refusals = raised(tree, f"does not implement {_TOP_TOKENS}")
    if not refusals:
        raise LearningError(f"{path}: expected use_local_argmax_reduction to need {_TOP_TOKENS}")
    first = raised(tree, "use_local_argmax_reduction is not compatible with draft_sample_method='probabilistic'")
    return {"local_argmax": "greedy" if first else "any"}


def learn_rocm_top_tokens(source: Source) -> dict[str, Any]:
    """``draft_top_tokens_rocm``: methods whose draft class for ROCm has what use_local_argmax_reduction needs."""
    places = {"mtp": (f"{V4_FOLDER}/amd/mtp.py", MTP_CLASS), "dspark": (f"{V4_FOLDER}/amd/dspark.py", DSPARK_CLASS)}
    there = {method: source.find(*place) for method, place in places.items() if source.has(place[0])}
    found = [name for name, node in there.items() if isinstance(node, ast.ClassDef) and _TOP_TOKENS in _defines(node)]
    return {"draft_top_tokens_rocm": found}


def _defines(node: ast.ClassDef) -> set[str]:
    return {item.name for item in node.body if isinstance(item, ast.FunctionDef)}


def learn_pipeline(source: Source) -> dict[str, Any]:
    """``draft_pipeline``: does the draft's own parallel config refuse a pipeline that its target supports."""
    if "SupportsPP" not in _bases(source, target_path(source), "DeepseekV4ForCausalLM"):
        return {"draft_pipeline": "target_refused"}
    place = "SpeculativeConfig.create_draft_parallel_config"
    made = calls(function(source, CONFIG, place), "ParallelConfig")
    size = keyword(made[0], "pipeline_parallel_size") if len(made) == 1 else None
    if isinstance(size, ast.Constant) and size.value == 1:
        return {"draft_pipeline": "supported"}
    if size is None or ast.unparse(size) != "target_parallel_config.pipeline_parallel_size":
        raise LearningError(f"{CONFIG} {place}: expected the draft's pipeline_parallel_size")
    supported = "SupportsPP" in _bases(source, mtp_path(source), MTP_CLASS)
    return {"draft_pipeline": "supported" if supported else "refused"}


def _bases(source: Source, path: str, name: str) -> set[str]:
    return {ast.unparse(base) for base in class_(source, path, name).bases}


def learn_weights(source: Source) -> dict[str, Any]:
    """``draft_experts`` and ``draft_shared_padding``: parameters the drafts' loaders write to, and how."""
    return {"draft_experts": _expert_parameters(source), "draft_shared_padding": shared_expert_padding(source)}


def _expert_parameters(source: Source) -> str:
    """The level between ``experts`` and its fused weights in the names of parameters; ``flat`` without one."""
    path, name = "model_executor/layers/fused_moe/layer.py", "fused_moe_make_expert_params_mapping"
    option = "routed_experts_prefix"
    mapping = function(source, path, name)
    arguments = mapping.args.args
    drafts = [item for item in (mtp_path(source), dspark_path(source)) if item]
    for draft in drafts:
        used = calls(source.tree(draft), name) or calls(source.tree(draft), "make_expert_params_mapping")
        if not used:
            raise LearningError(f"{draft} load_weights: expected {name}")
        if any(keyword(call, option) is not None for call in used):
            raise LearningError(f"{draft} load_weights: {option} is given, expected its default")
    defaults = dict(zip([item.arg for item in reversed(arguments)], reversed(mapping.args.defaults), strict=False))
    if option in defaults:
        level = text(defaults[option])
        if level is None:
            raise LearningError(f"{path} {name}: expected a default of {option}")
        return level or "flat"
    flat = source.find(path, "FusedMoE.make_expert_params_mapping")
    if flat is None or not any(item.startswith("experts.") and item.endswith("w13_") for item in strings(flat)):
        raise LearningError(f"{path} {name}: expected {option}, or names of the form experts.w13_")
    return "flat"


def shared_expert_padding(source: Source) -> str:
    """``missing`` when the target's loader pads its shared expert to whole blocks and a draft's loader does not."""
    pad = "_pad_shared_expert_weight"
    target = names(source.tree(target_path(source)))
    if pad not in target:
        other = sorted(name for name in target if "pad" in name and "shared" in name)
        if other:
            raise LearningError(f"{target_path(source)} load_weights: expected {pad}, got {', '.join(other)}")
        return "as_target"
    drafts = [item for item in (mtp_path(source), dspark_path(source)) if item]
    return "as_target" if all(pad in names(source.tree(draft)) for draft in drafts) else "missing"


def learn_dspark(source: Source) -> dict[str, Any]:
    """``dspark``: numbers of tokens, quantisation and vendors; absent where the method does not exist."""
    path = dspark_path(source)
    if path is None:
        return {}
    vendors = files_by_vendor(source, V4_FOLDER, DSPARK_CLASS)
    probabilistic = [vendor for vendor, file in vendors.items() if _has_token_map(source, file)]
    return {
        "dspark": {
            **learn_dspark_tokens(source),
            "frozen_quantization": frozen_quantization(source, v2_loader(source, "dspark")),
            "vendors": list(vendors),
            "probabilistic_vendors": probabilistic,
        }
    }


def _has_token_map(source: Source, path: str) -> bool:
    """True when the draft has the attribute that probabilistic drafting reads from it."""
    attribute = "draft_id_to_target_id"
    reader = f"{V2_FOLDER}/dspark/speculator.py"
    if not _reads(source.tree(reader), attribute):
        raise LearningError(f"{reader}: expected probabilistic drafting to read {attribute}")
    return attribute in names(class_(source, path, DSPARK_CLASS))
