"""Which attention class V4's layers get, what named backends do, and how query heads are padded."""

from __future__ import annotations

import ast
from typing import Final

from dsv4check.learning.attention_layers import (
    LAYER,
    MODEL,
    ONE_CLASS,
    SELECTOR,
    called,
    constructor,
    has_selector,
    implementation,
    layer_classes,
)
from dsv4check.learning.classes import Defined, get_class, member
from dsv4check.learning.sections.attention import outcome_of_selector, padded_head_counts, selected_class
from dsv4check.learning.source import LearningError, Source, names
from dsv4check.learning.values import Raised

from .kit import Decision, Place, assignments, fingerprint, function, mentions, refusing

_GENERIC: Final = "FLASHINFER_MLA_SPARSE"
_PADDED: Final = "get_padded_num_q_heads"
_TOP_K: Final = ("model_executor/layers/indexer_topk.py", "model_executor/layers/sparse_attn_indexer.py")


def _default(source: Source) -> Decision:
    if not has_selector(source):
        return "one-class", [_one_class(source)]
    usual, blackwell, small = (selected_class(source, None, major) for major in (9, 10, 12))
    if usual != blackwell:
        raise LearningError(f"{MODEL} {SELECTOR} gives SM 9.x and SM 10.x different classes")
    value = "flashmla" if small == usual else "own-class-on-sm12"
    node = function(source, MODEL, SELECTOR)
    last = [item for item in node.body[-2:] if isinstance(item, (ast.If, ast.Return))]
    inner = [part for item in last for part in ast.walk(item) if isinstance(part, ast.Return)]
    return value, [(MODEL, item) for item in (*last, *inner)]


def _named(source: Source) -> Decision:
    if not has_selector(source):
        return "ignored", [_one_class(source)]
    node = function(source, MODEL, SELECTOR)
    if isinstance(outcome_of_selector(source, _GENERIC, 9), Raised):
        return "generic-refused", [(MODEL, item) for item in refusing(node, "is not a DeepSeek V4 attention backend")]
    if not isinstance(outcome_of_selector(source, "FLASHINFER_MLA_SPARSE_DSV4", 9), str):
        raise LearningError(f"{MODEL} {SELECTOR} refuses V4's own FlashInfer backend")
    return "mapped", [(MODEL, item) for item in mentions(node, "FLASHINFER_MLA_SPARSE_DSV4", "FLASHMLA_SPARSE")]


def _one_class(source: Source) -> Place:
    path = source.first(*LAYER)
    return path, get_class(source, path, ONE_CLASS).node


def _padding(source: Source) -> Decision:
    classes = layer_classes(source)
    if ONE_CLASS in classes:
        return "flashmla-only", [_one_class_padding(source, classes[ONE_CLASS])]
    flashinfer = {name: defined for name, defined in classes.items() if "FlashInfer" in name}
    least = {name: _least(source, defined) for name, defined in flashinfer.items()}
    values = {(64,): "from-64", (16, 64): "from-16-on-sm12", (8, 8): "from-8"}
    value = values.get(tuple(sorted(least.values())))
    if value is None:
        raise LearningError(f"{MODEL}: FlashInfer's classes pad to {least}")
    return value, [_padding_line(source, defined) for defined in flashinfer.values()]


def _least(source: Source, defined: Defined) -> int:
    sizes, _ = padded_head_counts(defined.name, lambda heads: called(source, defined, _PADDED, {"num_heads": heads}))
    return min(sizes)


def _padding_line(source: Source, defined: Defined) -> Place:
    """The first return of the class's own rule, or of the function it calls."""
    found = member(source, defined, _PADDED)
    if found is None:
        raise LearningError(f"{defined.path} {defined.name} has no {_PADDED}")
    returned = [node for node in ast.walk(found[1]) if isinstance(node, ast.Return)]
    return found[0].path, min(returned, key=lambda node: node.lineno)


def _one_class_padding(source: Source, layer: Defined) -> Place:
    picked = implementation(source, layer)
    if picked is not None:
        return _padding_line(source, picked)
    tree = source.tree(layer.path)
    padded = assignments(tree, "self.padded_heads")
    return (layer.path, padded[0]) if padded else (layer.path, constructor(layer))


def _top_k(source: Source) -> Decision:
    """Does the choice of the cluster kernel leave out SM 12.x?"""
    path = next((item for item in _TOP_K if source.has(item) and _cluster(source, item)), None)
    if path is None:
        path = source.first(*_TOP_K)
        return "no-cluster-kernel", [(path, mentions(source.tree(path), "persistent_topk", "top_k_per_row_decode")[0])]
    choice = _cluster(source, path)
    family = [node for item in choice for node in mentions(item, "is_device_capability_family")]
    if family:
        return "not-on-sm12", [(path, family[0]), (path, choice[0])]
    return "on-sm12", [(path, item) for item in (*choice, *mentions(choice[0], "has_device_capability"))]


def _cluster(source: Source, path: str) -> list[ast.Assign]:
    tree = source.tree(path)
    return [
        item
        for target in ("use_cooperative_topk", "self._cooperative_capable")
        for item in assignments(tree, target)
        if "current_platform" in names(item.value)
    ]


def _strided(source: Source) -> Decision:
    """Is FlashInfer told that the indices count storage, not rows?"""
    path = "models/deepseek_v4/nvidia/flashinfer_sparse.py"
    if not source.has(path):
        return "no-flashinfer", [_one_class(source)]
    told = [
        item.value
        for node in ast.walk(source.tree(path))
        if isinstance(node, ast.Call)
        for item in node.keywords
        if item.arg == "sparse_indices_are_storage_offsets"
    ]
    if told:
        return "told", [(path, item) for item in told]
    called = mentions(source.tree(path), "flashinfer_trtllm_batch_decode_sparse_mla_dsv4")
    if not called:
        raise LearningError(f"{path}: which function of FlashInfer decodes")
    return "not-told", [(path, called[-1])]


FINGERPRINTS: Final = (
    fingerprint(
        "v4-attention-default",
        "Which attention class do V4's layers get without --attention-backend?",
        {
            "one-class": "FlashMLA's packed class everywhere; there is no other, and none for SM 12.x.",
            "flashmla": "FlashMLA's packed class on every GPU, SM 12.x included, where its kernels do not exist.",
            "own-class-on-sm12": "FlashInfer's class on SM 12.x, FlashMLA's packed class elsewhere.",
        },
        _default,
        good=("own-class-on-sm12",),
        rules=("GA005",),
        references=("vllm#40821",),
    ),
    fingerprint(
        "v4-named-backends",
        "What does --attention-backend do to V4's layers?",
        {
            "ignored": "Nothing: the name is never read for them.",
            "mapped": "V4's own names choose a class, all others are ignored.",
            "generic-refused": "V4's own names choose a class, FLASHINFER_MLA_SPARSE is refused, others are ignored.",
        },
        _named,
        good=("mapped", "generic-refused"),
    ),
    fingerprint(
        "padded-query-heads",
        "To how many query heads does a rank pad at least?",
        {
            "flashmla-only": "To 64, with the only class there is.",
            "from-64": "To 64, with FlashInfer's class, too.",
            "from-16-on-sm12": "To 64, on SM 12.x to 16.",
            "from-8": "To 64 with FlashMLA, to 8 with FlashInfer's classes.",
        },
        _padding,
        good=("flashmla-only", "from-64", "from-16-on-sm12", "from-8"),
    ),
    fingerprint(
        "indexer-top-k-on-sm12",
        "Is the indexer's top-k sent to the cluster kernel on SM 12.x?",
        {
            "no-cluster-kernel": "There is no cluster kernel.",
            "on-sm12": "It is, and the launch of the kernel fails there.",
            "not-on-sm12": "SM 12.x is left out.",
        },
        _top_k,
        good=("no-cluster-kernel", "not-on-sm12"),
        rules=("GA020",),
        references=("vllm#47266",),
    ),
    fingerprint(
        "flashinfer-storage-offsets",
        "Is FlashInfer told how to read the indices into strided caches?",
        {
            "no-flashinfer": "There is no FlashInfer class for V4.",
            "not-told": "It is not told: FlashInfer from 0.7 on refuses strided caches.",
            "told": "It is told that the indices count storage.",
        },
        _strided,
        good=("no-flashinfer", "told"),
        rules=("PK005",),
        references=("vllm#58069",),
    ),
)
