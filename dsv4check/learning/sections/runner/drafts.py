"""What the two runners do with a draft: graph sizes, and DSpark on the V1 runner."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

from ...guards import guarded, members, words
from ...source import LearningError, Source, names
from .place import SPECULATIVE

_ADJUST: Final = "adjust_cudagraph_sizes_for_spec_decode"


def capture_check(source: Source) -> str:
    """``CompilationConfig.resolve_cudagraph_mode_and_sizes`` rounds graph sizes for V1 only, or for any runner."""
    path, place = "config/compilation.py", "CompilationConfig.resolve_cudagraph_mode_and_sizes"
    for item in guarded(source.get(path, place)):
        if _ADJUST in names(item.statement):
            only_v1 = "use_v2_model_runner" in item.names()
            if only_v1 and f"{_ADJUST}(" in source.text("v1/worker/gpu/cudagraph_utils.py"):
                raise LearningError(f"v1/worker/gpu/cudagraph_utils.py: V2 rounds graph sizes beside {place}")
            return "v1" if only_v1 else "any_runner"
    raise LearningError(f"{path} {place}: does not call {_ADJUST}")


def mask_token_fields(source: Source) -> list[str]:
    """Fields of a draft's config.json in which V1's proposer looks for the mask token, in its order."""
    path = "v1/spec_decode/llm_base_proposer.py"
    place = "_init_parallel_drafting_params"
    node = next(
        (item for item in ast.walk(source.tree(path)) if isinstance(item, ast.FunctionDef) and item.name == place), None
    )
    if node is None:
        raise LearningError(f"{path} has no {place}")
    found = [
        item.args[1].value
        for item in ast.walk(node)
        if isinstance(item, ast.Call)
        and ast.unparse(item.func) in ("hasattr", "getattr")
        and isinstance(item.args[1], ast.Constant)
        and isinstance(item.args[1].value, str)
        and item.args[1].value != "dflash_config"
    ]
    if not found or "parallel_drafting_token_id" not in words(node):
        raise LearningError(f"{path} {place}: where the mask token is looked for")
    return found


def v1_dspark(source: Source, v1_unsupported: Mapping[str, str]) -> str | None:
    """``model-init`` when V1 takes DSpark's config and fails while it is built; None when the config refuses it."""
    known = "dspark" in members(source, SPECULATIVE, "SpeculativeMethod")
    return "model-init" if known and "dspark" not in v1_unsupported.values() else None
