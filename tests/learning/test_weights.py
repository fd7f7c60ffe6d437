"""The learned rules for weights, read by dsv4check, are what the releases' own loaders do."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from dsv4check.inputs.tensors import few_experts, published_tensors

from dsv4check.checkpoint.names import NameRules, NameSettings, Refused, Skipped, rules_of
from scripts.learning.release import source_only
from scripts.learning.sections.spec_decode.vendors import VENDORS, files_by_vendor
from scripts.learning.sections.weights import learn
from scripts.learning.sections.weights.targets import PUBLISHED
from scripts.learning.source import Source
from tests.learning.shipped import VERSIONS
from tests.learning.target_stub import LAST_HEAD, TargetStub

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
LAYERS = 43
EXPERTS = 2
OLD = "model_executor/models/deepseek_v4.py"
SHARED = "layers.0.ffn.shared_experts."
INVENTED = (
    *(
        "layers.0.attn.unknown.weight",
        "layers.0.unknown",
        "unknown.weight",
        "unknown",
        "model",
        "mtp",
        "layers",
        "layers.x",
    ),
    *("model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"),
    *("model.layers.0.mlp.experts.0.gate_proj.weight", "model.layers.0.mlp.shared_experts.gate_proj.weight"),
    *("layers.0.ffn.experts.7.w1.weight", "layers.0.ffn.experts.00.w1.weight", "layers.0.ffn.experts.0.w4.weight"),
    *("layers.0.ffn.experts.0.w2.unknown", "layers.0.ffn.experts.0.w2", "layers.0.ffn.experts.w13.weight"),
    *(
        f"layers.0.ffn.experts.1.{leaf}"
        for leaf in ("w1.weight_scale", "w3.weight_scale_2", "w2.input_scale", "w2.scale")
    ),
    *(
        f"{SHARED}{part}.{leaf}"
        for part in ("w1", "w2", "w3")
        for leaf in ("weight", "scale", "weight_scale", "input_scale")
    ),
    *(
        "layers.0.ffn.shared_experts.unknown.weight",
        "layers.0.attn.wq_a.weight_scale",
        "layers.0.attn.wo_a.weight_scale_inv",
    ),
    *("layers.0.attn.wkv.weight_scale_inv", "layers.0.attn.wq_b.input_scale", "layers.0.attn.wkv.bias", "head.bias"),
    *(
        "layers.0.attn.k_scale",
        "layers.0.attn.kv_scale",
        "layers.0.attn.k_proj.output_scale",
        "layers.0.self_attn.q.scale",
    ),
    *(
        "layers.0.attn.wq_a.g_idx",
        "layers.0.attn.rotary_emb.inv_freq",
        "head.scale",
        "head.weight.extra",
        "head.k_scale",
    ),
    *(
        "lm_head.bias",
        "head.weight",
        "xmtp.weight",
        "layers.0.mtp.weight",
        "mtp.0.enorm.weight",
        "aligner.unknown.weight",
    ),
    *(
        "vision.unknown.weight",
        "vision.unknown.bias",
        "image_unknown",
        "image_start",
        "image_end.x",
        "layers.1.vision.weight",
    ),
    *("layers.0.engram.embed.weight", "layers.0.engram.embed.scale", "layers.0.engram.embed.weight_scale"),
    *(
        "language_model.model.layers.0.attn_norm.weight",
        "hc_head_base",
        "hc_headx",
        "embed.weight",
        "embed.scale",
        "norm.x",
    ),
    *(
        "layers.10.attn.attn_sink",
        "layers.10.ffn.gate.bias",
        "layers.10.ffn.gate.bias_vl",
        "layers.5.layers.0.attn.wkv.x",
    ),
)
"""Names no published checkpoint has, or not all of them."""

_CHECKPOINTS = (
    "deepseek-ai/DeepSeek-V4-Flash",
    "deepseek-ai/DeepSeek-V4-Flash-0731",
    "deepseek-ai/DeepSeek-V4.1-Flash",
)
_CASES = (
    {"expert_dtype": "fp4"},
    {"expert_dtype": "fp8", "image": False},
    {"expert_dtype": "fp4", "weight_block": (32, 32), "mega_moe": True, "fused_shared": True},
)


@cache
def published() -> tuple[str, ...]:
    """Names of published checkpoints, a few of each pattern."""
    kept: dict[str, list[str]] = {}
    for model in _CHECKPOINTS:
        checkpoint = published_tensors(model)
        assert checkpoint is not None
        for name in few_experts(checkpoint.tensors):
            same = kept.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "#", name), [])
            if len(same) < 3 and name not in same:
                same.append(name)
    return tuple(name for names in kept.values() for name in names)


class Everything(Collection[str]):
    """A model that has every parameter in its layers, and some outside."""

    def __init__(self, inner: str, outside: Iterable[str]) -> None:
        self.inner, self.outside = inner, list(outside)

    def __contains__(self, name: object) -> bool:
        return name in self.outside or str(name).startswith(self.inner)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.outside, f"{self.inner}any"))

    def __len__(self) -> int:
        return len(self.outside)


def said(rules: NameRules, tensor: str, registered: Collection[str]) -> Any:
    """What the rules say about a tensor, in the words of the stub."""
    found = rules.map(tensor)
    if isinstance(found, Skipped):
        return []
    if isinstance(found, Refused):
        return found.exception, found.message
    loaded = []
    for target in found:
        name = rules.resolve(target, registered)
        if name is None:
            refused = rules.refusal(target, registered)
            if refused is None:
                continue
            return refused
        loaded.append((name, target.shard, target.expert))
    return loaded


def same(rules: NameRules, tensor: str, expected: Any, done: Any) -> bool:
    if expected == done or (
        expected == [] and done and done[0] == rules.rules["unmatched_experts"] == "UnboundLocalError"
    ):
        return True
    refusals = isinstance(expected, tuple) and isinstance(done, tuple)
    return refusals and expected[0] == done[0] == "ValueError" and done[1].startswith(expected[1])


def files(source: Source, kind: str) -> dict[str, str]:
    if not source.has("models/deepseek_v4/__init__.py"):
        return dict.fromkeys(VENDORS, OLD)
    return files_by_vendor(
        source, "models/deepseek_v41" if kind == "target_v41" else "models/deepseek_v4", PUBLISHED[kind]
    )


@pytest.mark.skipif(TREES is None, reason="DSV4CHECK_VLLM_TREES is not set")
@pytest.mark.parametrize("version", VERSIONS)
def test_targets_do_what_the_rules_say(version: str) -> None:
    package = Path(str(TREES)) / version / "vllm"
    if not package.is_dir():
        pytest.skip(f"{version} is not unpacked")
    source = Source(package)
    facts = learn(source_only(package))
    outside = [name for name in published() if name.startswith(("vision.", "aligner."))]
    checked = 0
    for kind in [kind for kind in PUBLISHED if kind in facts["names"]]:
        for vendor, path in files(source, kind).items():
            rules = rules_of(facts["names"], kind, vendor)
            if rules is None:
                assert (kind, vendor) == ("target_vl", "intel")
                continue
            for case in _CASES:
                checked += check(source, kind, vendor, path, rules, facts["loader"], case, outside)
    assert checked > 1000


def check(
    source: Source,
    kind: str,
    vendor: str,
    path: str,
    rules: Any,
    loader: Any,
    case: dict[str, Any],
    outside: list[str],
) -> int:
    settings = NameSettings(EXPERTS, LAYERS, **case)
    product = NameRules(rules, loader, settings)
    wrapped = rules.get("wrapped", "")
    text = None
    if wrapped:
        backbone = files(source, "target")[vendor] if kind == "target_vl" else path.rpartition("/")[0] + "/model.py"
        text = (backbone, rules["text_class"])
    stub = TargetStub(
        source,
        path,
        rules["class"],
        text=text,
        dtype=settings.expert_dtype,
        block=list(settings.weight_block or (128, 128)),
        mega=settings.mega_moe,
        fused=settings.fused_shared,
        images=settings.image,
        experts=EXPERTS,
        outside=outside,
    )
    heads = [wrapped + LAST_HEAD]
    parts = []
    if wrapped:
        image = rules["image"]
        parts = [*outside, *image["parameters"]] if settings.image else []
        if not settings.image and f"{image['parameters'][0].partition('_')[0]}_" not in image["without"]:
            parts = list(image["parameters"])
    inner = wrapped + "model."
    everything = Everything(inner, heads + parts)
    tensors = (*published(), *INVENTED)
    registered: set[str] = set()
    for tensor in tensors:
        expected = said(product, tensor, everything)
        done = stub.load(tensor)
        assert same(product, tensor, expected, done), (kind, vendor, case, tensor, expected, done)
        if tensor in published() and isinstance(done, list):
            registered |= {name for name, *_rest in done}
    registered |= set(heads + parts)
    below = {name.removeprefix(inner) for name in registered if name.startswith(inner)}
    for tensor in tensors:
        expected = said(product, tensor, registered)
        done = stub.load(tensor, below)
        assert same(product, tensor, expected, done), (kind, vendor, case, tensor, expected, done)
    return 2 * len(tensors)
