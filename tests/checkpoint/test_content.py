"""What a checkpoint holds, by its tensors' names, dtypes and shapes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4check.checkpoint.content import Content, content_of
from dsv4check.checkpoint.published import published_tensors
from dsv4check.checkpoint.tensor_names import PARTS, place_of
from dsv4check.checkpoint.tensors import DTYPE_BITS, Checkpoint, Defect, Tensor
from dsv4check.inputs.checkpoint import find_published

FLASH = "deepseek-ai/DeepSeek-V4-Flash"


def content(tensors: Mapping[str, Tensor], **fields: Any) -> Content:
    return content_of(Checkpoint("a test", tensors, **fields))


def published(model: str) -> dict[str, Tensor]:
    found = published_tensors(model)
    assert found is not None
    return dict(found.tensors)


def matrix(head: str, **parts: tuple[str, list[int]]) -> dict[str, Tensor]:
    return {f"{head}.{suffix}": Tensor(dtype, tuple(shape)) for suffix, (dtype, shape) in parts.items()}


@pytest.mark.parametrize(
    ("model", "tensors", "size", "draft_tensors", "draft_size", "kind", "layers"),
    [
        # Published totals: index metadata, and sums over the headers of the draft's tensors.
        (FLASH, 69187, 159609485896, 1575, 3593787756, "mtp", 43),
        ("deepseek-ai/DeepSeek-V4-Flash-0731", 72317, 166878536440, 4705, 10862838300, "dspark", 43),
        ("deepseek-ai/DeepSeek-V4-Pro", 145116, 864704792696, 2343, 13956587692, "mtp", 61),
        ("deepseek-ai/DeepSeek-V4-Pro-0813", 149782, 892727580904, 7009, 41979375900, "dspark", 61),
        ("deepseek-ai/DeepSeek-V4.1-Flash", 96085, 510286023000, 2401, 7932874632, "dspark", 40),
    ],
)
def test_published_totals(
    model: str,
    tensors: int,
    size: int,
    draft_tensors: int,
    draft_size: int,
    kind: str,
    layers: int,
    figures: Callable[[str], None],
) -> None:
    all_tensors = published(model)
    start = time.process_time()
    found = content(all_tensors)
    seconds = time.process_time() - start
    figures(f"content of {tensors} tensors: {seconds:.2f} s of CPU time")
    assert (found.tensors, found.size) == (tensors, size)
    assert (found.tensors_by_part["draft"], found.size_by_part["draft"]) == (draft_tensors, draft_size)
    assert sum(found.tensors_by_part.values()) == tensors
    assert sum(part or 0 for part in found.size_by_part.values()) == size
    assert found.draft_kind == kind
    assert found.stages == ((0,) if kind == "mtp" else (0, 1, 2))
    assert (len(found.layers), found.holes, found.naming, found.complete) == (layers, (), "original", True)
    for stored in (found.target, found.draft):
        assert stored.experts.storage.format == "mxfp4"
        assert stored.experts.storage.scale_dtype == "F8_E8M0"
        assert stored.experts.storage.block == (1, 32)
        assert stored.attention.format == stored.shared_experts.format == "fp8"
        assert stored.attention.block == ((32, 32) if "4.1" in model else (128, 128))
    assert found.scale_suffixes == ("scale",)
    # Five times what it takes on a slow core.
    assert seconds < 4.0


def test_what_only_v41_has() -> None:
    found = content(published("deepseek-ai/DeepSeek-V4.1-Flash"))
    assert found.family == "deepseek_v41"
    assert found.extras == ("vision", "aligner", "image_", "engram")
    assert (found.engram_layers, found.compressor_layers) == ((1, 14), (2, 8, 14, 20))
    assert found.indexer_layers == (2, 8, 14, 20, 24, 28, 32, 36)
    # vision.* and aligner.* are known to have 970506240 bytes; three image_* rows of 5120 come to that.
    assert found.size_by_part["vision"] == 970506240 + 3 * 5120 * 2
    assert found.tensors_by_part["engram"] == 12
    assert (found.target.experts.count, found.draft.experts.count) == (384, 128)


def test_what_v4_has() -> None:
    found = content(published(FLASH))
    assert found.family == "deepseek_v4"
    assert (found.extras, found.engram_layers) == ((), ())
    assert (found.hash_layers, found.compressor_layers) == ((0, 1, 2), tuple(range(2, 43)))
    assert found.indexer_layers == tuple(range(2, 43, 2))
    assert (found.embedding, found.head) == ((129280, 4096), (129280, 4096))
    assert (found.target.experts.count, found.draft.experts.count) == (256, 256)


def test_names_alone() -> None:
    names = dict.fromkeys(published(FLASH), Tensor("", None))
    found = content(names, total_size=159609485896)
    full = content(published(FLASH))
    assert (found.layers, found.draft_kind, found.hash_layers) == (full.layers, "mtp", full.hash_layers)
    assert found.target.experts.by_layer == full.target.experts.by_layer
    assert (found.target.experts.storage.format, found.target.attention.format) == (None, None)
    assert found.target.experts.storage.scale_suffix == "scale"
    assert (found.has_embedding, found.embedding) == (True, None)
    assert found.size == 159609485896
    assert found.size_by_part["routed experts"] is None
    assert content(names).size is None


def as_prefixed(name: str) -> str:
    return "lm_head.weight" if name == "head.weight" else f"model.{name}"


def as_transformers(name: str) -> str:
    """The renames of transformers' conversion mapping that matter here."""
    for old, new in (
        (r"^embed\.weight$", "embed_tokens.weight"),
        (r"\.attn\.indexer\.compressor\.", ".self_attn.compressor.indexer."),
        (r"\.attn\.indexer\.", ".self_attn.compressor.indexer."),
        (r"\.attn\.", ".self_attn."),
        (r"\.ffn\.", ".mlp."),
        (r"\.wkv\.", ".kv_proj."),
        (r"\.w1\.", ".gate_proj."),
        (r"\.w2\.", ".down_proj."),
        (r"\.w3\.", ".up_proj."),
        (r"\.hc_attn_scale$", ".attn_hc.scale"),
    ):
        name = re.sub(old, new, name)
    return as_prefixed(name)


@pytest.mark.parametrize(("rename", "naming"), [(as_prefixed, "prefixed"), (as_transformers, "transformers")])
def test_spellings(rename: Callable[[str], str], naming: str) -> None:
    original = published(FLASH)
    found, plain = content({rename(name): tensor for name, tensor in original.items()}), content(original)
    assert found.naming == naming
    assert (found.family, found.layers, found.draft_kind, found.stages) == ("deepseek_v4", plain.layers, "mtp", (0,))
    assert (found.compressor_layers, found.indexer_layers) == (plain.compressor_layers, plain.indexer_layers)
    assert (found.hash_layers, found.embedding, found.head) == (plain.hash_layers, plain.embedding, plain.head)
    assert (found.has_norm, found.scale_suffixes) == (True, ("scale",))
    assert found.target.experts.by_layer == plain.target.experts.by_layer
    assert found.target.experts.storage.formats == plain.target.experts.storage.formats
    assert found.target.attention.formats == plain.target.attention.formats
    assert (found.size, found.size_by_part) == (plain.size, plain.size_by_part)


def expert(**parts: tuple[str, list[int]]) -> dict[str, Tensor]:
    """w1 and w3 of one expert."""
    head = "layers.0.ffn.experts.0"
    return matrix(f"{head}.w1", **parts) | matrix(f"{head}.w3", **parts)


@pytest.mark.parametrize(
    ("parts", "expected", "scale", "block"),
    [
        ({"weight": ("I8", [256, 256]), "scale": ("F8_E8M0", [256, 16])}, "mxfp4", "scale", (1, 32)),
        ({"weight": ("U8", [256, 256]), "weight_scale": ("U8", [256, 16])}, "mxfp4", "weight_scale", (1, 32)),
        ({"weight": ("F4", [256, 512]), "scale": ("F8_E8M0", [256, 16])}, "mxfp4", "scale", (1, 32)),
        (
            {"weight": ("U8", [256, 256]), "weight_scale": ("F8_E4M3", [256, 32]), "weight_scale_2": ("F32", [])},
            "nvfp4",
            "weight_scale",
            (1, 16),
        ),
        (
            {
                "weight_packed": ("U8", [256, 256]),
                "weight_scale": ("F8_E4M3", [256, 32]),
                "weight_global_scale": ("F32", [1]),
            },
            "nvfp4",
            "weight_scale",
            (1, 16),
        ),
        ({"weight": ("F4", [256, 512]), "weight_scale": ("F8_E4M3", [256, 32])}, "nvfp4", "weight_scale", (1, 16)),
        ({"weight": ("F8_E4M3", [256, 512]), "scale": ("F32", [2, 4])}, "fp8", "scale", (128, 128)),
        (
            {"weight": ("F8_E4M3", [192, 576]), "weight_scale_inv": ("F32", [2, 5])},
            "fp8",
            "weight_scale_inv",
            (128, 128),
        ),
        ({"weight": ("F8_E4M3", [256, 512]), "weight_scale": ("F32", [256, 1])}, "fp8", "weight_scale", None),
        ({"weight": ("F8_E4M3", [256, 512]), "weight_scale": ("F32", [])}, "fp8", "weight_scale", None),
        ({"weight": ("BF16", [256, 512])}, "bf16", None, None),
        ({"weight": ("F16", [256, 512])}, "f16", None, None),
        ({"weight": ("F32", [256, 512])}, "f32", None, None),
        ({"weight": ("I8", [256, 512]), "weight_scale": ("F32", [256, 1])}, "int8", "weight_scale", None),
        # What is none of these is not guessed at.
        ({"weight": ("U8", [256, 256]), "scale": ("F8_E8M0", [256, 64])}, None, "scale", (1, 8)),
        ({"weight": ("U8", [256, 256])}, None, None, None),
        ({"weight": ("C64", [256, 256])}, None, None, None),
        ({"weight_packed": ("I32", [256, 64]), "weight_scale": ("BF16", [256, 4])}, None, "weight_scale", (64, 16)),
    ],
)
def test_formats(
    parts: dict[str, tuple[str, list[int]]], expected: str | None, scale: str | None, block: tuple[int, int] | None
) -> None:
    storage = content(expert(**parts)).target.experts.storage
    assert (storage.format, storage.scale_suffix) == (expected, scale)
    assert storage.formats == {expected: 2}
    if expected is not None:
        assert storage.block == block


@pytest.mark.parametrize(
    ("suffix", "first", "second", "expected"),
    [
        ("weight_packed", [256, 64], [512, 32], "int4"),
        ("weight_packed", [256, 128], [512, 64], "int8"),
        ("qweight", [64, 256], [32, 512], "int4"),
        ("qweight", [128, 256], [64, 512], "int8"),
        ("qweight", [512, 32], [256, 64], "int4"),
        ("qweight", [512, 64], [256, 128], "int8"),
        ("qweight", [512, 512], [256, 256], None),
    ],
)
def test_packed_integers(suffix: str, first: list[int], second: list[int], expected: str | None) -> None:
    tensors: dict[str, Tensor] = {}
    for number in range(3):
        head = f"layers.0.ffn.experts.{number}"
        tensors |= matrix(f"{head}.w1", **{suffix: ("I32", first), "scales": ("F16", [4, 256])})
        tensors |= matrix(f"{head}.w2", **{suffix: ("I32", second), "scales": ("F16", [2, 512])})
    assert content(tensors).target.experts.storage.format == expected


def test_experts_that_are_not_alike() -> None:
    tensors = {name: tensor for name, tensor in published(FLASH).items() if name.startswith("layers.1.")}
    tensors |= matrix("layers.1.ffn.experts.7.w2", weight=("BF16", [4096, 2048]))
    del tensors["layers.1.ffn.experts.7.w2.scale"]
    found = content(tensors)
    storage = found.target.experts.storage
    assert storage.format == "mixed"
    assert storage.formats == {"mxfp4": 767, "bf16": 1}
    assert storage.example == "layers.1.ffn.experts.7.w2.weight"
    assert (found.layers, found.holes) == ((1,), (0,))
    for part in ("w1", "w2", "w3"):
        for suffix in ("weight", "scale"):
            tensors.pop(f"layers.1.ffn.experts.9.{part}.{suffix}")
    assert content(tensors).target.experts.by_layer == {1: 255}


def test_experts_in_one_tensor() -> None:
    tensors = {
        "model.layers.0.mlp.experts.gate_up_proj": Tensor("BF16", (8, 512, 256)),
        "model.layers.0.mlp.experts.down_proj": Tensor("BF16", (8, 256, 256)),
        "model.layers.0.self_attn.kv_proj.weight": Tensor("BF16", (64, 256)),
    }
    found = content(tensors)
    assert (found.naming, found.target.experts.by_layer) == ("transformers", {0: 8})
    assert found.target.experts.storage.format == "bf16"


def test_what_cannot_be_told() -> None:
    nothing = content({})
    assert (nothing.family, nothing.naming, nothing.draft_kind, nothing.layers) == (None, "unknown", None, ())
    assert (nothing.size, nothing.tensors, nothing.has_head) == (0, 0, False)
    part = {"layers.0.attn.wkv.weight": Tensor("BF16", (2, 2))}
    assert content(part).draft_kind == "none"
    # A file that nobody can read and no index describes may hold the draft.
    unread = content(part, defects=(Defect("lfs-pointer", "b.safetensors", "is a pointer"),))
    assert (unread.draft_kind, unread.complete) == (None, False)
    listed = content(part, defects=(Defect("lfs-pointer", "b.safetensors", "is a pointer", 1, ("x",)),))
    assert (listed.draft_kind, listed.complete) == ("none", True)
    assert content({**part, "mtp.0.attn.wkv.weight": Tensor("", None)}).draft_kind is None


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.language_model.layers.3.mlp.experts.5.up_proj.weight", "routed experts"),
        ("model.vision.blocks.0.attn.wqkv.weight", "vision"),
        ("image_start", "vision"),
        ("lm_head.weight_scale", "embedding and head"),
        ("layers.1.engram.embed.weight", "engram"),
        ("layers.1.hc_attn_fn", "other"),
        ("layers.1.ffn.shared_experts.w1.weight", "shared experts"),
        ("layers.x.attn.wkv.weight", "other"),
        ("", "other"),
        ("layers..", "other"),
    ],
)
def test_parts(name: str, part: str) -> None:
    assert place_of(name).part == part
    assert part in PARTS


WORDS = """layers mtp model 0 7 attn ffn self_attn mlp experts shared_experts w1 w2 wkv weight scale weight_packed
qweight gate tid2eid compressor indexer engram norm embed head vision hc_attn_fn main_norm enorm gate_up_proj"""
pieces = st.sampled_from(WORDS.split())
names = st.lists(pieces, max_size=7).map(".".join) | st.text(max_size=20)
shapes = st.lists(st.integers(0, 70), max_size=4).map(tuple)
tensors = st.builds(Tensor, st.sampled_from([*DTYPE_BITS, "", "X"]), shapes | st.none())


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(names, tensors, max_size=25), st.none() | st.integers(0, 10**12))
def test_any_tensors(found: dict[str, Tensor], total: int | None) -> None:
    told = content(found, total_size=total)
    assert told.tensors == sum(told.tensors_by_part.values()) == len(found)
    assert set(told.layers).isdisjoint(told.holes)
    for key, name in told.examples.items():
        assert name in found, key


def test_every_published_id_has_the_draft_it_is_said_to_have() -> None:
    entry = find_published("deepseek-ai/DeepSeek-V4-Flash-DSpark")
    assert entry is not None
    assert content(published(entry.id)).draft_kind == entry.draft
