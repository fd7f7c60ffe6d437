"""How a release chooses the runner: the environment, the config, the architecture, the platform."""

from __future__ import annotations

import ast
from typing import Any, Final

from ...attention_layers import NVIDIA
from ...classes import get_class
from ...following import Following, Thing
from ...guards import Guarded, constants, guarded, words
from ...source import LearningError, Source, names
from .place import CONFIG, V1_LIST, V2_LIST, VARIABLE, method

ARCHITECTURE: Final = "DeepseekV4ForCausalLM"
_PLACE: Final = "use_v2_model_runner"
_IS_DEFAULT: Final = "_is_default_v2_model_runner_model"
_DEFAULTS: Final = "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES"
_FORCED: Final = {
    # name in the condition: (what resolve/runner.py calls it, it comes before the environment variable)
    "hisparse_config": ("hisparse", True),
    "watermark_config": ("watermark", True),
    "prefill_context_parallel_size": ("prefill_context_parallel", False),
    "dspark": ("dspark", False),
}
_OTHER_MODELS: Final = {"is_diffusion", "_dflash_needs_multi_kv_group", "_is_dflash2_draft"}
"""Conditions that no launch of DeepSeek-V4 meets: diffusion models and DFlash's own kinds of draft."""


def environment(source: Source) -> str:
    """``envs.py``: ``flag`` when an unset variable means 0, ``tristate`` when it leaves the choice to the config."""
    for item in ast.walk(source.tree("envs.py")):
        if isinstance(item, ast.Dict):
            for key, value in zip(item.keys, item.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == VARIABLE:
                    if "maybe_convert_bool" in names(value):
                        return "tristate"
                    if {"bool", "int"} <= names(value) and "0" in words(value):
                        return "flag"
    raise LearningError(f"envs.py: how {VARIABLE} is read")


def choice(source: Source) -> dict[str, Any]:
    """``VllmConfig.use_v2_model_runner``; before it existed the variable alone chose."""
    node = method(source, _PLACE)
    if node is None:
        if f"envs.{VARIABLE}" not in source.text(CONFIG):
            raise LearningError(f"{CONFIG}: neither VllmConfig.{_PLACE} nor envs.{VARIABLE}")
        return {"default": "v1", "forced_by": [], "rocm_v1_archs": [], "rocm_v1_yields": False}
    if V2_LIST not in names(node):
        raise LearningError(f"{CONFIG} VllmConfig.{_PLACE}: {V2_LIST} is not asked")
    rocm = _on_rocm(source, node)
    default = default_runner(source, node)
    return {
        "default": default,
        "forced_by": _forced_by(node),
        "rocm_v1_archs": rocm if default == "v2" else [],
        "rocm_v1_yields": any(
            "is_rocm" in item.names() and V1_LIST in words(item.statement) | item.names() for item in guarded(node)
        ),
    }


def default_runner(source: Source, node: ast.FunctionDef) -> str:
    """The runner of a launch of V4 that says nothing. Raises LearningError where that depends on what is not known."""
    model = {
        "architectures": (ARCHITECTURE,),
        "runner_type": "generate",
        "is_diffusion": False,
        "is_hybrid": False,
        "is_attention_free": False,
        "is_encoder_decoder": False,
        "is_moe": True,
        "is_quantized": True,
        "architecture": ARCHITECTURE,
    }
    known = {
        **NVIDIA,
        "self.architectures": (ARCHITECTURE,),
        f"envs.{VARIABLE}": None,
        "HAS_TRITON": True,
        "self.speculative_config": None,
        "self.model_config": Thing("self.model_config", model),
        **{f"self.{name}()": () for name in (V2_LIST, V1_LIST)},
        **{f"{place}.{name}": None for name in _FORCED for place in ("self", "self.attention_config")},
        "self.parallel_config.prefill_context_parallel_size": 1,
        **{f"self.{name}()": False for name in _OTHER_MODELS},
    }
    owner = get_class(source, CONFIG, "VllmConfig")
    outcome = Following(source, CONFIG, known, owner).run(node)
    if not isinstance(outcome, bool):
        raise LearningError(f"{CONFIG} VllmConfig.{_PLACE}: what it gives for DeepSeek-V4")
    return "v2" if outcome else "v1"


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _forced_by(node: ast.FunctionDef) -> list[str]:
    """What makes V2 the runner whatever the features are: the conditions of ``return True``."""
    found: list[str] = []
    asked = False
    for item in guarded(node):
        statement = item.statement
        if isinstance(statement, ast.Assign) and f"envs.{VARIABLE}" in ast.unparse(statement):
            asked = True
        if not isinstance(statement, ast.Return) or not _is_true(statement.value) or not item.tests:
            continue
        known = item.names() & set(_FORCED)
        if len(known) != 1:
            if item.names() & _OTHER_MODELS:
                continue
            raise LearningError(f"{CONFIG} VllmConfig.{_PLACE}: an unknown condition forces V2: {_text(item)}")
        name, early = _FORCED[known.pop()]
        if early is asked:
            raise LearningError(f"{CONFIG} VllmConfig.{_PLACE}: {name} and {VARIABLE} have changed their order")
        found.append(name)
    if not asked:
        raise LearningError(f"{CONFIG} VllmConfig.{_PLACE}: {VARIABLE} is not asked")
    return sorted(found)


def _text(item: Guarded) -> str:
    return " and ".join(ast.unparse(test) for test in item.tests)


def _on_rocm(source: Source, node: ast.FunctionDef) -> list[str]:
    """Architectures of V4 that stay on V1 on ROCm, from the property itself or the function that lists V2's."""
    found: set[str] = set()
    for item in guarded(node):
        if isinstance(item.statement, ast.Return) and "is_rocm" in item.names():
            listed = [name for name in item.names() if name.endswith("_ARCHITECTURES")]
            if not listed:
                raise LearningError(f"{CONFIG} VllmConfig.{_PLACE}: which architectures stay on V1 on ROCm")
            found |= {name for title in listed for name in constants(source, CONFIG, ast.Name(title))}
    by_platform = source.find(CONFIG, "default_v2_model_runner_architectures")
    if by_platform is not None and _IS_DEFAULT in names(node):
        everywhere = constants(source, CONFIG, ast.Name(_DEFAULTS))
        for item in guarded(by_platform):
            if isinstance(item.statement, ast.Return) and item.statement.value and "is_rocm" in item.names():
                found |= everywhere - constants(source, CONFIG, item.statement.value)
    return sorted(name for name in found if name.startswith("DeepseekV4"))
