"""The part of a draft's ``load_weights`` that MTP and DSpark share: scales, fused layers, experts, unknown names."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from ...source import LearningError, Source, names, strings
from ..spec_decode.fields import imported_from
from ..spec_decode.queries import calls, function, keyword, raised, text

_LAYER_FILE: Final = "model_executor/layers/fused_moe/layer.py"
_EXPERTS: Final = "fused_moe_make_expert_params_mapping"
_OLD_EXPERTS: Final = "make_expert_params_mapping"
_MEGA_MOE: Final = "make_deepseek_v4_expert_params_mapping"
_LEVEL: Final = "routed_experts_prefix"
_FUSED: Final = r"experts\.(?:(\w+)\.)?w\d+_"
_SCALE: Final = ".scale"


def learn_loader(source: Source, path: str, load: ast.FunctionDef) -> dict[str, Any]:
    """Rules after a name has got its layer, and what happens to names and parameters that do not match."""
    suffixes, replaced = _replacements(path, load)
    unknown = _unknown(path, load)
    layer_only = any([text(item) for item in call.args] == ["model.layers."] for call in calls(load, "startswith"))
    return {
        "scales": _scales(source, path, load),
        "suffixes": suffixes,
        "replaced": replaced,
        "stacked": stacked_layers(path, load),
        "stacked_only_in_layers": layer_only,
        **expert_matrices(source, path, load),
        "fused_shared_experts": "load_shared_expert_weight" in names(load),
        "unknown": unknown,
        "unknown_fused": unknown,
        "unmatched_experts": _unmatched(path, load),
        "missing": _missing(load),
    }


def _scales(source: Source, path: str, load: ast.FunctionDef) -> dict[str, Any]:
    """What ``.scale`` becomes: for experts by ``expert_dtype``, for all others, and the expert's pattern."""
    chosen = [
        item.value
        for item in ast.walk(load)
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "suffix"
    ]
    value = chosen[0] if len(chosen) == 1 else None
    if not isinstance(value, ast.IfExp) or "_EXPERT_SCALE_RE" not in names(value.test):
        raise LearningError(f"{path} load_weights: expected one suffix for the experts' scales and one for the others")
    pattern = strings(source.get(path, "_EXPERT_SCALE_RE"))
    found: dict[str, Any] = {"experts_match": pattern[0] if len(pattern) == 1 else None}
    found |= _expert_scales(path, load, value.body)
    other = text(value.orelse)
    if other is not None:
        found["others"] = other
    elif strings(value.orelse) == [".{}"] and "linear_scale_name" in names(value.orelse):
        found |= linear_scales(source, path)
    if "others" not in found or found["experts_match"] is None:
        raise LearningError(f"{path} load_weights: expected the suffix of the other scales")
    return found | {"fallback": _scale_fallback(load)}


def _expert_scales(path: str, load: ast.FunctionDef, value: ast.expr) -> dict[str, Any]:
    always = text(value)
    if always is not None:
        return {"fp4_experts": always, "other_experts": always}
    for item in ast.walk(load):
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == ast.unparse(value):
            choice = item.value
            if isinstance(choice, ast.IfExp) and strings(choice.test) == ["expert_dtype", "fp4", "fp4"]:
                four, other = text(choice.body), text(choice.orelse)
                if four is not None and other is not None:
                    return {"fp4_experts": four, "other_experts": other}
    raise LearningError(f"{path} load_weights: expected the experts' scales by expert_dtype")


def linear_scales(source: Source, path: str) -> dict[str, Any]:
    """Scales of linear layers whose name depends on the checkpoint's block size (with FP4 experts)."""
    name = "_linear_scale_param_name"
    model = path.rpartition("/")[0] + "/model.py"
    node = function(source, model, name)
    blocks = [ast.literal_eval(item) for item in ast.walk(node) if isinstance(item, ast.List)]
    choices = [item.value for item in ast.walk(node) if isinstance(item, ast.Return)]
    choice = choices[0] if len(choices) == 1 else None
    if len(blocks) != 1 or not isinstance(choice, ast.IfExp) or "fp4" not in strings(node):
        raise LearningError(f"{model} {name}: expected a name for one block size and one for the others")
    return {"others": f".{text(choice.orelse)}", "others_by_block": [blocks[0], f".{text(choice.body)}"]}


def _scale_fallback(load: ast.FunctionDef) -> list[str] | None:
    """[suffix, suffix used where only a parameter with that one exists]; None where no other is looked for."""
    for item in ast.walk(load):
        if not isinstance(item, ast.FunctionDef) or "params_dict" not in names(item):
            continue
        found = [value for value in dict.fromkeys(strings(item)) if re.fullmatch(r"\.\w+", value)]
        if len(found) == 2:
            return found
    return None


def _replacements(path: str, load: ast.FunctionDef) -> tuple[list[list[str]], list[list[str]]]:
    """(at the end of a name, anywhere): parts replaced under a test for them."""
    ends: list[list[str]] = []
    inside: list[list[str]] = []
    for item in ast.walk(load):
        if not isinstance(item, ast.If):
            continue
        for call in (call for part in item.body if isinstance(part, ast.Assign) for call in calls(part, "replace")):
            old, new = (text(part) for part in call.args)
            if old is None or new is None:
                continue
            tested = strings(item.test)
            if len(tested) != 1 or old not in tested[0]:
                raise LearningError(f"{path} load_weights: {old} becomes {new} under an unknown condition")
            rule = [tested[0], tested[0].replace(old, new)]
            (ends if calls(item.test, "endswith") else inside).append(rule)
    if not ends or not inside:
        raise LearningError(f"{path} load_weights: expected the router's bias and the shared expert to be renamed")
    return sorted(ends), sorted(inside)


def stacked_layers(path: str, load: ast.FunctionDef) -> list[list[Any]]:
    """[parameter, the parts of names that are loaded into it, their shards]."""
    for item in ast.walk(load):
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "stacked_params_mapping":
            grouped: dict[str, list[tuple[str, int]]] = {}
            for target, part, shard in ast.literal_eval(item.value):
                grouped.setdefault(target, []).append((part, shard))
            return [[target, [p for p, _s in parts], [s for _p, s in parts]] for target, parts in grouped.items()]
    raise LearningError(f"{path} load_weights: expected stacked_params_mapping")


def expert_matrices(source: Source, path: str, load: ast.FunctionDef) -> dict[str, Any]:
    """Parameters of the routed experts' matrices, without their suffix; with ``mega_moe`` those of that kernel."""
    used = calls(load, _EXPERTS) or calls(load, _OLD_EXPERTS)
    if len(used) != 1:
        raise LearningError(f"{path} load_weights: expected one {_EXPERTS}, got {len(used)}")
    parts = {key: text(keyword(used[0], f"ckpt_{key}_proj_name")) for key in ("gate", "up", "down")}
    if None in parts.values():
        raise LearningError(f"{path} load_weights: expected the names of the experts' matrices")
    level = keyword(used[0], _LEVEL)
    mega = _mega_level(source, path) if calls(load, _MEGA_MOE) else None
    if level is None:
        usual = _default_level(source)
    elif isinstance(level, ast.IfExp) and "use_mega_moe" in names(level.test):
        mega, usual = text(level.body), text(level.orelse) or ""
    else:
        raise LearningError(f"{path} load_weights: expected {_LEVEL} by use_mega_moe")
    return {
        "experts": _matrices(parts, usual),
        "experts_mega_moe": None if mega is None else _matrices(parts, mega),
    }


def _matrices(parts: dict[str, str | None], level: str) -> list[list[Any]]:
    inner = f"experts.{level}." if level else "experts."
    return [[f"{inner}w13_", [parts["gate"], parts["up"]]], [f"{inner}w2_", [parts["down"]]]]


def _mega_level(source: Source, path: str) -> str:
    """The level that the table for MegaMoE puts between ``experts`` and its fused weights; empty without one."""
    file = path
    while source.find(file, _MEGA_MOE) is None:
        file = imported_from(source, file, _MEGA_MOE)
    found = {match[1] or "" for item in strings(source.get(file, _MEGA_MOE)) if (match := re.fullmatch(_FUSED, item))}
    if len(found) != 1:
        raise LearningError(f"{file} {_MEGA_MOE}: expected names of the form experts.w13_")
    return found.pop()


def _default_level(source: Source) -> str:
    mapping = function(source, _LAYER_FILE, _EXPERTS)
    arguments = [item.arg for item in reversed(mapping.args.args)]
    defaults = dict(zip(arguments, reversed(mapping.args.defaults), strict=False))
    return text(defaults.get(_LEVEL)) or ""


def _unknown(path: str, load: ast.FunctionDef) -> str:
    """What a name without a parameter does: ``KeyError``, or ``skipped``."""
    reads = [
        ast.unparse(item.slice)
        for item in ast.walk(load)
        if isinstance(item, ast.Subscript) and ast.unparse(item.value) == "params_dict"
    ]
    spared = [
        ast.unparse(item.test)
        for item in ast.walk(load)
        if isinstance(item, ast.If)
        and re.fullmatch(r"\w+ not in params_dict", ast.unparse(item.test))
        and isinstance(item.body[0], ast.Continue | ast.Break)
    ]
    if not reads or (spared and len(spared) != len(reads)):
        raise LearningError(f"{path} load_weights: expected all names or none to be looked for among the parameters")
    return "skipped" if spared else "KeyError"


def _unmatched(path: str, load: ast.FunctionDef) -> str:
    """What the name of a routed expert without a matrix of the model does."""
    for item in ast.walk(load):
        if isinstance(item, ast.If) and ast.unparse(item.test) == "'.experts.' in name":
            said = [ast.unparse(part) for part in item.body]
            if len(said) == 3 and isinstance(item.body[1], ast.For) and said[2] == "continue":
                return "skipped"
    raise LearningError(f"{path} load_weights: expected names of experts without a matrix to be passed over")


def _missing(load: ast.FunctionDef) -> str | None:
    """The message for a layer without weights; None where nothing is checked."""
    found = [item for node in raised(load, "weights missing") if node.exc is not None for item in strings(node.exc)]
    return found[0].replace("{}", "{layer}") if found else None
