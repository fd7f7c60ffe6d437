"""The learned rules for weights, read by dsv4check, are what the releases' own loaders do."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dsv4check.checkpoint.names import NameRules, NameSettings, Refused, Skipped, rules_of
from dsv4check.checkpoint.published import few_experts, published_tensors
from dsv4check.learning.release import source_only
from dsv4check.learning.sections.spec_decode.vendors import VENDORS, files_by_vendor
from dsv4check.learning.sections.weights import learn_from_text
from dsv4check.learning.sections.weights.targets import PUBLISHED
from dsv4check.learning.source import LearningError, Source
from dsv4check.releases.facts import load_facts
from tests.learning.fake_weights import FILES
from tests.learning.shipped import VERSIONS, made_up
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
            if len(same) < 2 and name not in same:
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
    facts = learn_from_text(source_only(package))
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


@pytest.mark.skipif(TREES is None, reason="DSV4CHECK_VLLM_TREES is not set")
@pytest.mark.parametrize("version", VERSIONS)
def test_learned_is_shipped(version: str) -> None:
    package = Path(str(TREES)) / version / "vllm"
    if not package.is_dir():
        pytest.skip(f"{version} is not unpacked")
    shipped = load_facts(version).section("weights")
    learned = learn_from_text(source_only(package))
    assert {key: shipped[key] for key in learned} == learned


MODEL = "models/deepseek_v4/nvidia/model.py"
UTILITIES = "model_executor/models/utils.py"
FILTER = "model_executor/model_loader/weight_utils.py"
LOADER = "model_executor/model_loader/default_loader.py"


def test_facts_of_a_target(tmp_path: Path) -> None:
    facts = learn_from_text(made_up(tmp_path, FILES))
    assert list(facts["names"]) == ["target", "mtp", "dspark"]
    rules = facts["names"]["target"]["nvidia amd intel"]
    assert (rules["class"], rules["inner"], rules["known_quantization"]) == ("DeepseekV4ForCausalLM", "model.", True)
    assert rules["prefixes"] == [["layers.", "model.layers."]]
    assert rules["suffixes"] == [["head.weight", "lm_head.weight"]]
    assert rules["substrings"] == [[".shared_experts.w2", ".shared_experts.down"], ["mtp.", None]]
    assert rules["kept_when_fused"] == [".shared_experts.w2"]
    assert rules["scales"] == {
        "experts_match": r"\.experts\.\d+\.w[123]\.scale$",
        "fp4_experts": ".four",
        "other_experts": ".plain",
        "others": ".plain",
        "special": [],
        "fp4_after": [],
    }
    assert (rules["skipped_starts"], rules["skipped_substrings"]) == (["picture."], ["old."])
    assert rules["shared_into_experts"] == [".ffn.shared_experts.w", ".ffn.experts.{n_routed_experts}.w"]
    assert rules["scale_fallback"] == {"first_without": None, "last_with": "_inv", "experts": False}
    assert (rules["unknown"], rules["unknown_fused"]) == ("skipped", "KeyError")
    assert rules["unmatched_experts"] == "UnboundLocalError"
    assert facts["loader"]["order"] == ["prefix", "regex", "substr", "suffix"]
    assert facts["loader"]["unknown"] == {
        "exception": "ValueError",
        "message": "There is no module {name!r} in {class}.",
    }
    assert facts["loader"]["unused"] == ["turned."]
    assert facts["files"]["missing_file"] is None
    assert facts["files"]["no_files"] == {"exception": "RuntimeError", "message": "No weights in `{model}`"}
    assert facts["files"]["missing_parameters"]["message"] == "Not loaded: {parameters}"


@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [
        (MODEL, "if name not in params_dict:\n", "if name in other:\n", "a statement is not understood"),
        (MODEL, "if name.startswith((", "if name.endswith((", "a statement is not understood"),
        (MODEL, 'inv_name = f"{name}_inv"', 'inv_name = f"{name}_x"', "looks for another name"),
        (MODEL, "loaded_params.add(name_mapped)", "loaded_params.add(name)", "loop over the routed experts"),
        (MODEL, "n_routed_experts + (", "n_routed_experts + max(", "numbers for the shared experts"),
        (MODEL, "return WeightsMapper(", "return torch.map(", "more than putting rules together"),
        (MODEL, '["mtp."] = None', '[open("x")] = None', "expected a function or a constant|defines nor imports"),
        (MODEL, "orig_to_new_suffix=", "orig_to_new_other=", "are not understood"),
        (MODEL, 'scales = {re.compile(r"\\.scale$"): ".plain"}', "scales = {}", "one pattern for all scales"),
        (MODEL, 'if expert_dtype != "fp4" or', 'if expert_dtype == "int4" or', "unknown condition"),
        (MODEL, "skip_substrs=", "skip_all=", "is not understood"),
        (MODEL, "loader.load_weights(weights, mapper", "loader.load_weights(change(weights), mapper", "through hf_to"),
        (UTILITIES, "key.replace(substr, new_key, 1)", "key.replace(substr, new_key)", "applied in no known way"),
        (UTILITIES, "        return key\n", "        return key.lower()\n", "expected it to return the name"),
        (UTILITIES, "There is no module", "Nothing is called", "expected one refusal"),
        (FILTER, "not os.path.isfile", "os.path.islink", "files of the index to be kept"),
        (LOADER, "model_config.quantization is None and", "", "a check of unquantized models"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, file: str, before: str, after: str, message: str) -> None:
    assert before in FILES[file]
    release = made_up(tmp_path, {**FILES, file: FILES[file].replace(before, after)})
    with pytest.raises(LearningError, match=message):
        learn_from_text(release)
