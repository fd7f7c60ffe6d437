"""What ``AutoWeightsLoader`` adds to a model's own rules, and what it does with names that lead nowhere.

Source: ``model_executor/models/utils.py``, and the mappers for quantized checkpoints in
``model_executor/layers/quantization/``.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from ...source import LearningError, Source, raises, strings
from ..spec_decode.queries import assigned, calls, class_, function, texts
from .mappers import Mapper, evaluate, map_order

UTILS: Final = "model_executor/models/utils.py"
_QUANTIZATION: Final = "model_executor/layers/quantization"
_LOADER: Final = "AutoWeightsLoader"
_BASE: Final = "QuantizationConfig"
_CACHE: Final = "get_cache_scale_mapper"
_CHECKPOINT: Final = "get_checkpoint_weight_mapper"
_UNUSED: Final = "REMOVE_UNUSED_ROTARY_EMBEDS_MAPPER"
_OLD_UNUSED: Final = "ROTARY_EMBEDS_UNUSED_WEIGHTS"
_UNEXPECTED: Final = "_ignore_unexpected_suffixes"
_MEGA_MOE: Final = "load_shared_expert_weight"


def learn_loader_facts(source: Source) -> dict[str, Any]:
    """Facts that all models of the release share.

    ``order``: kinds of rules as a name meets them, all that fit one after the other. ``unused``: parts of names whose
    tensors are left out. ``quantized``: further rules for a model that knows its quantization, merged behind its own,
    kind by kind; ``kv_scales`` are those that only FP8 and Quark have. ``ignored_suffixes``: names that lead nowhere
    and are left out, in any model and (``quantized``) in one that knows its quantization. ``unknown``, ``nested``: what
    any other such name does. ``fused_shared_experts``: where MegaMoE takes the shared expert's tensors.
    """
    load = function(source, UTILS, f"{_LOADER}.load_weights")
    always = [text for item in calls(load, "append") for text in texts(ast.List(item.args, ast.Load()))]
    return {
        "order": map_order(source),
        "unused": _unused(source, load),
        "quantized": _quantized(source, load),
        "ignored_suffixes": always,
        **_refusals(source),
        "fused_shared_experts": _fused(source),
    }


def _unused(source: Source, load: ast.FunctionDef) -> list[str]:
    """Parts of names: dropped by a mapper, or skipped by the loader before that."""
    body = class_(source, UTILS, _LOADER).body
    mapper = assigned(body, _UNUSED)
    if mapper is not None:
        found = evaluate(source, UTILS, mapper, {})
        pairs = found.pairs("substr")
        if any(new is not None for _old, new in pairs) or f"mapper |= self.{_UNUSED}" not in ast.unparse(load):
            raise LearningError(f"{UTILS} {_LOADER}: expected {_UNUSED} to leave tensors out")
        return [old for old, _new in pairs]
    names = assigned(body, _OLD_UNUSED)
    if not texts(names) or f"self.skip_substrs += self.{_OLD_UNUSED}" not in ast.unparse(
        function(source, UTILS, f"{_LOADER}.__init__")
    ):
        raise LearningError(f"{UTILS} {_LOADER}: expected the parts of names that are never used")
    return texts(names)


def _quantized(source: Source, load: ast.FunctionDef) -> dict[str, Any] | None:
    """Rules for names of quantized checkpoints; None where a loader knows none."""
    said = ast.unparse(load)
    if _CACHE not in said:
        if "quant_config" in said:
            raise LearningError(f"{UTILS} {_LOADER}.load_weights: expected {_CACHE}")
        return None
    if "modules = (self.module, *self.module.children())" not in said:
        raise LearningError(f"{UTILS} {_LOADER}.load_weights: expected the quantization of the model or of a child")
    base = _mapper(source, "base_config.py", _BASE, _CACHE)
    if _CHECKPOINT in said:
        base = base | _mapper(source, "base_config.py", _BASE, _CHECKPOINT)
    special = [
        _mapper(source, file, owner, _CACHE)
        for file, owner in (("fp8.py", "Fp8Config"), ("quark/quark.py", "QuarkConfig"))
    ]
    more = [mapper.pairs("suffix") for mapper in special]
    if more[0] != more[1] or any(mapper.rules("regex") or mapper.rules("substr") for mapper in special):
        raise LearningError(f"{_QUANTIZATION}: expected FP8 and Quark to rename the same scales of a KV cache")
    if base.rules("substr") or base.rules("prefix"):
        raise LearningError(f"{_QUANTIZATION}/base_config.py: expected renamed patterns and suffixes only")
    ignored = source.find(f"{_QUANTIZATION}/base_config.py", f"{_BASE}.{_UNEXPECTED}")
    known = texts(ignored.value) if isinstance(ignored, ast.Assign) else []
    if (_UNEXPECTED in said) != bool(known):
        raise LearningError(f"{_QUANTIZATION}/base_config.py: expected {_UNEXPECTED}")
    return {
        "regex": base.pairs("regex"),
        "suffix": base.pairs("suffix"),
        "kv_scales": more[0],
        "ignored_suffixes": known,
    }


def _mapper(source: Source, file: str, owner: str, name: str) -> Mapper:
    """A quantization config's own mapper, without that of the base class."""
    path = f"{_QUANTIZATION}/{file}"
    node = function(source, path, f"{owner}.{name}")
    value = ast.parse(_returned(source, path, f"{owner}.{name}"), mode="eval").body
    if ast.unparse(value) == "None":
        return Mapper()
    if isinstance(value, ast.BinOp) and ast.unparse(value.right) == f"{_BASE}.{name}()":
        value = value.left
    elif owner != _BASE and _returned(source, f"{_QUANTIZATION}/base_config.py", f"{_BASE}.{name}") != "None":
        raise LearningError(f"{path} {owner}.{name}: expected further rules and those of the base class")
    for item in node.body:
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == ast.unparse(value):
            value = item.value
    local = {ast.unparse(item.targets[0]): item.value for item in node.body if isinstance(item, ast.Assign)}
    values = {key: evaluate(source, path, part, {}) for key, part in local.items() if isinstance(part, ast.Dict)}
    found = evaluate(source, path, value, values)
    if not isinstance(found, Mapper):
        raise LearningError(f"{path} {owner}.{name}: expected a mapper")
    return found


def _returned(source: Source, path: str, place: str) -> str:
    """What a function without branches returns, as text."""
    node = function(source, path, place)
    returned = [item for item in ast.walk(node) if isinstance(item, ast.Return)]
    if len(returned) != 1 or returned[0].value is None:
        raise LearningError(f"{path} {place}: expected one mapper")
    return ast.unparse(returned[0].value)


def _refusals(source: Source) -> dict[str, Any]:
    """``unknown``: a name without module or parameter; ``nested``: one below a parameter. First sentences."""
    module = function(source, UTILS, f"{_LOADER}._load_module")
    messages = [
        _sentence(item.value) for item in ast.walk(module) if isinstance(item, ast.Assign) and _is_message(item)
    ]
    nested = [
        (ast.unparse(item.exc.func), _sentence(item.exc.args[0]))
        for item in ast.walk(function(source, UTILS, f"{_LOADER}._load_param"))
        if isinstance(item, ast.Raise) and isinstance(item.exc, ast.Call)
    ]
    kinds = {name for name, _text in raises(module)}
    if len(messages) != 1 or len(kinds) != 1 or len(nested) != 1 or "{name!r}" not in messages[0]:
        raise LearningError(f"{UTILS} {_LOADER}: expected one refusal of an unknown name and one of a nested one")
    return {
        "unknown": {"exception": kinds.pop(), "message": messages[0]},
        "nested": {"exception": nested[0][0], "message": nested[0][1]},
    }


def _is_message(item: ast.Assign) -> bool:
    return (
        isinstance(item.targets[0], ast.Name) and item.targets[0].id == "msg" and "no module" in "".join(strings(item))
    )


_WORDS: Final = {
    "prefix!r": "name!r",
    "self.module._get_name()": "class",
    "weight_qualname!r": "name!r",
    "base_prefix!r": "parameter!r",
}


def _sentence(node: ast.expr) -> str:
    """The first sentence of a message, with our names for what is put in."""
    if not isinstance(node, ast.JoinedStr):
        raise LearningError(f"{UTILS} {_LOADER}: expected a message with the name")
    said = ""
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            spelled = ast.unparse(part.value) + ("!r" if part.conversion == ord("r") else "")
            said += f"{{{_WORDS.get(spelled, spelled)}}}"
        elif isinstance(part, ast.Constant):
            said += str(part.value)
    first = re.match(r"(.*?\.)(?= )", said)
    said = first[1] if first else said
    unknown = set(re.findall(r"\{(.*?)\}", said)) - set(_WORDS.values())
    if unknown:
        raise LearningError(f"{UTILS} {_LOADER}: {', '.join(unknown)} in a message is not understood")
    return said


_FUSED: Final = re.compile(
    r"if (?P<down>(?:'[\w.]+' in name(?: or )?)+):\n    param_name = '(?P<l2>\w+)'\n"
    r"elif (?P<up>(?:'[\w.]+' in name(?: or )?)+):\n    param_name = '(?P<l1>\w+)'\n"
    r"else:\n    raise (?P<exception>\w+)\(f'(?P<message>.*)\{name\}'\)\n"
    r"if '(?P<scale>\w+)' in name:\n    param_name \+= '(?P<mark>\w+)'\n"
    r"param = getattr\(self, param_name\)\nparam\.weight_loader\(param, loaded_weight, name\)\n"
    r"return f\"\{name\.partition\('(?P<cut>[\w.]+)'\)\[0\]\}(?P<level>[\w.]+)\{param_name\}\""
)


def _fused(source: Source) -> dict[str, Any] | None:
    """Parameters of a MegaMoE kernel that takes the shared expert; None where none does."""
    for path in ("model_executor/layers/fused_moe/deep_gemm_mega_moe.py", "models/deepseek_v4/nvidia/model.py"):
        owners = [
            item.name
            for item in (source.tree(path).body if source.has(path) else ())
            if isinstance(item, ast.ClassDef) and source.find(path, f"{item.name}.{_MEGA_MOE}") is not None
        ]
        if len(owners) == 1:
            node = function(source, path, f"{owners[0]}.{_MEGA_MOE}")
            body = [item for item in node.body if not isinstance(item, ast.Expr) or isinstance(item.value, ast.Call)]
            match = _FUSED.fullmatch("\n".join(ast.unparse(item) for item in body))
            if match is None:
                raise LearningError(f"{path} {node.name}: expected parameters by the name of the matrix")
            return {
                "level": [match["cut"], match["level"]],
                "parts": [
                    [match[key], re.findall(r"'([\w.]+)'", match[test])] for key, test in (("l2", "down"), ("l1", "up"))
                ],
                "scale": [match["scale"], match["mark"]],
                "others": {"exception": match["exception"], "message": match["message"] + "{name}"},
            }
    return None
