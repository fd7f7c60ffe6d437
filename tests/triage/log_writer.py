"""Collects the entries of a log, and turns them into the lines a terminal or a container's log driver sees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.triage.log_launch import Launch
from tests.triage.log_records import Entry, pid_of
from tests.triage.log_table import LogFrame, module_of

START = datetime(2026, 11, 30, 10, 0, 0)
PACKAGES = "/usr/local/lib/python3.12/dist-packages/"
COLOURS = {"DEBUG": "37", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "35"}


@dataclass(frozen=True, slots=True)
class Written:
    """One physical line."""

    second: float
    process: str
    text: str
    burst: int


@dataclass(slots=True)
class Writer:
    """The entries of one start, in order."""

    launch: Launch
    second: float = 0.0
    entries: list[Entry] = field(default_factory=list)
    burst: int = 0

    def wait(self, seconds: float) -> None:
        self.second += seconds
        self.burst += 1

    def log(self, process: str, message: str, text: str, level: str = "INFO", module: str = "") -> None:
        """A record of the logger; ``message`` names the recorded place that logs it."""
        where = module or module_of(self.launch.release, message)
        self.entries.append(Entry(self.second, process, text, level, where, self.burst))

    def raw(self, process: str, text: str) -> None:
        self.entries.append(Entry(self.second, process, text, burst=self.burst))

    def everyone(
        self, processes: Iterable[str], message: str, text: str, level: str = "INFO", module: str = ""
    ) -> None:
        for process in processes:
            self.log(process, message, text, level, module)


def rendered(entry: Entry, *, decorated: bool, colour: bool = False) -> list[str]:
    """The physical lines of an entry; a record's own line breaks are ``\\r\\n``, as vLLM's formatter writes them."""
    who = f"({entry.process} pid={pid_of(entry.process)})" if entry.process else ""
    if who and colour:
        who = f"\033[0;36m{who}\033[0;0m"
    if not entry.level:
        name = f"{who} " if who and decorated else ""
        return [f"{name}{line}" for line in entry.text.split("\n")]
    stamp = (START + timedelta(seconds=entry.second)).strftime("%m-%d %H:%M:%S")
    level, place = entry.level, f"[{entry.module}]"
    if colour:
        level = f"\033[{COLOURS[level]}m{level}\033[0m"
        stamp, place = f"\033[90m{stamp}\033[0m", f"\033[90m{place}\033[0m"
    if not who and not decorated:
        who = "(MainProcess pid=1)"
    prefix = f"{who} {level} {stamp} {place} ".lstrip()
    lines = [f"{prefix}{line}" for line in entry.text.split("\n")]
    return [f"{line}\r" for line in lines[:-1]] + lines[-1:]


def physical(writer: Writer, *, colour: bool = False) -> list[Written]:
    """All lines in the order of the entries."""
    decorated = writer.launch.decorated
    return [
        Written(entry.second, entry.process, line, entry.burst)
        for entry in writer.entries
        for line in rendered(entry, decorated=decorated, colour=colour)
    ]


def frame_lines(frames: Iterable[LogFrame]) -> list[str]:
    """The frames of a traceback, outermost first, with the marks Python 3.12 puts below a call."""
    lines = []
    for frame in frames:
        path = frame.path if frame.path.startswith(("/", "<", "uvloop/loop")) else f"{PACKAGES}{frame.path}"
        lines.append(f'  File "{path}", line {frame.line}, in {frame.function}')
        if frame.code:
            lines.append(f"    {frame.code}")
            lines.extend(marks(frame.code))
    return lines


def marks(code: str) -> list[str]:
    if code.startswith(("raise ", "assert ", "with ", "async ")) or "(" not in code:
        return []
    start = code.rfind("return ") + 7 if code.startswith("return ") else 0
    if " = " in code.partition("(")[0]:
        start = code.index(" = ") + 3
    elif not start:
        return []
    return [f"    {' ' * start}{'^' * (len(code) - start)}"]


def traceback(frames: Iterable[LogFrame], said: str) -> str:
    return "\n".join(["Traceback (most recent call last):", *frame_lines(frames), said])
