"""The loader of a model's layers as data: fused layers, experts, what it skips, what it does with unknown names.

Source: ``DeepseekV4Model.load_weights`` and ``get_expert_mapping`` (``models/deepseek_v4*/<vendor>/model.py``,
``model_executor/models/deepseek_v4.py`` before). Every statement of the loop over the tensors must be one that is known
here. Parameters of LoRA (``.base_layer.``), weights of other pipeline stages and padding do not change names as they
are learned here.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from ...source import LearningError, Source
from ..draft_names.loaders import expert_matrices, stacked_layers
from ..spec_decode.queries import function

_LOOP: Final = "for name, loaded_weight in weights:"
_PAD: Final = re.compile(
    r"if pad_shared_expert and '\.shared_experts\.' in name:\n    loaded_weight = self\._pad_shared_expert_weight\(.*\)"
)
_STARTS: Final = re.compile(
    r"if name\.startswith\((\(.*\))\):\n    logger\.warning_once\('Skipping non-text weight: %s', name\)\n    continue"
)
_FUSED: Final = (
    "if '.shared_experts.' in name:\n    if is_pp_missing_parameter(name, self):\n        continue\n"
    "    experts = self.layers[extract_layer_index(name)].ffn.experts\n"
    "    if getattr(experts, 'has_fused_shared_experts', False):\n"
    "        loaded_params.add(experts.load_shared_expert_weight(name, loaded_weight))\n        continue"
)
_INTO_EXPERTS: Final = re.compile(
    r"if '(?P<old>[\w.]+)' in name and fuse_by_layer\.get\(extract_layer_index\(name\), False\):\n"
    r"    name = name\.replace\('(?P=old)', f'(?P<new>[\w.]+\{n_routed\}[\w.]*)'\)"
)
_STACKED: Final = (
    "if '.experts.' in name:\n    continue",
    "if weight_name not in name:\n    continue",
    "name = name.replace(weight_name, param_name)",
)
_PIPELINE: Final = re.compile(r"if is_pp_missing_parameter\((?:name|name_mapped), self\):\n    (?:continue|break)")
_LORA: Final = (
    "if name not in params_dict:\n    head, _, leaf = name.rpartition('.')\n"
    "    suffixed = f'{head}.base_layer.{leaf}'\n    if suffixed in params_dict:\n        name = suffixed"
)
_SPARED: Final = "if name not in params_dict:\n    continue"
_RESOLVED: Final = re.compile(r"(?:name|name_mapped|param_name) = _resolve_param_name\((?:name|name_mapped)\)")
_LOADED: Final = re.compile(
    r"param = params_dict\[(?:name|name_mapped|param_name)\]|weight_loader = .*|weight_loader\(param, loaded_weight.*\)"
    r"|loaded_params\.add\((?:name|param_name)\)|break|continue"
    r"|success = weight_loader\(param, loaded_weight, name_mapped, .*\)|if success:\n    name = name_mapped\n    break"
    r"|narrow_weight = loaded_weight\[.*\]|n = narrow_weight\.shape\[0\]"
    r"|params_dict\[name\]\[:n\]\.copy_\(narrow_weight\)"
)
_BYTES: Final = re.compile(r"if 'weight_scale' in name and loaded_weight\.dtype == .*:\n    loaded_weight = .*")
_MAPPING: Final = re.compile(r"param_name, weight_name, expert_id, (\w+) = mapping")
_RESOLVERS: Final[dict[str, dict[str, str | None]]] = {
    (
        "inv_name = f'{name}_inv'\nif name not in params_dict and inv_name in params_dict:\n"
        "    return inv_name\nreturn name"
    ): {"first_without": None, "last_with": "_inv"},
    (
        "if name.endswith('_inv'):\n    direct_name = name.removesuffix('_inv')\n    if direct_name in params_dict:\n"
        "        return direct_name\ninv_name = f'{name}_inv'\n"
        "if name not in params_dict and inv_name in params_dict:\n"
        "    return inv_name\nreturn name"
    ): {"first_without": "_inv", "last_with": "_inv"},
}


def learn_inner(source: Source, path: str, owner: str) -> dict[str, Any]:
    """Rules for names below the model of layers, without its prefix."""
    load = function(source, path, f"{owner}.load_weights")
    place = f"{path} {owner}.load_weights"
    loops = [item for item in load.body if isinstance(item, ast.For) and ast.unparse(item).startswith(_LOOP)]
    if len(loops) != 1:
        raise LearningError(f"{place}: expected one loop over the tensors")
    found: dict[str, Any] = {"skipped_starts": [], "fused_shared_experts": False, "shared_into_experts": None}
    for item in loops[0].body:
        said = ast.unparse(item)
        starts, into = _STARTS.fullmatch(said), _INTO_EXPERTS.fullmatch(said)
        if starts:
            found["skipped_starts"] = list(ast.literal_eval(starts[1]))
        elif into:
            found["shared_into_experts"] = [into["old"], into["new"].replace("{n_routed}", "{n_routed_experts}")]
        elif said == _FUSED:
            found["fused_shared_experts"] = True
        elif isinstance(item, ast.For) and "stacked_params_mapping" in ast.unparse(item.iter):
            found |= _branches(place, item, _resolver(place, load))
        elif not _PAD.fullmatch(said):
            raise _strange(place, item)
    if "unknown" not in found:
        raise LearningError(f"{place}: expected fused layers")
    mapping = function(source, path, f"{owner}.get_expert_mapping")
    return {
        **found,
        "stacked": stacked_layers(path, load),
        "stacked_only_in_layers": False,
        **expert_matrices(source, path, mapping),
        "shared_slots": found["shared_into_experts"] is not None and _shared_slots(path, owner, mapping),
    }


def _strange(place: str, item: ast.stmt) -> LearningError:
    return LearningError(f"{place}: a statement is not understood ({ast.unparse(item)[:100]!r})")


def _resolver(place: str, load: ast.FunctionDef) -> dict[str, Any] | None:
    """Other names of a parameter that are looked for: ``first_without`` before the name, ``last_with`` after it."""
    nested = [item for item in ast.walk(load) if isinstance(item, ast.FunctionDef) and item is not load]
    if not nested:
        return None
    body = [item for item in nested[0].body if not isinstance(item, ast.Expr)]
    known = _RESOLVERS.get("\n".join(ast.unparse(item) for item in body))
    if len(nested) != 1 or known is None:
        raise LearningError(f"{place}: expected one function that looks for another name of a parameter")
    return dict(known)


def _branches(place: str, loop: ast.For, resolver: dict[str, Any] | None) -> dict[str, Any]:
    """Fused layers in the loop, and under its ``else`` routed experts and all other parameters."""
    *rules, rest = loop.orelse
    if (
        tuple(ast.unparse(item) for item in loop.body[: len(_STACKED)]) != _STACKED
        or rules
        or not isinstance(rest, ast.If)
        or ast.unparse(rest.test) != "'.experts.' in name"
    ):
        raise LearningError(f"{place}: expected fused layers, else routed experts, else other parameters")
    stacked = _flags(place, loop.body[len(_STACKED) :])
    experts, unmatched = _experts(place, rest.body)
    others = rest.orelse
    plain = []
    if len(others) == 1 and isinstance(others[0], ast.If) and ast.unparse(others[0].test) == "'attn_sink' in name":
        plain.append(_flags(place, others[0].body))
        others = others[0].orelse
    plain.append(_flags(place, others))
    if len({flags["spared"] for flags in plain}) != 1 or stacked["spared"] or experts["spared"]:
        raise LearningError(f"{place}: expected unknown names to be spared among the other parameters, or nowhere")
    fallback = None
    if stacked["resolved"] or experts["resolved"] or plain[-1]["resolved"]:
        if resolver is None or not (stacked["resolved"] and plain[-1]["resolved"]):
            raise LearningError(f"{place}: expected another name to be looked for everywhere but among the experts")
        fallback = {**resolver, "experts": experts["resolved"]}
    return {
        "unknown": "skipped" if plain[-1]["spared"] else "KeyError",
        "unknown_fused": "KeyError",
        "unmatched_experts": unmatched,
        "scale_fallback": fallback,
    }


def _flags(place: str, body: list[ast.stmt]) -> dict[str, bool]:
    found = {"spared": False, "resolved": False}
    for item in body:
        said = ast.unparse(item)
        if said == _SPARED:
            found["spared"] = True
        elif _RESOLVED.fullmatch(said):
            found["resolved"] = True
        elif not _PIPELINE.fullmatch(said) and said != _LORA and not _LOADED.fullmatch(said):
            raise _strange(place, item)
    return found


def _experts(place: str, body: list[ast.stmt]) -> tuple[dict[str, bool], str]:
    """(what is looked for, what a name without its matrix or with another number does).

    After the loop over the matrices the name it found is noted down; where it found none, that name is the one of the
    tensor before, and without one Python refuses.
    """
    said = [ast.unparse(item) for item in body]
    loops = [item for item in body if isinstance(item, ast.For)]
    inner = loops[0].body if len(loops) == 1 else []
    first = [ast.unparse(item) for item in inner[:3]]
    if (
        len(said) not in (3, 4)
        or not _BYTES.fullmatch(said[0])
        or not said[1].startswith("for mapping in expert_mapping:")
        or said[2:] not in (["loaded_params.add(name_mapped)", "continue"], ["continue"])
        or not _MAPPING.fullmatch(first[0])
        or first[1:] != [_STACKED[1], "name_mapped = name.replace(weight_name, param_name)"]
    ):
        raise LearningError(f"{place}: expected a loop over the routed experts' matrices")
    return _flags(place, inner[3:]), "skipped" if len(said) == 3 else "UnboundLocalError"


def _shared_slots(path: str, owner: str, mapping: ast.FunctionDef) -> bool:
    """True when the experts' matrices have numbers for the shared experts behind the routed ones."""
    said = ast.unparse(mapping)
    if not re.search(r"num_experts = self\.config\.n_routed_experts \+ \(n_shared if .*fuse.* else 0\)", said):
        raise LearningError(f"{path} {owner}.get_expert_mapping: expected numbers for the shared experts")
    return True
