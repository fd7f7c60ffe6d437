"""The command line, the environment and the connectors."""

from __future__ import annotations

import ast
from typing import Final

from dsv4check.learning.source import LearningError, Source, strings

from .kit import Decision, class_of, fingerprint, function, having, refusing

_PARSER: Final = ("utils/argparse_utils.py",)
_PARALLEL: Final = "config/parallel.py"
_VALIDATOR: Final = "ParallelConfig._validate_parallel_config"
_CONFIG: Final = "config/vllm.py"
_VARIABLE: Final = "VLLM_USE_MODELSCOPE"
_OPTION: Final = "--config"


def _config_file(source: Source) -> Decision:
    """Is ``--config=FILE`` read, or only ``--config FILE``?"""
    path = source.first(*_PARSER)
    parse = function(source, path, "FlexibleArgumentParser.parse_args")
    reads = [node for node in ast.walk(parse) if isinstance(node, ast.If) and any(_pulls(part) for part in node.body)]
    if len(reads) != 1:
        raise LearningError(f"{path} parse_args does not read a config file in one place")
    pull = function(source, path, "FlexibleArgumentParser._pull_args_from_config")
    split = [
        item
        for node in (reads[0].test, *pull.body)
        for item in having(node, _OPTION)
        if item.value != _OPTION and "=" in str(item.value) and not _is_docstring(pull, item)
    ]
    if split:
        return "both", [(path, item) for item in (reads[0], *split)]
    return "separate", [(path, item) for item in (reads[0], *having(pull, _OPTION)) if not _is_docstring(pull, item)]


def _pulls(node: ast.AST) -> bool:
    return any(isinstance(item, ast.Attribute) and item.attr == "_pull_args_from_config" for item in ast.walk(node))


def _is_docstring(node: ast.FunctionDef, item: ast.AST) -> bool:
    first = node.body[0]
    return isinstance(first, ast.Expr) and first.value is item


def _decode_backend(source: Source) -> Decision:
    node = function(source, _PARALLEL, _VALIDATOR)
    refused = refusing(node, "requires decode_context_parallel_size > 1")
    return ("refused" if refused else "accepted"), [(_PARALLEL, item) for item in refused or [node]]


def _hidden_states(source: Source) -> Decision:
    refused = refusing(
        class_of(source, _CONFIG, "VllmConfig"), "HiddenStatesConnector does not support chunked prefill"
    )
    if refused:
        return "refused", [(_CONFIG, item) for item in refused]
    return "accepted", [(_CONFIG, function(source, _CONFIG, "VllmConfig.__post_init__"))]


def _modelscope(source: Source) -> Decision:
    path = "envs.py"
    for item in ast.walk(source.tree(path)):
        if isinstance(item, ast.Dict):
            for key, value in zip(item.keys, item.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == _VARIABLE:
                    words = set(strings(value))
                    if "true" not in words:
                        raise LearningError(f"{path}: how {_VARIABLE} is read")
                    return ("one-or-true" if "1" in words else "true"), [
                        (path, value),
                        *((path, w) for w in having(value, "true") if w.value == "true"),
                    ]
    raise LearningError(f"{path} has no {_VARIABLE}")


FINGERPRINTS: Final = (
    fingerprint(
        "config-file-option",
        "In which forms is the file of --config read?",
        {
            "separate": "Only as two words: `--config=FILE` is accepted and the file is never read.",
            "both": "As two words and as `--config=FILE`.",
        },
        _config_file,
        good=("both",),
    ),
    fingerprint(
        "dcp-backend-without-dcp",
        "Is --dcp-comm-backend a2a refused without decode context parallelism?",
        {"refused": "It is: the launch ends in a ValueError.", "accepted": "It is not."},
        _decode_backend,
        good=("accepted",),
        rules=("PA012",),
    ),
    fingerprint(
        "hidden-states-chunked",
        "Does the hidden-states connector go with chunked prefill?",
        {"refused": "It does not: the launch ends in a ValueError.", "accepted": "The config does not refuse it."},
        _hidden_states,
        good=("accepted",),
        rules=("KC015",),
    ),
    fingerprint(
        "modelscope-switch",
        "Which values switch VLLM_USE_MODELSCOPE on?",
        {"true": "The word true alone; 1 means nothing.", "one-or-true": "1 and true."},
        _modelscope,
        good=("one-or-true",),
        rules=("EV010",),
    ),
)
