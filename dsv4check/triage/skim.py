"""The quick pass over a log's bytes: which lines deserve a closer look, and where one start ends and the next begins.

A server writes millions of lines that say the same with other numbers. Lines are compared without digits and hex
letters: what came often enough in one start is only counted. So the cost of a line is a dictionary look-up, and the
memory of a start is bounded whatever it writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dsv4check.triage.flat import broken, is_flat
from dsv4check.triage.skimmed import KEY_LIMIT, NUMBERS, REPEATS, SOFT_SIZE, Skimmed

LINE_LIMIT: Final = 1 << 16
"""Bytes of one line that are looked at; the engine's configuration, the longest line vLLM prints, has 10,000."""
_MOST_KEYS: Final = 20_000

_BANNER: Final = re.compile(
    rb"(?:v?LLM (?:API )?server|vLLM batch processing API"
    rb"|(?:\xe2\x96\x88|\xa8\x80|\\u2588|[?#|\xbf])(?:(?:\x1b|\\u001b)\[[\d;]*m)* )"
    rb" ?version (?:(?:\x1b|\\u001b)\[[\d;]*m)*v?\d"
)
_PROCESS: Final = re.compile(rb"\(([\w.]{1,60})(?: rank=\d+)? pid=(\d{0,9})")
_MOMENT: Final = re.compile(rb"\[?\d[\d:.,TZ+-]{4,40}\]?|[A-Z][a-z][a-z] [ \d]\d |\[\d+\]")
_MOST_SPEAKERS: Final = 1_000
_ANOTHER: Final = 30
"""Lines between the banners of two servers that may run at the same time, at most."""


class Skimmer:
    """Takes the pieces of one log and gives its starts, each as soon as the next one begins."""

    def __init__(self) -> None:
        self.size = 0
        self.number = 0
        """Lines so far."""
        self.cut = 0
        """Lines that were longer than the limit."""
        self._rest = b""
        self._skipping = False
        self._flat: bool | None = None
        """The log has lost its line ends; None before it is known."""
        self._run = Skimmed()
        self._announced: dict[tuple[bytes, bytes], int] = {}
        """Lines of this start's banners by who wrote them."""

    def feed(self, piece: bytes) -> Iterator[Skimmed]:
        """The starts that ended in this piece."""
        self.size += len(piece)
        if self._flat is None:
            self._flat = is_flat(piece, LINE_LIMIT)
        if self._flat:
            piece = broken(piece)
        if self._skipping:
            # The rest of a line that was cut: nothing of it is looked at.
            at = piece.find(b"\n")
            if at < 0:
                return
            piece, self._skipping = piece[at + 1 :], False
        data = self._rest + piece if self._rest else piece
        end = data.rfind(b"\n") + 1
        held = data[end:]
        if len(held) > LINE_LIMIT:
            # A progress bar rewrites one line for ever.
            at = held.rfind(b"\r", 0, -1)
            if at < 0:
                data, held, self._skipping = data[: end + LINE_LIMIT] + b"\n", b"", True
                end = len(data)
                self.cut += 1
            else:
                yield from self._lines(data[:end])
                yield from self._pieces(held[:at], self.number + 1)
                self._rest = held[at + 1 :]
                return
        self._rest = held
        yield from self._lines(data[:end])

    def finish(self) -> Iterator[Skimmed]:
        """The start that was under way when the log ended, and those before it in its last line."""
        if self._rest:
            rest, self._rest = self._rest, b""
            yield from self._lines(rest + b"\n")
        yield self._run

    def _lines(self, data: bytes) -> Iterator[Skimmed]:
        if not data:
            return
        lines = data.split(b"\n")
        lines.pop()
        if b"\r" not in data:
            yield from self._look(lines, self.number, 1)
            self.number += len(lines)
            return
        for line in lines:
            self.number += 1
            text = line.rstrip(b"\r")
            if b"\r" in text:
                yield from self._pieces(text, self.number)
            else:
                yield from self._look([text], self.number - 1, 1)

    def _pieces(self, line: bytes, number: int) -> Iterator[Skimmed]:
        """The states of a line that was rewritten with carriage returns."""
        yield from self._look([piece for piece in line.split(b"\r") if piece], number, 0)

    def _look(self, lines: list[bytes], number: int, step: int) -> Iterator[Skimmed]:
        # Millions of lines come through here: no calls but for lines that are new.
        run = self._run
        counts, passed, kept = run.counts, run.passed, run.lines
        numbers, repeats, soft = NUMBERS, REPEATS, SOFT_SIZE
        for line in lines:
            number += step
            key = line.translate(None, numbers)
            if len(line) > KEY_LIMIT:
                key = key[:KEY_LIMIT]
                if len(line) > LINE_LIMIT:
                    line = line[:LINE_LIMIT]
                    self.cut += 1
            count = counts.get(key, 0)
            if count >= repeats:
                counts[key] = count + 1
                passed.append((number, line))
                if b'" 200' in line and b"POST /" in line:
                    run.answered = number
                continue
            if count or len(counts) < _MOST_KEYS:
                counts[key] = count + 1
            if b"ersion " in line or b"LLM engine" in line:
                ended = self._start(number, line)
                if ended is not None:
                    yield ended
                    run = self._run
                    counts, passed, kept = run.counts, run.passed, run.lines
            if passed or run.size > soft:
                run.keep(number, line)
            else:
                kept.append((number, line))
                run.size += len(line) + 64

    def _is_again(self, number: int, line: bytes, process: re.Match[bytes] | None) -> bool:
        """True when who announces a start has announced one before, though nothing was said in between."""
        speaker = _speaker(line, process)
        before = self._announced.get(speaker)
        self._announced[speaker] = number
        if len(self._announced) > _MOST_SPEAKERS:
            self._announced.clear()
        if before is not None:
            return True
        # Servers that one script starts at the same time have other process numbers.
        who, _ = speaker
        return any(known == who and number - at > _ANOTHER for (known, _), at in self._announced.items())

    def _start(self, number: int, line: bytes) -> Skimmed | None:
        """The start before this line, when the line announces another one."""
        run = self._run
        if _BANNER.search(line, 0, 600):
            process = _PROCESS.search(line, 0, 400)
            server = process[1] if process else b""
            if not self._is_again(number, line, process) and (
                not run.under_way or (run.servers and server not in run.servers)
            ):
                # The first one, or another API server of the same start.
                run.banner = run.banner or number
                run.servers.add(server)
                return None
            self._run = Skimmed()
            if server:
                self._run.lines = run.said_before(server)
            self._run.banner = number
            self._run.servers.add(server)
            self._announced = {_speaker(line, process): number}
            return run
        if b"Initializing a" not in line or b"LLM engine (" not in line:
            return None
        process = _PROCESS.search(line, 0, 400)
        engine = process[1] if process else b""
        if run.banner is None and engine in run.engines:
            # A log without banners: the same engine is set up once more.
            self._run = Skimmed()
            self._run.engines.add(engine)
            return run
        run.engines.add(engine)
        return None


def _speaker(line: bytes, process: re.Match[bytes] | None) -> tuple[bytes, bytes]:
    """Who wrote a banner: container or host and process, and its number."""
    if process is None:
        banner = _BANNER.search(line, 0, 600)
        front = line[: banner.start()] if banner is not None else line
        front, number = front.split(b"INFO", 1)[0], b""
    else:
        front, number = line[: process.end(1)], process[2]
    return _MOMENT.sub(b"", front), number
