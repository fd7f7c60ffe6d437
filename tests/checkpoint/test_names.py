"""What the rules of known releases make of names, and how they are applied."""

from __future__ import annotations

import time

import pytest

from dsv4check.checkpoint.names import NameRules, NameSettings, Refused, Skipped, Target, rules_of
from dsv4check.checkpoint.published import published_tensors
from dsv4check.releases.facts import known_releases, load_facts


def rules(version: str, part: str, vendor: str = "nvidia", **changes: object) -> NameRules:
    facts = load_facts(version).section("weights")
    found = rules_of(facts["names"], part, vendor)
    assert found is not None
    settings = {"n_routed_experts": 256, "num_hidden_layers": 43, "stages": 1} | changes
    return NameRules(found, facts["loader"], NameSettings(**settings))  # type: ignore[arg-type]


def one(name_rules: NameRules, name: str) -> Target:
    found = name_rules.map(name)
    assert isinstance(found, tuple), found
    assert len(found) == 1
    return found[0]


def test_target_names() -> None:
    target = rules("0.33.0", "target")
    assert one(target, "embed.weight") == Target("model.embed_tokens.weight")
    assert one(target, "head.weight") == Target("lm_head.weight")
    assert one(target, "layers.17.attn.wkv.scale") == Target("model.layers.17.attn.fused_wqa_wkv.weight_scale_inv", 1)
    assert one(target, "layers.3.ffn.gate.bias") == Target("model.layers.3.ffn.gate.e_score_correction_bias")
    assert one(target, "layers.3.ffn.experts.255.w3.scale") == Target(
        "model.layers.3.ffn.experts.routed_experts.w13_weight_scale", "w3", 255
    )
    assert isinstance(target.map("mtp.0.enorm.weight"), Skipped)
    assert target.map("layers.3.ffn.experts.256.w3.scale") == Skipped("no matrix of a routed expert has this name")


def test_settings_decide() -> None:
    name = "layers.0.ffn.experts.1.w2.scale"
    assert one(rules("0.33.0", "target", expert_dtype="fp8"), name).parameter.endswith("w2_weight_scale_inv")
    mega = rules("0.33.0", "target", mega_moe=True, fused_shared=True)
    assert one(mega, name) == Target("model.layers.0.ffn.experts.w2_weight_scale", "w2", 1)
    assert one(mega, "layers.0.ffn.shared_experts.w3.weight") == Target(
        "model.layers.0.ffn.experts.shared_l1_weight", "w3"
    )
    refused = mega.map("layers.5.ffn.shared_experts.w4.weight")
    assert refused == Refused("ValueError", "Unexpected shared-expert tensor: layers.5.ffn.shared_experts.w4.weight")
    fused = rules("0.33.0", "target", "amd", fused_shared=True)
    assert one(fused, "layers.9.ffn.shared_experts.w2.weight") == Target(
        "model.layers.9.ffn.experts.routed_experts.w2_weight", "w2", 256
    )
    block = rules("0.33.0", "target_v41", weight_block=(32, 32))
    assert one(block, "layers.0.attn.wo_a.scale") == Target("language_model.model.layers.0.attn.wo_a.weight_scale")


def test_vision_names() -> None:
    model = rules("0.33.0", "target_vl")
    assert one(model, "vision.blocks.0.attn.wqkv.weight") == Target("vision.blocks.0.attn.wqkv.weight")
    assert one(model, "layers.0.attn_norm.weight").parameter == "language_model.model.layers.0.attn_norm.weight"
    without = rules("0.33.0", "target_vl", image=False)
    assert all(isinstance(without.map(name), Skipped) for name in ("vision.x", "aligner.x", "image_start"))
    text = rules("0.33.0", "target_v41", image=False)
    assert isinstance(text.map("vision.x"), Skipped)
    assert one(text, "image_start") == Target("image_start")
    facts = load_facts("0.33.0").section("weights")["names"]
    assert rules_of(facts, "target_vl", "intel") is None
    assert rules_of(load_facts("0.25.0").section("weights")["names"], "dspark", "amd") is None


def test_draft_names() -> None:
    mtp = rules("0.33.0", "mtp")
    assert one(mtp, "mtp.0.enorm.weight") == Target("model.layers.43.enorm.weight")
    assert one(mtp, "mtp.0.head.weight") == Target("model.layers.43.shared_head.head.weight")
    assert one(mtp, "mtp.0.ffn.experts.7.w1.weight").parameter.startswith("model.layers.43.mtp_block.ffn.experts.")
    assert isinstance(mtp.map("mtp.1.enorm.weight"), Skipped)
    assert isinstance(mtp.map("layers.0.attn_norm.weight"), Skipped)
    dspark = rules("0.33.0", "dspark", stages=3)
    assert dspark.map("mtp.1.attn.wkv.weight") == (
        Target("model.layers.1.attn.fused_wqa_wkv.weight", 1),
        Target("model.context_wkv_proj.weight", 1),
    )
    assert isinstance(dspark.map("context_wkv_proj.weight"), Refused)
    without = rules("0.33.0", "dspark", stages=3, confidence_head=False)
    assert isinstance(without.map("mtp.2.confidence_head.proj.weight"), Skipped)


def test_refusals() -> None:
    target = rules("0.33.0", "target")
    registered = {"model.norm.weight", "lm_head.weight"}
    unknown = one(target, "layers.0.attn.wq_c.weight")
    assert target.resolve(unknown, registered) is None
    assert target.refusal(unknown, registered) == ("KeyError", "'layers.0.attn.wq_c.weight'")
    said = target.refusal(one(target, "lm_head.weight"), registered)
    assert said == ("ValueError", "There is no module or parameter named 'lm_lm_head' in DeepseekV4ForCausalLM.")
    nested = target.refusal(Target("lm_head.weight.x"), registered)
    assert nested == (
        "ValueError",
        "Attempted to load nested weight 'lm_head.weight.x' into a single parameter 'lm_head.weight'",
    )
    assert target.refusal(Target("lm_head.bias"), registered) is None
    assert rules("0.24.0", "target").refusal(Target("lm_head.bias"), registered) is not None
    intel = rules("0.23.0", "target", "intel")
    assert intel.refusal(one(intel, "layers.0.unknown")) is None
    assert intel.refusal(one(intel, "layers.0.attn.wkv.unknown")) is not None


def test_other_names_are_tried() -> None:
    target = rules("0.33.0", "target", "amd")
    found = one(target, "layers.0.attn.wo_a.weight_scale")
    assert target.resolve(found, {"model.layers.0.attn.wo_a.weight_scale_inv"}) == f"{found.parameter}_inv"
    assert target.resolve(found, {found.parameter, f"{found.parameter}_inv"}) == found.parameter
    draft = rules("0.33.0", "mtp", "amd")
    scale = one(draft, "mtp.0.attn.wo_a.weight_scale")
    assert draft.resolve(scale, {f"{scale.parameter}_inv"}) == f"{scale.parameter}_inv"


@pytest.mark.parametrize("part", ["target", "target_v41", "mtp", "dspark"])
def test_known_patterns_change_nothing(part: str) -> None:
    settings = {"stages": 3, "n_routed_experts": 256}
    names = [
        *(
            f"layers.{layer}.{rest}"
            for layer in (0, 1, 10)
            for rest in ("attn.wkv.weight", "layers.0.x", "x", "mtp.0.y")
        ),
        *(
            f"layers.{layer}.ffn.experts.{number}.w1.weight"
            for layer in (2, 12)
            for number in (0, 7, 255, 256, "00", "x")
        ),
        *(f"mtp.{stage}.ffn.experts.{number}.w2.scale" for stage in (0, 2) for number in (0, 9, 300)),
        *("a.experts.3.w1.b", "layers.0", "layers.1.", "layers.00.attn.wkv.weight", "mtp.0.experts.0.experts.1.w1.x"),
    ]
    warm = rules("0.33.0", part, **settings)
    for name in names * 2:
        assert warm.map(name) == rules("0.33.0", part, **settings).map(name), name


def test_every_release_has_rules_for_its_published_tensors() -> None:
    checkpoint = published_tensors("deepseek-ai/DeepSeek-V4-Flash")
    assert checkpoint is not None
    names = [
        name for name in checkpoint.tensors if name.startswith(("layers.0.", "layers.1.", "mtp.", "head", "embed"))
    ]
    for version in known_releases():
        target, draft = rules(version, "target"), rules(version, "mtp")
        for name in names:
            assert isinstance(target.map(name), Skipped) == name.startswith("mtp.")
            assert isinstance(draft.map(name), tuple) == name.startswith("mtp.")


def test_names_of_a_whole_checkpoint_are_fast() -> None:
    checkpoint = published_tensors("deepseek-ai/DeepSeek-V4-Flash")
    assert checkpoint is not None
    target, draft = rules("0.33.0", "target"), rules("0.33.0", "mtp")
    started = time.process_time()
    for name in checkpoint.tensors:
        target.map(name)
        draft.map(name)
    assert time.process_time() - started < 2
