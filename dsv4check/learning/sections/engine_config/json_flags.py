"""JSON flags: the types of the config fields they go to, and what the default loader's extra config may hold."""

from __future__ import annotations

import ast
from typing import Any, Final

from ...guards import fields, keys, refused, template
from ...source import LearningError, Source

_FIELDS: Final = {
    ("config/model.py", "ModelConfig"): (
        "limit_mm_per_prompt",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "override_generation_config",
    ),
    ("config/observability.py", "ObservabilityConfig"): ("custom_histogram_buckets",),
    ("config/load.py", "LoadConfig"): ("pt_load_map_location",),
    ("config/vllm.py", "VllmConfig"): ("additional_config",),
}
"""Fields that flags with a JSON value fill, where pydantic checks the value; a release may lack some."""
_CLASSES: Final = {
    "diffusion_config": ("config/diffusion.py", "DiffusionConfig"),
    "watermark_config": ("config/watermarking.py", "WatermarkConfig"),
}
"""Flags whose object is unpacked into a class when the engine config is made, not by the parser."""
_LOADERS: Final = "model_executor/model_loader/__init__.py"
_DEFAULT: Final = "model_executor/model_loader/default_loader.py"


def json_types(source: Source) -> dict[str, str]:
    """Field name -> annotation, without ``InitVar``."""
    types = {}
    for (path, name), wanted in _FIELDS.items():
        known = fields(source, path, name)
        for field in wanted:
            if field in known:
                annotation = known[field].annotation
                if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "InitVar":
                    annotation = annotation.slice
                types[field] = ast.unparse(annotation)
    if "additional_config" not in types:
        raise LearningError("config/vllm.py VllmConfig: no field additional_config")
    return types


def json_classes(source: Source) -> dict[str, dict[str, list[str]]]:
    """Keys that such an object may have, and those it must have; a release may lack the flags."""
    found = {}
    for dest, (path, name) in _CLASSES.items():
        if source.find("engine/arg_utils.py", f"EngineArgs.create_{dest}") is None:
            continue
        known = fields(source, path, name)
        if not known:
            raise LearningError(f"{path} {name}: no fields")
        required = [field for field, item in known.items() if not _has_default(item.value)]
        found[dest] = {"keys": sorted(known), "required": sorted(required)}
    return found


def _has_default(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("Field", "field"):
        return bool(value.args) or any(item.arg in ("default", "default_factory") for item in value.keywords)
    return value is not None


def loader_extra(source: Source) -> dict[str, Any]:
    """``DefaultModelLoader.__init__``: keys it takes, formats it serves, and its refusal of what is no object."""
    place = "DefaultModelLoader.__init__"
    node = source.get(_DEFAULT, place)
    allowed = [
        ast.literal_eval(item.value)
        for item in ast.walk(node)
        if isinstance(item, ast.Assign) and [ast.unparse(target) for target in item.targets] == ["allowed_keys"]
    ]
    if len(allowed) != 1:
        raise LearningError(f"{_DEFAULT} {place}: one set allowed_keys was expected")
    refusal = refused(node, "model_loader_extra_config must be a dict")
    if refusal is None:
        exception, text = "AttributeError", "'str' object has no attribute 'keys'"
    else:
        call = getattr(refusal.statement, "exc", None)
        assert isinstance(call, ast.Call)
        exception = ast.unparse(call.func)
        # The config class turns everything but an object into text.
        text = template(
            call.args[0], {"load_config.load_format": "{load_format}", "type(extra_config).__name__": "str"}
        )
    loaders = source.get(_LOADERS, "_LOAD_FORMAT_TO_MODEL_LOADER")
    table = getattr(loaders, "value", None)
    if not isinstance(table, ast.Dict):
        raise LearningError(f"{_LOADERS}: _LOAD_FORMAT_TO_MODEL_LOADER is no dictionary")
    formats = [
        key
        for key, value in zip(keys(source, _LOADERS, "_LOAD_FORMAT_TO_MODEL_LOADER"), table.values, strict=True)
        if ast.unparse(value) == "DefaultModelLoader"
    ]
    return {"exception": exception, "formats": formats, "keys": sorted(allowed[0]), "not_an_object": text}
