"""The bundle for a bug report: what a maintainer asks for is in it, what is private is not, in either format."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4check.errors import InputError
from dsv4check.report.bundle_markdown import render as render_markdown
from dsv4check.report.gate_json import json_text
from dsv4check.report.triage_schema import TriageRecord
from dsv4check.triage.answer import Candidate, Evidence, Outcome, Sureness, TriageReport
from dsv4check.triage.bundle import MOST_LINES, bundle_to_dict, write_bundle
from dsv4check.triage.records import ErrorEvent, Fact, Frame, LogReading, Run
from tests.launches import run_launch
from tests.report.triage import ANSWERS, FLASH, SAID, answer, certain, event, line, rule, stated

SNAPSHOTS = Path(__file__).parents[1] / "report" / "snapshots"
KEY = ("-----BEGIN OPENSSH PRIVATE KEY-----", "b3BlbnNzaC1rZXktdjEAAAAA", "-----END OPENSSH PRIVATE KEY-----")
TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWx12"
PRIVATE = (
    "alice", "zhangwei", "gpu-node-17", "10.20.30.40", "acme", "hunter2pass", "k3y-of-mine", "second-k3y", TOKEN,
    KEY[1], "0a1b2c3d-1111-2222-3333-444455556666",
)  # fmt: skip
"""Planted all over the answer below."""


def private() -> TriageReport:
    """Private things wherever an answer holds text."""
    log = "/home/alice/acme/logs/vllm.log"
    model = "/data/acme/models/DeepSeek-V4-Flash"
    at = line(118, f"ValueError: {SAID} on gpu-node-17", source=log)
    prompt = "alice@gpu-node-17:~/acme$ vllm serve " + model + " --api-key k3y-of-mine second-k3y"
    error = event(
        message=f"{SAID}\ncannot reach tcp://gpu-node-17:29500 with {TOKEN}",
        line=at,
        excerpt=(
            prompt,
            *KEY,
            "export DB_PASSWORD=hunter2pass",
            "GPU-0a1b2c3d-1111-2222-3333-444455556666 of zhangwei",
        ),
        frames=(
            Frame("vllm/v1/engine/core.py", 1104, "run_engine_core", "engine_core = EngineCoreProc(*args, **kwargs)"),
            Frame("/home/alice/acme/plugin.py", 3, "load", f"login('{TOKEN}')"),
        ),
        caused_by=event(message="no route to 10.20.30.40 (hunter2pass refused)", line=at, frames=()),
    )
    lines = (
        line(3, "vLLM API server version 0.24.0 on gpu-node-17", source=log),
        line(4, f"non-default args: {{'model': '{model}', 'api_key': ['k3y-of-mine', 'second-k3y']}}", source=log),
        line(20, "cublas 13.0.1.0; second-k3y was refused", source=log),
        *(line(30 + number, text, source=log) for number, text in enumerate(KEY)),
        at,
    )
    run = Run(lines[0], lines, (error,))
    launch: dict[str, Any] = {
        "vllm": "0.24.0",
        "gpu": "H200",
        "gpus": 8,
        "model": FLASH,
        "args": ["-tp", "8", "--api-key", "k3y-of-mine", "second-k3y", "--hf-token", TOKEN, "--host", "gpu-node-17"],
        "env": {"HF_TOKEN": TOKEN, "VLLM_HOST_IP": "10.20.30.40", "USER": "alice"},
    }
    made = run_launch(launch, fixes=True)
    return answer(
        reading=LogReading((log,), 10, 20, (run,), prompt, (f"{log}: was cut",)),
        run=run,
        error=error,
        later=(event(message="zhangwei@gpu-node-17:~$ exit", line=at),),
        candidates=(
            Candidate(
                rule("KV001"),
                Sureness.CERTAIN,
                (Evidence(f"{log} says so on gpu-node-17", line=at),),
                finding=next(item for item in made.findings if item.rule == "KV001"),
            ),
        ),
        report=made,
        command=f"vllm serve {model} --api-key ***",
        stated=stated(
            model=model,
            words=("--api-key", "k3y-of-mine", "second-k3y", "--master-addr", "gpu-node-17"),
            env=launch["env"],
            facts=(
                Fact("env HF_TOKEN", TOKEN, "command", at),
                Fact("env USER", "alice", "collect_env", at),
                Fact("model", model, "command", at),
                Fact("flags", "--api-key k3y-of-mine second-k3y", "command", at),
                Fact("package nvidia-cublas", "13.0.1.0", "collect_env"),
            ),
        ),
        missing=("Who zhangwei is.",),
        apart="10.20.30.40 or not",
        notes=("read as alice",),
    )


@pytest.mark.parametrize("name", ["bundle.md", "bundle.json"])
def test_snapshot(name: str, tmp_path: Path) -> None:
    file = SNAPSHOTS / name
    write_bundle(tmp_path / name, private())
    said = (tmp_path / name).read_bytes()
    if os.environ.get("DSV4CHECK_UPDATE") == "1":
        file.write_bytes(said)
    assert said == file.read_bytes(), f"{file.name} differs (tests/report/README.md says how it is written anew)"


@pytest.mark.parametrize("name", ["b.md", "b.txt", "b.json"])
@pytest.mark.parametrize("word", PRIVATE)
def test_nothing_private_is_written(name: str, word: str, tmp_path: Path) -> None:
    write_bundle(tmp_path / name, private())
    assert word not in (tmp_path / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["b.md", "b.json"])
@pytest.mark.parametrize(
    "kept",
    [
        SAID,
        "0.24.0",
        "13.0.1.0",
        "DeepSeek-V4-Flash",
        "H200",
        "vllm/v1/engine/core.py",
        "run_engine_core",
        "KV001",
        "vllm.log",
        "--kv-cache-dtype fp8",
        "FLASHMLA_SPARSE_DSV4",
        "compress_ratios",
        "tcp://<host-1>:29500",
    ],
)
def test_what_a_maintainer_asks_for_is_there(name: str, kept: str, tmp_path: Path) -> None:
    write_bundle(tmp_path / name, private())
    assert kept in (tmp_path / name).read_text(encoding="utf-8")


def test_the_file_says_what_was_masked(tmp_path: Path) -> None:
    counts = write_bundle(tmp_path / "b.md", private())
    said = (tmp_path / "b.md").read_text(encoding="utf-8")
    assert counts["host"][0] == 2
    assert counts["user"][0] == 2
    assert counts["secret"][0] >= 4
    tail = said[said.index("## What was masked") :]
    assert f"| secrets (tokens, keys, passwords) | {counts['secret'][0]} | {counts['secret'][1]} |" in tail
    assert "read this file before you post it" in tail
    masked = json.loads(json_text(bundle_to_dict(private())))["masked"]
    assert {item["kind"]: (item["different"], item["places"]) for item in masked} == counts


def test_nothing_to_mask() -> None:
    made = answer(stated=stated(facts=()), outcome=Outcome.UNKNOWN)
    assert "## What was masked\n\nNothing." in render_markdown(bundle_to_dict(made))


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_can_be_bundled(name: str, tmp_path: Path) -> None:
    made = ANSWERS[name]()
    write_bundle(tmp_path / "b.json", made)
    write_bundle(tmp_path / "b.md", made)
    data = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
    # The bundle is an answer with more in it.
    TriageRecord.model_validate(data)
    said = (tmp_path / "b.md").read_text(encoding="utf-8")
    # GitHub takes 65,536 characters.
    assert len(said) < 60_000
    assert [row for row in said.splitlines() if row.startswith("#")][:2] == [
        "# vLLM with DeepSeek-V4: bug report",
        "## Launch",
    ]


def test_a_long_log_is_cut_around_the_error() -> None:
    lines = tuple(line(number, f"step {number} " + "x" * 50) for number in range(1, 4001))
    error = event(line=lines[2999])
    run = Run(lines[0], lines, (error,))
    log = bundle_to_dict(answer(run=run, error=error, report=None, outcome=Outcome.UNKNOWN))["log"]
    numbers = [item["line"] for item in log]
    assert len(numbers) <= MOST_LINES
    assert numbers == sorted(set(numbers))
    assert 1 in numbers
    assert {2990, 3000, 3010} < set(numbers)


def test_a_huge_error_stays_within_a_comment() -> None:
    huge = "word " * 40_000
    made = answer(error=event(message=huge, excerpt=(huge,)), outcome=Outcome.UNKNOWN, later=(event(message=huge),) * 9)
    assert len(render_markdown(bundle_to_dict(made))) < 60_000


def test_files_with_the_same_name_stay_apart() -> None:
    one, two = "/home/alice/a/x.log", "/home/alice/b/x.log"
    reading = LogReading((one, two), 1, 2, (certain().run,), "")
    made = replace(certain(), reading=reading, error=event(line=line(5, "x", source=two)))
    data = bundle_to_dict(made)
    assert data["reading"]["sources"] == ["x.log", "x.log (2)"]
    assert data["error"]["line"]["source"] == "x.log (2)"


def test_a_chain_of_causes_without_end_is_cut() -> None:
    error: ErrorEvent | None = None
    for number in range(500):
        error = event(message=f"number {number}", caused_by=error, frames=(), excerpt=())
    assert render_markdown(bundle_to_dict(answer(error=error, outcome=Outcome.UNKNOWN))).count("caused by, ") == 20


def test_a_file_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no-such-folder.*cannot be written"):
        write_bundle(tmp_path / "no-such-folder" / "b.md", certain())


def test_the_old_file_stays_where_bundling_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "b.md"
    file.write_text("old", encoding="utf-8")
    monkeypatch.setattr("dsv4check.gate.writing.os.replace", _refuse)
    with pytest.raises(InputError, match="cannot be written"):
        write_bundle(file, certain())
    assert file.read_text(encoding="utf-8") == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["b.md"]


def _refuse(*_args: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_log_closes_no_block_of_the_markdown() -> None:
    nasty = "```\n# heading\n<script>alert(1)</script> @someone"
    made = answer(error=event(message=nasty, excerpt=(nasty,)), outcome=Outcome.UNKNOWN, stated=stated(model=nasty))
    said = render_markdown(bundle_to_dict(made))
    assert "\n````text\n" in said
    rows, fence = [], ""
    for row in said.splitlines():
        ticks = row[: len(row) - len(row.lstrip("`"))]
        if not fence and len(ticks) >= 3:
            fence = ticks
        elif fence and row == fence:
            fence = ""
        elif not fence:
            rows.append(row)
    assert "<script" not in "\n".join(rows)
    assert "@someone" not in "\n".join(rows)


@settings(max_examples=40, deadline=None)
@given(
    st.text("abcdefghjkm", min_size=5, max_size=8).map(lambda word: f"{word}q9"),
    st.sampled_from(
        ["error", "frame", "later", "evidence", "note", "missing", "env", "observed", "excerpt", "reached"]
    ),
)
def test_a_user_is_masked_in_every_field_once_a_prompt_names_it(name: str, field: str) -> None:
    said = f"owned by {name}"
    made = answer(
        outcome=Outcome.UNKNOWN,
        error=event(
            message=said if field == "error" else "x",
            frames=(Frame("vllm/x.py", 1, "f", said if field == "frame" else ""),),
            excerpt=(f"{name}@box-7:~$ vllm serve x", said if field == "excerpt" else ""),
        ),
        later=(event(message=said if field == "later" else "x"),),
        candidates=(Candidate(rule("KV001"), Sureness.POSSIBLE, (Evidence(said if field == "evidence" else "x"),)),),
        notes=(said if field == "note" else "x",),
        missing=(said if field == "missing" else "x",),
        stated=stated(
            env={"X": said if field == "env" else "x"}, observed={"runner": said if field == "observed" else "x"}
        ),
    )
    if field == "reached":
        made = replace(made, milestone=replace(made.milestone, reached=said))
    data = bundle_to_dict(made)
    assert name not in json_text(data)
    assert name not in render_markdown(data)


def test_a_bundle_of_many_lines_is_made_in_no_time() -> None:
    import time

    texts = (*(item.text for item in private().run.lines), f"non-default args: {{'model': '{FLASH}', 'x': '/a/b'}}")
    lines = tuple(line(number, f"{number} {texts[number % len(texts)]} " * 3) for number in range(1, 501))
    made = replace(private(), run=Run(lines[0], lines, private().run.events))
    started = time.perf_counter()
    bundle_to_dict(made)
    # Takes a fifth of it on a slow machine.
    assert time.perf_counter() - started < 2
