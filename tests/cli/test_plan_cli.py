"""``dsv4check plan`` as users run it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.cli.program import run

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/plan.schema.json").read_text(encoding="utf-8"))
FLASH = "deepseek-ai/DeepSeek-V4-Flash"
MACHINE = ["--gpu", "H200", "--gpus", "8", "--vllm", "0.33.0"]
WANTED = ["--context", "131072", "--concurrency", "32"]


@pytest.mark.parametrize("launch", [[FLASH], ["--", FLASH], [FLASH, "--"], ["--", "vllm", "serve", FLASH]])
def test_text(launch: list[str]) -> None:
    done = run("plan", *MACHINE, *WANTED, *launch)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 GPUs: TP 2 serves 32 requests of 131,072 tokens at once\n")
    assert f"    vllm serve {FLASH} --max-model-len 131072 --tensor-parallel-size 2\n" in done.stdout


def test_further_flags_are_kept() -> None:
    done = run("plan", *MACHINE, *WANTED, FLASH, "--", "--served-model-name", "flash")
    assert done.returncode == 0
    assert f"vllm serve {FLASH} \\\n      --served-model-name flash \\\n" in done.stdout


def test_json() -> None:
    done = run("plan", *MACHINE, *WANTED, "--format", "json", "--draft", "mtp", FLASH)
    assert done.returncode == 0
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert "--speculative-config" in document["best"]["commands"][0]


def test_nothing_found_exits_1() -> None:
    done = run("plan", *MACHINE, "--context", "1048576", "--concurrency", "9000", "--max-nodes", "1", FLASH)
    assert done.returncode == 1
    assert done.stdout.startswith("NOTHING SERVES 9,000 requests of 1,048,576 tokens at once, up to 1 node of 8 GPUs")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*MACHINE, *WANTED], "no model given"),
        ([*MACHINE, "--context", "131072", FLASH], "--concurrency is missing"),
        ([*MACHINE, "--concurrency", "4", FLASH], "--context is missing"),
        ([*MACHINE, FLASH, *WANTED], "stands behind the model"),
        ([*WANTED, FLASH], "give --gpu"),
        ([*MACHINE, "--context", "2000000", "--concurrency", "1", FLASH], "tokens at most"),
        ([*MACHINE, "--context", "4096", "--concurrency", "0", FLASH], "expected a positive number"),
        ([*MACHINE, *WANTED, "nobody/nothing"], "no config.json"),
    ],
)
def test_unusable_input_exits_2(words: list[str], message: str) -> None:
    done = run("plan", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
