"""Servers in text that may be a shell script, and may be prose about one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dsv4check.launchfiles.records import Context, Server, Stated
from dsv4check.launchfiles.shell import servers_of_shell
from dsv4check.launchfiles.templates import guarded, restored
from dsv4check.launchfiles.text import Located

_FENCE: Final = re.compile(r"^[ \t]*```", re.MULTILINE)


def text_servers(text: Located, env: Mapping[str, Stated], context: Context) -> list[Server]:
    """The servers of a text, where it is a script; nothing for documentation, and no complaint about its quotes."""
    if _FENCE.search(text.text):
        return []
    before = len(context.problems)
    found = [server for server in servers_of_shell(guarded(text), env, context) if _is_meant(server)]
    if not found:
        del context.problems[before:]
    return [restored(server) for server in found]


def _is_meant(server: Server) -> bool:
    """False for prose: "vllm serve is slow"."""
    return server.image is not None or any(
        word.open or word.text.startswith("-") or "/" in word.text for word in server.words
    )
