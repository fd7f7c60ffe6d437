"""The lines of one start that deserve a closer look; what they take of memory is bounded whatever the start writes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Final

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
_MOST_PLACES: Final = 5_000
_CONTEXT: Final = 40
_BEFORE_BANNER: Final = 12
KEY_LIMIT: Final = 400

NUMBERS: Final = b"0123456789abcdef"
_PLACE: Final = re.compile(rb"(?:INFO|DEBUG) [\d :.,T-]{8,30} \[?([\w./-]{1,120}:\d{1,6})\]")

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
        self.left_out = 0
        """Different errors that were read and not kept."""
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

    def said_before(self, server: bytes) -> list[tuple[int, bytes]]:
        """Takes the lines at the end that the next start's server wrote before its banner."""
        taken: list[tuple[int, bytes]] = []
        process = b"(" + server + b" pid="
        while self.lines and not self._tail and len(taken) < _BEFORE_BANNER:
            line = self.lines[-1][1]
            if process not in line[:400] or not (b" INFO " in line[:500] or b" WARNING " in line[:500]):
                break
            taken.append(self.lines.pop())
        # A start that died without a word ends with such lines of its own.
        if len(taken) == _BEFORE_BANNER or not (self._tail or any(b"rror" in line for _, line in self.lines[-3:])):
            self.lines += taken[::-1]
            return []
        return taken[::-1]

    def surplus(self, line: bytes) -> int:
        """How often a line like this came beyond the kept ones."""
        return max(self.counts.get(line.translate(None, NUMBERS)[:KEY_LIMIT], 0) - REPEATS, 0)

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
        place = line[:at].translate(None, NUMBERS)
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
            self.counts[passed[1].translate(None, NUMBERS)[:KEY_LIMIT]] -= 1
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
