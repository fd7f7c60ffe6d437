"""The batch that drafting shares with the target: defaults of ``vllm serve`` and what is set aside for draft tokens.

Sources: ``engine/arg_utils.py:EngineArgs.get_batch_defaults``,
``config/vllm.py:VllmConfig._set_max_num_scheduled_tokens``.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from ...source import LearningError, Source, names
from .config import ARGUMENTS, VLLM_CONFIG
from .queries import around, assigned, branches, conjuncts, function, raised

_DEFAULTS: Final = "EngineArgs.get_batch_defaults"
_SERVER: Final = "UsageContext.OPENAI_API_SERVER"
_LARGE_GIB: Final = 160
"""dsv4check knows no exception by GPU name from this size on (``resolve/speculative_limits.py``)."""
_SMALL_BY_NAME: Final = "'a100' not in device_name"


def learn_batch(source: Source) -> dict[str, Any]:
    """``batch_defaults`` ([least GiB, tokens, sequences], largest first) and ``gb10_small``."""
    defaults = function(source, ARGUMENTS, _DEFAULTS)
    chain = next(
        (
            list(branches(item))
            for item in ast.walk(defaults)
            if isinstance(item, ast.If) and "device_memory" in names(item.test)
        ),
        None,
    )
    if chain is None:
        raise LearningError(f"{ARGUMENTS} {_DEFAULTS}: expected defaults by device_memory")
    found = []
    gb10 = False
    for test, body in chain:
        least, exceptions = (0, set()) if test is None else _tier(test)
        gb10_here = {part for part in exceptions if _is_gb10(defaults, part)}
        wanted = {_SMALL_BY_NAME} if 0 < least < _LARGE_GIB else set()
        if exceptions - gb10_here != wanted or (gb10_here and not wanted):
            raise LearningError(f"{ARGUMENTS} {_DEFAULTS}: unexpected {sorted(exceptions)} from {least} GiB on")
        gb10 = gb10 or bool(gb10_here)
        found.append([least, _server(body, "default_max_num_batched_tokens"), _server(body, "default_max_num_seqs")])
    if found[-1][0] != 0:
        raise LearningError(f"{ARGUMENTS} {_DEFAULTS}: expected defaults for all other devices")
    return {"batch_defaults": found, "gb10_small": gb10}


def _tier(test: ast.expr) -> tuple[int, set[str]]:
    """(least memory in GiB, the other conditions) of a branch."""
    least = None
    rest = set()
    for part in conjuncts(test):
        match = re.fullmatch(r"device_memory >= (\d+) \* GiB_bytes", ast.unparse(part))
        if match is None:
            rest.add(ast.unparse(part))
        else:
            least = int(match[1])
    if least is None:
        raise LearningError(f"{ARGUMENTS} {_DEFAULTS}: expected a least memory in {ast.unparse(test)}")
    return least, rest


def _is_gb10(defaults: ast.FunctionDef, part: str) -> bool:
    """True for ``not NAME`` where NAME asks for compute capability 12.1."""
    name = part.removeprefix("not ")
    values = [
        ast.unparse(item.value)
        for item in ast.walk(defaults)
        if isinstance(item, ast.Assign) and any(ast.unparse(target) == name for target in item.targets)
    ]
    return name != part and any("is_device_capability((12, 1))" in value for value in values)


def _server(body: list[ast.stmt], name: str) -> int:
    """The figure for ``vllm serve`` in a branch's table."""
    table = assigned(body, name)
    if isinstance(table, ast.Dict):
        for key, value in zip(table.keys, table.values, strict=True):
            if key is None or ast.unparse(key) != _SERVER:
                continue
            if isinstance(value, ast.Constant) and isinstance(value.value, int):
                return value.value
    raise LearningError(f"{ARGUMENTS} {_DEFAULTS}: expected {name} of {_SERVER}")


def learn_budget(source: Source) -> dict[str, Any]:
    """``token_budget``: what must fit beside a scheduled token.

    ``per_sequence``: new slots of every sequence are taken out of the batch; ``per_batch``: the slots of one must fit;
    ``lookahead``: the tokens looked ahead must.
    """
    place = "VllmConfig._set_max_num_scheduled_tokens"
    node = function(source, VLLM_CONFIG, place)
    tests = [test.test for item in raised(node, "does not have enough slots") for test, _under in around(node, item)]
    compared = set().union(*(names(test) for test in tests)) if tests else set()
    delta = next(
        (
            item.value
            for item in ast.walk(node)
            if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "scheduled_token_delta"
        ),
        None,
    )
    if "num_lookahead_tokens" in compared:
        return {"token_budget": "lookahead"}
    if delta is not None and "max_num_new_slots_for_drafting" in names(delta):
        if isinstance(delta, ast.BinOp) and isinstance(delta.op, ast.Mult) and "max_num_seqs" in names(delta):
            return {"token_budget": "per_sequence"}
        if isinstance(delta, ast.Attribute) and "scheduled_token_delta" in compared:
            return {"token_budget": "per_batch"}
    raise LearningError(f"{VLLM_CONFIG} {place}: expected a refusal of a batch without room for draft tokens")
