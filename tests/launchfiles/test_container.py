"""What a container starts."""

from __future__ import annotations

import pytest

from dsv4check.launchfiles.container import servers_of_container
from dsv4check.launchfiles.records import FileWord, Stated
from dsv4check.launchfiles.text import Span
from tests.launchfiles.reading import context_of

HERE = Span(0, 1)


@pytest.mark.parametrize(
    ("image", "command", "args", "expected"),
    [
        ("vllm/vllm-openai:v0.24.0", "", "M -tp 8", ["M", "-tp", "8"]),
        ("vllm/vllm-openai:v0.24.0", "", "--model M", ["--model", "M"]),
        ("vllm/vllm-openai:v0.24.0", "sleep", "1", None),
        ("vllm/vllm-openai:v0.24.0", "", "", None),
        ("me/vllm:1", "", "--model M", ["--model", "M"]),
        ("me/vllm:1", "", "--port 1", None),
        ("me/other:1", "", "--model M", None),
        ("me/other:1", "vllm serve", "M", ["M"]),
    ],
)
def test_servers(image: str, command: str, args: str, expected: list[str] | None) -> None:
    parts = [[FileWord(text, HERE) for text in part.split()] for part in (command, args)]
    stated = Stated(image, HERE)
    mounts = {"/a": "/b"}
    servers = servers_of_container(
        context_of("x"), image=stated, command=parts[0], args=parts[1], env={}, mounts=mounts, place=HERE
    )
    assert [[word.text for word in server.words] for server in servers] == ([] if expected is None else [expected])
    assert all(server.image == stated and server.mounts == mounts for server in servers)
