"""Text of a file, and text that stands inside it: what a program sees, and where each character comes from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from dsv4check.records import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of character offsets into a file's text."""

    start: int
    stop: int


class SourceText:
    """A file's text with its line numbers.

    ``path`` is what the file is called in reports (relative, with ``/``). ``text`` is the content as decoded from
    UTF-8, line ends as they are, without a byte order mark (``bom`` says that there was one).
    """

    __slots__ = ("_starts", "bom", "path", "text")

    def __init__(self, path: str, text: str, *, bom: bool = False) -> None:
        self.path = path
        self.text = text
        self.bom = bom
        self._starts: list[int] | None = None

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column (both from 1, in characters) of an offset."""
        if self._starts is None:
            starts = [0]
            at = self.text.find("\n")
            while at >= 0:
                starts.append(at + 1)
                at = self.text.find("\n", at + 1)
            self._starts = starts
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def line_of(self, offset: int) -> int:
        """Line (from 1) of an offset."""
        return self.place(offset)[0]

    def encode(self, text: str | None = None) -> bytes:
        """The bytes of the file, or of another text in its place."""
        return (b"\xef\xbb\xbf" if self.bom else b"") + (self.text if text is None else text).encode("utf-8")


class Located:
    """Text as a program sees it after unquoting, unfolding or unescaping, and where each character stands in the file.

    ``offsets`` has one entry more than ``text`` has characters: the last one is the offset behind it.
    """

    __slots__ = ("offsets", "text")

    def __init__(self, text: str, offsets: Sequence[int]) -> None:
        if len(offsets) != len(text) + 1:
            raise ValueError(f"{len(text)} characters need {len(text) + 1} offsets, not {len(offsets)}")
        self.text = text
        self.offsets = offsets

    @classmethod
    def verbatim(cls, source: SourceText, start: int = 0, stop: int | None = None) -> Located:
        """A piece of the file as it stands."""
        end = len(source.text) if stop is None else stop
        return cls(source.text[start:end], range(start, end + 1))

    @classmethod
    def at(cls, text: str, start: int, stop: int) -> Located:
        """Text whose characters have no place of their own: all of it stands for the range ``start`` to ``stop``."""
        return cls(text, [start] * len(text) + [stop])

    def part(self, start: int, stop: int) -> Located:
        """The characters from ``start`` to ``stop``."""
        return Located(self.text[start:stop], self.offsets[start : stop + 1])

    def span(self, start: int = 0, stop: int | None = None) -> Span:
        """Where the characters from ``start`` to ``stop`` stand in the file."""
        end = len(self.text) if stop is None else stop
        if start >= end:
            return Span(self.offsets[start], self.offsets[start])
        # Behind the last character of the part, not in front of the one that follows: between them may lie an
        # indentation that is no part of the text.
        last = self.offsets[end - 1]
        return Span(self.offsets[start], max(last + 1, self.offsets[end] if end == len(self.text) else last + 1))
