"""From the files of a launch to its starts, each with its errors and what it states."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import BinaryIO, Final

from dsv4check.errors import InputError
from dsv4check.triage.events import MOST_EARLY, MOST_LATE
from dsv4check.triage.records import ErrorEvent, LogReading, Run
from dsv4check.triage.root_cause import mark_consequences
from dsv4check.triage.runs import decode, read_run
from dsv4check.triage.skim import LINE_LIMIT, Skimmer
from dsv4check.triage.skimmed import Skimmed
from dsv4check.triage.sources import Source, close_source, open_source

HEAD_FIRST: Final = 384 << 10
HEAD_LAST: Final = 128 << 10

_FIRST_RUNS: Final = 6
_LAST_RUNS: Final = 4
_NEAR_BEGIN: Final = 200


class _Head:
    """The first and the last part of all that was read, as it stands."""

    def __init__(self) -> None:
        self._first = bytearray()
        self._last = b""
        self._cut = False

    def add(self, piece: bytes) -> None:
        room = HEAD_FIRST - len(self._first)
        if room > 0:
            self._first += piece[:room]
            piece = piece[room:]
        if piece:
            self._cut = self._cut or len(self._last) + len(piece) > HEAD_LAST
            self._last = piece[-HEAD_LAST:] if len(piece) >= HEAD_LAST else (self._last + piece)[-HEAD_LAST:]

    def text(self) -> str:
        first, last = bytes(self._first), self._last
        if not self._cut:
            return _text(first + last)
        # Whole lines on both sides of the gap.
        return f"{_text(first[: first.rfind(10) + 1] or first)}[... cut ...]\n{_text(last[last.find(10) + 1 :])}"


def read_logs(
    names: Sequence[str], *, stdin: BinaryIO | None = None, progress: Callable[[int], None] | None = None
) -> LogReading:
    """Reads the logs of one launch: its nodes, or the parts of a rotated log, in the order given.

    ``-`` is ``stdin``, or standard input when that is None. ``progress`` is called with the bytes read so far.
    Raises InputError for what cannot be read or is no log.
    """
    if not names:
        raise InputError("no log was named; expected files, or - for standard input")
    if list(names).count("-") > 1:
        raise InputError("standard input (-) was named twice; it can be read once")
    head = _Head()
    notes: list[str] = []
    runs: list[Run] = []
    size = lines = 0

    def report(more: int) -> None:
        if progress is not None:
            progress(size + more)

    for name in names:
        source = open_source(name, stdin)
        try:
            if size:
                head.add(b"\n")
            skimmer = Skimmer()
            part = _read_source(source, skimmer, head, report)
        finally:
            close_source(source)
        notes += [*source.notes, *part.notes]
        size += skimmer.size
        lines += skimmer.number
        runs = _with(runs, part.runs)
    return LogReading(tuple(names), size, lines, tuple(runs), head.text(), tuple(notes))


class _Part:
    """What one file gives."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.notes: list[str] = []


def _read_source(source: Source, skimmer: Skimmer, head: _Head, progress: Callable[[int], None]) -> _Part:
    part = _Part()
    late: deque[Skimmed] = deque()
    skipped = dropped = left_out = 0

    def look(skimmed: Skimmed) -> None:
        nonlocal dropped, left_out
        part.runs.append(read_run(skimmed, source.name))
        dropped += skimmed.dropped
        left_out += skimmed.left_out

    def take(skimmed: Skimmed) -> None:
        nonlocal skipped
        skimmed.close()
        if len(part.runs) < _FIRST_RUNS:
            look(skimmed)
            return
        late.append(skimmed)
        if len(late) > _LAST_RUNS:
            late.popleft()
            skipped += 1

    for piece in source:
        head.add(piece)
        for skimmed in skimmer.feed(piece):
            take(skimmed)
        progress(skimmer.size)
    for skimmed in skimmer.finish():
        take(skimmed)
    while late:
        look(late.popleft())
    if len(part.runs) > 1 and _is_preface(part.runs[0]):
        del part.runs[0]
    if skipped:
        part.notes.append(
            f"{source.shown}: vLLM was started {skipped + len(part.runs)} times; the first {_FIRST_RUNS} and the last "
            f"{_LAST_RUNS} starts were looked at."
        )
    if left_out:
        part.notes.append(
            f"{source.shown}: {left_out:,} errors were left out, of starts that show more than "
            f"{MOST_EARLY + MOST_LATE:,} different ones: the first {MOST_EARLY:,} and the last {MOST_LATE} were kept."
        )
    if dropped:
        part.notes.append(f"{source.shown}: {dropped:,} lines that say nothing of errors or facts were not kept.")
    if skimmer.cut:
        part.notes.append(f"{source.shown}: {skimmer.cut:,} lines were cut after {LINE_LIMIT >> 10} KiB.")
    return part


def _is_preface(run: Run) -> bool:
    """True for text before the first start that says neither errors nor facts."""
    return run.first is None and not run.events and not run.lines


def _with(runs: list[Run], more: list[Run]) -> list[Run]:
    """The starts of the files so far with those of the next one.

    Another node's log has starts of its own, which belong to the same launches. A log that begins in the middle is
    the next part of a rotated one.
    """
    if not runs or not more:
        return runs or more
    if more[0].first is None:
        return [*runs[:-1], _together(runs[-1], more[0]), *more[1:]]
    if more[0].first.number > _NEAR_BEGIN:
        return [*runs, *more]
    if any(run.first is None for run in runs):
        # The end of an older start, or what another process or node said during this one.
        if len(runs) > 1 or not _is_of(runs[0], more[0]):
            return [*runs, *more]
        return [_together(more[0], runs[0]), *more[1:]]
    # The last starts of all nodes are the same one.
    count = min(len(runs), len(more))
    front = runs[:-count] or more[:-count]
    return [*front, *(_together(one, other) for one, other in zip(runs[-count:], more[-count:], strict=True))]


def _together(one: Run, other: Run) -> Run:
    events = list(one.events)
    for event in other.events:
        same = next(
            (at for at, known in enumerate(events) if (known.kind, known.message) == (event.kind, event.message)), None
        )
        if same is None:
            events.append(event)
        else:
            known = events[same]
            processes = tuple(dict.fromkeys((*known.processes, *event.processes)))
            events[same] = replace(known, processes=processes, times=known.times + event.times)
    return Run(one.first or other.first, (*one.lines, *other.lines), mark_consequences(_in_time(events)))


def _is_of(part: Run, start: Run) -> bool:
    """True for lines without a banner that were not all written before the start."""
    moments = [line.moment for line in (*part.lines, *(event.line for event in part.events)) if line.moment]
    return not moments or start.first is None or max(moments) >= start.first.moment


def _in_time(events: Sequence[ErrorEvent]) -> list[ErrorEvent]:
    """The errors of several logs by what their clocks say; one without a time follows the one before it."""
    moment = ""
    timed = []
    for event in events:
        moment = event.line.moment or moment
        timed.append((moment, event))
    return [event for _, event in sorted(timed, key=lambda pair: pair[0])]


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return "\n".join(decode(line) for line in raw.replace(b"\r\n", b"\n").split(b"\n"))
