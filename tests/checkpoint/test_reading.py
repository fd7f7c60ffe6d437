"""Names, dtypes and shapes of a checkpoint's tensors."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv4check.checkpoint.headers import read_header
from dsv4check.checkpoint.published import few_experts, fill_shapes, published_tensors
from dsv4check.checkpoint.reading import read_checkpoint
from dsv4check.checkpoint.shards import write_index, write_shard
from dsv4check.checkpoint.tensors import DEFECT_KINDS, Checkpoint, Tensor
from dsv4check.errors import InputError

ONE = {"x": Tensor("BF16", (2, 3)), "y": Tensor("F8_E4M3", ())}
quiet = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(path: Path, **options: Any) -> Checkpoint:
    found = read_checkpoint(path, **options)
    assert found is not None
    return found


def kinds(found: Checkpoint) -> dict[str, tuple[str, int, tuple[str, ...]]]:
    assert {defect.kind for defect in found.defects} <= set(DEFECT_KINDS)
    assert all(defect.detail for defect in found.defects)
    return {defect.kind: (defect.file, defect.count, defect.examples) for defect in found.defects}


def two_shards(folder: Path) -> tuple[Path, Path]:
    """x and y in a.safetensors, z in b.safetensors, and an index that fits."""
    size = write_shard(folder / "a.safetensors", ONE)
    size += write_shard(folder / "b.safetensors", {"z": Tensor("F32", (4,))})
    write_index(folder, {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}, size)
    return folder / "a.safetensors", folder / "b.safetensors"


def raw_shard(path: Path, records: Mapping[str, Any], data: int) -> None:
    text = json.dumps(records).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))


def test_headers_without_an_index(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.safetensors", {"x": Tensor("BF16", (2, 3))})
    write_shard(tmp_path / "b.safetensors", {"y": Tensor("F8_E4M3", ())})
    found = read(tmp_path)
    assert found.tensors == ONE
    assert found.files == {"x": "a.safetensors", "y": "b.safetensors"}
    assert (found.total_size, found.defects) == (None, ())
    assert "2 safetensors files" in found.source
    assert read(tmp_path / "b.safetensors").tensors == {"y": Tensor("F8_E4M3", ())}


def test_a_whole_checkpoint_has_no_defects(tmp_path: Path) -> None:
    two_shards(tmp_path)
    found = read(tmp_path)
    assert found.tensors == {**ONE, "z": Tensor("F32", (4,))}
    assert found.files["z"] == "b.safetensors"
    assert (found.total_size, found.absent, found.defects) == (29, (), ())
    assert read(tmp_path / "model.safetensors.index.json") == found


def test_an_index_names_what_absent_shards_hold(tmp_path: Path) -> None:
    write_shard(tmp_path / "1.safetensors", {"x": Tensor("BF16", (2,))})
    write_index(tmp_path, {"x": "1.safetensors", "y": "2.safetensors"}, None)
    found = read(tmp_path)
    assert found.tensors == {"x": Tensor("BF16", (2,)), "y": Tensor("", None)}
    assert (found.absent, found.without_shape) == (("2.safetensors",), 1)
    assert kinds(found) == {"shard-missing": ("2.safetensors", 1, ("y",))}
    filled = fill_shapes(found, Checkpoint("another", {"x": Tensor("F32", (9,)), "y": Tensor("F32", (5,))}))
    assert filled.tensors == {"x": Tensor("BF16", (2,)), "y": Tensor("F32", (5,))}
    assert (filled.defects, filled.files) == (found.defects, found.files)


def test_a_dangling_link_is_a_missing_shard(tmp_path: Path) -> None:
    first, _ = two_shards(tmp_path)
    first.unlink()
    first.symlink_to(tmp_path / "blobs" / "0123")
    found = read(tmp_path)
    assert kinds(found) == {"shard-missing": ("a.safetensors", 2, ("x", "y"))}
    assert "link" in found.defects[0].detail
    (tmp_path / "model.safetensors.index.json").unlink()
    alone = read(tmp_path)
    assert (set(alone.tensors), set(kinds(alone))) == ({"z"}, {"shard-missing"})


@pytest.mark.parametrize("name", ["sub/b.safetensors", "../b.safetensors", "b.bin", "a\x00.safetensors"])
def test_vllm_looks_only_beside_the_index(tmp_path: Path, name: str) -> None:
    two_shards(tmp_path)
    (tmp_path / "sub").mkdir()
    write_shard(tmp_path / "sub" / "b.safetensors", {"z": Tensor("F32", (4,))})
    write_index(tmp_path, {"x": "a.safetensors", "y": "a.safetensors", "z": name}, 29)
    found = read(tmp_path)
    assert set(kinds(found)) == {"shard-missing", "extra-file"}
    assert found.absent == (name,)


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_an_interrupted_download_is_noticed(tmp_path: Path, cut: int) -> None:
    first, _ = two_shards(tmp_path)
    size = first.stat().st_size
    with first.open("rb+") as stream:
        stream.truncate(size - cut)
    found = read(tmp_path)
    names = ("y",) if cut == 1 else ("x", "y")
    assert kinds(found) == {"data-truncated": ("a.safetensors", len(names), names)}
    assert f"{13 - cut} of 13 bytes" in found.defects[0].detail
    assert found.tensors["x"] == ONE["x"], "the header is whole"


def test_a_file_may_be_known_to_end_after_its_header(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.safetensors", ONE, header_only=True)
    assert set(kinds(read(tmp_path))) == {"data-truncated"}
    assert read(tmp_path, header_only=True).defects == ()


def test_bytes_after_the_last_tensor(tmp_path: Path) -> None:
    first, _ = two_shards(tmp_path)
    with first.open("ab") as stream:
        stream.write(b"\0")
    assert kinds(read(tmp_path)) == {"data-trailing": ("a.safetensors", 0, ())}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "header-truncated"),
        (b"\x10\0\0", "header-truncated"),
        (b"\0" * 64, "header-invalid"),
        ((200_000_000).to_bytes(8, "little"), "header-invalid"),
        ((64).to_bytes(8, "little") + b'{"x": ', "header-truncated"),
        ((2).to_bytes(8, "little") + b"{x", "header-invalid"),
        ((2).to_bytes(8, "little") + b"[]", "header-invalid"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "lfs-pointer"),
    ],
)
def test_a_shard_that_cannot_be_read_leaves_the_names(tmp_path: Path, content: bytes, kind: str) -> None:
    first, _ = two_shards(tmp_path)
    first.write_bytes(content)
    found = read(tmp_path)
    assert kinds(found) == {kind: ("a.safetensors", 2, ("x", "y"))}
    assert found.tensors == {"x": Tensor("", None), "y": Tensor("", None), "z": Tensor("F32", (4,))}
    assert found.absent == ()
    alone = read(first)
    assert (alone.tensors, set(kinds(alone))) == ({}, {kind})


def test_a_name_in_two_shards(tmp_path: Path) -> None:
    _, second = two_shards(tmp_path)
    write_shard(second, {"x": Tensor("F32", (1,)), "z": Tensor("F32", (4,))})
    found = read(tmp_path)
    assert kinds(found) == {"duplicate-name": ("b.safetensors", 1, ("x",)), "size-mismatch": (found_index(), 0, ())}
    assert found.tensors["x"] == ONE["x"], "the one that the index means"
    (tmp_path / found_index()).unlink()
    assert kinds(read(tmp_path)) == {"duplicate-name": ("b.safetensors", 1, ("x",))}


def found_index() -> str:
    return "model.safetensors.index.json"


def test_a_name_twice_in_the_index(tmp_path: Path) -> None:
    two_shards(tmp_path)
    path = tmp_path / found_index()
    path.write_text(path.read_text().replace('"weight_map": {', '"weight_map": {"x": "b.safetensors",'))
    assert kinds(read(tmp_path)) == {"duplicate-name": (path.name, 1, ("x",))}


def test_index_and_shards_that_differ(tmp_path: Path) -> None:
    _, second = two_shards(tmp_path)
    size = write_shard(second, {"new": Tensor("F32", (4,))})
    write_index(tmp_path, {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}, 13 + size)
    found = read(tmp_path)
    assert kinds(found) == {
        "not-in-index": ("b.safetensors", 1, ("new",)),
        "not-in-shard": ("b.safetensors", 2, ("y", "z")),
    }
    assert set(found.tensors) == {"x", "y", "new"}, "what the loader meets, wherever the index says it is"
    assert found.files == {"x": "a.safetensors", "y": "a.safetensors", "new": "b.safetensors"}


def test_files_and_sizes_that_the_index_does_not_know(tmp_path: Path) -> None:
    two_shards(tmp_path)
    write_shard(tmp_path / "old.safetensors", {"x": Tensor("F32", (9,))})
    assert kinds(read(tmp_path)) == {"extra-file": ("old.safetensors", 0, ())}
    write_index(tmp_path, {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}, 30)
    found = read(tmp_path)
    assert set(kinds(found)) == {"extra-file", "size-mismatch"}
    assert "30; the files hold 29" in found.defects[-1].detail


def record(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("records", "data", "kind"),
    [
        ({"x": record("F32", [2], 0, 4)}, 4, "shape-mismatch"),
        ({"x": record("F4", [3], 0, 2)}, 2, "shape-mismatch"),
        ({"x": record("F4", [3], 0, 1)}, 1, "shape-mismatch"),
        ({"x": record("F32", [1], 4, 8)}, 8, "offsets-invalid"),
        ({"x": record("F32", [1], 0, 4), "y": record("F32", [1], 0, 4)}, 4, "offsets-invalid"),
        ({"x": record("F8_E5M3", [4], 0, 4)}, 4, "dtype-unknown"),
        ({"x": {"dtype": "F32", "shape": [1]}}, 4, "header-invalid"),
        ({"x": record("F32", [1], 0, 4) | {"data_offsets": [0, -4]}}, 4, "header-invalid"),
        ({"x": record("F32", [-1], 0, 4)}, 4, "header-invalid"),
        ({"x": 1}, 0, "header-invalid"),
        ({"__metadata__": {"step": 1}, "x": record("F32", [1], 0, 4)}, 4, "header-invalid"),
        ({"__metadata__": ["pt"], "x": record("F32", [1], 0, 4)}, 4, "header-invalid"),
    ],
)
def test_headers_that_safetensors_refuses(tmp_path: Path, records: Mapping[str, Any], data: int, kind: str) -> None:
    raw_shard(tmp_path / "model.safetensors", records, data)
    assert set(kinds(read(tmp_path))) == {kind}


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("F4", (4, 3), 6),
        ("F6_E2M3", (4,), 3),
        ("F6_E3M2", (8,), 6),
        ("F8_E8M0", (3,), 3),
        ("BF16", (), 2),
        ("I64", (2,), 16),
    ],
)
def test_sizes(dtype: str, shape: tuple[int, ...], size: int) -> None:
    assert Tensor(dtype, shape).size == size
    assert Tensor("", None).size is None


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
    assert sum(tensor.size or 0 for tensor in found.tensors.values()) == size


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


def large_index() -> dict[str, str]:
    """The names of a published checkpoint, over 46 files."""
    published = published_tensors("deepseek-ai/DeepSeek-V4-Flash")
    assert published is not None
    return {
        name: f"model-{number * 46 // len(published.tensors) + 1:05}-of-00046.safetensors"
        for number, name in enumerate(published.tensors)
    }


def test_a_large_index_is_read_quickly(tmp_path: Path, figures: Callable[[str], None]) -> None:
    write_index(tmp_path, large_index(), 159609485896)
    read(tmp_path)
    start = time.process_time()
    found = read(tmp_path)
    seconds = time.process_time() - start
    tracemalloc.start()
    read(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    figures(f"index of {len(found.tensors)} names, no shard there: {seconds:.2f} s, {peak / 1e6:.0f} MB at most")
    assert (len(found.tensors), len(found.absent)) == (69187, 46)
    # Three times the budget of 0.3 s: machines that run tests are busy.
    assert seconds < 0.9
    assert peak < 100e6


def test_many_headers_are_read_quickly(tmp_path: Path, figures: Callable[[str], None]) -> None:
    published = published_tensors("deepseek-ai/DeepSeek-V4-Flash")
    assert published is not None
    files = large_index()
    shards: dict[str, dict[str, Tensor]] = {}
    for name, file in files.items():
        shards.setdefault(file, {})[name] = published.tensors[name]
    total = sum(write_shard(tmp_path / file, tensors) for file, tensors in shards.items())
    write_index(tmp_path, files, total)
    start = time.process_time()
    found = read(tmp_path)
    seconds = time.process_time() - start
    figures(f"headers of {len(shards)} shards with {len(found.tensors)} tensors: {seconds:.2f} s")
    assert (found.tensors, found.defects) == (published.tensors, ())
    # Three times the budget of 1 s.
    assert seconds < 3.0


@quiet
@given(st.binary(max_size=200))
def test_any_bytes_as_shard(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    found = read(path)
    assert found.defects or not found.tensors
    kinds(found)


@quiet
@given(st.data())
def test_a_mutilated_shard_is_never_a_traceback(tmp_path: Path, data: st.DataObject) -> None:
    first, _ = two_shards(tmp_path)
    whole = first.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, min(len(whole), start + 20)))
    mutilated = whole[:start] + data.draw(st.binary(max_size=20)) + whole[stop:]
    first.write_bytes(mutilated)
    found = read(tmp_path)
    kinds(found)
    assert "z" in found.tensors
    # Only the numbers of the data part may change without notice.
    header = 8 + int.from_bytes(whole[:8], "little")
    if len(mutilated) != len(whole):
        assert found.defects or mutilated[8:header] != whole[8:header]


@quiet
@given(st.binary(max_size=120) | st.none() | st.integers() | st.text(max_size=5) | st.lists(st.text(), max_size=3))
def test_any_bytes_as_index(tmp_path: Path, content: object) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps({"weight_map": content}).encode())
    with pytest.raises(InputError) as caught:
        read_checkpoint(tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
