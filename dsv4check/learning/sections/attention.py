"""Section ``attention``: which class the V4 layers get on NVIDIA GPUs, and what each class takes.

The classes are chosen by a selector of the model's own; releases before it have one class, whose padding stands in
constructors. Selector and padding are worked out for every backend name, compute capability and number of heads.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from ..attention_layers import (
    LAYER,
    MODEL,
    NVIDIA,
    ONE_CLASS,
    PACKED,
    SELECTOR,
    backend_class,
    backend_name,
    called,
    constructor,
    has_selector,
    implementation,
    only_backend,
    uses_packed_layout,
)
from ..classes import Defined, get_class
from ..following import Following
from ..release import Release
from ..source import LearningError, Source, names
from ..values import Raised, Symbol

ENUM: Final = "AttentionBackendEnum"
REGISTRY: Final = "v1/attention/backends/registry.py"
WRAPPER: Final = "DeepseekV4MultiHeadLatentAttentionWrapper"
"""Makes the one class; its own padding comes first where it has one."""
MAJORS: Final = (7, 8, 9, 10, 11, 12, 13)
MOST_HEADS: Final = 1024
_V4_SUFFIX: Final = "_DSV4"
_SEVERAL: Final = 12


def learn(release: Release) -> dict[str, Any]:
    """Attention classes, and the class per backend name and major compute capability."""
    source = release.source
    backends = backend_names(source)
    if not has_selector(source):
        return _one_class(source, backends)
    tables: dict[str | None, dict[str, str]] = {}
    refused: dict[str, Raised] = {}
    for backend in (None, *backends):
        outcome = _table(source, backend)
        if isinstance(outcome, Raised) and backend is not None:
            refused[backend] = outcome
        elif isinstance(outcome, dict):
            tables[backend] = outcome
        else:
            raise LearningError(f"{MODEL} {SELECTOR} refuses a launch without a backend")
    used = {name for table in tables.values() for name in table.values()}
    classes = {name: attention_class(source, name) for name in sorted(used)}
    mentioned = names(source.get(MODEL, SELECTOR))
    named = {}
    for backend, table in tables.items():
        given = {classes[name]["backend"].removesuffix(_V4_SUFFIX) for name in table.values()}
        # A name that is not asked for by the selector is heeded all the same when the class is the one it stands for.
        if backend is not None and (backend in mentioned or given == {backend.removesuffix(_V4_SUFFIX)}):
            named[backend] = table
    return {
        "classes": classes,
        "default": tables[None],
        "enum": backends,
        "named": named,
        "refused": _refused(refused),
        "where": f"{MODEL}:{SELECTOR}",
    }


def backend_names(source: Source) -> list[str]:
    """Members of ``AttentionBackendEnum`` in order (``v1/attention/backends/registry.py``)."""
    node = source.get(REGISTRY, ENUM)
    found = [
        target.id
        for item in getattr(node, "body", [])
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    ]
    if not found:
        raise LearningError(f"{REGISTRY} {ENUM} has no members")
    return found


def _table(source: Source, backend: str | None) -> dict[str, str] | Raised:
    """Class by major compute capability, ``default`` for those that go like a GPU that is not known."""
    outcomes = {major: outcome_of_selector(source, backend, major) for major in (None, *MAJORS)}
    usual = outcomes[None]
    if isinstance(usual, Raised):
        if any(outcome != usual for outcome in outcomes.values()):
            raise LearningError(f"{MODEL} {SELECTOR} refuses {backend} on some GPUs only")
        return usual
    table = {"default": usual}
    for major, outcome in outcomes.items():
        if isinstance(outcome, Raised):
            raise LearningError(f"{MODEL} {SELECTOR} refuses {backend} on SM {major}.x only")
        if outcome != usual:
            table[str(major)] = outcome
    return table


def selected_class(source: Source, backend: str | None, major: int | None) -> str:
    """Name of the class for a backend name and a major compute capability. Raises LearningError for a refusal."""
    outcome = outcome_of_selector(source, backend, major)
    if isinstance(outcome, Raised):
        raise LearningError(f"{MODEL} {SELECTOR} refuses {backend} on SM {major}.x")
    return outcome


def outcome_of_selector(source: Source, backend: str | None, major: int | None) -> str | Raised:
    """Name of the class, or how the selector refuses. Raises LearningError where it does something else."""
    asked = None if backend is None else Symbol(f"{ENUM}.{backend}", "{backend}")
    capability = None if major is None else SimpleNamespace(major=major)
    known = {
        **NVIDIA,
        "vllm_config.attention_config.backend": asked,
        "current_platform.get_device_capability()": capability,
        **{f"current_platform.is_device_capability_family({10 * item})": item == major for item in MAJORS},
        **{f"current_platform.has_device_capability({10 * item})": item <= (major or 0) for item in MAJORS},
    }
    outcome = Following(source, MODEL, known).call(SELECTOR)
    if isinstance(outcome, Symbol):
        return outcome.text
    if isinstance(outcome, Raised):
        return outcome
    raise LearningError(f"{MODEL} {SELECTOR} returns something else than a class")


def _refused(refused: Mapping[str, Raised]) -> dict[str, Any]:
    if not refused:
        return {"names": []}
    if len(set(refused.values())) > 1:
        raise LearningError(f"{MODEL} {SELECTOR} refuses backends in different ways")
    first = next(iter(refused.values()))
    return {"names": list(refused), "exception": first.exception, "error": first.message}


def attention_class(source: Source, name: str) -> dict[str, Any]:
    """Backend name, layout and padded head counts of a class that the selector returns."""
    defined = get_class(source, MODEL, name)
    sizes, too_many = padded_head_counts(
        name, lambda heads: called(source, defined, "get_padded_num_q_heads", {"num_heads": heads})
    )
    return {
        "backend": backend_name(source, backend_class(source, defined)),
        "layout": PACKED if uses_packed_layout(source, defined) else "plain",
        "padded_q_heads": sizes,
        "too_many": too_many,
    }


def padded_head_counts(name: str, pad: Any) -> tuple[list[int], str]:
    """The head counts that ``pad`` rounds to, and its message for one head more than the largest."""
    sizes: set[int] = set()
    for heads in range(1, MOST_HEADS):
        outcome = pad(heads)
        if isinstance(outcome, Raised):
            if not sizes or f" {heads} heads" not in outcome.message:
                raise LearningError(f"{name} refuses {heads} heads in an unknown way: {outcome.message}")
            return sorted(sizes), outcome.message.replace(f" {heads} heads", " {heads} heads")
        if not isinstance(outcome, int) or outcome < heads:
            raise LearningError(f"{name} does not pad {heads} heads to a number")
        sizes.add(outcome)
        if len(sizes) > _SEVERAL:
            break
    raise LearningError(f"{name} pads to more head counts than expected")


def _one_class(source: Source, backends: list[str]) -> dict[str, Any]:
    """Releases without a selector: one class; backend and padding stand in it or in the implementation it picks."""
    path = source.first(*LAYER)
    layer, wrapper = get_class(source, path, ONE_CLASS), get_class(source, path, WRAPPER)
    picked = implementation(source, layer)
    if picked is None:
        owner = wrapper if _own_padding(wrapper) else layer
        function = constructor(owner)

        def pad(heads: int) -> Any:
            return Following(source, path, {"num_heads": heads}, owner).settle(function, "self.padded_heads")
    else:

        def pad(heads: int) -> Any:
            return called(source, picked, "get_padded_num_q_heads", {"num_heads": heads})

    sizes, too_many = padded_head_counts(ONE_CLASS, pad)
    entry = {
        "backend": backend_name(source, only_backend(source, layer)),
        "layout": PACKED,
        "padded_q_heads": sizes,
        "too_many": too_many,
    }
    return {
        "classes": {ONE_CLASS: entry},
        "default": {"default": ONE_CLASS},
        "enum": backends,
        "named": {},
        "refused": {"names": []},
        "where": None,
    }


def _own_padding(defined: Defined) -> bool:
    return any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "self.padded_heads"
        and isinstance(node.value, ast.Constant)
        for node in ast.walk(constructor(defined))
    )
