"""Flags that an operator adds to the command of a worker that spans several nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dsv4check.launchfiles.records import DERIVED, FileWord, Server, Stated

_SIZES: Final = (
    ("--tensor-parallel-size", "-tp", "--tensor_parallel_size"),
    ("--pipeline-parallel-size", "-pp", "--pipeline_parallel_size"),
)
_STATED: Final = ("--nnodes", "-n", "--distributed-executor-backend", "--headless")


def spread(server: Server, nodes: Stated | None, gpus: Stated | None) -> Server:
    """The server with ``--nnodes``, where one engine needs the GPUs of several of its nodes and says nothing itself.

    Engines that fit into a node are ranks of data parallelism, which need no such flag.
    """
    if nodes is None or gpus is None or not gpus.value.isdecimal() or nodes.value == "1":
        return server
    if any(word.text.partition("=")[0].replace("_", "-") in _STATED for word in server.words):
        return server
    needed = 1
    for names in _SIZES:
        needed *= _size(server.words, names)
    if needed <= int(gpus.value[:6]):
        return server
    flag = FileWord("--nnodes", nodes.span, DERIVED)
    note = f"--nnodes {nodes.value} was added, as the operator adds it for a worker of {nodes.value} nodes"
    words = (*server.words, flag, FileWord(nodes.value, nodes.span, DERIVED))
    return replace(server, words=words, notes=(*server.notes, note))


def _size(words: Sequence[FileWord], names: tuple[str, ...]) -> int:
    size = 1
    for index, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name in names:
            if not equals:
                value = words[index + 1].text if index + 1 < len(words) else ""
            size = int(value) if value.isdecimal() and len(value) < 6 else 1
    return size
