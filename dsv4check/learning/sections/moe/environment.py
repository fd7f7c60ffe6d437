"""Variables that a selection function reads: where one is set, the recorded choice may not hold."""

from __future__ import annotations

import ast
from typing import Final

from ...source import LearningError, Source, names

_ORACLE: Final = "model_executor/layers/fused_moe/oracle"
_MXFP4: Final = "model_executor/layers/quantization/mxfp4.py"
_OTHER_VENDORS: Final = ("VLLM_ROCM_",)


def variables(source: Source, form: str) -> list[str]:
    """Names of the variables in the function that selects kernels for V4's experts of this format."""
    path = f"{_ORACLE}/{form}.py"
    found = set()
    for item in ast.walk(source.get(path, _function(source, form))):
        match item:
            case ast.Attribute(value=ast.Name(id="envs"), attr=name) if name.startswith("VLLM_"):
                found.add(name)
            case ast.Call(func=ast.Attribute(attr="is_set"), args=[ast.Constant(value=str(name))]):
                found.add(name)
    return sorted(name for name in found if not name.startswith(_OTHER_VENDORS))


def _function(source: Source, form: str) -> str:
    """MXFP4 has several selection functions: the one that V4's method calls counts."""
    if form != "mxfp4":
        return f"select_{form}_moe_backend"
    called = names(source.get(_MXFP4, "Mxfp4MoEMethod"))
    selecting = [name for name in called if name.startswith("select_") and name.endswith("mxfp4_moe_backend")]
    if len(selecting) != 1:
        raise LearningError(f"{_MXFP4} Mxfp4MoEMethod: one selection function was expected, not {sorted(selecting)}")
    return selecting[0]
