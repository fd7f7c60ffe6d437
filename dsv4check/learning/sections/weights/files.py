"""Which files of a checkpoint are read, and when parameters that got nothing are refused.

Source: ``model_executor/model_loader/weight_utils.py:filter_duplicate_safetensors_files`` and
``model_executor/model_loader/default_loader.py:DefaultModelLoader``.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from ...source import LearningError, Refusal, Source, refusals
from ..spec_decode.queries import function

_UTILS: Final = "model_executor/model_loader/weight_utils.py"
_LOADER: Final = "model_executor/model_loader/default_loader.py"
_CLASS: Final = "DefaultModelLoader"
_FILTER: Final = "filter_duplicate_safetensors_files"
_INDEX: Final = (
    "index_file_name = os.path.join(hf_folder, index_file)",
    "if not os.path.isfile(index_file_name):\n    return hf_weights_files",
    "with open(index_file_name) as f:\n    weight_map = json.load(f)['weight_map']",
    "weight_files_in_index = set()",
    "for weight_name in weight_map:\n    weight_files_in_index.add(os.path.join(hf_folder, weight_map[weight_name]))",
)
_MISSING: Final = (
    "hf_weights_files_set = set(hf_weights_files)",
    "missing_files = weight_files_in_index - hf_weights_files_set",
)
_KEPT: Final = (
    "hf_weights_files = [f for f in hf_weights_files if f in weight_files_in_index]",
    "return hf_weights_files",
)
_EXEMPT: Final = {
    "has_online_quant": "online_quantization",
    "has_postprocess_quant": "processed_after_loading",
}
"""Parameters of a module whose quantization method has this are taken for loaded."""
_QUANTIZED: Final = {
    "not has_online_quant": "online_quantization",
    "not isinstance(quant_method, BaseKVCacheMethod)": "kv_cache",
    "param.numel() > 0": "empty",
    "param_name.rsplit('.', 1)[-1] not in _CONFIG_BUILT_PARAMS": "config_built",
}
"""What still holds for a quantized model: the condition that takes it away, and our word."""


def learn_files(source: Source) -> dict[str, Any]:
    """``missing_file``: what a file that the index names and that is not there does, None where nothing (its tensors
    are then not loaded). ``extra_file``: files that the index does not name. ``no_index_key``: an index without its
    map. ``empty_index`` and ``no_files``: nothing to read. ``missing_parameters``: parameters that got no tensor;
    ``when`` the check runs by itself, ``switch`` in ``--model-loader-extra-config`` that turns it on or off, ``exempt``
    modules whose parameters are taken for loaded, ``exempt_quantized`` those that still are in a quantized model.
    """
    body = [ast.unparse(item) for item in function(source, _UTILS, _FILTER).body if not _is_text(item)]
    middle = body[len(_INDEX) : -len(_KEPT)]
    if tuple(body[: len(_INDEX)]) != _INDEX or tuple(body[-len(_KEPT) :]) != _KEPT:
        raise LearningError(f"{_UTILS} {_FILTER}: expected files of the index to be kept and no others")
    missing = None
    if middle:
        found = refusals(function(source, _UTILS, _FILTER))
        if tuple(middle[:-1]) != _MISSING or len(found) != 1 or found[0].test != "missing_files":
            raise LearningError(f"{_UTILS} {_FILTER}: expected missing files to be refused")
        missing = _refusal(found[0], "files")
    prepare = function(source, _LOADER, f"{_CLASS}._prepare_weights")
    none = [item for item in refusals(prepare) if item.test == "len(hf_weights_files) == 0"]
    if len(none) != 1 or _FILTER not in ast.unparse(prepare):
        raise LearningError(f"{_LOADER} {_CLASS}._prepare_weights: expected a refusal without files")
    refused = _refusal(none[0], "model")
    return {
        "missing_file": missing,
        "extra_file": "left_out",
        "no_index_key": {"exception": "KeyError", "message": "'weight_map'"},
        "empty_index": refused,
        "no_files": refused,
        "missing_parameters": _missing_parameters(source),
    }


def _is_text(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)


def _refusal(item: Refusal, word: str) -> dict[str, str]:
    if item.message.count("{}") != 1:
        raise LearningError(f"model_executor/model_loader: expected one value in {item.message!r}")
    return {"exception": item.exception, "message": item.message.replace("{}", f"{{{word}}}")}


def _missing_parameters(source: Source) -> dict[str, Any]:
    load = function(source, _LOADER, f"{_CLASS}.load_weights")
    place = f"{_LOADER} {_CLASS}.load_weights"
    said = ast.unparse(load)
    default = "model_config.quantization is None and loaded_weights is not None"
    track = source.find(_LOADER, f"{_CLASS}.track_weights_loading")
    if default not in said:
        raise LearningError(f"{place}: expected a check of unquantized models")
    if not isinstance(track, ast.FunctionDef):
        if f"if {default}:" not in said:
            raise LearningError(f"{place}: expected a check of unquantized models only")
        return _not_loaded(place, load) | {"when": "unquantized", "switch": None, "exempt": [], "exempt_quantized": []}
    switch = re.findall(r"self\.(\w+) if self\.\1 is not None else default_enable_weights_track", said)
    if len(switch) != 1 or f"default_enable_weights_track = {default}" not in said:
        raise LearningError(f"{place}: expected a switch for the check")
    exempt, quantized = _exempt(place, track)
    return _not_loaded(place, track) | {
        "when": "unquantized",
        "switch": switch[0],
        "exempt": exempt,
        "exempt_quantized": exempt if quantized is None else quantized,
    }


def _not_loaded(place: str, node: ast.FunctionDef) -> dict[str, Any]:
    found = [item for item in refusals(node) if item.test == "weights_not_loaded"]
    if len(found) != 1:
        raise LearningError(f"{place}: expected a refusal of parameters without tensors")
    return dict(_refusal(found[0], "parameters"))


def _exempt(place: str, track: ast.FunctionDef) -> tuple[list[str], list[str] | None]:
    """(exempt modules, what is exempt in a quantized model or None when that is the same)."""
    tests = [item.test for item in ast.walk(track) if isinstance(item, ast.If)]
    modules = [test for test in tests if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)]
    inner = [test for test in tests if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)]
    words = [ast.unparse(part) for test in modules for part in test.values]
    if len(modules) != 1 or any(word not in _EXEMPT for word in words):
        raise LearningError(f"{place}: exempt modules are not understood ({', '.join(words)})")
    exempt = [_EXEMPT[word] for word in words]
    if not inner:
        return exempt, None
    parts = [ast.unparse(part) for part in inner[0].values]
    if len(inner) != 1 or parts[0] != "quantized" or any(part not in _QUANTIZED for part in parts[1:]):
        raise LearningError(f"{place}: exempt parameters of a quantized model are not understood ({', '.join(parts)})")
    return exempt, [_QUANTIZED[part] for part in parts[1:]]
