"""Servers that a list of words starts."""

from __future__ import annotations

import pytest

from dsv4check.launchfiles.argv import may_start, servers_of_argv
from dsv4check.launchfiles.records import FileWord
from dsv4check.launchfiles.text import Span
from tests.launchfiles.reading import context_of


@pytest.mark.parametrize(
    ("command", "entrypoint", "other"),
    [
        ("vllm serve M", "serve", ""),
        ("python3 -m vllm serve M", "serve", ""),
        (".venv/bin/python -u -m vllm.entrypoints.openai.api_server --model M", "api_server", ""),
        ("python3 -m dynamo.vllm --model M", "engine", ""),
        ("python -m dynamo.sglang --model M", "other", "sglang"),
        ("python -m sglang.launch_server --model M", "other", "sglang"),
        ("trtllm-serve M", "other", "TensorRT-LLM"),
        ("sudo -E sglang serve M", "other", "sglang"),
    ],
)
def test_kinds(command: str, entrypoint: str, other: str) -> None:
    words = [FileWord(text, Span(0, 1)) for text in command.split()]
    (server,) = servers_of_argv(words, {}, context_of("x"))
    assert (server.entrypoint, server.other) == (entrypoint, other)
    assert may_start(words[0].text)


@pytest.mark.parametrize(
    "command", ["vllm bench serve", "echo vllm serve", "python x.py vllm serve M", "vllm serve -h"]
)
def test_nothing(command: str) -> None:
    words = [FileWord(text, Span(0, 1)) for text in command.split()]
    assert servers_of_argv(words, {}, context_of("x")) == []
