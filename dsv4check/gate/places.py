"""Where a finding stands: from what the checker says about a value's origin to a region of the file."""

from __future__ import annotations

from collections.abc import Mapping

from dsv4check.gate.records import Region
from dsv4check.launchfiles.records import FileWord, Launch
from dsv4check.launchfiles.text import SourceText, Span
from dsv4check.problems import Origin


def region_of(source: SourceText, span: Span, token: str = "") -> Region:
    """A range of the file; without a token up to the end of its first line."""
    line, column = source.place(span.start)
    stop = max(span.stop, span.start)
    if not token:
        newline = source.text.find("\n", span.start)
        stop = min(stop, len(source.text) if newline < 0 else newline)
    end_line, end_column = source.place(stop)
    return Region(line, column, end_line, end_column, token)


def origin_of(word: FileWord, index: int) -> Origin:
    """The origin of a word that the checker is given: its number.

    Not its line: the same command elsewhere then gets the same answer, which need not be worked out again.
    """
    return Origin("word", word.text, index + 1)


class Places:
    """The regions of one launch's words and variables."""

    def __init__(self, source: SourceText, launch: Launch, masked: Mapping[int, str]) -> None:
        self._source = source
        self._launch = launch
        self._masked = masked

    @property
    def start(self) -> Region:
        """Where the launch starts."""
        return region_of(self._source, self._launch.server.place)

    def region(self, origin: Origin | None) -> Region:
        """Where a finding belongs; the start of the launch when it has no place of its own."""
        if origin is None:
            return self.start
        if origin.kind == "env":
            stated = self._launch.server.env.get(origin.text)
            if stated is not None and stated.span.stop > stated.span.start:
                return region_of(self._source, stated.span, origin.text)
        words = self._launch.server.words
        if origin.kind == "word" and origin.line is not None and origin.line <= len(words):
            word = words[origin.line - 1]
            return region_of(self._source, word.span, self._masked.get(origin.line - 1, word.text))
        if origin.kind == "yaml" and origin.line is not None and self._launch.config_file:
            column = origin.column or 1
            lines = self._source.text.split("\n")
            if origin.line > len(lines):
                return self.start
            text = lines[origin.line - 1]
            key = text.strip().partition(":")[0]
            return Region(origin.line, column, origin.line, max(column, len(text.rstrip()) + 1), key)
        return self.start


def masked_words(original: tuple[str, ...], masked: tuple[str, ...]) -> dict[int, str]:
    """The words that masking changed, by index."""
    pairs = enumerate(zip(original, masked, strict=True))
    return {index: new for index, (old, new) in pairs if new != old}
