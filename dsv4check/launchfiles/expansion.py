"""Words that a container runtime makes: variables replaced, text cut, with the place of every character."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4check.inputs.shell_values import Variables, Word
from dsv4check.inputs.shell_words import Lexer, ShellTextError
from dsv4check.launchfiles.records import DERIVED, SHELL, Context, FileWord, NotUnderstood, Stated
from dsv4check.launchfiles.text import Span


class Expanded:
    """Collects the pieces of one word."""

    def __init__(self, word: FileWord) -> None:
        self._word = word
        self._text: list[str] = []
        self._offsets: list[int] = []
        self._open = list(word.open)
        self._places = word.offsets if len(word.offsets) == len(word.text) else (word.span.start,) * len(word.text)
        self._whole: tuple[Span, str] | None = None

    @property
    def length(self) -> int:
        """Characters so far."""
        return len(self._offsets)

    def keep(self, start: int, stop: int) -> None:
        """Characters of the word itself."""
        self._text.append(self._word.text[start:stop])
        self._offsets += self._places[start:stop]

    def unknown(self, start: int, stop: int) -> None:
        """An expansion whose value is not known: it stays as it is written."""
        self.keep(start, stop)
        self._open.append(self._word.text[start:stop])

    def default(self, start: int, stop: int) -> None:
        """A part of the word that stands for the whole of an expansion (``${TP:-4}``)."""
        first = len(self._offsets)
        self.keep(start, stop)
        places = self._offsets[first:]
        if places and places == list(range(places[0], places[0] + len(places))):
            self._whole = Span(places[0], places[-1] + 1), DERIVED

    def put(self, value: FileWord) -> None:
        """A value from elsewhere in the file."""
        self._text.append(value.text)
        places: Sequence[int] = value.offsets
        self._offsets += places if len(places) == len(value.text) else (value.span.start,) * len(value.text)
        self._open += value.open
        self._whole = value.span, value.slot

    def outside(self, text: str, start: int) -> None:
        """A value from outside the file, for the expansion at ``start``."""
        place = self._places[start] if start < len(self._places) else self._word.span.start
        self._text.append(text)
        self._offsets += (place,) * len(text)

    def word(self, *, single: bool = False) -> FileWord:
        """The word; ``single`` where it is nothing but one expansion: then it stands where its value stands."""
        span, slot = self._whole if single and self._whole is not None else (self._word.span, self._word.slot)
        return FileWord("".join(self._text), span, slot, tuple(self._open), tuple(self._offsets))


def stated(word: FileWord) -> Stated:
    """A word as a fact."""
    return Stated(word.text, word.span)


def split_words(word: FileWord, context: Context) -> list[FileWord]:
    """Text cut into words as a shell cuts it, without anything else that a shell does: up to the first operator."""
    text = word.located()
    source = context.source
    lexer = Lexer(text.text, source.path, Variables(), offsets=text.offsets, place=source.place)
    found: list[FileWord] = []
    try:
        for item in lexer:
            if isinstance(item, Word):
                known = (name for name in word.open if name in item.text)
                opened = tuple(dict.fromkeys((*known, *item.open)))
                found.append(FileWord(item.text, Span(item.start, item.stop), SHELL, opened, item.offsets))
            elif item.text != "\n":
                break
    except ShellTextError as error:
        context.problems.append(NotUnderstood(error.line, f"{error.reason}; the rest of the text was not read"))
    return found
