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
    "vllm": {
        "dspark-h200-kv-shape.log": "a bare build in a sentence",
        "acceptance-gb10.txt": "`**vllm version**: ` before a build",
        "rocm-strix-halo-ray.log": "a bare build in a sentence",
        "hang-gb10-ray.log": "the build stands beside a nightly image, and the image wins",
        "graphs-h100-0270.md": "`- **vLLM**: 0.27.0`",
        "symmetric-memory-h20.md": "`- **vLLM**: ` before a version in backquotes",
        "another-model.log": "`(model, v0.19.1)`",
        "nixl-receive-failed.log": "`Runtime vLLM: ` stands beside a base image, and the image wins",
    },
    "gpus": {
        "rtx-pro-6000-0201.log": "2xRTX 6000 Blackwell",
        "assertion-without-text-h100.md": "8 GPUs in a sentence of Chinese",
        "dspark-pipeline-0271.log": "the columns of a GPU topology",
        "graphs-h200-0270.txt": "H200 4卡",
        "acceptance-gb10.txt": "two machines are taken for two GPUs of one",
        "rocm-strix-halo-ray.log": "two machines are taken for two GPUs of one",
        "offload-block-lost.md": "all GPUs of three nodes are taken for those of one",
        "hang-gb10-ray.log": "two machines are taken for two GPUs of one",
        "before-v4-rtx4090.log": "eight RTX 4090 GPUs",
        "gb10-free-memory.log": "`GB10, 128 GB` is taken for 128 GPUs",
    },
    "args": {
        "inductor-h100-tp8.md": "tp8 in a sentence",
        "next-n-mtp2-h20.txt": "a flag in a sentence",
        "graphs-h20-0271.log": "a table's row",
        "dspark-h200-kv-shape.log": "flags in a sentence",
        "v2-runner-reshape.log": "flags in a sentence",
        "offload-block-lost.md": "`docker run ... image model` with an ellipsis",
        "hang-gb10-ray.log": "TP=2 in a sentence",
        "fp8e4nv-a100.txt": "flags in a sentence",
        "context-too-long-h20.log": "TP=2 in a sentence",
        "gb10-free-memory.log": "a command in the middle of a sentence",
    },
    "rule": {
        "v2-runner-reshape.log": "the launch that tells the causes apart is in a sentence",
        "another-engine.log": "the traceback and the command are those of another engine",
    },
}
"""Facts that a sentence states and no reader takes from it yet, by the index's key and file."""


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
