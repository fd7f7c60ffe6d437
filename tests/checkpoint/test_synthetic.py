"""Synthetic checkpoints: what is asked for comes out again when they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsv4check.checkpoint.agreement import disagreements
from dsv4check.checkpoint.content import Content, content_of
from dsv4check.checkpoint.kinds import KINDS
from dsv4check.checkpoint.published import published_tensors
from dsv4check.checkpoint.reading import read_checkpoint
from dsv4check.checkpoint.synthetic import Written, write_checkpoint
from dsv4check.checkpoint.tensors import Tensor
from dsv4check.deployment import Model, ServeFlags
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import find_published, published_models
from dsv4check.inputs.model import load_model

IDS = sorted(entry.id for entry in published_models().values() if entry.tensors)


def load(folder: Path, release: str = "0.33.0") -> Model:
    return load_model(str(folder), flags=ServeFlags(model=str(folder)), release=release)


def written(folder: Path, like: str, **options: Any) -> tuple[Written, Content]:
    """Written, read back without a defect, and agreeing with its own config in every generation of releases."""
    made = write_checkpoint(folder, like, **options)
    found = read_checkpoint(folder, header_only=options.get("header_only", False))
    assert found is not None
    assert found.defects == ()
    assert (found.tensors, found.total_size) == (made.tensors, made.total_size)
    content = content_of(found)
    for release in ("0.20.0", "0.24.0", "0.31.0", "0.33.0"):
        assert disagreements(content, load(folder, release)) == ()
    return made, content


@pytest.mark.parametrize("like", [*KINDS, *IDS])
def test_every_kind(tmp_path: Path, like: str) -> None:
    made, content = written(tmp_path / "new", like, layers=4, experts=3, shards=3)
    experts = KINDS[like].experts if like in KINDS else "mxfp4"
    entry = find_published(KINDS[like].config if like in KINDS else like)
    assert entry is not None
    dspark = entry.draft == "dspark"
    assert content.family == ("deepseek_v41" if "4.1" in like else "deepseek_v4")
    assert (content.naming, content.layers, content.holes) == ("original", (0, 1, 2, 3), ())
    assert (content.draft_kind, content.stages) == (("dspark", (0, 1, 2)) if dspark else ("mtp", (0,)))
    assert content.target.experts.storage.format == experts
    assert content.target.experts.by_layer == {0: 3, 1: 3, 2: 3, 3: 3}
    assert content.draft.experts.storage.format == ("mxfp4" if experts == "nvfp4" else experts)
    assert content.draft.experts.count == 3
    assert content.target.attention.format == content.target.shared_experts.format == "fp8"
    assert (content.has_embedding, content.has_head, content.has_norm) == (True, True, True)
    assert len(made.files) == 3
    assert content.size == made.total_size
    on_disk = sum(file.stat().st_blocks * 512 for file in made.folder.iterdir())
    assert on_disk < 2e6 < made.total_size


def test_at_full_size_it_is_the_published_one(tmp_path: Path) -> None:
    made, content = written(tmp_path, "flash", shards=46)
    published = published_tensors(KINDS["flash"].tensors)
    assert published is not None
    assert made.tensors == published.tensors
    assert content == content_of(published)


@pytest.mark.parametrize("layers", [1, 2, 3, 43, 50])
@pytest.mark.parametrize("like", ["flash", "pro", "flash-nvfp4"])
def test_any_number_of_layers(tmp_path: Path, like: str, layers: int) -> None:
    _, content = written(tmp_path, like, layers=layers, experts=2)
    assert content.layers == tuple(range(layers))
    assert content.hash_layers == tuple(range(min(layers, 3)))
    model = load(tmp_path)
    assert len(model.compress_ratios) == layers == model.integer("num_hidden_layers")
    assert content.indexer_layers == tuple(number for number, ratio in enumerate(model.compress_ratios) if ratio == 4)


@pytest.mark.parametrize("layers", [3, 15, 41])
def test_layers_of_v41(tmp_path: Path, layers: int) -> None:
    made, content = written(tmp_path, "v4.1-flash", layers=layers, experts=2)
    text = made.config["text_config"]
    assert content.compressor_layers == tuple(text["kv_source_layer_ids"])
    assert content.engram_layers == tuple(text["engram_layer_ids"])
    assert len(text["engram_num_embeddings"]) == len(text["engram_layer_ids"])
    assert text["candidate_source_layer_id"] < layers


def test_the_draft_of_v41_has_fewer_experts(tmp_path: Path) -> None:
    _, content = written(tmp_path, "v4.1-flash", layers=2, experts=200)
    assert (content.target.experts.count, content.draft.experts.count) == (200, 128)


@pytest.mark.parametrize(
    ("like", "stages", "kind"),
    [
        ("flash", 0, "none"),
        ("flash", 2, "mtp"),
        ("flash-dspark", 0, "none"),
        ("flash-dspark", 1, "dspark"),
        ("flash-dspark", 2, "dspark"),
        ("flash-dspark", 5, "dspark"),
        ("v4.1-flash", 0, "none"),
        ("v4.1-flash", 4, "dspark"),
    ],
)
def test_any_number_of_stages(tmp_path: Path, like: str, stages: int, kind: str) -> None:
    made, content = written(tmp_path, like, layers=3, experts=2, stages=stages)
    assert (content.draft_kind, content.stages) == (kind, tuple(range(stages)))
    names = made.tensors
    if kind == "dspark":
        assert [name for name in names if "main_norm" in name] == ["mtp.0.main_norm.weight"]
        assert {name.split(".")[1] for name in names if "markov_head" in name} == {str(stages - 1)}


def test_the_router_fits_the_experts(tmp_path: Path) -> None:
    made, _ = written(tmp_path, "flash", layers=4, experts=5)
    assert made.tensors["layers.3.ffn.gate.weight"] == Tensor("BF16", (5, 4096))
    assert made.tensors["layers.3.ffn.gate.bias"] == Tensor("F32", (5,))
    assert made.tensors["layers.0.ffn.gate.tid2eid"] == Tensor("I64", (129280, 5))
    assert made.config["num_experts_per_tok"] == 5
    more, _ = written(tmp_path / "more", "flash", layers=1, experts=300)
    assert more.tensors["layers.0.ffn.experts.299.w2.weight"] == Tensor("I8", (4096, 1024))
    assert more.config["num_experts_per_tok"] == 6


def test_nvfp4_experts_are_those_of_modelopt(tmp_path: Path) -> None:
    made, content = written(tmp_path, "pro-nvfp4", layers=2, experts=1)
    head = "layers.1.ffn.experts.0.w1."
    assert {name[len(head) :]: tensor for name, tensor in made.tensors.items() if name.startswith(head)} == {
        "weight": Tensor("U8", (3072, 3584)),
        "weight_scale": Tensor("F8_E4M3", (3072, 448)),
        "weight_scale_2": Tensor("F32", ()),
        "input_scale": Tensor("F32", ()),
    }
    assert content.scale_suffixes == ("input_scale", "scale", "weight_scale", "weight_scale_2")
    assert content.target.experts.storage.block == (1, 16)
    assert made.tensors["mtp.0.ffn.experts.0.w1.weight"].dtype == "I8"
    assert set(made.config["quantization_config"]["quantized_layers"]) == {
        "layers.0.ffn.experts",
        "layers.1.ffn.experts",
    }


@pytest.mark.parametrize(
    ("like", "scales", "embedding"), [("flash-fp8", "F8_E8M0", "BF16"), ("flash-base", "F32", "F32")]
)
def test_fp8_experts(tmp_path: Path, like: str, scales: str, embedding: str) -> None:
    made, content = written(tmp_path, like, layers=1, experts=1)
    assert made.tensors["layers.0.ffn.experts.0.w2.weight"] == Tensor("F8_E4M3", (4096, 2048))
    assert made.tensors["layers.0.ffn.experts.0.w2.scale"] == Tensor(scales, (32, 16))
    assert made.tensors["layers.0.attn.wkv.scale"].dtype == scales
    assert made.tensors["embed.weight"].dtype == embedding
    assert content.target.experts.storage.block == (128, 128)
    assert content.target.experts.storage.scale_dtype == scales


def test_base_at_full_size_has_the_published_bytes(tmp_path: Path) -> None:
    # 294.67 GB and 1606.03 GB are the sizes that the model cards state.
    made = write_checkpoint(tmp_path / "flash", "flash-base", header_only=True)
    assert round(made.total_size / 1e9, 2) == 294.67
    assert round(write_checkpoint(tmp_path / "pro", "pro-base", header_only=True).total_size / 1e9, 2) == 1606.03


def test_tensors_can_be_left_out(tmp_path: Path) -> None:
    made = write_checkpoint(tmp_path, "flash-dspark", layers=2, experts=2, drop=["mtp.1.*", "*.w3.scale"])
    assert not [name for name in made.tensors if name.startswith("mtp.1.") or name.endswith(".w3.scale")]
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.defects == ()
    assert content_of(found).stages == (0, 2)
    with pytest.raises(InputError, match=r"drop: 'layers\.9\.\*' matches no tensor"):
        write_checkpoint(tmp_path / "b", "flash", layers=2, drop=["layers.9.*"])
    with pytest.raises(InputError, match="leaves no tensor"):
        write_checkpoint(tmp_path / "b", "flash", layers=2, drop=["*"])
    assert not (tmp_path / "b").exists()


def test_files_are_of_a_size_that_can_be_opened(tmp_path: Path) -> None:
    made, _ = written(tmp_path / "a", "pro", layers=2)
    sizes = [(made.folder / file).stat().st_size for file in made.files]
    assert len(sizes) > 5
    assert max(sizes) < 4.1e9
    single, _ = written(tmp_path / "b", "flash", layers=1, experts=1, shards=1)
    assert single.files == ("model-00001-of-00001.safetensors",)


def test_header_only_files_are_tiny(tmp_path: Path) -> None:
    made, _ = written(tmp_path, "pro", layers=2, experts=4, header_only=True)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 100_000 < made.total_size
    told = read_checkpoint(tmp_path)
    assert told is not None
    assert {defect.kind for defect in told.defects} == {"data-truncated"}


def test_the_config_can_be_made_to_disagree(tmp_path: Path) -> None:
    made = write_checkpoint(
        tmp_path, "flash", layers=2, experts=2, config_changes={"expert_dtype": "fp8", "num_hash_layers": None}
    )
    assert json.loads((tmp_path / "config.json").read_text()) == made.config
    assert made.config["expert_dtype"] == "fp8"
    assert "num_hash_layers" not in made.config


@pytest.mark.parametrize(
    ("like", "options", "said"),
    [
        ("flashy", {}, "like: 'flashy': no such kind; expected flash, pro, "),
        ("nvidia/DeepSeek-V4-Flash-NVFP4", {}, "its tensors are not known"),
        ("flash", {"layers": 0}, "layers: 0: expected a number from 1"),
        ("flash", {"layers": 10**9}, "layers: 1000000000: expected"),
        ("flash", {"stages": -1}, "stages: -1: expected a number from 0"),
        ("flash", {"experts": 0}, "experts: 0: expected a number from 1"),
        ("flash", {"layers": 1, "experts": 1, "shards": 1000}, "shards: 1000: expected a number from 1 to 86"),
        ("flash", {"layers": 1, "shards": 0}, "shards: 0: expected a number from 1"),
    ],
)
def test_what_makes_no_sense(tmp_path: Path, like: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        write_checkpoint(tmp_path / "x", like, **options)
    assert said in str(caught.value)
    assert not (tmp_path / "x").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(InputError, match="is not empty"):
        write_checkpoint(tmp_path, "flash", layers=1, experts=1)
    with pytest.raises(InputError, match="could not be written"):
        write_checkpoint(tmp_path / "mine", "flash", layers=1, experts=1)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
