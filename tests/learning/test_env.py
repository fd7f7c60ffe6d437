"""``env``: what running code answers, and how the readers of variables are told apart."""

from __future__ import annotations

import os
from typing import Any

import pytest

from dsv4check.data import load_yaml, rules_dir
from dsv4check.learning.children import environment
from dsv4check.learning.release import open_release
from dsv4check.learning.sections import env
from dsv4check.learning.source import LearningError
from dsv4check.releases.facts import known_releases
from tests.rehearsal.live import live_environment, needs_vllm

RELEASES = known_releases()


@needs_vllm
@pytest.mark.parametrize("version", [RELEASES[0], RELEASES[-1]])
def test_shipped(version: str) -> None:
    environment_of_release = live_environment(version)
    if environment_of_release is None:
        pytest.skip(f"vLLM {version} is not there (see tests/rehearsal/live.py)")
    shipped = load_yaml((rules_dir() / "releases" / f"{version}.yaml").read_text())["env"]
    try:
        learned = env.learn(open_release(environment_of_release))
    except LearningError as error:
        if "FlashInfer" not in str(error):
            raise
        pytest.skip(str(error))
    assert learned == shipped


ANSWER: dict[str, Any] = {
    "flashinfer": True,
    "known": ["MAX_JOBS", "VLLM_LOGGING_LEVEL", "VLLM_HOST_IP", "VLLM_CACHE_ROOT", "VLLM_DP_RANK"],
    "int": ["VLLM_DP_RANK", "MAX_JOBS"],
    "float": [],
    "choices": {"VLLM_LAYOUT": {"exact": True, "values": ["A"]}, "BUILD_TYPE": {"exact": True, "values": []}},
    "early": ["VLLM_DP_RANK"],
}


def test_names_of_vllm_only() -> None:
    assert env.build(ANSWER) == {
        "choices": {"LAYOUT": {"exact": True, "values": ["A"]}},
        "early": "DP_RANK",
        "float": "",
        "int": "DP_RANK",
        "known": "CACHE_ROOT DP_RANK HOST_IP LOGGING_LEVEL",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"known": ["VLLM_HOST_IP", "VLLM_CACHE_ROOT"]}, "has no VLLM_LOGGING_LEVEL"),
        ({"flashinfer": False}, "FlashInfer cannot be imported"),
        ({"int": []}, "has no checked values"),
        ({"choices": {}}, "has no checked values"),
    ],
)
def test_a_table_that_is_no_longer_asked_right(change: dict[str, Any], message: str) -> None:
    with pytest.raises(LearningError, match=message):
        env.build({**ANSWER, **change})


def env_with_choices(name: str, choices: Any, case_sensitive: bool = True) -> Any:
    def read() -> Any:
        value = os.environ.get(name)
        if value is None or value in (choices() if callable(choices) else choices):
            return case_sensitive or value
        raise ValueError(f"Invalid value '{value}' for {name}. Valid options: ...")

    return read


@pytest.mark.parametrize("before", [None, "3"])
def test_what_readers_refuse(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("VLLM_A", raising=False)
    if before is not None:
        monkeypatch.setenv("VLLM_A", before)
    assert environment._refusal("VLLM_A", lambda: int(os.environ["VLLM_A"])).startswith("invalid literal for int()")
    assert environment._refusal("VLLM_A", lambda: float(os.environ["VLLM_A"])).startswith("could not convert string")
    assert environment._refusal("VLLM_A", lambda: os.environ["VLLM_A"]) == ""
    assert environment._refusal("VLLM_A", env_with_choices("VLLM_A", ["a"])).startswith("Invalid value")
    assert os.environ.get("VLLM_A") == before


def test_choices_of_a_reader() -> None:
    listed = environment._choices(env_with_choices("VLLM_A", ("a", "b"), case_sensitive=False))
    assert listed == {"exact": False, "values": ["a", "b"]}
    assert environment._choices(env_with_choices("VLLM_A", lambda: ["c"])) == {"exact": True, "values": ["c"]}
    assert environment._choices(lambda: None) is None


def test_lookups_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(os.environ)
    for name in ("__getitem__", "__contains__"):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    read: set[str] = set()
    environment._spy(read)
    assert os.getenv("VLLM_NOT_THERE") is None
    assert "VLLM_NEITHER" not in os.environ
    assert {"VLLM_NOT_THERE", "VLLM_NEITHER"} <= read


def test_forked_work_leaves_nothing_behind() -> None:
    kept: list[int] = []
    answer = environment._forked(lambda: {"read": [str(kept.append(1))], "error": ""})
    assert answer == {"read": ["None"], "error": ""}
    assert kept == []
    assert environment._forked(lambda: os._exit(3))["error"] == "the process ended without an answer"
