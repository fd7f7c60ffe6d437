"""Keys of the speculative config: their types, bounds and allowed values.

Source: the annotations of ``config/speculative.py:SpeculativeConfig`` and the ``Literal`` types they name.
"""

from __future__ import annotations

import ast
from typing import Any, Final

from ...source import LearningError, Source
from .queries import class_, text

CONFIG: Final = "config/speculative.py"
REGISTRY: Final = "v1/attention/backends/registry.py"
BACKENDS: Final = "AttentionBackendEnum"

_SET_NAMES: Final = {"kv_cache_dtype": "cache_dtype", "draft_lm_head_quantization": "lm_head_quantization"}
"""Names of sets of values in our facts, where they are not the name of the field."""

_SCALARS: Final = ("bool", "int", "float", "str")
_INTERNAL: Final = "SkipValidation"
"""Fields of this type are filled by vLLM, not by the user."""

_BOUNDS: Final = ("ge", "gt")
"""What dsv4check can compare with."""


def learn_fields(source: Source) -> dict[str, Any]:
    """``fields``, ``literals`` and ``mtp_methods``."""
    fields: dict[str, str] = {}
    literals: dict[str, list[str]] = {"attention_backend": _backends(source)}
    for item in class_(source, CONFIG, "SpeculativeConfig").body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        name = item.target.id
        if _INTERNAL in ast.unparse(item.annotation):
            continue
        code, values = _type_code(source, name, item.annotation)
        if values is not None:
            literals[code.removesuffix("?")] = values
        fields[name] = code + _bounds(name, item.value)
    for name in ("method", "num_speculative_tokens"):
        if name not in fields:
            raise LearningError(f"{CONFIG} SpeculativeConfig: expected the field {name}")
    return {"fields": fields, "literals": literals, "mtp_methods": literal_values(source, CONFIG, "MTPModelTypes")}


def methods(source: Source) -> list[str]:
    """Every name that ``method`` may have."""
    return literal_values(source, CONFIG, "SpeculativeMethod")


def has_field(source: Source, name: str) -> bool:
    """True when the speculative config has this key."""
    return source.find(CONFIG, f"SpeculativeConfig.{name}") is not None


def literal_values(source: Source, path: str, name: str) -> list[str]:
    """Values of a module's ``NAME = Literal[...]``; a Literal named inside another one stands for its values.

    Follows one import from another module of the release.
    """
    node = source.find(path, name)
    if node is None:
        return literal_values(source, imported_from(source, path, name), name)
    if not isinstance(node, ast.Assign):
        raise LearningError(f"{path} {name}: expected an assignment")
    return _literal(source, path, node.value)


def _literal(source: Source, path: str, node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Subscript) or ast.unparse(node.value).rpartition(".")[2] != "Literal":
        raise LearningError(f"{path} {ast.unparse(node)[:60]}: expected Literal[...]")
    inner = node.slice
    found: list[str] = []
    for item in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
        value = text(item)
        if value is not None:
            found.append(value)
        elif isinstance(item, ast.Name):
            found += literal_values(source, path, item.id)
        else:
            raise LearningError(f"{path} {ast.unparse(node)[:60]}: expected names and strings")
    return list(dict.fromkeys(found))


def imported_from(source: Source, path: str, name: str) -> str:
    """The module that ``name`` is imported from, as a path. Raises LearningError when it is not imported."""
    for item in ast.walk(source.tree(path)):
        if isinstance(item, ast.ImportFrom) and any(alias.name == name for alias in item.names):
            module = (item.module or "").removeprefix("vllm.").replace(".", "/")
            if item.level:
                module = "/".join([*path.split("/")[: -item.level], module])
            return source.first(f"{module}.py", f"{module}/__init__.py")
    raise LearningError(f"{path} neither defines nor imports {name}")


def _type_code(source: Source, name: str, node: ast.expr) -> tuple[str, list[str] | None]:
    """(type code, values of the set it names or None) of an annotation."""
    parts = _union(node)
    kinds = [part for part in parts if ast.unparse(part) != "None"]
    mark = "?" if len(kinds) < len(parts) else ""
    spelled = [ast.unparse(part) for part in kinds]
    if "str" in spelled:  # a set of names, but any other string too
        return f"str{mark}", None
    if len(kinds) == 1:
        kind, word = kinds[0], spelled[0]
        if word in _SCALARS:
            return word + mark, None
        if word == "list[float]":
            return f"list[float]{mark}", None
        if word == "list[tuple[int, int, int]]":
            return f"list[int3]{mark}", None
        if word == "LoadConfig":
            return f"any{mark}", None
        code = _SET_NAMES.get(name, name)
        if word == BACKENDS:
            return code + mark, _backends(source)
        if isinstance(kind, ast.Name):
            return code + mark, literal_values(source, CONFIG, word)
        if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Literal":
            return code + mark, _literal(source, CONFIG, kind)
    raise LearningError(f"{CONFIG} SpeculativeConfig.{name}: no type code for {ast.unparse(node)}")


def _union(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union(node.left) + _union(node.right)
    return [node]


def _bounds(name: str, default: ast.expr | None) -> str:
    """Bounds of ``Field(ge=..., gt=...)``, written as our codes write them."""
    if not isinstance(default, ast.Call) or ast.unparse(default.func) != "Field":
        return ""
    found = ""
    for item in default.keywords:
        if item.arg in ("default", "default_factory"):
            continue
        if item.arg not in _BOUNDS or not isinstance(item.value, ast.Constant):
            raise LearningError(f"{CONFIG} SpeculativeConfig.{name}: no code for Field({item.arg}=...)")
        found += f" {item.arg}={ast.unparse(item.value)}"
    return found


def _backends(source: Source) -> list[str]:
    """Names of the attention backends, in the order of the enumeration."""
    found = [
        target.id
        for item in class_(source, REGISTRY, BACKENDS).body
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    ]
    if not found:
        raise LearningError(f"{REGISTRY} {BACKENDS}: expected backend names")
    return found
