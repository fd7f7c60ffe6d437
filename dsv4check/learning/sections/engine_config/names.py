"""Names a release knows: parsers, tokenizers, load formats, KV layouts, and where the retention interval comes from."""

from __future__ import annotations

import ast
from typing import Final

from ...guards import fields, keys
from ...source import LearningError, Source
from .bounds import ARGUMENTS

_RETENTION: Final = "prefix_cache_retention_interval"
_TOKENIZERS: Final = "tokenizers/registry.py"


def parsers(source: Source) -> dict[str, str]:
    """The registries of tool parsers, reasoning parsers and tokenizer modes, as words in alphabetical order."""
    return {
        "tool": _words(keys(source, "tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER")),
        "reasoning": _words(keys(source, "reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER")),
        "tokenizer": _words([*keys(source, _TOKENIZERS, "_VLLM_TOKENIZERS"), *_resolved_modes(source)]),
    }


def mamba_backends(source: Source) -> list[str]:
    """``MambaBackendEnum`` (config/mamba.py), in the order in which its refusal names them."""
    node = source.get("config/mamba.py", "MambaBackendEnum")
    return [
        target.id
        for item in getattr(node, "body", [])
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name)
    ]


def empty_reasoning_parser(source: Source) -> bool:
    """``ReasoningConfig.initialize_token_ids`` (config/reasoning.py): True when it looks up the empty name too."""
    path, place = "config/reasoning.py", "ReasoningConfig.initialize_token_ids"
    asked = [
        test
        for item in ast.walk(source.get(path, place))
        if isinstance(item, ast.If)
        for test in (item.test.values if isinstance(item.test, ast.BoolOp) else [item.test])
        if "reasoning_parser" in ast.unparse(test)
    ]
    forms = {ast.unparse(test) for test in asked}
    if forms == {"self.reasoning_parser is not None"}:
        return True
    if forms == {"self.reasoning_parser"}:
        return False
    raise LearningError(f"{path} {place}: one condition on self.reasoning_parser was expected")


def _words(names: list[str]) -> str:
    return " ".join(sorted(set(names)))


def _resolved_modes(source: Source) -> list[str]:
    """Modes that ``resolve_tokenizer_args`` turns into a registered one (``auto``, ``slow``)."""
    place = "resolve_tokenizer_args"
    modes = [
        part.value
        for item in ast.walk(source.get(_TOKENIZERS, place))
        if isinstance(item, ast.Compare) and ast.unparse(item.left) == "tokenizer_mode"
        for part in item.comparators
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    if "auto" not in modes:
        raise LearningError(f"{_TOKENIZERS} {place}: tokenizer_mode is not compared with 'auto'")
    return modes


def load_formats(source: Source) -> str:
    """``model_executor/model_loader``: the formats ``get_model_loader`` knows."""
    return " ".join(keys(source, "model_executor/model_loader/__init__.py", "_LOAD_FORMAT_TO_MODEL_LOADER"))


def kv_layouts(source: Source) -> list[str] | None:
    """Layouts that V4's indexer declares (``v1/attention/backends/mla/indexer.py``); None before layouts are declared.

    The most particular of V4's backends; the others accept what it does.
    """
    path, place = "v1/attention/backends/mla/indexer.py", "DeepseekV4IndexerBackend.supported_kv_cache_layouts"
    if source.find("v1/attention/backends/utils.py", "resolve_kv_cache_layout") is None:
        return None
    returned = [item.value for item in ast.walk(source.get(path, place)) if isinstance(item, ast.Return)]
    if len(returned) != 1 or not isinstance(returned[0], ast.Tuple):
        raise LearningError(f"{path} {place}: one tuple of layouts was expected")
    layouts = [item.attr for item in returned[0].elts if isinstance(item, ast.Attribute)]
    if not layouts or len(layouts) != len(returned[0].elts):
        raise LearningError(f"{path} {place}: a layout is not a member of KVCacheLayout")
    return layouts


def retention(source: Source) -> str | None:
    """Where the prefix-cache retention interval can be said: ``env``, ``flag`` or ``both``; None without it."""
    flag = _RETENTION in fields(source, *ARGUMENTS)
    env = f'"VLLM_{_RETENTION.upper()}"' in source.text("envs.py")
    if not flag and not env:
        return None
    path, place = "v1/core/kv_cache_coordinator.py", f"_validate_{_RETENTION}"
    if "a multiple of scheduler_block_size" not in source.segment(path, place):
        raise LearningError(f"{path} {place}: the interval is not compared with scheduler_block_size")
    if flag:
        return "both" if env else "flag"
    return "env"
