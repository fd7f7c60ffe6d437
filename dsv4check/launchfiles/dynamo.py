"""NVIDIA Dynamo in front of the engine: flags it takes for itself, and flags its operator adds.

``python -m dynamo.vllm`` reads its own flags and hands all others to the parser of vLLM's engine arguments. For a
component of several nodes the operator of a DynamoGraphDeployment adds the flags that join them.
"""

from __future__ import annotations

from dataclasses import replace

from dsv4check.launchfiles.multinode import flag_name, joined
from dsv4check.launchfiles.records import FileWord, Launch, Server
from dsv4check.releases.history import flag_history


def engine_server(launch: Launch) -> Server:
    """The server with the words that reach vLLM's engine; its notes say what was changed. Others stay as they are."""
    server = launch.server
    if server.entrypoint != "engine" or not server.program:
        return server
    return joined(_without_own_flags(server), launch.nodes)


def _without_own_flags(server: Server) -> Server:
    history = flag_history()
    kept: list[FileWord] = []
    dropped: list[str] = []
    dropping = False
    for word in server.words:
        if word.text.startswith("--"):
            name = flag_name(word)
            dropping = not history.exists(name) and not history.exists(name.replace("--no-", "--", 1))
            if dropping:
                dropped.append(name)
        if not dropping:
            kept.append(word)
    if not dropped:
        return server
    note = f"flags of {server.program[-1]} itself, not of vLLM: {', '.join(dropped)}"
    return replace(server, words=tuple(kept), notes=(*server.notes, note))
