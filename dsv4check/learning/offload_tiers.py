"""The secondary tiers of vLLM's CPU offload: which a release registers, and what their constructors take.

Read from the calls of ``SecondaryTierFactory.register_tier`` and the classes they name. The factory hands a tier its
config without the keys that it takes out itself.
"""

from __future__ import annotations

import ast
from typing import Any, Final

from .factories import registered
from .source import LearningError, Source, strings

FACTORY: Final = "v1/kv_offload/tiering/factory.py"
_HANDED: Final = frozenset({"self", "offloading_spec", "primary_kv_view", "tier_type"})
"""What the factory gives every tier; no key of its config."""
_SEED: Final = "PYTHONHASHSEED must be set"


def tiers(source: Source) -> dict[str, Any]:
    """By type: the keys a tier ``needs``, those it ``takes`` (None: any), and whether it asks for a hash ``seed``."""
    if not source.has(FACTORY):
        return {}
    popped = sorted(set(_popped(source.tree(FACTORY))))
    listed = registered(source, FACTORY, "SecondaryTierFactory.register_tier", "tier")
    return {kind: _tier(source, f"{module}.py", name, popped) for kind, (module, name) in listed.items()}


def _popped(tree: ast.AST) -> list[str]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "config.pop")
    return [key for call in calls for key in strings(call.args[0])]


def _tier(source: Source, path: str, name: str, popped: list[str]) -> dict[str, Any]:
    node = source.get(path, f"{name}.__init__")
    if not isinstance(node, ast.FunctionDef):
        raise LearningError(f"{path} {name}.__init__ is no function")
    given = [item.arg for item in node.args.args]
    required = given[: len(given) - len(node.args.defaults)]
    keys = {*given, *(item.arg for item in node.args.kwonlyargs), *popped} - _HANDED
    return {
        "needs": [key for key in required if key not in _HANDED],
        "takes": None if node.args.kwarg is not None else sorted(keys),
        "seed": any(_SEED in text for text in strings(node)),
    }
