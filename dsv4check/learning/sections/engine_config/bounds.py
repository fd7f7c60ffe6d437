"""Bounds of the numbers that flags set: ``Field(ge=..., le=...)`` of the config classes."""

from __future__ import annotations

import ast
from typing import Any, Final

from ...guards import fields
from ...source import LearningError, Source

ARGUMENTS: Final = ("engine/arg_utils.py", "EngineArgs")
_CLASSES: Final = (
    ("config/scheduler.py", "SchedulerConfig"),
    ("config/cache.py", "CacheConfig"),
    ("config/model.py", "ModelConfig"),
    ("config/parallel.py", "ParallelConfig"),
    ("config/lora.py", "LoRAConfig"),
)
_FURTHER: Final = (
    ("config/load.py", "LoadConfig"),
    ("config/observability.py", "ObservabilityConfig"),
    ("config/offload.py", "OffloadConfig"),
    ("config/offload.py", "UVAOffloadConfig"),
    ("config/offload.py", "PrefetchOffloadConfig"),
)
"""Classes that a release may be without."""
_KEYS: Final = ("ge", "gt", "le", "lt")


def bounds(source: Source) -> dict[str, dict[str, Any]]:
    """Field -> its class and limits, for the fields of these classes that a flag of the same name sets."""
    flags = fields(source, *ARGUMENTS)
    if not flags:
        raise LearningError(f"{ARGUMENTS[0]} {ARGUMENTS[1]}: no fields")
    found: dict[str, dict[str, Any]] = {}
    for path, name in (*_CLASSES, *_FURTHER):
        known = fields(source, path, name) if source.has(path) else {}
        if not known and (path, name) in _CLASSES:
            raise LearningError(f"{path} {name}: no fields")
        for dest, field in known.items():
            limits = _limits(f"{path} {name}.{dest}", field.value)
            if limits and dest in flags and not dest.startswith("_"):
                found[dest] = {"class": name, **limits}
    if "max_num_seqs" not in found:
        raise LearningError("config/scheduler.py SchedulerConfig.max_num_seqs: Field(ge=...) was expected")
    return found


def _limits(place: str, value: ast.expr | None) -> dict[str, Any]:
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "Field":
        return {}
    limits: dict[str, Any] = {}
    for keyword in value.keywords:
        if keyword.arg in _KEYS:
            try:
                limits[keyword.arg] = ast.literal_eval(keyword.value)
            except ValueError:
                raise LearningError(f"{place}: {keyword.arg} is not a number") from None
    return limits
