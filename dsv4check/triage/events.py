"""Errors as they are collected: the same one said by eight ranks, by the logger and on stderr is one event."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from dsv4check.triage.prefixes import PlainLine
from dsv4check.triage.records import ErrorEvent, Frame, LogLine

MESSAGE_LIMIT: Final = 8_000
EXCERPT_LINES: Final = 14
FRAME_LIMIT: Final = 120

_CHAIN_LIMIT: Final = 12
MOST_EARLY: Final = 1_500
MOST_LATE: Final = 500
"""Different errors of one start that are kept, the earliest and the last ones."""
_VARIABLE: Final = re.compile(r"0x[0-9a-fA-F]{1,40}|[0-9a-f]{8,64}|\d{1,40}")


def same_text(text: str) -> str:
    """The text without what differs from rank to rank and from time to time."""
    return _VARIABLE.sub("#", text[:400])


def log_line(source: str, line: PlainLine, *, count: int = 1) -> LogLine:
    """The record of a line."""
    return LogLine(
        source,
        line.number,
        line.text.strip()[:16_000],
        line.process,
        line.level,
        line.module,
        max(count, line.times),
        line.moment,
    )


class Draft:
    """One error while its lines are read."""

    __slots__ = (
        "base",
        "carried",
        "excerpt",
        "first",
        "frames",
        "kind",
        "last",
        "line",
        "message",
        "quoted",
        "size",
        "style",
    )

    def __init__(self, index: int, line: PlainLine, style: str, base: int = 0) -> None:
        self.style = style
        """``traceback``, ``exception`` once its last line is read; ``native``, ``stack``, ``logged``, ``argparse``."""
        self.base = base
        """Indentation of the traceback's first and last line."""
        self.first = self.last = index
        self.line = line
        self.kind = ""
        self.message: list[str] = []
        self.size = 0
        self.frames: list[Frame] = []
        self.quoted = True
        """The source line of the last frame was read."""
        self.excerpt: list[str] = [line.raw]
        self.carried: ErrorEvent | None = None
        """The cause, for what ``caused_by`` becomes."""

    def note(self, index: int, line: PlainLine) -> None:
        """One more line belongs to it."""
        self.last = index
        self.excerpt.append(line.raw)
        if len(self.excerpt) > EXCERPT_LINES:
            del self.excerpt[0]

    def say(self, text: str) -> None:
        """One more line of the message."""
        if self.size < MESSAGE_LIMIT:
            self.message.append(text[: MESSAGE_LIMIT - self.size])
            self.size += len(text) + 1

    def add_frame(self, frame: Frame) -> None:
        """One more frame; the middle of a long recursion is left out."""
        self.frames.append(frame)
        self.quoted = False
        if len(self.frames) > FRAME_LIMIT:
            del self.frames[FRAME_LIMIT // 4]

    def event(self, source: str) -> ErrorEvent:
        """What was read."""
        message = "\n".join(self.message).strip("\n").rstrip()
        frames = tuple(reversed(self.frames)) if self.style == "stack" else tuple(self.frames)
        process = (self.line.process,) if self.line.process else ()
        return ErrorEvent(
            self.kind,
            message,
            log_line(source, self.line),
            frames,
            process,
            self.line.times,
            self.carried,
            excerpt=tuple(self.excerpt),
        )


class Found:
    """One error with where it came first and last."""

    __slots__ = ("event", "first", "key", "last", "streams", "where")

    def __init__(self, event: ErrorEvent, first: int, last: int, stream: str) -> None:
        self.event = event
        self.key = (event.kind, "")
        """Type and message without what differs from rank to rank; set when the error is registered."""
        self.first = first
        self.last = last
        self.streams = {stream: last}
        """Where each process said it last."""
        self.where = event.frames[-1].place if event.frames else ""


class Register:
    """All errors of one start, each once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[Found]] = {}
        self._count = 0
        self._late: deque[tuple[list[Found], Found]] = deque()
        self.left_out = 0
        """Different errors between the earliest and the last ones, which were not kept."""

    def add(self, found: Found) -> None:
        """Takes an error, or counts it when it is known."""
        event = found.event
        found.key = (event.kind, same_text(event.message))
        same = self._found.setdefault(found.key, [])
        for known in same:
            if not known.where or not found.where or known.where == found.where:
                _merge(known, found)
                return
        same.append(found)
        self._count += 1
        if self._count <= MOST_EARLY:
            return
        self._late.append((same, found))
        if len(self._late) > MOST_LATE:
            of, oldest = self._late.popleft()
            of.remove(oldest)
            if not of:
                del self._found[oldest.key]
            self.left_out += 1

    def all(self) -> list[Found]:
        """In the log's order; cut tracebacks only where nothing else shows their last frame."""
        everything = [found for same in self._found.values() for found in same]
        whole = {found.where for found in everything if found.event.kind or found.event.message}
        kept = [found for found in everything if found.event.kind or found.event.message or found.where not in whole]
        return sorted(kept, key=lambda found: found.first)


def chained(event: ErrorEvent, cause: ErrorEvent) -> ErrorEvent:
    """The event with what caused it; a chain that never ends is cut."""
    depth, link = 1, cause.caused_by
    while link is not None:
        depth, link = depth + 1, link.caused_by
    if depth >= _CHAIN_LIMIT:
        cause = replace_event(cause, caused_by=None)
    if event.caused_by is not None:
        return event
    return replace_event(event, caused_by=cause)


def replace_event(event: ErrorEvent, **changes: object) -> ErrorEvent:
    """A copy with other values."""
    return replace(event, **changes)  # type: ignore[arg-type]


def _merge(known: Found, found: Found) -> None:
    old, new = known.event, found.event
    better = new if _weight(new) > _weight(old) else old
    known.event = replace_event(
        better,
        line=old.line if better is old or not new.frames or old.frames else new.line,
        processes=_union(old.processes, new.processes),
        times=old.times + new.times,
    )
    known.first = min(known.first, found.first)
    known.last = max(known.last, found.last)
    known.where = known.where or found.where
    for stream, last in found.streams.items():
        known.streams[stream] = max(known.streams.get(stream, 0), last)


def _weight(event: ErrorEvent) -> tuple[bool, bool, int]:
    return bool(event.frames), event.caused_by is not None, len(event.message.split("\n"))


def _union(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
