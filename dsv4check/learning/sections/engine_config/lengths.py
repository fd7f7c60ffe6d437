"""Context length and batch sizes: ``ModelConfig``'s length, ``EngineArgs``' defaults, ``SchedulerConfig``'s checks."""

from __future__ import annotations

import ast
from typing import Any, Final

from ...guards import Guarded, guarded, refused, words
from ...source import LearningError, Source, names
from .bounds import ARGUMENTS

_DEFAULTS: Final = "EngineArgs.get_batch_defaults"
_LARGE: Final = (70, 8192)
_HUGE: Final = 16384
_SMALL: Final = 2048
"""Tokens that ``resolve/scheduler_limits.py`` gives the tiers of memory; others need more than facts."""


def max_len(source: Source) -> dict[str, bool]:
    """``config/model.py:_get_and_verify_max_len``: whether YaRN starts from the original length, or has scaled already.

    In the latter case its factor is left out and the length is multiplied by the float 1.0.
    """
    path, place = "config/model.py", "_get_and_verify_max_len"
    node = source.get(path, place)
    derived, original, applied = "derived_max_model_len", False, True
    for item in guarded(node):
        if not isinstance(item.statement, ast.Assign):
            continue
        target = ast.unparse(item.statement.targets[0])
        if target == derived and "yarn" in item.names():
            if "original_max_position_embeddings" not in words(item.statement.value):
                raise LearningError(f"{path} {place}: {derived} of YaRN is not its original length")
            original = True
        if target == "scaling_factor" and "factor" in words(item.statement.value):
            applied = not any("yarn" in words(test) and _excludes(test) for test in item.tests)
    multiplied = any(
        isinstance(item, ast.AugAssign) and ast.unparse(item) == f"{derived} *= scaling_factor"
        for item in ast.walk(node)
    )
    if not multiplied or original is not applied:
        raise LearningError(f"{path} {place}: how the factor of YaRN changes {derived} is not clear")
    return {"yarn_from_original": original, "float": not original}


def _excludes(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn)


def batch(source: Source) -> dict[str, Any]:
    """``EngineArgs.get_batch_defaults``: the memory from which a GPU gets the largest batch, and GB10's place."""
    path = ARGUMENTS[0]
    node = source.get(path, _DEFAULTS)
    tiers: dict[int | None, tuple[int, Guarded]] = {}
    for item in guarded(node):
        tokens = _server_tokens(item.statement)
        if tokens is not None and not {"is_tpu", "is_cpu"} & item.names():
            tiers[_gibibytes(item)] = (tokens, item)
    figures = {memory: tokens for memory, (tokens, _item) in tiers.items()}
    huge = [memory for memory, tokens in figures.items() if memory is not None and tokens == _HUGE]
    expected = {None: _SMALL, _LARGE[0]: _LARGE[1]} | dict.fromkeys(huge[:1], _HUGE)
    if figures != expected:
        raise LearningError(f"{path} {_DEFAULTS}: the tiers are {figures}, not {expected}")
    large = tiers[_LARGE[0]][1]
    if "a100" not in large.names():
        raise LearningError(f"{path} {_DEFAULTS}: the A100 is not left out of the large tier")
    small = "is_gb10" in large.names()
    if small and "is_device_capability((12, 1))" not in source.segment(path, _DEFAULTS):
        raise LearningError(f"{path} {_DEFAULTS}: is_gb10 is not compute capability 12.1")
    return {"big_gib": huge[0] if huge else None, "gb10_small": small}


def _server_tokens(statement: ast.stmt) -> int | None:
    """Tokens of the API server that a statement makes the default of ``max_num_batched_tokens``."""
    if not isinstance(statement, ast.Assign) or ast.unparse(statement.targets[0]) != "default_max_num_batched_tokens":
        return None
    if not isinstance(statement.value, ast.Dict):
        return None
    for key, value in zip(statement.value.keys, statement.value.values, strict=True):
        if key is not None and "OPENAI_API_SERVER" in names(key) and isinstance(value, ast.Constant):
            return int(str(value.value))
    return None


def _gibibytes(item: Guarded) -> int | None:
    """``device_memory >= N * GiB_bytes`` among the conditions."""
    for test in item.tests:
        for part in ast.walk(test):
            if isinstance(part, ast.Compare) and "device_memory" in names(part.left):
                right = part.comparators[0]
                if (
                    isinstance(part.ops[0], ast.GtE)
                    and isinstance(right, ast.BinOp)
                    and isinstance(right.left, ast.Constant)
                    and "GiB_bytes" in names(right.right)
                ):
                    return int(str(right.left.value))
                raise LearningError(f"{ARGUMENTS[0]} {_DEFAULTS}: {ast.unparse(part)} is no size in GiB")
    return None


def long_prefill(source: Source) -> str:
    """``SchedulerConfig.verify_max_model_len``: the threshold is compared always, or only with partial prefills."""
    path, place = "config/scheduler.py", "SchedulerConfig.verify_max_model_len"
    found = refused(source.get(path, place), "long_prefill_token_threshold (")
    if found is None:
        raise LearningError(f"{path} {place}: long_prefill_token_threshold is not compared with the length")
    return "partial" if "max_num_partial_prefills" in found.names() else "always"


def partial_prefills(source: Source) -> bool:
    """``engine/arg_utils.py`` refuses concurrent partial prefills for every model."""
    path, feature = ARGUMENTS[0], "Concurrent Partial Prefill"
    return any(
        isinstance(item, ast.Call) and ast.unparse(item.func) == "_raise_unsupported_error" and feature in words(item)
        for item in ast.walk(source.tree(path))
    )
