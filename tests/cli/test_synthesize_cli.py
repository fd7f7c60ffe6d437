"""``dsv4check synthesize`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsv4check.checkpoint.reading import read_checkpoint
from tests.cli.program import run


def test_what_is_printed_is_what_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "two words"
    drops = ["--drop", "mtp.*", "--drop", "layers.1.attn_norm.weight"]
    sizes = ["--layers", "3", "--experts", "4", "--shards", "2"]
    change = ["--config-change", '{"x": 1, "bos_token_id": null}']
    done = run("synthesize", str(folder), "--like", "flash", *sizes, *drops, *change)
    assert done.returncode == 0, done.stderr
    found = read_checkpoint(folder)
    assert found is not None
    first, second, last = done.stdout.splitlines()
    assert first == f"{folder}: 2 files, {len(found.tensors)} tensors"
    claimed, disk = _bytes(second)
    assert claimed == found.total_size == sum(tensor.size or 0 for tensor in found.tensors.values())
    assert disk < 1_000_000 < claimed
    assert last == f"next: dsv4check weights '{folder}'"
    assert not any(name.startswith("mtp.") for name in found.tensors)
    assert "layers.1.attn_norm.weight" not in found.tensors
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["x"], config["num_hidden_layers"], "bos_token_id" in config) == (1, 3, False)


def _bytes(line: str) -> tuple[int, int]:
    claimed, disk = line.split(" bytes claimed, ")
    return int(claimed.replace(",", "")), int(disk.removesuffix(" bytes on disk").replace(",", ""))


def test_stages_and_the_next_command(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    options = ["--like", "flash-dspark", "--layers", "3", "--experts", "4", "--stages", "2"]
    assert run("synthesize", str(folder), *options).returncode == 0
    done = run("weights", "--vllm", "0.33.0", str(folder))
    assert done.returncode == 0, done.stdout
    assert "dspark, 2 stages" in done.stdout


def test_files_without_data_are_announced(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    done = run("synthesize", str(folder), "--like", "flash", "--layers", "1", "--experts", "1", "--header-only")
    assert "without data" in done.stdout
    done = run("weights", "--vllm", "0.33.0", str(folder))
    assert done.returncode == 1
    assert "data-truncated" in done.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "--like"),
        (["--like", "nope"], "flash-dspark"),
        (["--like", "flash", "--layers", "0"], "layers: 0"),
        (["--like", "flash", "--experts", "x"], "x"),
        (["--like", "flash", "--layers", "1", "--experts", "1", "--shards", "0"], "shards: 0"),
        (["--like", "flash", "--layers", "1", "--drop", "zzz*"], "zzz*"),
        (["--like", "flash", "--layers", "1", "--drop", "*"], "leaves no tensor"),
        (["--like", "flash", "--config-change", "{"], "--config-change: not JSON"),
        (["--like", "flash", "--config-change", "[1]"], "found list"),
    ],
)
def test_unusable_input_exits_2_and_writes_nothing(tmp_path: Path, options: list[str], says: str) -> None:
    done = run("synthesize", str(tmp_path / "made"), *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "made").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    done = run("synthesize", str(tmp_path), "--like", "flash", "--layers", "1", "--experts", "1")
    assert done.returncode == 2
    assert "not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
