"""Names, dtypes and shapes of a checkpoint's tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsv4check.errors import InputError
from dsv4check.inputs.tensors import (
    Checkpoint,
    Tensor,
    few_experts,
    fill_shapes,
    published_tensors,
    read_checkpoint,
    read_header,
)

BYTES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "BF16": 2, "F32": 4, "I64": 8}


def shard(path: Path, tensors: Mapping[str, tuple[str, list[int]]]) -> Path:
    """A safetensors file with a header and no data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    header |= {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, (dtype, shape) in tensors.items()
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    return path


def index(folder: Path, names: Mapping[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": dict(names)}))


def test_headers_without_an_index(tmp_path: Path) -> None:
    shard(tmp_path / "a.safetensors", {"x": ("BF16", [2, 3])})
    shard(tmp_path / "b.safetensors", {"y": ("F8_E4M3", [])})
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.tensors == {"x": Tensor("BF16", (2, 3)), "y": Tensor("F8_E4M3", ())}
    assert "2 safetensors files" in found.source


def test_an_index_names_what_absent_shards_hold(tmp_path: Path) -> None:
    shard(tmp_path / "1.safetensors", {"x": ("BF16", [2]), "not in the index": ("BF16", [1])})
    index(tmp_path, {"x": "1.safetensors", "y": "2.safetensors"})
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.tensors == {"x": Tensor("BF16", (2,)), "y": Tensor("", None)}
    assert (found.absent, found.without_shape) == (("2.safetensors",), 1)
    filled = fill_shapes(found, Checkpoint("another", {"x": Tensor("F32", (9,)), "y": Tensor("F32", (5,))}))
    assert filled.tensors == {"x": Tensor("BF16", (2,)), "y": Tensor("F32", (5,))}


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert read_checkpoint(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a safetensors file"),
        (b"\x00" * 8, "not a safetensors file"),
        ((200_000_000).to_bytes(8, "little"), "not a safetensors file"),
        ((64).to_bytes(8, "little") + b'{"x": ', "truncated inside the header"),
        ((2).to_bytes(8, "little") + b"{x", "not valid JSON"),
        ((2).to_bytes(8, "little") + b"[]", "expected an object"),
        ((7).to_bytes(8, "little") + b'{"x":1}', "tensor 'x' in the header"),
        ((33).to_bytes(8, "little") + b'{"x":{"dtype":"F32","shape":[-1]}}'[:33], "not valid JSON"),
        ((34).to_bytes(8, "little") + b'{"x":{"dtype":"F32","shape":[-1]}}', "tensor 'x' in the header"),
    ],
)
def test_a_broken_header_names_the_file(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as raised:
        read_header(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": {}}', '{"weight_map": {"x": 1}}', "not json"])
def test_a_broken_index_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"model\.safetensors\.index\.json: "):
        read_checkpoint(tmp_path)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_checkpoint(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("model", "count", "size"),
    [
        # Tensors and payload bytes that the published indexes state.
        ("deepseek-ai/DeepSeek-V4-Flash", 69187, 159609485896),
        ("deepseek-ai/DeepSeek-V4-Flash-0731", 72317, 166878536440),
        ("deepseek-ai/DeepSeek-V4-Pro", 145116, 864704792696),
        ("deepseek-ai/DeepSeek-V4-Pro-0813", 149782, 892727580904),
        ("deepseek-ai/DeepSeek-V4.1-Flash", 96085, 510286023000),
    ],
)
def test_published_tensors_add_up(model: str, count: int, size: int) -> None:
    found = published_tensors(model)
    assert found is not None
    assert len(found.tensors) == count
    total = 0
    for tensor in found.tensors.values():
        assert tensor.shape is not None
        total += math.prod(tensor.shape) * BYTES[tensor.dtype]
    assert total == size


def test_checkpoints_whose_tensors_are_not_known() -> None:
    assert published_tensors("nvidia/DeepSeek-V4-Flash-NVFP4") is None
    assert published_tensors("somebody/else") is None


def test_a_few_experts_stand_for_all() -> None:
    same = {f"layers.0.ffn.experts.{number}.w1.weight": Tensor("I8", (2, 2)) for number in range(8)}
    odd = same | {"layers.0.ffn.experts.5.w1.weight": Tensor("BF16", (2, 4)), "norm.weight": Tensor("BF16", (2,))}
    numbers = [name.split(".")[4] for name in few_experts(odd) if "experts" in name]
    assert numbers == ["0", "1", "5", "7"]
    assert "norm.weight" in few_experts(odd)
    assert len(few_experts(same)) == 3
