"""Reading a text as a log, for the tests of triage."""

from __future__ import annotations

import io

from dsv4check.triage.prefixes import PlainLine, PrefixReader
from dsv4check.triage.reading import read_logs
from dsv4check.triage.records import ErrorEvent, LogReading
from dsv4check.triage.root_cause import ordered_causes


def read_text(text: str | bytes) -> LogReading:
    raw = text.encode() if isinstance(text, str) else text
    return read_logs(["-"], stdin=io.BytesIO(raw))


def causes(text: str | bytes) -> tuple[ErrorEvent, ...]:
    """Causes of the last start."""
    return ordered_causes(read_text(text).runs[-1])


def plain(*lines: str) -> list[PlainLine]:
    reader = PrefixReader()
    return [found for number, line in enumerate(lines, 1) for found in reader.read(number, line)]


def logged(prefix: str, *lines: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in lines)
