"""V4's attention layers on NVIDIA GPUs in any release: their files, classes, backends and layouts."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

from .classes import Defined, find_class, get_class, member
from .following import Following
from .source import LearningError, Source, names
from .values import Symbol

MODEL: Final = "models/deepseek_v4/nvidia/model.py"
LAYER: Final = ("models/deepseek_v4/attention.py", "model_executor/layers/deepseek_v4_attention.py")
SELECTOR: Final = "_select_dsv4_attn_cls"
ONE_CLASS: Final = "DeepseekV4MLAAttention"
"""The class of every layer in releases without the selector."""
NVIDIA: Final[Mapping[str, bool]] = {
    "current_platform.is_cuda()": True,
    "current_platform.is_rocm()": False,
    "current_platform.is_xpu()": False,
    "current_platform.is_cpu()": False,
}
"""What the platform answers on NVIDIA GPUs."""
PACKED: Final = "fp8_ds_mla"
"""The cache dtype that stands for packed states."""


def has_selector(source: Source) -> bool:
    """True when the release chooses between classes; raises LearningError when it has neither selector nor class."""
    if source.has(MODEL) and source.find(MODEL, SELECTOR) is not None:
        return True
    if source.find(source.first(*LAYER), ONE_CLASS) is None:
        raise LearningError(f"neither {MODEL} {SELECTOR} nor {ONE_CLASS} is there")
    return False


def layer_classes(source: Source) -> dict[str, Defined]:
    """The attention classes that a launch can get, by name."""
    if not has_selector(source):
        return {ONE_CLASS: get_class(source, source.first(*LAYER), ONE_CLASS)}
    selector = source.get(MODEL, SELECTOR)
    returns = [node.value for node in ast.walk(selector) if isinstance(node, ast.Return)]
    returned = {name for value in returns for name in _possible(value)}
    variables = {
        item.id for item in ast.walk(selector) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
    }
    if not returned or returned & variables:
        # Given by way of a table, a variable or another function: any class of a layer that it knows.
        known = names(source.tree(MODEL))
        for name in known:
            if name.endswith("Attention") and find_class(source, MODEL, name) is None:
                raise LearningError(f"{MODEL} has no class {name} and imports none")
        returned = {name for name in known if _is_layer(source, name)}
    if not returned:
        raise LearningError(f"{MODEL} {SELECTOR} returns no attention class")
    return {name: get_class(source, MODEL, name) for name in sorted(returned)}


def _is_layer(source: Source, name: str) -> bool:
    defined = find_class(source, MODEL, name)
    found = None if defined is None or defined.name != name else member(source, defined, "backend_cls")
    return found is not None and isinstance(getattr(found[1], "value", None), ast.Name)


def _possible(value: ast.expr | None) -> set[str]:
    """Names that an expression may give."""
    if isinstance(value, ast.IfExp):
        return _possible(value.body) | _possible(value.orelse)
    return {value.id} if isinstance(value, ast.Name) else set()


def uses_packed_layout(source: Source, defined: Defined) -> bool:
    """Whether the class stores packed fp8 states: the layout its constructor resolves the cache dtype with."""
    path = source.first(*LAYER)
    for node in ast.walk(source.tree(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_resolve_dsv4_kv_cache_dtype" and node.args:
            found = Following(source, path, {}, defined).value(node.args[0])
            if isinstance(found, bool):
                return found
            raise LearningError(f"{path}: cannot tell the layout of {defined.name} from {ast.unparse(node.args[0])!r}")
    raise LearningError(f"{path} does not call _resolve_dsv4_kv_cache_dtype")


def backend_class(source: Source, defined: Defined) -> Defined:
    """The AttentionBackend that an attention class names as its own (``backend_cls``)."""
    found = member(source, defined, "backend_cls")
    value = getattr(found[1], "value", None) if found else None
    if found is None or not isinstance(value, ast.Name):
        raise LearningError(f"{defined.path} {defined.name} names no backend_cls")
    return get_class(source, found[0].path, value.id)


def backend_name(source: Source, backend: Defined) -> str:
    """What ``get_name()`` of a backend gives."""
    name = called(source, backend, "get_name", {})
    if not isinstance(name, str):
        raise LearningError(f"{backend.path} {backend.name}.get_name gives no name")
    return name


def called(source: Source, defined: Defined, method: str, known: Mapping[str, Any]) -> Any:
    """Outcome of a method of a class, its inherited ones included."""
    found = member(source, defined, method)
    if found is None or not isinstance(found[1], ast.FunctionDef):
        raise LearningError(f"{defined.path} {defined.name} has no {method}")
    return Following(source, found[0].path, known, defined).run(found[1])


def constructor(defined: Defined) -> ast.FunctionDef:
    """The class's own ``__init__``."""
    found = defined.member("__init__")
    if not isinstance(found, ast.FunctionDef):
        raise LearningError(f"{defined.path} {defined.name} has no __init__")
    return found


def assigned(node: ast.AST, target: str) -> ast.expr | None:
    """The value, when ``node`` is a statement that assigns it to ``target`` (``self.block_size``)."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == target:
        return node.value
    return None


def layouts(source: Source) -> dict[str, bool]:
    """Whether each attention class of the release stores packed states."""
    classes = layer_classes(source)
    if ONE_CLASS in classes:
        return {ONE_CLASS: True}
    return {name: uses_packed_layout(source, defined) for name, defined in classes.items()}


def implementation(source: Source, layer: Defined) -> Defined | None:
    """The NVIDIA implementation that the class's constructor picks; None where the class does the work itself."""
    values = [assigned(node, "self.impl_cls") for node in ast.walk(constructor(layer))]
    picked = next((value for value in values if value is not None), None)
    if picked is None:
        return None
    picker = getattr(picked.func, "id", "") if isinstance(picked, ast.Call) else ""
    outcome = Following(source, layer.path, NVIDIA).call(picker)
    if not isinstance(outcome, Symbol):
        raise LearningError(f"{layer.path} {picker} returns no implementation")
    return get_class(source, layer.path, outcome.text)


def only_backend(source: Source, layer: Defined) -> Defined:
    """The backend of the one class of older releases: returned by it, or named by the implementation it picks."""
    picked = implementation(source, layer)
    if picked is not None:
        return backend_class(source, picked)
    outcome = called(source, layer, "get_attn_backend", NVIDIA)
    if not isinstance(outcome, Symbol):
        raise LearningError(f"{layer.path} {layer.name}.get_attn_backend returns no class")
    return get_class(source, layer.path, outcome.text)
