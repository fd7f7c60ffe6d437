"""The secondary tiers of vLLM's CPU offload: which a release registers, and what their constructors take.

Read from the calls of ``SecondaryTierFactory.register_tier`` and the classes they name. The factory hands a tier its
config without the keys that it takes out itself.
"""

from __future__ import annotations

import ast
from typing import Any, Final

from .source import LearningError, Source, strings

FACTORY: Final = "v1/kv_offload/tiering/factory.py"
_HANDED: Final = frozenset({"self", "offloading_spec", "primary_kv_view", "tier_type"})
"""What the factory gives every tier; no key of its config."""
_SEED: Final = "PYTHONHASHSEED must be set"


def tiers(source: Source) -> dict[str, Any]:
    """By type: the keys a tier ``needs``, those it ``takes`` (None: any), and whether it asks for a hash ``seed``."""
    if not source.has(FACTORY):
        return {}
    tree = source.tree(FACTORY)
    popped = sorted(set(_popped(tree)))
    found = {}
    for node in tree.body:
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "SecondaryTierFactory.register_tier":
            continue
        words = strings(call)
        if len(words) != 3:
            raise LearningError(f"{FACTORY} registers a tier with other words than type, module and class")
        path = f"{words[1].removeprefix('vllm.').replace('.', '/')}.py"
        found[words[0]] = _tier(source, path, words[2], popped)
    if not found:
        raise LearningError(f"{FACTORY} registers no tiers")
    return found


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
