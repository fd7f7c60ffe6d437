"""`dsv4check rehearse` as a user runs it, with a child that is not vLLM."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner, Result

from dsv4check.cli.main import make_app
from dsv4check.errors import InputError
from dsv4check.rehearsal import environment, parent, provision
from tests.rehearsal.fake_pip import FakePip
from tests.rehearsal.fake_tree import NEEDED, beside, tree

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
COMMAND = ["--gpu", "H200", "--gpus", "8", "--", "vllm", "serve", FLASH, "-tp", "8"]
FP8 = ["--kv-cache-dtype", "fp8"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A --vllm-path that looks right."""
    return f"{tree(tmp_path / 'tree')}{os.pathsep}{beside(tmp_path / 'packages', *NEEDED)}"


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The child behaves as the parameter says."""
    worker = tmp_path / f"{request.param}.py"
    shutil.copy(Path(__file__).parent / "fake_worker.py", worker)
    monkeypatch.setattr(parent, "WORKER", worker)


def run(*args: str, stdin: str = "") -> Result:
    return CliRunner().invoke(make_app(), ["rehearse", *args], input=stdin)


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize(
    ("child", "flags", "code", "verdict"),
    [
        ("well", FP8, 0, "pass"),
        ("well", [], 0, "pass"),  # the rule says it fails, vLLM says it does not: vLLM is right
        ("fails", FP8, 1, "fail"),
        ("dies", FP8, 3, "unavailable"),
        ("dies_at_start", FP8, 3, "unavailable"),
    ],
    indirect=["child"],
)
def test_exit_codes(flags: list[str], code: int, verdict: str, path: str) -> None:
    done = run("--vllm-path", path, "--format", "json", *COMMAND, *flags)
    assert done.exit_code == code, done.output
    data = json.loads(done.stdout)
    assert data["verdict"] == verdict
    assert data["vllm"] == "0.29.0"


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("child", ["fails"], indirect=True)
def test_fail_on_never(path: str) -> None:
    assert run("--vllm-path", path, "--fail-on", "never", *COMMAND).exit_code == 0


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("child", ["well"], indirect=True)
def test_text_shows_both(path: str) -> None:
    done = run("--vllm-path", path, *COMMAND, *FP8)
    assert done.stdout.startswith("PASS: the rehearsed stages go through")
    assert "Not simulated" in done.stdout
    assert "Static report" in done.stdout


def test_the_real_child_without_a_real_vllm_gives_no_verdict(path: str) -> None:
    done = run("--vllm-path", path, "--format", "json", *COMMAND)
    assert done.exit_code == 3
    data = json.loads(done.stdout)
    assert data["verdict"] == "unavailable"
    assert "could not be imported" in data["unavailable"]


def test_no_vllm_at_all(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho \'{"python": "3", "found": {}}\'\n', encoding="utf-8")
    fake.chmod(0o755)
    done = run("--python", str(fake), *COMMAND)
    assert done.exit_code == 3
    assert done.stdout.startswith("REHEARSAL UNAVAILABLE")
    assert "(--provision)" in done.stdout


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed here; environments are built with a pip that fetches nothing."""

    def nothing(python: str | None = None, vllm_path: str | None = None) -> NoReturn:
        raise environment.RehearsalUnavailable("no vllm here")

    monkeypatch.setenv("DSV4CHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(provision, "warm_up", lambda environment, report: None)
    monkeypatch.setattr(provision, "run_command", FakePip())
    monkeypatch.setattr(environment, "find_environment", nothing)


@pytest.mark.usefixtures("child", "built")
@pytest.mark.parametrize("child", ["well"], indirect=True)
def test_provision() -> None:
    options = ["--vllm", "0.29.0", "--format", "json", *COMMAND, *FP8]
    assert run(*options).exit_code == 3
    refused = run("--provision", *options)
    assert isinstance(refused.exception, InputError)
    assert "add --yes" in str(refused.exception)
    first = run("--provision", "--yes", *options)
    assert first.exit_code == 0, first.output
    assert "built by --provision" in json.loads(first.stdout)["environment"]
    assert "MB to fetch" in first.stderr
    for again in (["--provision"], ["--provision", "--offline"], []):
        done = run(*again, *options)
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        assert json.loads(done.stdout)["environment"] == json.loads(first.stdout)["environment"]


@pytest.mark.usefixtures("child", "built")
@pytest.mark.parametrize("child", ["well"], indirect=True)
def test_provision_for_a_batch() -> None:
    line = json.dumps({"id": 1, "model": FLASH, "args": ["-tp", "8", *FP8], "gpu": "H200", "gpus": 8})
    done = run("--provision", "-y", "--vllm", "0.29.0", "--batch", "-", stdin=line)
    assert (done.exit_code, json.loads(done.stdout)["verdict"]) == (0, "pass")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--vllm", "0.24.0", *COMMAND], "the vLLM to rehearse with is 0.29.0"),
        (["--batch", "x", *COMMAND], "remove the command"),
        (["--provision", *COMMAND], "leave out --python and --vllm-path"),
        (["--offline", "--online", *COMMAND], "exclude each other"),
        (["--gpu", "H200"], "no command given"),
    ],
)
def test_unusable_input(args: list[str], said: str, path: str) -> None:
    done = run("--vllm-path", path, *args)
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("child", ["well"], indirect=True)
def test_batch(path: str) -> None:
    lines = [
        {"id": "good", "model": FLASH, "args": ["-tp", "8", *FP8], "gpu": "H200", "gpus": 8},
        {"id": "no gpu catalogue", "model": FLASH, "args": [], "gpu": "H9000"},
        {"id": "amd", "model": FLASH, "args": [], "gpu": "MI300X"},
        {"id": "other release", "model": FLASH, "args": [], "gpu": "H200", "vllm": "0.24.0"},
    ]
    done = run("--vllm-path", path, "--batch", "-", stdin="\n".join(json.dumps(line) for line in lines))
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [reply["id"] for reply in replies] == [line["id"] for line in lines]
    assert [reply["verdict"] for reply in replies] == ["pass", None, "unavailable", None]
    assert "0.24.0" in replies[3]["input_error"]
    assert done.exit_code == 3
