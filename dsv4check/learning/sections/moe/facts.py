"""What the text of a release says about V4's experts: formats, weights, MegaMoE."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from ...source import LearningError, Source, names, refusal, refusals, strings

MODELS: Final = ("models/deepseek_v4/nvidia/model.py", "model_executor/models/deepseek_v4.py")
_FORMATS: Final = ("models/deepseek_v4/quant_config.py", "model_executor/models/deepseek_v4.py")
_FORMAT_CLASS: Final = "DeepseekV4FP8Config"
_KERNELS: Final = "config/kernel.py"
_MEGA: Final = "model_executor/layers/fused_moe/deep_gemm_mega_moe.py"


def text_facts(source: Source) -> dict[str, Any]:
    """Every key of the section that needs no running code."""
    choices = source.literal(_KERNELS, "MoEBackend")
    own = _own_exchange(source, choices)
    facts = {
        "choices": choices,
        **_formats(source),
        "draft_moe_backend": _draft_backend_passed(source),
        "fp8_expert_block_checked": _block_checked(source),
        "mega": _mega(source, choices),
        "online_composed": "online_quantization_config"
        in names(source.get("model_executor/model_loader/weight_utils.py", "get_quant_config")),
        "shared_expert_padded": _shared_expert_padded(source),
    }
    return {**facts, "own_all2all": own} if own else facts


def _formats(source: Source) -> dict[str, bool]:
    """What V4's quantisation config looks at to tell the experts' formats apart."""
    path = source.first(*_FORMATS)
    method = source.get(path, f"{_FORMAT_CLASS}.get_quant_method")
    if "Mxfp4MoEMethod" not in names(method):
        raise LearningError(f"{path} {_FORMAT_CLASS}.get_quant_method: MXFP4 experts have no Mxfp4MoEMethod any more")
    return {
        "expert_dtype_read": "expert_dtype" in names(method),
        "nvfp4_read": "moe_quant_algo" in names(method),
        "quark_claimed": _quark_claimed(source.get(path, f"{_FORMAT_CLASS}.override_quantization_method")),
    }


def _quark_claimed(override: ast.AST) -> bool:
    """True when checkpoints whose method is ``quark`` can become V4's own method: not turned away, and accepted."""
    asked = [item for item in ast.walk(override) if isinstance(item, ast.If) and "quark" in strings(item.test)]
    for item in asked:
        first = item.body[0]
        turned_away = isinstance(first, ast.Return) and ast.unparse(first) == "return None"
        negated = any(isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) for part in ast.walk(item.test))
        if turned_away and not negated:
            return False
    return bool(asked)


def _draft_backend_passed(source: Source) -> bool:
    """True when the V2 runner's loader of MTP drafts passes the draft's own ``moe_backend`` on."""
    load = names(source.get("v1/worker/gpu/spec_decode/eagle/utils.py", "load_eagle_model"))
    if "apply_draft_overrides" not in load:
        return "moe_backend" in load
    path = "config/speculative.py"
    overrides = source.get(path, "SpeculativeConfig.apply_draft_overrides")
    # The fields stand in a constant beside the class.
    tables = [
        table for name in names(overrides) if isinstance(table := source.find(path, name), ast.Assign | ast.AnnAssign)
    ]
    return any("moe_backend" in strings(node) for node in [overrides, *tables])


def _block_checked(source: Source) -> bool:
    """True when FP8 experts may not be cut inside a block of their scales, whatever the kernel.

    ``Fp8MoEMethod.create_weights`` checks it, itself or through a function; releases that can refine the scales make
    the check depend on that.
    """
    path, place = "model_executor/layers/quantization/fp8.py", "Fp8MoEMethod.create_weights"
    create = source.get(path, place)
    if "weight_scale_refine" in names(create):
        return False
    helper = "validate_fp8_block_shape_moe"
    if helper in names(create):
        create = source.get("model_executor/layers/quantization/utils/fp8_utils.py", helper)
    if refusal(create, "The output_size of gate's and up's weight") is None:
        raise LearningError(f"{path} {place}: experts cut inside a block are neither refused nor refined")
    return True


def _shared_expert_padded(source: Source) -> bool:
    """True when the shared expert's layers round their shards up to whole blocks."""
    path = source.first(*MODELS)
    layers = source.get(path, "DeepseekV4MLP")
    padded = "cdiv" in names(layers)
    if padded != ("_pad_shared_expert_weight" in source.text(path)):
        raise LearningError(f"{path} DeepseekV4MLP: the shared expert's shards and its weights are padded differently")
    return padded


def constants(source: Source, path: str, node: ast.AST) -> set[str]:
    """The strings of an expression: literals, collections, unions, and names assigned in ``path``."""
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.Set(elts=items) | ast.Tuple(elts=items) | ast.List(elts=items) | ast.Call(args=items):
            return set().union(*(constants(source, path, item) for item in items))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return constants(source, path, left) | constants(source, path, right)
        case ast.Name(id=name):
            value = getattr(source.get(path, name), "value", None)
            if value is not None:
                return constants(source, path, value)
    raise LearningError(f"{path}: {ast.unparse(node)} is no set of names any more")


def _compared(source: Source, node: ast.AST) -> set[str]:
    """The names that ``moe_backend`` is compared with in an expression."""
    found: set[str] = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Compare) and "moe_backend" in names(item.left):
            found |= constants(source, _KERNELS, item.comparators[0])
    return found


def _own_exchange(source: Source, choices: list[str]) -> list[str]:
    """Choices that dispatch and combine themselves, which refuse every all-to-all backend."""
    for item in ast.walk(source.tree(_KERNELS)):
        if isinstance(item, ast.If) and "moe_backend" in names(item.test):
            told = [text for text in strings(ast.Module(item.body, [])) if "dispatches and combines itself" in text]
            if told:
                found = _compared(source, item.test)
                return [choice for choice in choices if choice in found]
    return []


def _mega(source: Source, choices: list[str]) -> dict[str, Any]:
    """The kernels that replace the whole expert layer: ``DeepseekV4MoE`` and the classes it builds."""
    path = source.first(*MODELS)
    layer = source.get(path, "DeepseekV4MoE")
    routing = refusal(layer, "MegaMoE currently supports sqrtsoftplus routing only")
    switch = re.search(r"self\.(use_\w*mega_moe)", routing.test) if routing is not None else None
    if switch is None:
        raise LearningError(f"{path} DeepseekV4MoE: MegaMoE's condition on the routing is gone")
    chosen: set[str] = set()
    for item in ast.walk(layer):
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == f"self.{switch[1]}":
            chosen |= _compared(source, item.value)
    if not chosen <= set(choices) or not chosen:
        raise LearningError(f"{path} DeepseekV4MoE: {switch[1]} does not depend on a MoE backend")
    return {
        "names": [choice for choice in choices if choice in chosen],
        "requires_ep": refusal(layer, "MegaMoE currently requires expert parallel") is not None,
        "fp4_check": refusal(layer, "MegaMoE only supports fp4 experts") is not None,
        "norm_check": refusal(layer, "MegaMoE requires normalized top-k probabilities") is not None,
        "experts_text": _uneven_experts_told(source, path),
        "device_stage": _device_stage(source, path),
    }


def _uneven_experts_told(source: Source, path: str) -> bool:
    """True when experts that do not divide by the ranks are refused with a message, not with a bare assertion."""
    place = "DeepseekV4MoE._init_mega_moe_experts"
    for item in refusals(source.get(path, place)):
        if item.exception == "AssertionError" and "% self.ep_size == 0" in item.test:
            if item.message not in (
                "",
                "n_physical_experts={} must be divisible by ep_size={}. Adjust num_redundant_experts.",
            ):
                raise LearningError(f"{path} {place}: other words for uneven experts: {item.message}")
            return bool(item.message)
    raise LearningError(f"{path} {place}: the number of experts is not compared with the ranks")


def _device_stage(source: Source, path: str) -> str:
    """When the kernel looks at the GPU: as its layer is made, or as its weights are finished after loading."""
    paths = [path, _MEGA] if source.has(_MEGA) else [path]
    told = "DeepGEMM MegaMoE requires SM100 GPUs."
    functions: dict[str, ast.AST] = {}
    classes: list[ast.ClassDef] = []
    for item in [node for name in paths for node in source.tree(name).body]:
        if isinstance(item, ast.ClassDef):
            classes.append(item)
        elif isinstance(item, ast.FunctionDef):
            functions[item.name] = item
    for kind in (item for item in classes if item.name.endswith("MegaMoEExperts")):
        members = {item.name: item for item in kind.body if isinstance(item, ast.FunctionDef)}
        for first, stage in (("__init__", "model-init"), ("finalize_weights", "weight-load")):
            if first in members and told in _reached_strings(members[first], {**functions, **members}):
                return stage
    raise LearningError(f"{', '.join(paths)}: no class ...MegaMoEExperts asks for SM100")


def _reached_strings(start: ast.AST, functions: dict[str, ast.AST]) -> set[str]:
    """Strings of a function and of every function it calls by name, directly or through others."""
    found: set[str] = set()
    waiting, seen = [start], {id(start)}
    while waiting:
        node = waiting.pop()
        found |= set(strings(node))
        for call in (item for item in ast.walk(node) if isinstance(item, ast.Call)):
            name = ast.unparse(call.func).removeprefix("self.")
            target = functions.get(name)
            if target is not None and id(target) not in seen:
                seen.add(id(target))
                waiting.append(target)
    return found
