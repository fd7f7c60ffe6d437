"""Where the code that this section is learned from stands."""

from __future__ import annotations

import ast
from typing import Final

from ...source import LearningError, Source

CONFIG: Final = "config/vllm.py"
CONVERTOR: Final = "transformers_utils/model_arch_config_convertor.py"
REGISTRY: Final = "model_executor/models/registry.py"
SPECULATIVE: Final = "config/speculative.py"
V2_RUNNER: Final = "v1/worker/gpu/model_runner.py"
VARIABLE: Final = "VLLM_USE_V2_MODEL_RUNNER"
V2_LIST: Final = "_get_v2_model_runner_unsupported_features"
V1_LIST: Final = "_get_v1_model_runner_unsupported_features"
V2_CHECK: Final = "_validate_v2_model_runner"
V1_CHECK: Final = "_validate_v1_model_runner"


def method(source: Source, name: str) -> ast.FunctionDef | None:
    """A method of ``VllmConfig``; None when the release has none of this name."""
    node = source.find(CONFIG, f"VllmConfig.{name}")
    return node if isinstance(node, ast.FunctionDef) else None


def required(source: Source, name: str) -> ast.FunctionDef:
    """Like :func:`method`. Raises LearningError when it is not there."""
    node = method(source, name)
    if node is None:
        raise LearningError(f"{CONFIG} has no VllmConfig.{name}")
    return node
