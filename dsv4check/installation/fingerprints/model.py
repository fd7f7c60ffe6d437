"""What the V4 model class takes part in, and which checkpoints are known."""

from __future__ import annotations

import ast
from typing import Final

from dsv4check.learning.classes import get_class, lineage
from dsv4check.learning.sections.config_fields import (
    CONFIGS,
    REGISTRY,
    is_subscripted,
    model_files,
    own_config_types,
    registered_architectures,
)
from dsv4check.learning.sections.spec_decode.draft import target_path
from dsv4check.learning.source import LearningError, Source, ancestors

from .kit import Decision, Place, fingerprint, having

_CLASS: Final = "DeepseekV4ForCausalLM"
_VISION: Final = "DeepseekV4ForConditionalGeneration"
_SCALE: Final = "scale_fmt"


def _interface(source: Source, name: str) -> Decision:
    """Does the target's class have this base, and the line that says so."""
    path = target_path(source)
    owner = get_class(source, path, _CLASS)
    if name not in ancestors(source, path, _CLASS):
        return "refused", [(path, owner.node)]
    bases = [
        (defined.path, base)
        for defined in lineage(source, owner)
        for base in defined.node.bases
        if ast.unparse(base).split("[")[0].rpartition(".")[2] == name
    ]
    return "supported", bases or [(path, owner.node)]


def _scale_format(source: Source) -> Decision:
    files = model_files(source, "deepseek_v4")
    for path in files:
        if is_subscripted(source.tree(path), "quantization_config", _SCALE):
            return "required", [(path, item) for item in having(source.tree(path), _SCALE)]
    path = target_path(source)
    return "not-required", [(path, get_class(source, path, _CLASS).node)]


def _vision(source: Source) -> Decision:
    registered = registered_architectures(source)
    if _CLASS not in registered:
        raise LearningError(f"{REGISTRY}: no {_CLASS} is registered")
    value, name = ("registered", _VISION) if _VISION in registered else ("unknown", _CLASS)
    return value, _entry(source, name)


def _entry(source: Source, name: str) -> list[Place]:
    found: list[Place] = [(REGISTRY, item) for item in having(source.tree(REGISTRY), name) if item.value == name]
    return found[:1]


def _types(source: Source) -> Decision:
    known = own_config_types(source)
    if "deepseek_v41" in known:
        return "registered", [(CONFIGS, item) for item in _config_lines(source, "deepseek_v41")]
    return "unknown", [(CONFIGS, source.get(CONFIGS, "_CONFIG_REGISTRY"))]


def _config_lines(source: Source, name: str) -> list[ast.AST]:
    table = source.get(CONFIGS, "_CONFIG_REGISTRY")
    spelled: list[ast.AST] = [
        item.value for item in ast.walk(table) if isinstance(item, ast.keyword) and item.arg == name
    ]
    return [*spelled, *(item for item in having(table, name) if item.value == name)]


FINGERPRINTS: Final = (
    fingerprint(
        "v4-pipeline",
        "Does the V4 model support pipeline parallelism?",
        {"refused": "It does not: more than one stage is refused.", "supported": "It does."},
        lambda source: _interface(source, "SupportsPP"),
        good=("supported",),
        rules=("PA006",),
    ),
    fingerprint(
        "v4-expert-balancing",
        "Does the V4 model take part in expert load balancing?",
        {"refused": "It does not: --enable-eplb ends in an assertion.", "supported": "It does."},
        lambda source: _interface(source, "MixtureOfExperts"),
        good=("supported",),
        rules=("PA016",),
    ),
    fingerprint(
        "v4-lora",
        "Does the V4 model support LoRA?",
        {"refused": "It does not.", "supported": "It does."},
        lambda source: _interface(source, "SupportsLoRA"),
        good=("supported",),
        rules=("EN015",),
    ),
    fingerprint(
        "scale-fmt",
        "Must quantization_config in config.json have scale_fmt?",
        {
            "required": "It must: repacked checkpoints without it end in KeyError: 'scale_fmt'.",
            "not-required": "It need not.",
        },
        _scale_format,
        good=("not-required",),
        rules=("MC020", "MC021"),
    ),
    fingerprint(
        "v4-vision",
        "Can V4 checkpoints with a vision tower be loaded?",
        {"unknown": "They cannot: their architecture is not registered.", "registered": "They can."},
        _vision,
        good=("registered",),
        rules=("MC008",),
    ),
    fingerprint(
        "v41-config",
        "Is the model type deepseek_v41 known?",
        {"unknown": "It is not.", "registered": "It is."},
        _types,
        good=("registered",),
    ),
)
