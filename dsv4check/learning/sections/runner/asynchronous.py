"""What ``--async-scheduling`` excludes: the errors of ``VllmConfig.__post_init__``."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Final

from ...guards import Guarded, guarded, members, template
from ...source import LearningError, Source, names
from .place import CONFIG, SPECULATIVE, required

_PLACE: Final = "__post_init__"
_SUBJECTS: Final = ("method", "disable_padded_drafter_batch", "pipeline_parallel_size")
_HOLES: Final = {"spec_config.method": "{method}", "self.speculative_config.method": "{method}"}


@dataclass(frozen=True)
class _Rule:
    """An error and the conditions it follows from."""

    text: str
    where: Guarded

    def on(self, name: str) -> bool:
        return bool(self.where.tests) and name in names(self.where.tests[-1])


def asynchronous(source: Source) -> dict[str, Any]:
    """The three errors, the methods that meet the first, and the runners they are for."""
    rules = _rules(required(source, _PLACE))
    place = f"{CONFIG} VllmConfig.{_PLACE}"
    method = next((rule for rule in rules if rule.on("method")), None)
    padded = next((rule for rule in rules if rule.on("disable_padded_drafter_batch")), None)
    pipeline = next((rule for rule in rules if rule.on("pipeline_parallel_size")), None)
    if method is None or padded is None:
        raise LearningError(f"{place}: no error for async scheduling with a method or disable_padded_drafter_batch")
    only_v1 = {"use_v2_model_runner" in rule.where.names() for rule in rules}
    if len(only_v1) != 1:
        raise LearningError(f"{place}: the errors of async scheduling are not for the same runners")
    accepted = _accepted(source, method.where.tests[-1])
    return {
        "method_error": method.text,
        "padded_error": padded.text,
        "pipeline_error": None if pipeline is None else pipeline.text,
        "refused_methods": [name for name in members(source, SPECULATIVE, "SpeculativeMethod") if name not in accepted],
        "runners": ["v1"] if only_v1.pop() else ["v1", "v2"],
    }


def _rules(node: ast.FunctionDef) -> list[_Rule]:
    """Errors under ``if ...async_scheduling``; a name in the message stands for each text it may have."""
    items = list(guarded(node))
    found: list[_Rule] = []
    for item in items:
        error = item.statement.exc if isinstance(item.statement, ast.Raise) else None
        if not isinstance(error, ast.Call) or not error.args or "async_scheduling" not in item.names():
            continue
        message = error.args[0]
        found.append(_Rule(template(message, _HOLES), item))
        for name in sorted({part.id for part in ast.walk(message) if isinstance(part, ast.Name)}):
            for other in items:
                text = _assigned(other.statement, name)
                if text:
                    found.append(_Rule(template(message, {**_HOLES, name: text}), other))
    return [rule for rule in found if any(rule.on(name) for name in _SUBJECTS)]


def _assigned(statement: ast.stmt, name: str) -> str | None:
    """The text that a statement gives to ``name``."""
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
        return template(statement.value, _HOLES)
    return None


def _accepted(source: Source, test: ast.expr) -> set[str]:
    """Methods that a chain of ``method not in ...`` and ``method != ...`` lets through."""
    found: set[str] = set()
    for item in ast.walk(test):
        if not isinstance(item, ast.Compare) or not ast.unparse(item.left).endswith(".method"):
            continue
        if not isinstance(item.ops[0], (ast.NotIn, ast.NotEq)):
            raise LearningError(f"{CONFIG} VllmConfig.{_PLACE}: {ast.unparse(item)} is not a method left out")
        for part in ast.walk(item.comparators[0]):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                found.add(part.value)
            elif isinstance(part, ast.Name) and part.id != "get_args":
                found |= set(members(source, SPECULATIVE, part.id))
    return found
