"""The recorded table: which file logs a message at which line, and the frames of a stack, for each release."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("data_frames.json")


@dataclass(frozen=True, slots=True)
class LogFrame:
    """One frame as a traceback prints it."""

    path: str
    line: int
    function: str
    code: str = ""


@cache
def table() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return content


def module_of(release: str, message: str, default: str = "utils.py:1") -> str:
    """``core.py:1136`` for a message of ``log_stacks.MESSAGES``; the default where this release has no such line."""
    found = table()["messages"].get(message, {}).get(release)
    return f"{found[0]}:{found[1]}" if found else default


def has_message(release: str, message: str) -> bool:
    return release in table()["messages"].get(message, {})


def frames_of(release: str, names: Iterable[str]) -> tuple[LogFrame, ...]:
    """The frames of these names that the release has, in order."""
    known = table()["frames"]
    return tuple(
        LogFrame(item["path"], item["lines"][release], item["function"], item["code"])
        for name in names
        for item in known.get(name, ())
        if release in item["lines"]
    )
