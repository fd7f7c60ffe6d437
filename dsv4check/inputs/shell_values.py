"""What a shell script has set so far, and the words it makes of that."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4check.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Value:
    """Text that a variable holds, and the offset of each of its characters where it was written."""

    text: str
    offsets: Sequence[int] = ()
    """As long as ``text``; empty for a value that stands in no text (an environment variable)."""
    open: tuple[str, ...] = ()
    """Expansions in ``text`` that are not known."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word after quote removal."""

    text: str
    line: int
    column: int
    plain: int
    """How many characters at its start were written without quotes or escapes."""
    start: int = 0
    """Offset where it is written; for a word that is nothing but a variable, where the variable's value is."""
    stop: int = 0
    """Offset behind it."""
    offsets: Sequence[int] = ()
    """Offset of each character of ``text``."""
    open: tuple[str, ...] = ()
    """Variables and commands in it whose value is not known: they stay as they are written."""


@dataclass(frozen=True, slots=True)
class Operator:
    """``|``, ``&&``, ``>``, a newline, ..."""

    text: str
    line: int
    column: int


@dataclass(slots=True)
class Variables:
    """What a script has set so far."""

    values: dict[str, Value] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    """Set under a condition that is not known: as good as not set."""

    def known(self, name: str) -> Value | None:
        """The value of a variable; None when it is not set or not known."""
        return None if name in self.unsure else self.values.get(name)


@dataclass(slots=True)
class Piece:
    """A word, or one of several, while it is put together."""

    text: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    ready: Word | None = None
    """An element of an array, when the piece is that and nothing else."""

    def add(self, text: str, offsets: Sequence[int]) -> None:
        """Put characters behind it."""
        if text:
            self.text.append(text)
            self.offsets += offsets
            self.ready = None

    def join(self, following: Piece) -> None:
        """Put a piece behind what stands before it in the same word."""
        if not self.text and following.ready is not None:
            self.ready = following.ready
            self.text, self.offsets, self.open = following.text, following.offsets, following.open
            return
        self.add("".join(following.text), following.offsets)
        self.open += following.open

    @classmethod
    def of(cls, word: Word) -> Piece:
        """An element of an array."""
        return cls([word.text], list(word.offsets), list(word.open), word)
