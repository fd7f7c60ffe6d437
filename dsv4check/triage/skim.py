"""The quick pass over a log's bytes: which lines deserve a closer look, and where one start ends and the next begins.

A server writes millions of lines that say the same with other numbers. Lines are compared without digits and hex
letters: what came often enough in one start is only counted. So the cost of a line is a dictionary look-up, and the
memory of a start is bounded whatever it writes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Final

LINE_LIMIT: Final = 1 << 16
"""Bytes of one line that are looked at; the engine's configuration, the longest line vLLM prints, has 10,000."""
REPEATS: Final = 96
"""How often a line is kept: more than the processes of one node have ranks."""

SOFT_SIZE: Final = 2 << 20
"""Bytes of a start that are kept without a question; beyond it only what may belong to an error, or is rare."""
_HARD_SIZE: Final = 5 << 20
_TAIL_SIZE: Final = 1 << 20
_NEAR: Final = 80
"""Lines behind an error that may belong to it."""
_SAME_PLACE: Final = 40
"""Messages of one statement of vLLM that are kept in a log that is too long to keep everything."""
_MOST_KEYS: Final = 20_000
_MOST_PLACES: Final = 5_000
_CONTEXT: Final = 40
_KEY_LIMIT: Final = 400

_NUMBERS: Final = b"0123456789abcdef"
_PLACE: Final = re.compile(rb"(?:INFO|DEBUG) [\d :.,T-]{8,30} \[?([\w./-]{1,120}:\d{1,6})\]")
_BANNER: Final = re.compile(
    rb"(?:v?LLM (?:API )?server|vLLM batch processing API"
    rb"|(?:\xe2\x96\x88|\\u2588|[?#|\xbf])(?:(?:\x1b|\\u001b)\[[\d;]*m)* )"
    rb" ?version (?:(?:\x1b|\\u001b)\[[\d;]*m)*v?\d"
)
_PROCESS: Final = re.compile(rb"\(([\w.]{1,60})(?: rank=\d+)? pid=")

GAP: Final = (0, b"")
"""Stands among the kept lines where others were left out that may have belonged to the same error."""


class Skimmed:
    """The lines of one start that are looked at closely."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, bytes]] = []
        self.counts: dict[bytes, int] = {}
        """How often each kind of line came."""
        self.dropped = 0
        """Lines that were neither kept nor alike to kept ones."""
        self.banner: int | None = None
        """Number of the line that announces the start."""
        self.answered = 0
        """Number of the last line, of those that were only counted, that shows an answered request."""
        self.servers: set[bytes] = set()
        """Processes that announced the start."""
        self.engines: set[bytes] = set()
        self.size = 0
        self.passed: deque[tuple[int, bytes]] = deque(maxlen=_CONTEXT)
        """The last lines that were only counted: they may be the upper part of a new traceback."""
        self._tail: deque[tuple[int, bytes]] = deque()
        self._tail_size = 0
        self._places: dict[bytes, int] = {}
        self._error_at = -_NEAR

    @property
    def under_way(self) -> bool:
        """An engine was set up or an error was said: another banner is another start."""
        return bool(self.engines) or any(b"ERROR" in line or b"Traceback" in line for _, line in reversed(self.lines))

    def close(self) -> None:
        """The start is over: what is needed for counting alone is given back."""
        self.counts = {key: count for key, count in self.counts.items() if count > REPEATS}
        self.passed.clear()
        self._places.clear()

    def surplus(self, line: bytes) -> int:
        """How often a line like this came beyond the kept ones."""
        return max(self.counts.get(line.translate(None, _NUMBERS)[:_KEY_LIMIT], 0) - REPEATS, 0)

    def all_lines(self) -> Iterator[tuple[int, bytes]]:
        """The kept lines in order."""
        yield from self.lines
        yield from self._tail

    def keep(self, number: int, line: bytes) -> None:
        """Takes a line of a kind that did not come often yet, in a start that is long."""
        full = self.size > SOFT_SIZE
        if full and self._is_common(line):
            self.dropped += 1
            return
        error = b"rror" in line or b"Traceback" in line or b'File "' in line or b"xception" in line or b"ERROR" in line
        if error:
            self._error_at = number
            self._store_passed()
        elif full and not self._is_near(number, line):
            self.dropped += 1
            return
        self._store((number, line))

    def _is_common(self, line: bytes) -> bool:
        """True for a message of a statement of vLLM that has written many, all of them different."""
        at = line.find(b"] ", 0, 300)
        if at < 0:
            return False
        place = line[:at].translate(None, _NUMBERS)
        count = self._places.get(place)
        if count is None:
            count = 0 if _PLACE.search(line, 0, at + 1) else -1
            if len(self._places) > _MOST_PLACES:
                return False
        if count >= 0:
            count += 1
        self._places[place] = count
        return count > _SAME_PLACE

    def _is_near(self, number: int, line: bytes) -> bool:
        if number - self._error_at < _NEAR or b"WARN" in line or b"tartup complete" in line:
            return True
        return b"INFO " in line and _PLACE.search(line, 0, 400) is not None

    def _store_passed(self) -> None:
        if len(self.passed) == _CONTEXT:
            self._store(GAP)
        for passed in self.passed:
            # Kept after all: no longer one that was only counted.
            self.counts[passed[1].translate(None, _NUMBERS)[:_KEY_LIMIT]] -= 1
            self._store(passed)
        self.passed.clear()

    def _store(self, item: tuple[int, bytes]) -> None:
        length = len(item[1])
        if self.size <= _HARD_SIZE:
            self.size += length + 64
            self.lines.append(item)
            return
        self._tail.append(item)
        self._tail_size += length + 64
        while self._tail_size > _TAIL_SIZE:
            self._tail_size -= len(self._tail.popleft()[1]) + 64
            self.dropped += 1


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
        self._run = Skimmed()

    def feed(self, piece: bytes) -> Iterator[Skimmed]:
        """The starts that ended in this piece."""
        self.size += len(piece)
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
        numbers, repeats, soft = _NUMBERS, REPEATS, SOFT_SIZE
        for line in lines:
            number += step
            key = line.translate(None, numbers)
            if len(line) > _KEY_LIMIT:
                key = key[:_KEY_LIMIT]
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

    def _start(self, number: int, line: bytes) -> Skimmed | None:
        """The start before this line, when the line announces another one."""
        run = self._run
        if _BANNER.search(line, 0, 600):
            process = _PROCESS.search(line, 0, 400)
            server = process[1] if process else b""
            if not run.under_way or (run.servers and server not in run.servers):
                # The first one, or another API server of the same start.
                run.banner = run.banner or number
                run.servers.add(server)
                return None
            self._run = Skimmed()
            self._run.banner = number
            self._run.servers.add(server)
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
