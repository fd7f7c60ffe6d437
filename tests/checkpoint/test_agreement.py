"""What a checkpoint and its config.json do not agree about, and that the published ones do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dsv4check.checkpoint.agreement import Disagreement, disagreements
from dsv4check.checkpoint.content import Content, content_of
from dsv4check.checkpoint.kinds import KINDS
from dsv4check.checkpoint.published import published_tensors
from dsv4check.checkpoint.reading import read_checkpoint
from dsv4check.checkpoint.synthetic import write_checkpoint
from dsv4check.checkpoint.tensors import Checkpoint, Defect, Tensor
from dsv4check.deployment import Model, ServeFlags
from dsv4check.inputs.checkpoint import bundled_config, published_models
from dsv4check.inputs.model import load_model
from dsv4check.inputs.model_config import LAYER_TYPE_OF_RATIO
from dsv4check.releases.facts import known_releases

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
WITH_TENSORS = sorted(entry.id for entry in published_models().values() if entry.tensors)
RELEASES = ("0.20.0", "0.24.0", "0.32.0", "0.33.0")


@cache
def published(model: str) -> Content:
    found = published_tensors(model)
    assert found is not None
    return content_of(found)


def load(name: str, release: str = "0.33.0", **options: Any) -> Model:
    return load_model(name, flags=ServeFlags(model=name), release=release, **options)


def test_the_releases_are_known() -> None:
    assert set(RELEASES) <= set(known_releases())


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", WITH_TENSORS)
def test_published_checkpoints_agree_with_their_configs(model: str, release: str) -> None:
    assert disagreements(published(model), load(model, release)) == ()


def as_transformers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as transformers' own class would save it: lists by layer instead of the original keys."""
    made = {key: value for key, value in config.items() if key not in ("compress_ratios", "num_hash_layers")}
    layers, hashed = config["num_hidden_layers"], config["num_hash_layers"]
    made["layer_types"] = [LAYER_TYPE_OF_RATIO[ratio] for ratio in config["compress_ratios"][:layers]]
    made["mlp_layer_types"] = ["hash_moe"] * hashed + ["moe"] * (layers - hashed)
    made["compress_rates"] = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    return made


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", [FLASH, "deepseek-ai/DeepSeek-V4-Pro-0813"])
def test_the_config_of_transformers_agrees_too(tmp_path: Path, model: str, release: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(as_transformers(bundled_config(model))))
    loaded = load(str(tmp_path), release)
    assert loaded.generation == "transformers"
    assert disagreements(published(model), loaded) == ()


def differing(
    folder: Path, like: str, config_changes: Mapping[str, Any], release: str = "0.33.0", **options: Any
) -> tuple[Disagreement, ...]:
    """A small synthetic checkpoint against its own config with some keys changed."""
    options = {"layers": 5, "experts": 4, **options}
    write_checkpoint(folder, like, config_changes=config_changes, **options)
    found = read_checkpoint(folder)
    assert found is not None
    said = disagreements(content_of(found), load(str(folder), release))
    assert all(item.example in found.tensors or not item.example for item in said)
    assert all(item.config and item.checkpoint for item in said)
    return said


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("like", "changes", "what", "config", "checkpoint"),
    [
        # An FP8 config over MXFP4 experts, the reverse, and a repack whose config lost the key.
        ("flash", {"expert_dtype": "fp8"}, "expert_dtype", "'fp8': fp8 experts", "mxfp4 with F8_E8M0 scales (scale)"),
        ("flash-fp8", {"expert_dtype": "fp4"}, "expert_dtype", "'fp4': mxfp4", "fp8 with F8_E8M0 scales"),
        ("flash-fp8", {"expert_dtype": None}, "expert_dtype", "no expert_dtype, which means 'fp4'", "fp8"),
        ("flash-base", {"expert_dtype": None}, "expert_dtype", "no expert_dtype", "fp8 with F32 scales"),
        (
            "flash-nvfp4",
            {"quantization_config": {"moe_quant_algo": None}},
            "expert_dtype",
            "mxfp4",
            "nvfp4 with F8_E4M3",
        ),
        ("flash", {"quantization_config": {"moe_quant_algo": "NVFP4"}}, "quantization_config", "nvfp4", "mxfp4"),
        ("flash", {"quantization_config": None}, "quantization_config", "nothing is quantised", "mxfp4"),
        ("flash", {"quantization_config": {"weight_block_size": [64, 64]}}, "weight_block_size", "[64, 64]", "128x128"),
        ("v4.1-flash", {"quantization_config": {"expert_dtype": "fp8"}}, "expert_dtype", "fp8 experts", "mxfp4"),
        ("flash", {"n_routed_experts": 8}, "n_routed_experts", "8", "4 experts in layer 0, 1, 2, 3, 4"),
        ("v4.1-flash", {"text_config": {"dspark_n_routed_experts": 2}}, "dspark_n_routed_experts", "2", "4 experts in"),
        ("flash", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers", "2 draft stages", "draft stage 0"),
        ("flash", {"num_nextn_predict_layers": 0}, "num_nextn_predict_layers", "0 draft stages", "draft stage 0"),
        ("flash-dspark", {"n_mtp_layers": 2}, "n_mtp_layers", "2 draft stages", "draft stage 0, 1, 2"),
        ("v4.1-flash", {"text_config": {"n_mtp_layers": 1}}, "n_mtp_layers", "1 draft stage,", "0, 1, 2"),
        ("flash", {"dspark_block_size": 5}, "dspark", "dspark_block_size", "the weights of an MTP draft"),
        ("flash", {"vocab_size": 129281}, "vocab_size", "129281", "embedding is 129280x4096"),
        ("flash", {"hidden_size": 2048}, "hidden_size", "2048", "head is 129280x4096"),
    ],
)
def test_one_thing_changed(
    tmp_path: Path, like: str, changes: dict[str, Any], what: str, config: str, checkpoint: str, release: str
) -> None:
    said = differing(tmp_path, like, changes, release)
    assert {item.what for item in said} == {what}
    assert any(config in item.config and checkpoint in item.checkpoint and item.example for item in said)


@pytest.mark.parametrize("release", RELEASES)
def test_layers(tmp_path: Path, release: str) -> None:
    more = differing(tmp_path / "a", "flash", {"num_hidden_layers": 4}, release)
    assert [(item.what, item.config, item.checkpoint) for item in more] == [
        ("num_hidden_layers", "4", "layers up to 4"),
    ]
    less = differing(tmp_path / "b", "flash", {"num_hidden_layers": 6}, release)
    assert [(item.what, item.checkpoint) for item in less] == [("num_hidden_layers", "no layer after 4")]
    hole = differing(tmp_path / "c", "flash", {}, release, drop=["layers.2.*"])
    assert [(item.what, item.checkpoint) for item in hole] == [("num_hidden_layers", "no tensor of layer 2")]


@pytest.mark.parametrize("release", RELEASES)
def test_kinds_of_layers(tmp_path: Path, release: str) -> None:
    hashed = differing(tmp_path / "a", "flash", {"num_hash_layers": 4}, release)
    assert [(item.what, item.checkpoint) for item in hashed] == [("num_hash_layers", "no tensor of it there")]
    assert "in layer 3" in hashed[0].config
    unhashed = differing(tmp_path / "b", "flash", {"num_hash_layers": 2}, release)
    assert [item.example for item in unhashed] == ["layers.2.ffn.gate.tid2eid"]
    ratios = differing(tmp_path / "c", "flash", {"compress_ratios": [0, 128, 128, 0, 4, 0]}, release)
    assert [(item.what, item.config, item.checkpoint) for item in ratios] == [
        ("compress_ratios", "no KV compressor there", "tensors of it in layer 3"),
        ("compress_ratios", "KV compressor in layer 1", "no tensor of it there"),
        ("compress_ratios", "no indexer there", "tensors of it in layer 2"),
    ]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"kv_source_layer_ids": [2, 4]}, {"kv_source_layer_ids"}),
        ({"index_source_layer_ids": []}, {"index_source_layer_ids"}),
        ({"engram_layer_ids": [1, 3]}, {"engram_layer_ids"}),
    ],
)
def test_kinds_of_layers_of_v41(tmp_path: Path, changes: dict[str, Any], what: set[str]) -> None:
    assert {item.what for item in differing(tmp_path, "v4.1-flash", {"text_config": changes})} == what


def test_drafts_that_are_not_there(tmp_path: Path) -> None:
    gone = differing(tmp_path / "a", "flash", {}, drop=["mtp.*"])
    assert [(item.what, item.config, item.checkpoint) for item in gone] == [
        ("num_nextn_predict_layers", "1 draft layer", "no draft weights")
    ]
    gone = differing(tmp_path / "b", "flash-dspark", {}, drop=["mtp.*"])
    assert [(item.what, item.checkpoint) for item in gone] == [("dspark", "no draft weights")]
    keys = [key for key in bundled_config(KINDS["flash-dspark"].config) if key.startswith("dspark_")]
    lost = differing(tmp_path / "c", "flash-dspark", dict.fromkeys(keys))
    assert [(item.what, item.checkpoint) for item in lost] == [("dspark", "the weights of a DSpark draft")]
    part = differing(tmp_path / "d", "flash-dspark", {}, drop=["mtp.1.*"])
    assert [(item.what, item.checkpoint) for item in part] == [("n_mtp_layers", "draft stage 0, 2")]


def test_an_nvfp4_target_with_an_mxfp4_draft_needs_a_config_that_says_so(tmp_path: Path) -> None:
    said = differing(tmp_path, "flash-nvfp4", {"quantization_config": {"ignore": None, "quantized_layers": None}})
    assert [(item.what, item.example) for item in said] == [("quantization_config", "mtp.0.ffn.experts.0.w1.weight")]
    assert "moe_quant_algo 'NVFP4'" in said[0].config


def test_another_family() -> None:
    said = disagreements(published("deepseek-ai/DeepSeek-V4.1-Flash"), load(FLASH))
    assert said[0].what == "model_type"
    assert {"num_hidden_layers", "hidden_size", "n_routed_experts"} <= {item.what for item in said}


@pytest.mark.parametrize(("bits", "expected"), [(4, ()), (8, ("quantization_config",))])
def test_packed_integers(bits: int, expected: tuple[str, ...]) -> None:
    tensors = {name: tensor for name, tensor in published_flash().items() if ".experts." not in name}
    for layer in range(43):
        for number in range(2):
            head = f"layers.{layer}.ffn.experts.{number}"
            tensors[f"{head}.w1.qweight"] = Tensor("I32", (512, 2048))
            tensors[f"{head}.w2.qweight"] = Tensor("I32", (256, 4096))
    changes = {"n_routed_experts": 2, "quantization_config": {"quant_method": "gptq", "bits": bits}}
    said = disagreements(content_of(Checkpoint("packed", tensors)), load(FLASH, config_overrides=changes))
    assert tuple(item.what for item in said) == expected


def published_flash() -> Mapping[str, Tensor]:
    found = published_tensors(FLASH)
    assert found is not None
    return found.tensors


def test_what_cannot_be_read_is_not_said_to_be_missing() -> None:
    part = {name: tensor for name, tensor in published_flash().items() if not name.startswith(("mtp.", "layers.4"))}
    whole = Checkpoint("part", part)
    assert {item.what for item in disagreements(content_of(whole), load(FLASH))} == {
        "num_hidden_layers",
        "num_nextn_predict_layers",
    }
    defects = (Defect("header-truncated", "b.safetensors", "truncated"),)
    assert disagreements(content_of(replace(whole, defects=defects)), load(FLASH)) == ()


def test_names_alone_raise_no_alarm() -> None:
    names = dict.fromkeys(published_flash(), Tensor("", None))
    assert disagreements(content_of(Checkpoint("names", names)), load(FLASH)) == ()


@pytest.mark.parametrize("model", sorted(entry.id for entry in published_models().values()))
def test_any_config_is_compared_without_a_traceback(model: str) -> None:
    for other in (FLASH, "deepseek-ai/DeepSeek-V4.1-Flash"):
        for item in disagreements(published(other), load(model)):
            assert item.what
            assert "\n" not in item.config + item.checkpoint
    assert disagreements(content_of(Checkpoint("empty", {})), load(model)) == ()
