"""NVIDIA Dynamo in front of the engine: flags it takes for itself, and flags its operator adds.

``python -m dynamo.vllm`` reads its own flags and hands all others to the parser of vLLM's engine arguments. For a
component of several nodes the operator of a DynamoGraphDeployment adds the flags that join them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dsv4check.launchfiles.records import FileWord, Launch, Server
from dsv4check.releases.history import flag_history

_JOINING: Final = frozenset(
    ("--nnodes", "-n", "--distributed-executor-backend", "--data-parallel-size", "-dp", "--data-parallel-size-local")
)
"""Flags with which a command says itself how its nodes work together."""


def engine_server(launch: Launch) -> tuple[Server, list[str]]:
    """The server with the words that reach vLLM's engine, and what was changed; other servers stay as they are."""
    server = launch.server
    if server.entrypoint != "engine" or not server.program:
        return server, []
    server, notes = _without_own_flags(server)
    count = int(launch.nodes.value) if launch.nodes is not None and launch.nodes.value.isdecimal() else 1
    names = {_name(word) for word in server.words}
    if count > 1 and launch.nodes is not None and not names & _JOINING:
        added = tuple(FileWord(text, launch.nodes.span) for text in ("--nnodes", str(count), "--node-rank", "0"))
        server = replace(server, words=(*server.words, *added))
        notes.append(f"--nnodes {count} --node-rank 0 stand for what Dynamo's operator adds for {count} nodes")
    return server, notes


def _without_own_flags(server: Server) -> tuple[Server, list[str]]:
    history = flag_history()
    kept: list[FileWord] = []
    dropped: list[str] = []
    dropping = False
    for word in server.words:
        if word.text.startswith("--"):
            name = _name(word)
            dropping = not history.exists(name) and not history.exists(name.replace("--no-", "--", 1))
            if dropping:
                dropped.append(name)
        if not dropping:
            kept.append(word)
    if not dropped:
        return server, []
    return replace(server, words=tuple(kept)), [
        f"flags of {server.program[-1]} itself, not of vLLM: {', '.join(dropped)}"
    ]


def _name(word: FileWord) -> str:
    return word.text.partition("=")[0].partition(".")[0].replace("_", "-")
