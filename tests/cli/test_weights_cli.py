"""``dsv4check weights`` as a user runs it, and ``--checkpoint`` of the other commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from dsv4check.checkpoint.synthetic import write_checkpoint
from dsv4check.cli.launch_options import _OWN_OPTIONS
from dsv4check.releases.facts import known_releases
from dsv4check.releases.flag_table import load_flag_table
from tests.cli.program import run

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
DSPARK = f"{FLASH}-0731"
MTP = '{"method": "mtp", "num_speculative_tokens": 1}'
SCHEMA = json.loads((Path(__file__).parents[2] / "docs/weights.schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("checkpoint") / "with blanks"
    write_checkpoint(made, "flash", layers=3, experts=4, shards=2)
    return made


@pytest.fixture(scope="module")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("checkpoint") / "lacking"
    write_checkpoint(made, "flash", layers=3, experts=4, drop=["layers.1.attn.wkv.*"])
    return made


def test_a_path_or_an_id_alone(folder: Path) -> None:
    done = run("weights", "--vllm", "0.33.0", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("PASS")
    assert "local folder" in done.stdout
    assert done.stderr == ""
    done = run("weights", "--vllm", "0.28.0", "deepseek-ai/DeepSeek-V4-Pro-0813")
    assert done.returncode == 0, done.stdout
    assert "published names" in done.stdout
    assert "831.42 GiB (892,727,580,904)" in done.stdout
    assert "dspark, 3 stages" in done.stdout


def test_a_launch_decides_draft_and_shares() -> None:
    options = ["--vllm", "0.33.0", "--gpu", "B200", "--gpus", "8", "--format", "json"]
    launch = ["--", "vllm", "serve", DSPARK, "-tp", "4", "-pp", "2", "--speculative-config", MTP]
    done = run("weights", *options, *launch)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    jsonschema.validate(report, SCHEMA)
    assert (report["verdict"], report["draft"]["method"], report["draft"]["started"]) == ("fail", "mtp", True)
    assert [stage["layers"] for stage in report["shares"]["stages"]] == [22, 21]
    assert "WT001" in {finding["rule"] for finding in report["findings"]}
    assert run("weights", *options, "--fail-on", "never", *launch).returncode == 0
    assert run("weights", *options, "--draft", "none", "--", DSPARK, "-tp", "4").returncode == 0


def test_what_is_lacking_exits_1(lacking: Path) -> None:
    done = run("weights", "--vllm", "0.33.0", "--gpu", "B200", str(lacking), "-tp", "4")
    assert done.returncode == 1
    assert "not filled: model.layers.1.attn.fused_wqa_wkv.weight: lacks shard 1" in done.stdout
    # The same names with the config of another launch: what a converter lost is found before it is served.
    done = run("weights", "--vllm", "0.33.0", "--checkpoint", str(lacking), FLASH)
    assert done.returncode == 1
    assert "num_hidden_layers" in done.stdout


def test_names(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "names.tsv"
    done = run("weights", "--vllm", "0.33.0", "--names", str(table), str(folder))
    assert done.stdout.startswith("PASS")
    lines = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]
    assert {line[0]: line[4] for line in lines[1:]} == index
    assert len(lines) == len(index) + 1
    assert {len(line) for line in lines} == {7}
    done = run("weights", "--vllm", "0.33.0", "--names", "-", str(folder))
    assert done.stdout == table.read_text(encoding="utf-8")
    done = run("weights", "--names", str(tmp_path), FLASH)
    assert done.returncode == 2
    assert f"--names {tmp_path}: cannot be written" in done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "no command given"),
        (["/no/such/folder"], "/no/such/folder"),
        (["nvidia/DeepSeek-V4-Flash-NVFP4"], "--checkpoint PATH"),
        (["--checkpoint", "/no/such/folder", FLASH], "/no/such/folder"),
        (["--draft", "eagle", FLASH], "eagle"),
        ([FLASH, "--vllm", "0.28.0"], "`dsv4check weights --vllm ... MODEL`"),
        ([FLASH, "--gpu=H200"], "stands behind the model"),
        (["--vllm", "banana", FLASH], "banana"),
    ],
)
def test_unusable_input_exits_2_and_says_what_to_do(args: list[str], says: str) -> None:
    done = run("weights", *args)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_no_option_of_this_program_is_one_of_vllm() -> None:
    for release in known_releases():
        assert not _OWN_OPTIONS & set(load_flag_table(release).by_option)


def test_a_folder_without_weights_and_a_broken_index(tmp_path: Path, folder: Path) -> None:
    empty = tmp_path / "unknown-model"
    empty.mkdir()
    shutil.copy(folder / "config.json", empty)
    done = run("weights", str(empty))
    assert done.returncode == 2
    assert "--checkpoint PATH" in done.stderr
    (empty / "model.safetensors.index.json").write_text("{", encoding="utf-8")
    done = run("weights", str(empty))
    assert done.returncode == 2
    assert "model.safetensors.index.json" in done.stderr


def test_serve_args_takes_a_checkpoint(lacking: Path, tmp_path: Path) -> None:
    machine = ["--gpu", "B200", "--gpus", "8", "--vllm", "0.33.0", "--format", "json"]
    launch = ["--model-config", str(lacking), FLASH, "-tp", "4"]
    rules = {item["rule"] for item in json.loads(run("serve-args", *machine, *launch).stdout)["findings"]}
    done = run("serve-args", *machine, "--checkpoint", str(lacking), *launch)
    assert done.returncode == 1
    assert {item["rule"] for item in json.loads(done.stdout)["findings"]} - rules == {"WT019"}
    done = run("serve-args", *machine, "--checkpoint", str(tmp_path), *launch)
    assert done.returncode == 2
    assert "expected a checkpoint's folder" in done.stderr


def test_batch_lines_take_a_checkpoint(lacking: Path, tmp_path: Path) -> None:
    base = {"model": FLASH, "args": ["-tp", "4"], "gpu": "B200", "gpus": 8, "vllm": "0.33.0"}
    lines = [base, base | {"checkpoint": str(lacking)}, base | {"checkpoint": str(tmp_path / "none")}]
    lines.append(base | {"checkpoint": 3})
    path = tmp_path / "batch.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    done = run("serve-args", "--batch", str(path))
    first, second, third, fourth = map(json.loads, done.stdout.splitlines())
    assert first["verdict"] == "pass"
    assert "WT023" in {item["rule"] for item in second["findings"]}
    assert "line 3: checkpoint: " in third["input_error"]
    assert "checkpoint must be str" in fourth["input_error"]
