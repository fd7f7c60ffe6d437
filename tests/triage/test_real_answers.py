"""The logs modelled on public reports lead to the cause and the launch that their index states."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from dsv4check.inputs.gpu import resolve_gpu
from dsv4check.triage.answer import Outcome, Sureness, TriageReport
from dsv4check.triage.diagnosis import triage
from dsv4check.triage.said import SaidByUser
from tests.launches import all_rules
from tests.triage.test_real_logs import FOLDER, INDEX


@cache
def answer(name: str) -> TriageReport:
    return triage([str(FOLDER / name)], all_rules(), SaidByUser())


def entries(field: str | None = None) -> list[Any]:
    return [
        pytest.param(item, id=item["file"], marks=_marks(field, item["file"]))
        for item in INDEX
        if field is None or item[field] not in (None, "")
    ]


def _marks(field: str | None, name: str) -> Sequence[pytest.MarkDecorator]:
    why = NOT_READ_YET.get(field or "", {}).get(name)
    return () if why is None else (pytest.mark.xfail(reason=why, strict=False),)


NOT_READ_YET: dict[str, dict[str, str]] = {
    "gpus": {"dspark-pipeline-0271.log": "the log says neither GPUs nor ranks"},
    "args": {"context-too-long-h20.log": "only the names of the workers tell the number of ranks"},
}
"""Facts of a launch that its log does not state in words, by the index's key and file."""


@pytest.mark.parametrize("item", entries("rule"))
def test_the_first_candidate(item: dict[str, Any]) -> None:
    found = answer(item["file"])
    first = found.candidates[0].rule.id if found.candidates else "unknown"
    assert first in item["acceptable"]


@pytest.mark.parametrize("item", entries())
def test_the_outcome(item: dict[str, Any]) -> None:
    found = answer(item["file"])
    if item["first"] is None:
        assert found.outcome is Outcome.NO_ERROR
    elif found.candidates:
        assert found.outcome is Outcome.EXPLAINED
    else:
        assert found.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("item", entries())
def test_what_is_certain_is_right(item: dict[str, Any]) -> None:
    sure = [one.rule.id for one in answer(item["file"]).candidates if one.sureness is Sureness.CERTAIN]
    assert set(sure) <= {item["rule"], *item["acceptable"]}


@pytest.mark.parametrize("item", entries("first"))
def test_the_first_error(item: dict[str, Any]) -> None:
    error = answer(item["file"]).error
    assert error is not None
    first = item["first"].partition(": ")[2] or item["first"].rstrip(":")
    assert first[:60].strip() in error.said


@pytest.mark.parametrize("item", entries("vllm"))
def test_the_version(item: dict[str, Any]) -> None:
    stated = answer(item["file"]).stated.vllm
    assert stated is not None
    assert item["vllm"] in stated


@pytest.mark.parametrize("item", entries("gpu"))
def test_the_gpu(item: dict[str, Any]) -> None:
    stated = answer(item["file"]).stated.gpu
    assert stated is not None
    assert resolve_gpu(stated).sm == resolve_gpu(item["gpu"]).sm


@pytest.mark.parametrize("item", entries("gpus"))
def test_the_number_of_gpus(item: dict[str, Any]) -> None:
    assert answer(item["file"]).stated.gpus == item["gpus"]


@pytest.mark.parametrize("item", entries("model"))
def test_the_model(item: dict[str, Any]) -> None:
    stated = answer(item["file"]).stated.model
    assert stated is not None
    assert stated.rstrip("/").rpartition("/")[2].lower() == item["model"].rpartition("/")[2].lower()


@pytest.mark.parametrize("item", entries("args"))
def test_the_flags(item: dict[str, Any]) -> None:
    expected, stated = _flags(shlex.split(item["args"])), _flags(answer(item["file"]).stated.words)
    assert expected.items() <= stated.items()


_LONG = {"-tp": "--tensor-parallel-size", "-dp": "--data-parallel-size", "-pp": "--pipeline-parallel-size"}


def _flags(words: Sequence[str]) -> dict[str, str]:
    """Values by the long name; JSON in one spelling, so that two ways to type it are equal."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            name, _equals, value = word.partition("=")
            name = _LONG.get(name, name.replace("_", "-"))
            found[name] = value
        else:
            found[name] = json.dumps(json.loads(word), sort_keys=True) if word.startswith("{") else word
    return found
