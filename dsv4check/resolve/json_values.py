"""JSON flags whose value the parser takes and a config class refuses: a list where an object is expected."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Problem, Stage
from dsv4check.resolve.flag_values import config_problem, where


def json_value_problems(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """Values against the fields of ModelConfig, LoadConfig and VllmConfig, and what the default loader takes."""
    flags = deployment.flags
    problems = []
    for dest, annotation in section["json_types"].items():
        if not flags.given(dest) or dest not in flags.values:
            continue
        wrong = mismatch(flags.values[dest], annotation)
        if wrong is not None:
            path, expected = wrong
            error = f"{dest}{path}: Input should be a valid {expected}"
            data = {"dest": dest, "flag": "--" + dest.replace("_", "-"), "expected": expected}
            problems.append(config_problem("json-value-refused", error, data, where(deployment, dest)))
    for dest, known in section["json_classes"].items():
        problems += _unpacked(deployment, dest, known)
    return problems + _loader(deployment, section["loader_extra"])


def _unpacked(deployment: Deployment, dest: str, known: Mapping[str, list[str]]) -> list[Problem]:
    """An object that becomes the arguments of a config class."""
    value = deployment.flags.values.get(dest)
    if value is None:
        return []
    data = {"dest": dest, "flag": "--" + dest.replace("_", "-"), "expected": "object"}
    origin = where(deployment, dest)
    if not isinstance(value, Mapping):
        error = f"argument after ** must be a mapping, not {type(value).__name__}"
        return [Problem("json-value-refused", Stage.ENGINE_CONFIG, "TypeError", error, data, origin)]
    said = [f"{key}: Field required" for key in known["required"] if key not in value]
    said += [f"{key}: Unexpected keyword argument" for key in value if key not in known["keys"]]
    data["expected"] = "object with keys of " + ", ".join(known["keys"])
    return [config_problem("json-value-refused", " | ".join(said), data, origin)] if said else []


def _loader(deployment: Deployment, loader: Mapping[str, Any]) -> list[Problem]:
    """``DefaultModelLoader.__init__``: an object with keys it knows; other loaders have keys of their own."""
    flags = deployment.flags
    dest = "model_loader_extra_config"
    load_format = flags.get("load_format") or "auto"
    if not flags.given(dest) or load_format not in loader["formats"]:
        return []
    value = flags.values.get(dest)
    kind, error = "ValueError", ""
    if not isinstance(value, Mapping):
        # The config class keeps whatever is no object as text.
        kind = loader["exception"]
        error = loader["not_an_object"].replace("{load_format}", str(load_format))
    elif unknown := set(value) - set(loader["keys"]):
        error = f"Unexpected extra config keys for load format {load_format}: {unknown}"
    if not error:
        return _loader_values(deployment, value) if isinstance(value, Mapping) else []
    data = {"keys": ", ".join(loader["keys"]), "load_format": load_format}
    return [Problem("loader-extra-config", Stage.MODEL_INIT, kind, error, data, where(deployment, dest))]


def _loader_values(deployment: Deployment, value: Mapping[str, Any]) -> list[Problem]:
    """Values of keys the default loader knows; a rule says from which release on it looks at them."""
    switch, threads = value.get("enable_multithread_load", False), value.get("num_threads")
    strategy = deployment.flags.get("safetensors_load_strategy")
    key, other = "enable_multithread_load", "model_loader_extra_config"
    if not isinstance(switch, bool):
        error = f"enable_multithread_load must be a bool, got {type(switch).__name__}"
    elif threads is not None and not (isinstance(threads, int) and threads > 0):
        key, error = "num_threads", f"num_threads must be a positive integer, got {threads!r}"
    elif switch and strategy not in (None, "lazy"):
        error = (
            f"enable_multithread_load does not support safetensors_load_strategy={strategy!r}; "
            "the multi-thread loader only implements the default lazy strategy."
        )
        other = "safetensors_load_strategy"
    else:
        return []
    data = {"key": key, "value": value[key], "other": other}
    origin = where(deployment, "model_loader_extra_config")
    return [Problem("loader-extra-value", Stage.MODEL_INIT, "ValueError", error, data, origin)]


def mismatch(value: Any, annotation: str) -> tuple[str, str] | None:
    """(path, what was expected) of the first part of a JSON value that does not fit; None when all fits.

    ``annotation`` is written as in Python: ``dict[str, int | dict[str, int]] | None``. Names other than those of JSON
    types stand for classes, which no JSON value is.
    """
    return _mismatch(value, _parsed(annotation))


@cache
def _parsed(annotation: str) -> ast.expr:
    return ast.parse(annotation, mode="eval").body


def _mismatch(value: Any, node: ast.expr) -> tuple[str, str] | None:
    match node:
        case ast.BinOp(left=left, right=right):
            found = _mismatch(value, left)
            return None if found is None or _mismatch(value, right) is None else found
        case ast.Constant(value=None):
            return None if value is None else ("", "null")
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[_key, of])):
            if not isinstance(value, Mapping):
                return "", "dictionary"
            for key, part in value.items():
                found = _mismatch(part, of)
                if found is not None:
                    return f".{key}{found[0]}", found[1]
            return None
        case ast.Subscript(value=ast.Name(id="list"), slice=of):
            if not isinstance(value, list):
                return "", "list"
            found = next((found for part in value if (found := _mismatch(part, of)) is not None), None)
            return found and ("", found[1])
        case ast.Name(id="dict"):
            return None if isinstance(value, Mapping) else ("", "dictionary")
        case ast.Name(id="str"):
            return None if isinstance(value, str) else ("", "string")
        case ast.Name(id="int"):
            whole = isinstance(value, int) or (isinstance(value, str) and value.strip().lstrip("+-").isdigit())
            return None if whole or (isinstance(value, float) and value.is_integer()) else ("", "integer")
        case ast.Name(id="float"):
            return None if _is_number(value) else ("", "number")
        case ast.Name(id="Any" | "object"):
            return None
    return "", "value"


def _is_number(value: Any) -> bool:
    """True for what pydantic reads as a float, numbers in text among it."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return isinstance(value, (int, float, str))
