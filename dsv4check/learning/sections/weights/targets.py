"""Names of the target's weights: from the checkpoint's tensors to the parameters they are loaded into.

Source: the classes that ``model_executor/models/registry.py`` names for the published architectures, their mappers and
their ``load_weights``. What LoRA adds to names (``.base_layer``) is left out.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from ...source import LearningError, Source, names, raises, strings
from ..draft_names import V41_FOLDER, by_rules
from ..draft_names.loaders import linear_scales
from ..spec_decode.draft import V4_FOLDER
from ..spec_decode.queries import around, assigned, calls, class_, function, keyword, text, texts
from ..spec_decode.vendors import VENDORS, files_by_vendor
from .inner import learn_inner
from .mappers import Mapper, evaluate

REGISTRY: Final = "model_executor/models/registry.py"
_CONVERTOR: Final = "transformers_utils/model_arch_config_convertor.py"
_OLD_MODEL: Final = "model_executor/models/deepseek_v4.py"
_OLD_MODULE: Final = "deepseek_v4"
_LINEAR: Final = "_linear_scale_param_name"
_LINEAR_MARK: Final = "linear-scale"
_MAPPER: Final = "hf_to_vllm_mapper"
_LANGUAGE: Final = "language_model"
_IMAGE: Final = "image"
PUBLISHED: Final = {
    "target": "DeepseekV4ForCausalLM",
    "target_vl": "DeepseekV4ForConditionalGeneration",
    "target_v41": "DeepseekV41ForCausalLM",
}
"""Kind of target -> the architecture that selects it."""
_DTYPES: Final = ("fp4", "fp8")


def learn_targets(source: Source) -> dict[str, dict[str, dict[str, Any]]]:
    """Rules for each kind of target, by GPU vendors that share them.

    ``class``: the model; ``inner``: the prefix of the model of layers, whose own loader names its parameters
    without it; ``wrapped``: the prefix of the text model in one with vision, ``image`` its parts for images;
    ``like``: the kind whose rules hold where there is none. ``prefixes``, ``suffixes``, ``substrings``, ``scales``
    rename (None: the tensor is left out), in the order that ``loader`` gives; ``kept_when_fused`` are substrings
    that stay where the shared expert is loaded with the routed ones. ``special`` scales are replaced before the
    others, ``fp4_after`` after them when experts are FP4, ``others_by_block`` counts for FP4 experts. The text-only
    class of V4.1 is in no registry; ``target_v41`` has the rules for it inside the model with vision.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for kind, architecture in PUBLISHED.items():
        entry = _registered(source, architecture)
        if entry is None:
            continue
        module, name = entry
        if module == _OLD_MODULE:
            files = dict.fromkeys(VENDORS, _OLD_MODEL)
        else:
            folder = module.removeprefix("vllm.").replace(".", "/")
            if folder not in (V4_FOLDER, V41_FOLDER):
                raise LearningError(f"{REGISTRY} {architecture}: {module} is not understood")
            files = files_by_vendor(source, folder, name)
        texts_of = files_by_vendor(source, V4_FOLDER, PUBLISHED["target"]) if kind == "target_vl" else {}
        learned = {vendor: _learn(source, path, name, texts_of.get(vendor)) for vendor, path in files.items()}
        if kind == "target_vl":
            learned = {vendor: _beside_text(rules, found["target"], vendor) for vendor, rules in learned.items()}
            learned = {vendor: rules | _chosen(source) for vendor, rules in learned.items()}
        found[kind] = by_rules(learned)
    if "target" not in found:
        raise LearningError(f"{REGISTRY}: expected {PUBLISHED['target']}")
    return found


def _beside_text(rules: dict[str, Any], text: dict[str, dict[str, Any]], vendor: str) -> dict[str, Any]:
    """Only what differs from the text model's rules of the same vendor."""
    if "unsupported" in rules:
        return rules
    same = next(own for vendors, own in text.items() if vendor in vendors.split())
    if not set(same) <= set(rules):
        raise LearningError(f"{rules['class']}: expected all rules of the text model")
    return {"like": "target", **{key: value for key, value in rules.items() if key not in same or same[key] != value}}


def _chosen(source: Source) -> dict[str, Any]:
    """``chosen_by``: the field of the config above 0 that puts this class in place of the text model's."""
    for item in ast.walk(source.tree(_CONVERTOR)):
        if isinstance(item, ast.If) and f"= ['{PUBLISHED['target_vl']}']" in ast.unparse(ast.Module(item.body, [])):
            match = re.match(r"getattr\(hf_config, '(\w+)', 0\) > 0 and getattr\(", ast.unparse(item.test))
            if match and PUBLISHED["target"] in strings(item.test):
                return {"chosen_by": match[1]}
    raise LearningError(f"{_CONVERTOR}: expected a field of the config that chooses {PUBLISHED['target_vl']}")


def _registered(source: Source, architecture: str) -> tuple[str, str] | None:
    """(module, class) of an architecture."""
    entries = [
        [text(part) for part in value.elts]
        for item in ast.walk(source.tree(REGISTRY))
        if isinstance(item, ast.Dict)
        for key, value in zip(item.keys, item.values, strict=True)
        if text(key) == architecture and isinstance(value, ast.Tuple)
    ]
    if not entries:
        return None
    module, name = entries[0][:2]
    if len(entries) != 1 or module is None or name is None:
        raise LearningError(f"{REGISTRY} {architecture}: expected one module and class")
    return module, name


def _learn(source: Source, path: str, name: str, text_path: str | None) -> dict[str, Any]:
    if source.find(path, f"{name}.load_weights") is None:
        refused = raises(function(source, path, f"{name}.__init__"))
        if len(refused) != 1:
            raise LearningError(f"{path} {name}: expected it to load weights or to refuse to start")
        return {"class": name, "unsupported": {"exception": refused[0][0], "message": refused[0][1]}}
    if _LANGUAGE in names(function(source, path, f"{name}.__init__")):
        return _with_vision(source, path, name, text_path)
    return _text_model(source, path, name)


def _text_model(source: Source, path: str, name: str) -> dict[str, Any]:
    start = function(source, path, f"{name}.__init__")
    owner = assigned(class_(source, path, name).body, "model_cls")
    if "self.model = self.model_cls(" not in ast.unparse(start) or not isinstance(owner, ast.Name):
        raise LearningError(f"{path} {name}: expected its layers in self.model")
    variants = {
        (dtype, fused): _mapper(source, path, name, (dtype, fused), {}) for dtype in _DTYPES for fused in (False, True)
    }
    return {
        "class": name,
        "inner": "model.",
        "known_quantization": _knows_quantization(source, path, name, owner.id),
        **_renames(source, path, name, variants),
        **_skipped(source, path, name, own_mapper=True),
        **learn_inner(source, path, owner.id),
    }


def _with_vision(source: Source, path: str, name: str, text_path: str | None) -> dict[str, Any]:
    """The text model's rules, with the wrapper's mapper in place of its own."""
    start = function(source, path, f"{name}.__init__")
    said = ast.unparse(start)
    inner, inner_path = _text_class(source, path, name, start, text_path)
    if f"self.{_LANGUAGE}.{_MAPPER} = WeightsMapper()" not in said:
        raise LearningError(f"{path} {name}.__init__: expected the text model to lose its own mapper")
    variants, without = (
        {
            (dtype, fused): _mapper(
                source,
                path,
                name,
                (dtype, fused),
                {"text_mapper": _mapper(source, inner_path, inner, (dtype, fused), {}), "image_enabled": images},
            )
            for dtype in _DTYPES
            for fused in (False, True)
        }
        for images in (True, False)
    )
    rules = _text_model(source, inner_path, inner)
    renames = _renames(source, path, name, variants)
    dropped = [
        str(old)
        for old, new in without["fp4", False].pairs("prefix")
        if new is None and [old, new] not in renames["prefixes"]
    ]
    own = {**rules, **renames, **_skipped(source, path, name, own_mapper=False)}
    for key in ("skipped_substrings", "skipped_prefixes", "ignored_prefixes", "ignored_suffixes"):
        if rules[key]:
            raise LearningError(f"{inner_path} {inner}.load_weights: expected nothing to be skipped below a wrapper")
    return own | {
        "class": name,
        "wrapped": f"{_LANGUAGE}.",
        "text_class": inner,
        "image": _image(path, name, start, dropped),
    }


def _text_class(source: Source, path: str, name: str, start: ast.FunctionDef, text_path: str | None) -> tuple[str, str]:
    """(class, file) of the text model that a wrapper builds."""
    values = [
        item.value
        for item in ast.walk(start)
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == f"self.{_LANGUAGE}"
    ]
    value = values[0] if len(values) == 1 else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        if value.func.id == "init_vllm_registered_model" and text_path is not None:
            if texts(keyword(value, "architectures")) == [PUBLISHED["target"]]:
                return PUBLISHED["target"], text_path
        else:
            model = path.rpartition("/")[0] + "/model.py"
            class_(source, model, value.func.id)
            return value.func.id, model
    raise LearningError(f"{path} {name}.__init__: expected the text model in self.{_LANGUAGE}")


def _knows_quantization(source: Source, path: str, name: str, owner: str) -> bool:
    """True when the model of layers keeps its quantization, which the loader then asks for further rules."""
    for place in (name, owner):
        node = function(source, path, f"{place}.__init__")
        if any(
            isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "self.quant_config"
            for item in ast.walk(node)
        ):
            return True
    start = function(source, path, f"{name}.__init__")
    if any(keyword(call, "quant_config") is not None for call in calls(start, "ParallelLMHead")):
        raise LearningError(f"{path} {name}.__init__: a quantized head is not understood")
    return False


def _mapper(source: Source, path: str, name: str, case: tuple[str, bool], values: dict[str, Any]) -> Mapper:
    """The mapper that an instance uses: the class's, or the one that ``__init__`` puts in its place.

    ``case``: ``expert_dtype``, and whether shared experts are fused; ``values``: what other names stand for.
    """
    dtype, fused = case
    start = function(source, path, f"{name}.__init__")
    place = f"{path} {name}.__init__"
    changed = [
        item
        for item in ast.walk(start)
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == f"self.{_MAPPER}"
    ]
    if len(changed) > 1:
        raise LearningError(f"{place}: expected one {_MAPPER}")
    default = assigned(class_(source, path, name).body, _MAPPER)
    node = default
    if changed:
        tests = around(start, changed[0])
        if any(not under for _test, under in tests) or len(tests) > 1:
            raise LearningError(f"{place}: expected {_MAPPER} under one condition at most")
        if all(_holds(place, test.test, dtype, fused) for test, _under in tests):
            node = changed[0].value
    if node is None:
        raise LearningError(f"{path} {name}: expected {_MAPPER}")
    known = {"expert_dtype": dtype, "fused": fused, **values}
    found = evaluate(source, path, _Settings().visit(ast.parse(ast.unparse(node), mode="eval").body), known)
    if not isinstance(found, Mapper):
        raise LearningError(f"{place}: expected {_MAPPER} to be a mapper")
    return found


class _Settings(ast.NodeTransformer):
    """Puts a mark in place of what is decided elsewhere: the linear scale's name, and whether experts are fused."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) == _LINEAR:
            return ast.copy_location(ast.Constant(_LINEAR_MARK), node)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return _fusion(node) or node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return _fusion(node) or self.generic_visit(node)


def _fusion(node: ast.AST) -> ast.expr | None:
    """A name for the decision about fused shared experts, for any spelling of it."""
    if re.fullmatch(r"self\.model\.\w*fuse\w*|fuse_shared_experts", ast.unparse(node)):
        return ast.Name("fused", ast.Load())
    return None


def _holds(place: str, test: ast.expr, dtype: str, fused: bool) -> bool:
    if isinstance(test, ast.BoolOp):
        parts = [_holds(place, part, dtype, fused) for part in test.values]
        return any(parts) if isinstance(test.op, ast.Or) else all(parts)
    if ast.unparse(test) == "expert_dtype != 'fp4'":
        return dtype != "fp4"
    if _fusion(test) is not None:
        return fused
    raise LearningError(f"{place}: a mapper under an unknown condition ({ast.unparse(test)})")


def _renames(source: Source, path: str, name: str, variants: dict[Any, Mapper]) -> dict[str, Any]:
    """Renames of all variants of a mapper as one record."""
    usual = variants["fp4", False]
    place = f"{path} {name}.{_MAPPER}"
    for (dtype, fused), mapper in variants.items():
        same = ["prefix", "suffix"] + (["regex"] if dtype == "fp4" else []) + ([] if fused else ["substr"])
        if any(mapper.pairs(kind) != usual.pairs(kind) for kind in same):
            raise LearningError(
                f"{place}: expected only scales to depend on expert_dtype, and parts of names on fusion"
            )
    fused_pairs = variants["fp4", True].pairs("substr")
    kept = [old for old, new in usual.pairs("substr") if [old, new] not in fused_pairs]
    if [pair for pair in usual.pairs("substr") if pair[0] not in kept] != fused_pairs:
        raise LearningError(f"{place}: expected fused shared experts to keep some parts of names")
    return {
        "prefixes": usual.pairs("prefix"),
        "suffixes": usual.pairs("suffix"),
        "substrings": usual.pairs("substr"),
        "kept_when_fused": kept,
        "scales": _scales(source, path, place, usual.pairs("regex"), variants["fp8", False].pairs("regex")),
    }


def _scales(
    source: Source, path: str, place: str, four: list[list[str | None]], other: list[list[str | None]]
) -> dict[str, Any]:
    """Patterns as a record of scales: by ``expert_dtype`` for experts, for all others, and special ones."""

    def split(pairs: list[list[str | None]]) -> tuple[list[list[str]], str, list[list[str]]]:
        plain = [[str(old), str(new)] for old, new in pairs if new is not None and "base_layer" not in str(old)]
        usual = [index for index, pair in enumerate(plain) if pair[0] == r"\.scale$"]
        if len(usual) != 1 or len(plain) < len([pair for pair in pairs if "base_layer" not in str(pair[0])]):
            raise LearningError(f"{place}: expected one pattern for all scales")
        return plain[: usual[0]], plain[usual[0]][1], plain[usual[0] + 1 :]

    before, others, after = split(four)
    before_other, others_other, after_other = split(other)
    experts, others_experts = (
        [pair for pair in pairs if r"\.experts\." in pair[0]] for pairs in (before, before_other)
    )
    special = [pair for pair in before if pair not in experts]
    found = re.fullmatch(r"\((.*)\)(\\\.scale\$)", experts[0][0]) if len(experts) == 1 else None
    if (
        found is None
        or any(not new.startswith("\\1.") for _old, new in experts + others_experts)
        or [old for old, _new in others_experts] not in ([], [experts[0][0]])
        or others != others_other
        or special != [pair for pair in before_other if pair not in others_experts]
        or after_other
    ):
        raise LearningError(f"{place}: expected scales of experts by expert_dtype and special ones in either case")
    record: dict[str, Any] = {
        "experts_match": found[1] + found[2],
        "fp4_experts": experts[0][1].removeprefix("\\1"),
        "other_experts": others_experts[0][1].removeprefix("\\1") if others_experts else others,
        "others": others,
        "special": special,
        "fp4_after": after,
    }
    if others == f".{_LINEAR_MARK}":
        record |= linear_scales(source, path)
        record["other_experts"] = record["others"]
    return record


def _skipped(source: Source, path: str, name: str, *, own_mapper: bool) -> dict[str, Any]:
    """What a model tells its loader to skip, or to ignore where it leads nowhere."""
    load = function(source, path, f"{name}.load_weights")
    place = f"{path} {name}.load_weights"
    loaders = calls(load, "AutoWeightsLoader")
    used = list(calls(load, "load_weights"))
    weights = [item for item in ast.walk(load) if isinstance(item, ast.Name) and item.id == "weights"]
    if len(loaders) != 1 or len(used) != 1 or len(weights) != 1 or ast.unparse(loaders[0].args[0]) != "self":
        raise LearningError(f"{place}: expected all tensors to go to one AutoWeightsLoader")
    mapper = keyword(used[0], "mapper")
    if own_mapper:
        good = (
            mapper is not None
            and ast.unparse(mapper) == f"self.{_MAPPER}"
            and ast.unparse(used[0].args[0]) == "weights"
        )
    else:
        changed = {ast.unparse(call.func) for call in ast.walk(load) if isinstance(call, ast.Call)}
        order_only = {"sorted", "iter", "stream_language_model_first", "getattr", "AutoWeightsLoader"}
        good = mapper is None and changed == (changed & order_only) | {
            f"self.{_MAPPER}.apply",
            "loader.load_weights",
        }
    if not good:
        raise LearningError(f"{place}: expected the tensors to go through {_MAPPER} once")
    words = {
        "skip_substrs": "skipped_substrings",
        "skip_prefixes": "skipped_prefixes",
        "ignore_unexpected_prefixes": "ignored_prefixes",
        "ignore_unexpected_suffixes": "ignored_suffixes",
    }
    found: dict[str, Any] = {key: [] for key in words.values()}
    for item in loaders[0].keywords:
        if item.arg not in words or not texts(item.value):
            raise LearningError(f"{place}: {ast.unparse(item)} is not understood")
        found[words[item.arg]] = texts(item.value)
    return found


def _image(path: str, name: str, start: ast.FunctionDef, dropped: list[str]) -> dict[str, Any]:
    """``modules`` and ``parameters`` for images. ``without``: starts of names left out by a model that takes no images,
    and ``needs``: what decides that; ``limit``: images per prompt above 0, ``layers``: the config has a vision tower.

    A model that always has its tower leaves it out by modules that load nothing (``_mark_tower_model``).
    """
    place = f"{path} {name}.__init__"
    needs = ["limit"]
    tests = [
        item.value
        for item in ast.walk(start)
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "image_enabled"
    ]
    towers = [
        item
        for item in ast.walk(start)
        if isinstance(item, ast.With) and calls(item.items[0].context_expr, "_mark_tower_model")
    ]
    if len(towers) != 1 or _IMAGE not in strings(towers[0].items[0]):
        raise LearningError(f"{place}: expected one tower for images")
    if tests:
        known = "config.vision_n_layers > 0 and self.multimodal_config.get_limit_per_prompt('image') > 0"
        if ast.unparse(tests[0]) != known or len(tests) != 1:
            raise LearningError(f"{place}: expected images to need a tower and a limit above 0")
        needs = ["layers", "limit"]
    elif dropped:
        raise LearningError(f"{place}: expected image_enabled to decide about parts for images")
    modules: list[str] = []
    parameters: list[str] = []
    for item in ast.walk(towers[0]):
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]).startswith("self."):
            part = ast.unparse(item.targets[0]).removeprefix("self.")
            if isinstance(item.value, ast.Call) and part != "use_data_parallel":
                (parameters if ast.unparse(item.value.func) == "nn.Parameter" else modules).append(part)
        elif isinstance(item, ast.For):
            parameters += texts(item.iter)
    if not modules or not parameters:
        raise LearningError(f"{place}: expected modules and parameters for images")
    return {
        "modules": modules,
        "parameters": parameters,
        "without": dropped if tests else [f"{part}." for part in modules],
        "needs": needs,
    }
