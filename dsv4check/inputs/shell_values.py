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


@dataclass(frozen=True, slots=True)
class HereDocument:
    """The input of a command that stands in the text itself."""

    start: int
    """Index of its first character in the text."""
    stop: int
    delimiter: str
    text: str
    """As the command gets it: what is known is replaced, unless the delimiter was quoted."""
    offsets: Sequence[int]
    """Of each character of ``text``, and behind it."""


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
class Segment:
    """One simple command of the text."""

    words: list[Word] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """Redirections."""
    ended_by: str = ""
    taken: bool | None = True
    """False in a branch that is not taken, None where that is not known."""
    behind: str = ""
    """The operator in front of it: ``&&``, ``||``, ``|``, ..."""
    arrays: list[tuple[str, list[Word]]] = field(default_factory=list)
    """What it assigns to arrays: ``NAME=`` or ``NAME+=``, and the words."""


@dataclass(slots=True)
class Script:
    """The state of a script while it is read."""

    variables: Variables = field(default_factory=Variables)
    exported: dict[str, Value] = field(default_factory=dict)
    exports_all: bool = False
    """``set -a``."""


@dataclass(slots=True)
class Piece:
    """A word, or one of several, while it is put together."""

    text: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    ready: Word | None = None
    """An element of an array, when the piece is that and nothing else."""
    vanished: bool = False
    """True where an array without elements stood."""

    def add(self, text: str, offsets: Sequence[int]) -> None:
        """Put characters behind it."""
        if text:
            self.text.append(text)
            self.offsets += offsets
            self.ready = None

    def expand(self, text: str, value_offsets: Sequence[int], first: int, last: int) -> None:
        """Put a variable's value behind it; ``first`` to ``last`` is where the variable is used.

        A value that stands in no text is taken to stand where it is used.
        """
        if not value_offsets or value_offsets[0] < 0:
            value_offsets = [first] * (len(text) - 1) + [last] if len(text) > 1 else [first] * len(text)
        self.add(text, value_offsets)

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
