"""``dsv4check memory`` as a user runs it. Records made by hand stand in for what the resolution knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsv4check import api
from dsv4check.cli.main import main
from dsv4check.memory.records import Memory
from tests.cli.program import run
from tests.report.memory import memory, too_large

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/memory.schema.json").read_text(encoding="utf-8"))
FLASH = "deepseek-ai/DeepSeek-V4-Flash"
MACHINE = ["--gpu", "H200", "--gpus", "8", "--vllm", "0.33.0"]
LAUNCH = ["--", "vllm", "serve", FLASH, "-tp", "8"]

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the program in this process, with ``record`` as the memory of any launch."""
    resolve = api.resolve

    def called(*args: str, record: Memory | None) -> tuple[int, str, str]:
        def filled(*inputs: Any) -> Any:
            return replace(resolve(*inputs), memory=record)

        monkeypatch.setattr(api, "resolve", filled)
        monkeypatch.setattr("sys.argv", ["dsv4check", *args])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        code = stopped.value.code
        assert code is None or isinstance(code, int)
        return code or 0, said.out, said.err

    return called


def test_a_launch_that_fits_exits_0(call: Call) -> None:
    code, out, err = call("memory", *MACHINE, *LAUNCH, record=memory())
    assert (code, err) == (0, "")
    assert out.startswith("FITS: one request of 1,048,576 tokens needs 4,363 blocks")
    for section in ("What the KV cache holds", "Context or concurrency", "KV cache groups", "Pages of the KV cache"):
        assert f"\n{section}\n" in out


@pytest.mark.parametrize(("more", "code"), [([], 1), (["--fail-on", "never"], 0), (["--fail-on", "warning"], 1)])
def test_a_launch_that_does_not_fit_exits_1(call: Call, more: list[str], code: int) -> None:
    done, out, _err = call("memory", *MACHINE, *more, *LAUNCH, record=too_large())
    assert done == code
    assert out.startswith("DOES NOT FIT")


def test_an_earlier_stop_exits_1_although_it_would_fit(call: Call) -> None:
    machine = [*MACHINE[:-1], "0.24.0"]
    code, out, _err = call("memory", *machine, *LAUNCH, record=memory())
    assert code == 1
    assert out.startswith("FAIL at model-init (KV001)")


def test_findings_about_anything_else_do_not_count_here(call: Call) -> None:
    # An attention backend that is ignored is a warning of another area.
    launch = [*LAUNCH, "--kv-cache-dtype", "fp8", "--attention-backend", "TRITON_MLA"]
    code, out, _err = call("memory", *MACHINE, "--fail-on", "warning", *launch, record=memory())
    assert code == 0
    assert "1 other finding: see dsv4check serve-args" in out


@pytest.mark.parametrize("record", [memory(), too_large(), None])
def test_json(call: Call, record: Memory | None) -> None:
    code, out, _err = call("memory", *MACHINE, "--format", "json", *LAUNCH, record=record)
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    verdict = None if record is None else "pass" if record.fits else "fail"
    assert (code, document["verdict"]) == (int(verdict == "fail"), verdict)


def test_serve_args_shows_the_short_form(call: Call) -> None:
    code, out, _err = call("serve-args", *MACHINE, *LAUNCH, record=memory())
    assert code == 0
    assert "\nMemory of one GPU (139.8 GiB)\n  [EEE" in out
    code, out, _err = call("serve-args", *MACHINE, "--format", "json", *LAUNCH, record=memory())
    assert json.loads(out)["resolution"]["memory"]["blocks"] == {"low": 67976, "high": 69121}


@pytest.mark.parametrize("record", [None, memory(fits=None)])
def test_strict_counts_an_open_answer(call: Call, record: Memory | None) -> None:
    assert call("memory", *MACHINE, *LAUNCH, record=record)[0] == 0
    assert call("memory", *MACHINE, "--strict", *LAUNCH, record=record)[0] == 1


@pytest.mark.parametrize(
    ("options", "model", "says"),
    [
        ([], FLASH, "give --gpu, e.g. --gpu H200"),
        (["--gpu", "sm90"], FLASH, "--gpu-memory-gib"),
        (["--gpu", "MI355X"], FLASH, "only vLLM's CUDA path is modelled"),
        (["--gpu", "B200"], "deepseek-ai/DeepSeek-V4.1-Flash", "DeepSeek-V4.1 are not modelled"),
    ],
)
def test_what_is_missing_is_said(call: Call, options: list[str], model: str, says: str) -> None:
    args = ["memory", "--vllm", "0.33.0", *options, "--", "vllm", "serve", model, "-tp", "8"]
    code, out, _err = call(*args, record=None)
    assert "not evaluated (" in out
    assert says in " ".join(out.split())
    assert code == (1 if out.startswith("FAIL") else 0)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "no command given: expected `dsv4check memory"),
        (["--gpu", "H2000", *LAUNCH], "H2000"),
        (["/no/such/model"], "/no/such/model"),
        ([FLASH, "--gpu-memory-gib", "80"], "`dsv4check memory --gpu-memory-gib ... MODEL`"),
        (["--nodes", "0", *LAUNCH], "--nodes"),
    ],
)
def test_unusable_input_exits_2(args: list[str], says: str) -> None:
    done = run("memory", *args)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_every_command_of_a_launch_has_the_same_options() -> None:
    options = ["--gpu", "--gpus", "--nodes", "--gpu-memory-gib", "--vllm", "--model-config", "--checkpoint"]
    options += ["--package", "--env", "--online", "--rules", "--format", "--fail-on"]
    for command in ("serve-args", "weights", "rehearse", "memory"):
        said = run(command, "--help").stdout
        assert [option for option in options if f"{option} " not in said] == []
