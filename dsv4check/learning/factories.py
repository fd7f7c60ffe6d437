"""What a factory of vLLM's registers: calls ``Factory.register(name, module, class)`` at the top of its module."""

from __future__ import annotations

import ast

from .source import LearningError, Source, strings


def registered(source: Source, path: str, method: str, what: str) -> dict[str, tuple[str, str]]:
    """Path (without ``.py``) and class of each name that ``method``, as ``Factory.register``, is called with.

    ``what``: the word for one of them. Raises LearningError where calls have another form, or there are none.
    """
    found = {}
    for node in source.tree(path).body:
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != method:
            continue
        words = strings(call)
        if len(words) != 3:
            raise LearningError(f"{path} registers a {what} with other words than name, module and class")
        found[words[0]] = (words[1].removeprefix("vllm.").replace(".", "/"), words[2])
    if not found:
        raise LearningError(f"{path} registers no {what}s")
    return found
