"""Real launches written as files of every kind: the gate must say what `serve-args` says of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsv4check.api import check_request
from dsv4check.batch import request_from_record
from dsv4check.engine.rule import load_rules
from dsv4check.errors import InputError
from dsv4check.gate.file_check import FileChecker
from dsv4check.gate.judge import Judge
from dsv4check.gate.records import LaunchResult
from dsv4check.gate.settings import Facts, load_settings
from dsv4check.launchfiles.text import SourceText
from tests.gate.launch_texts import KINDS
from tests.test_cases import CASES, PASS_WITH_ERROR

RULES = load_rules()


def options(case: dict[str, Any]) -> Facts:
    extra = case.get("extra") or {}
    return Facts(
        vllm=case["vllm"],
        gpu=case["gpu"],
        gpus=case["gpus"],
        nodes=case["nodes"],
        gpu_memory_gib=extra.get("gpu_memory_gib"),
        packages=extra.get("packages") or {},
    )


def plain(case: dict[str, Any]) -> bool:
    """A case that its command and its machine say whole, with nothing that a file cannot say."""
    extra = case.get("extra") or {}
    words = [case["model"], *case["args"], *case["env"].values()]
    return (
        not set(extra) - {"gpu_memory_gib", "packages"}
        and all(isinstance(word, str) for word in words)
        and "$" not in "".join(words)
        # The tag of an image cannot hold the version of a development build.
        and "+" not in case["vllm"]
        and bool(case["model"])
    )


CHOSEN = [case for case in CASES if plain(case)]


def gate(case: dict[str, Any], kind: str) -> LaunchResult:
    name, write = KINDS[kind]
    image = f"vllm/vllm-openai:v{case['vllm']}"
    text = write(case["model"], case["args"], case["env"], image)
    checker = FileChecker(
        Judge(RULES, options(case), fixes=False), load_settings(Path.cwd(), None, True), Path.cwd(), {}
    )
    result = checker.check_text(SourceText(name, text), None)
    assert not result.problems, (case["id"], result.problems, text)
    assert len(result.launches) == 1, (case["id"], text)
    return result.launches[0]


def direct(case: dict[str, Any]) -> list[tuple[str, str]] | None:
    extra = case.get("extra") or {}
    record = {key: case[key] for key in ("vllm", "gpu", "gpus", "nodes", "model", "args", "env")}
    record |= {key: extra[key] for key in ("packages", "gpu_memory_gib") if key in extra}
    try:
        report = check_request(request_from_record(record, "case", False), RULES, fixes=False)
    except InputError:
        return None
    return sorted((item.rule, item.message) for item in report.findings)


@pytest.mark.parametrize("kind", KINDS)
def test_files_get_the_answer_of_the_command(kind: str, figures: Any) -> None:
    differ = {}
    compared = 0
    # Every kind gets all cases that it can be the only one to break, and a share of the rest.
    for case in CHOSEN[:: 1 if kind in ("script", "kubernetes") else 3]:
        expected = direct(case)
        if expected is None:
            continue
        launch = gate(case, kind)
        if launch.verdict is None:
            differ[case["id"]] = launch.not_checked
            continue
        compared += 1
        found = sorted((item.rule, item.message) for item in launch.findings)
        if found != expected:
            differ[case["id"]] = f"{found} != {expected}"
    figures(f"cases as {kind}: {compared} compared with their commands, {len(differ)} differ")
    assert compared > 50
    assert not differ, differ


def test_known_good_launches_get_no_error_in_a_file(figures: Any) -> None:
    alarms = {}
    good = [case for case in CHOSEN if case["expect"]["verdict"] == "pass"]
    for case in good:
        launch = gate(case, "kubernetes")
        errors = [item.rule for item in launch.findings if item.severity == "error"]
        if errors and case["id"] not in PASS_WITH_ERROR:
            alarms[case["id"]] = errors
    figures(f"known-good launches as manifests: {len(good)} checked, {len(alarms)} with an error finding")
    assert len(good) > 100
    assert not alarms, alarms
