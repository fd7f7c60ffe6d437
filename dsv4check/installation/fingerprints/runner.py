"""Which model runner V4 gets, and how the V2 runner fills its graphs."""

from __future__ import annotations

import ast
from typing import Final

from dsv4check.learning.sections.runner.choice import ARCHITECTURE, choice, default_runner
from dsv4check.learning.sections.runner.place import CONFIG, VARIABLE, method
from dsv4check.learning.source import LearningError, Source

from .kit import Decision, Place, assignments, fingerprint, having, mentions

_CHOICE: Final = "use_v2_model_runner"
_DEFAULTS: Final = "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES"
_GRAPHS: Final = "v1/worker/gpu/cudagraph_utils.py"


def _runner(source: Source) -> Decision:
    node = method(source, _CHOICE)
    if node is None:
        asked = mentions(source.tree(CONFIG), VARIABLE)
        if not asked:
            raise LearningError(f"{CONFIG}: neither VllmConfig.{_CHOICE} nor {VARIABLE}")
        return "v1", [(CONFIG, item) for item in asked[:1]]
    return default_runner(source, node), _listed(source, node)


def _listed(source: Source, node: ast.FunctionDef) -> list[Place]:
    """The list of V2's architectures, or the last line of the choice where every architecture gets V2."""
    table = source.find(CONFIG, _DEFAULTS)
    if table is None:
        return [(CONFIG, node.body[-1])]
    return [(CONFIG, item) for item in (*having(table, ARCHITECTURE), table)]


def _rocm(source: Source) -> Decision:
    node = method(source, _CHOICE)
    if node is None:
        return "v1", _runner(source)[1]
    found = choice(source)
    if found["default"] == "v1":
        return "v1", _listed(source, node)
    kept = [
        (CONFIG, item)
        for name in ("ROCM_DEFAULT_MRV1_ARCHITECTURES", "default_v2_model_runner_architectures")
        if (item := source.find(CONFIG, name)) is not None
    ]
    asked = [(CONFIG, item) for item in mentions(node, "is_rocm")]
    if not found["rocm_v1_archs"]:
        return "v2", _listed(source, node)
    return ("v1-yields" if found["rocm_v1_yields"] else "kept-on-v1"), [*kept, *asked]


def _padding(source: Source) -> Decision:
    """Does the V2 runner pad the requests of batches that run in piecewise graphs?"""
    owner = next(
        (
            item
            for item in ast.walk(source.tree(_GRAPHS))
            if isinstance(item, ast.FunctionDef) and item.name == "_init_candidates"
        ),
        None,
    )
    if owner is None:
        raise LearningError(f"{_GRAPHS} has no _init_candidates")
    counted = [item for item in assignments(owner, "num_reqs") if "mixed_mode" in ast.unparse(_around(owner, item))]
    if not counted:
        raise LearningError(f"{_GRAPHS} _init_candidates does not settle num_reqs of mixed batches")
    padded = [
        item
        for item in ast.walk(owner)
        if isinstance(item, (ast.If, ast.IfExp))
        and mentions(item.test, "PIECEWISE")
        and (isinstance(item, ast.IfExp) or any(assignments(part, "num_reqs") for part in item.body))
    ]
    tests = [(_GRAPHS, item) for place in padded for item in mentions(place.test, "PIECEWISE")]
    return ("padded" if padded else "exact"), [*tests, *((_GRAPHS, item) for item in counted)]


def _around(owner: ast.FunctionDef, target: ast.stmt) -> ast.AST:
    """The innermost ``if`` on the mode of mixed batches around a statement; the statement itself without one."""
    found: ast.AST = target
    for item in ast.walk(owner):
        asked = isinstance(item, ast.If) and "mixed_mode" in ast.unparse(item.test)
        if asked and any(part is target for part in ast.walk(item)):
            found = item
    return found


FINGERPRINTS: Final = (
    fingerprint(
        "default-runner",
        "Which model runner does V4 get when VLLM_USE_V2_MODEL_RUNNER is unset?",
        {"v1": "The V1 runner.", "v2": "The V2 runner, as far as it supports the launch."},
        _runner,
        good=("v1", "v2"),
    ),
    fingerprint(
        "default-runner-on-rocm",
        "Which model runner does V4 get on ROCm?",
        {
            "v1": "The V1 runner, as everywhere.",
            "kept-on-v1": "The V1 runner: ROCm is left out of V2's default, and methods that need V2 are refused.",
            "v1-yields": "The V1 runner, unless the launch needs V2.",
            "v2": "The V2 runner, as everywhere.",
        },
        _rocm,
        good=("v2",),
        rules=("RU007",),
    ),
    fingerprint(
        "v2-piecewise-requests",
        "Does the V2 runner pad mixed batches with empty requests?",
        {
            "exact": "Batches in piecewise graphs hold the requests they have.",
            "padded": "It pads them up to the graph: sparse prefill kernels meet requests without queries and abort.",
        },
        _padding,
        good=("exact",),
        rules=("RU006", "GA019"),
        references=("vllm#51106", "vllm#49059"),
    ),
)
