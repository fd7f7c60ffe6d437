"""Flags that an operator adds to the command of a worker that spans several nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from dsv4check.launchfiles.records import DERIVED, FileWord, Server, Stated

_TENSOR: Final = ("--tensor-parallel-size", "-tp")
_PIPELINE: Final = ("--pipeline-parallel-size", "-pp")
_DATA: Final = ("--data-parallel-size", "-dp")
_OF_NODES: Final = ("--nnodes", "-n", "--distributed-executor-backend", "--headless")
_OF_RANKS: Final = (
    "--data-parallel-size-local",
    "-dpl",
    "--data-parallel-rank",
    "-dpn",
    "--data-parallel-backend",
    "-dpb",
)


def spread(server: Server, nodes: Stated | None, gpus: Stated | None) -> Server:
    """The server with what an operator adds to a worker on several nodes and the command does not say itself.

    An engine that needs the GPUs of several nodes gets ``--nnodes``; where engines fit into a node, its share of them
    is stated (``--data-parallel-size-local``).
    """
    if nodes is None or gpus is None or not gpus.value.isdecimal():
        return server
    names = {flag_name(word) for word in server.words}
    each, known = _size(server.words, _TENSOR) * _size(server.words, _PIPELINE), int(gpus.value[:6])
    if each > known:
        if nodes.value == "1" or names & set(_OF_NODES):
            return server
        return _with(server, "--nnodes", nodes.value, nodes)
    engines = _size(server.words, _DATA)
    several = engines * each > known and nodes.value != "1"
    if names & set(_OF_RANKS) or not (several or (engines > 1 and "--data-parallel-hybrid-lb" in names)):
        return server
    return _with(server, "--data-parallel-size-local", str(min(known // each, engines)), nodes)


def joined(server: Server, nodes: Stated | None) -> Server:
    """The server of several nodes whose command does not say how they work together, with what joins them."""
    if nodes is None or not nodes.value.isdecimal() or int(nodes.value) < 2:
        return server
    if {flag_name(word) for word in server.words} & {*_OF_NODES, *_OF_RANKS, *_DATA}:
        return server
    return _with(_with(server, "--nnodes", nodes.value, nodes), "--node-rank", "0", nodes)


def _with(server: Server, flag: str, value: str, place: Stated) -> Server:
    words = (FileWord(flag, place.span, DERIVED), FileWord(value, place.span, DERIVED))
    note = f"{flag} {value} was added, as the operator adds it for the nodes of a worker"
    return replace(server, words=(*server.words, *words), notes=(*server.notes, note))


def flag_name(word: FileWord) -> str:
    """The flag of a word, without its value and the keys behind its dots; empty for another word."""
    return word.text.partition("=")[0].partition(".")[0].replace("_", "-") if word.text.startswith("-") else ""


def _size(words: Sequence[FileWord], names: tuple[str, ...]) -> int:
    size = 1
    for index, word in enumerate(words):
        if flag_name(word) in names:
            _flag, equals, value = word.text.partition("=")
            if not equals:
                value = words[index + 1].text if index + 1 < len(words) else ""
            size = max(int(value), 1) if value.isdecimal() and len(value) < 6 else 1
    return size
