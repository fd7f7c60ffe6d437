"""Speculative decoding: what the config refuses of a draft, and what it lets a launch choose."""

from __future__ import annotations

import ast
from typing import Final

from dsv4check.learning.sections.spec_decode.config import ARGUMENTS, VLLM_CONFIG, adaptive_methods, class_path_names
from dsv4check.learning.sections.spec_decode.draft import (
    MTP_CLASS,
    learn_pipeline,
    mtp_path,
    target_path,
)
from dsv4check.learning.sections.spec_decode.fields import CONFIG, has_field, literal_values, methods
from dsv4check.learning.sections.spec_decode.queries import calls, keyword, raised
from dsv4check.learning.sections.spec_decode.scheduling import learn_budget
from dsv4check.learning.source import LearningError, Source

from .kit import Decision, assignments, class_of, fingerprint, function, having

_INIT: Final = "SpeculativeConfig.__post_init__"
_BUDGET: Final = "VllmConfig._set_max_num_scheduled_tokens"


def _pipeline(source: Source) -> Decision:
    value = learn_pipeline(source)["draft_pipeline"].replace("_", "-")
    place = "SpeculativeConfig.create_draft_parallel_config"
    size = [
        keyword(call, "pipeline_parallel_size") for call in calls(function(source, CONFIG, place), "ParallelConfig")
    ]
    lines = [(CONFIG, item) for item in size if item is not None]
    if value == "target-refused":
        path = target_path(source)
        return value, [(path, class_of(source, path, "DeepseekV4ForCausalLM")), *lines]
    return value, [*lines, (mtp_path(source), class_of(source, mtp_path(source), MTP_CLASS))]


def _below_block(source: Source) -> Decision:
    if "dspark" not in methods(source):
        return "no-dspark", [(CONFIG, source.get(CONFIG, "SpeculativeMethod"))]
    init = function(source, CONFIG, _INIT)
    refused = raised(init, "DSpark requires num_speculative_tokens >= ")
    if refused:
        return "refused", [(CONFIG, item) for item in refused]
    return "accepted", [(CONFIG, init)]


def _class_name(source: Source) -> Decision:
    init = function(source, CONFIG, _INIT)
    value = class_path_names(source, init).replace("_", "-")
    if value == "none":
        return value, [(CONFIG, source.get(CONFIG, "SpeculativeMethod"))]
    taken = [(CONFIG, item) for item in assignments(init, "self.method") if having(item, "custom_class")]
    helper = [item for item in [source.find(CONFIG, "SpeculativeConfig._is_custom_proposer_path")] if item is not None]
    return value, [*((CONFIG, item) for item in helper), *taken]


def _budget(source: Source) -> Decision:
    value = learn_budget(source)["token_budget"].replace("_", "-")
    node = function(source, VLLM_CONFIG, _BUDGET)
    delta = assignments(node, "scheduled_token_delta")
    return value, [(VLLM_CONFIG, item) for item in (*delta, *raised(node, "does not have enough slots"))]


def _adaptive(source: Source) -> Decision:
    key = "enable_adaptive_verification"
    if not has_field(source, key):
        return "none", [(CONFIG, class_of(source, CONFIG, "SpeculativeConfig"))]
    found = adaptive_methods(source)
    value = "any" if found == "any" else "dspark" if found == ["dspark"] else ""
    init = function(source, CONFIG, _INIT)
    return value, [(CONFIG, item) for item in raised(init, "Adaptive verification")]


def _sampling(source: Source) -> Decision:
    key = "draft_sample_method"
    if not has_field(source, key):
        return "greedy", [(CONFIG, class_of(source, CONFIG, "SpeculativeConfig"))]
    field = source.get(CONFIG, f"SpeculativeConfig.{key}")
    if not isinstance(field, ast.AnnAssign):
        raise LearningError(f"{CONFIG} SpeculativeConfig.{key}: expected an annotation")
    names = [item.id for item in ast.walk(field.annotation) if isinstance(item, ast.Name)]
    chosen = {value for name in names if source.find(CONFIG, name) for value in literal_values(source, CONFIG, name)}
    chosen |= {item.value for item in having(field.annotation, "") if isinstance(item.value, str)}
    value = next((name for name in ("probabilistic", "gumbel") if name in chosen), "greedy")
    return value, [(CONFIG, field)]


def _dashed(source: Source) -> Decision:
    node = function(source, ARGUMENTS, "EngineArgs.create_speculative_config")
    replaced = [call for call in calls(node, "replace") if [ast.unparse(item) for item in call.args] == ["'-'", "'_'"]]
    if not replaced:
        return "refused", [(ARGUMENTS, node)]
    return "taken", [(ARGUMENTS, item) for item in replaced]


FINGERPRINTS: Final = (
    fingerprint(
        "spec-draft-pipeline",
        "Does a V4 draft go with pipeline parallelism?",
        {
            "target-refused": "The target itself has no pipeline.",
            "refused": "The draft is checked with the target's pipeline size and refused.",
            "supported": "The draft is built for a pipeline of one stage or supports one.",
        },
        _pipeline,
        good=("target-refused", "supported"),
        rules=("SD017",),
    ),
    fingerprint(
        "spec-tokens-below-block",
        "Does DSpark take fewer speculative tokens than its draft's block?",
        {
            "no-dspark": "There is no method dspark.",
            "accepted": "It does.",
            "refused": "It does not: the launch ends in a ValueError.",
        },
        _below_block,
        good=("no-dspark", "accepted"),
        rules=("SD009",),
    ),
    fingerprint(
        "draft-model-as-class",
        "Which names of draft models are taken for a Python class?",
        {
            "none": "None.",
            "any-dot": "Every name with a dot and no slash, whatever the method.",
            "identifier": "Only dotted names of Python identifiers, without a method.",
        },
        _class_name,
        good=("none", "identifier"),
        rules=("SD030",),
    ),
    fingerprint(
        "draft-token-budget",
        "What is set aside of the batch's tokens for drafts?",
        {
            "per-sequence": "Slots for every sequence the batch may hold: small batches have no room left.",
            "per-batch": "The slots of one sequence.",
            "lookahead": "The tokens that are looked ahead.",
        },
        _budget,
        good=("per-batch", "lookahead"),
        rules=("SD019",),
    ),
    fingerprint(
        "adaptive-verification",
        "Which methods can verify adaptively?",
        {"none": "None.", "dspark": "DSpark only.", "any": "Any whose draft keeps its logits."},
        _adaptive,
        good=("none", "any"),
        rules=("SD026",),
    ),
    fingerprint(
        "draft-sampling",
        "Can a draft sample instead of proposing greedily?",
        {
            "greedy": "It cannot.",
            "gumbel": "With draft_sample_method gumbel.",
            "probabilistic": "With draft_sample_method probabilistic.",
        },
        _sampling,
        good=("probabilistic",),
        rules=("SD041",),
    ),
    fingerprint(
        "speculative-config-dashes",
        "May keys of --speculative-config be written with dashes?",
        {"refused": "They may not.", "taken": "They may."},
        _dashed,
        good=("taken",),
    ),
)
