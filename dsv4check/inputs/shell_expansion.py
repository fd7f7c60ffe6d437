"""What stands for a ``$`` or a backquote in shell text: values that are known, or the text itself."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from dsv4check.errors import InputError
from dsv4check.inputs.shell_scan import ARITHMETIC, BACKQUOTES, BRACES, COMMAND, closing
from dsv4check.inputs.shell_values import Piece, Value, Variables, Word

MOST_EXPANDED: Final = 1 << 21
"""Characters that the variables of one text may become: values made of values can double with each line."""
_DEEPEST: Final = 40
"""Defaults inside defaults that are followed."""
_VARIABLE: Final = re.compile(r"\$(?:(?P<name>[A-Za-z_]\w*)|(?P<special>[@*#?$!\d-]))")
_BRACED: Final = re.compile(
    r"(?P<name>[A-Za-z_]\w*|\d+)(?:\[(?P<index>[@*]|\d{1,6})\])?(?:(?P<op>:?[-=?+])(?P<word>.*))?\Z", re.DOTALL
)
_QUOTES: Final = ("'", '"')
_ORDINARY: Final = re.compile(r"[^\"'\\$`]+")


class ShellTextError(InputError):
    """Text that no shell would take: a quote that is never closed."""

    def __init__(self, source: str, line: int, column: int, reason: str) -> None:
        super().__init__(f"{source}, line {line}, column {column}: {reason}")
        self.line = line
        self.reason = reason


def stands_in_text(value: Value | list[Word]) -> bool:
    """True where a value is written in the text that is read."""
    return not isinstance(value, Value) or (len(value.offsets) > 0 and value.offsets[0] >= 0)


class Expander(ABC):
    """Reads expansions and quoted text at a cursor."""

    def __init__(self, text: str, source: str, variables: Variables, offsets: Sequence[int]) -> None:
        self._text = text
        self._source = source
        self._variables = variables
        self._offsets = offsets
        self._at = 0
        self._depth = 0
        self._left = MOST_EXPANDED
        self._braces_unclosed = False
        self.notes: dict[str, None] = {}

    @abstractmethod
    def place(self, at: int) -> tuple[int, int]:
        """Line and column of an index into the text."""

    def _fail(self, at: int, message: str) -> InputError:
        line, column = self.place(at)
        return ShellTextError(self._source, line, column, message)

    def _note(self, message: str) -> None:
        self.notes.setdefault(message)

    def _double_quoted(self) -> tuple[list[Piece], bool]:
        """The content of a double-quoted string at the cursor, and whether it is nothing but one variable.

        Several pieces for ``"${ARRAY[@]}"``.
        """
        start = self._at
        self._at += 1
        pieces, pure = self._quoted(len(self._text), '"')
        if not self._text.startswith('"', self._at):
            raise self._fail(start, "the double quote is never closed")
        self._at += 1
        return pieces, pure

    def _quoted(self, end: int, closer: str, *, within: str = "double") -> tuple[list[Piece], bool]:
        """Text as in double quotes up to ``closer`` or ``end``.

        ``within`` is ``double``; ``default`` for a word behind ``:-`` in double quotes, whose own double quotes mean
        nothing; ``bare`` for such a word outside quotes, ``document`` for a here-document.
        """
        text = self._text
        pieces = [Piece()]
        expansions, others = 0, 0
        while self._at < end:
            char = text[self._at]
            if char == closer:
                break
            if char == "\\" and self._at + 1 < end and (within == "bare" or text[self._at + 1] in _ESCAPABLE[within]):
                if text[self._at + 1] != "\n":
                    pieces[-1].add(text[self._at + 1], self._offsets[self._at + 1 : self._at + 2])
                self._at += 2
                others += 1
            elif char == "$" and (expanded := self._variable(quoted=within != "bare")) is not None:
                value, first, last = expanded
                expansions += 1
                others += not stands_in_text(value)
                if isinstance(value, Value):
                    pieces[-1].expand(value.text, value.offsets, first, last)
                    pieces[-1].open += value.open
                elif value:
                    pieces[-1].join(Piece.of(value[0]))
                    pieces.extend(Piece.of(word) for word in value[1:])
                else:
                    pieces[-1].vanished = True
            elif char == "`" or text.startswith("$(", self._at):
                self._substitution(pieces[-1])
                others += 1
            elif char == '"' and within == "default":
                self._at += 1
            elif char == '"' and within == "bare":
                inner, _pure = self._double_quoted()
                for piece in inner:
                    pieces[-1].join(piece)
            elif char == "'" and within == "bare" and (close := text.find("'", self._at + 1, end)) >= 0:
                pieces[-1].add(text[self._at + 1 : close], self._offsets[self._at + 1 : close])
                self._at = close + 1
            else:
                match = _ORDINARY.match(text, self._at, end)
                behind = self._at + 1 if match is None else match.end()
                pieces[-1].add(text[self._at : behind], self._offsets[self._at : behind])
                self._at = behind
                others += 1
        return pieces, expansions == 1 and not others

    def _variable(self, *, quoted: bool) -> tuple[Value | list[Word], int, int] | None:
        """What stands for the ``$NAME`` or ``${NAME...}`` at the cursor, which moves on; None when there is none.

        The offsets are those of its first and last character.
        """
        start = self._at
        value = self._braced(quoted=quoted) if self._text.startswith("${", start) else self._bare()
        if value is None:
            return None
        value = self._within_limits(value, start)
        return value, self._offsets[start], self._offsets[self._at - 1]

    def _within_limits(self, value: Value | list[Word], start: int) -> Value | list[Word]:
        size = len(value.text) if isinstance(value, Value) else sum(len(word.text) + 8 for word in value)
        self._left -= size
        return value if self._left >= 0 else self._keep(start, self._at)

    def _bare(self) -> Value | None:
        match = _VARIABLE.match(self._text, self._at)
        if match is None:
            return None
        name = match["name"]
        known = self._variables.known(name) if name is not None else None
        if known is None:
            return self._keep(match.start(), match.end())
        self._at = match.end()
        return known

    def _braced(self, *, quoted: bool) -> Value | list[Word] | None:
        start = self._at
        if self._braces_unclosed:
            return None
        stop = closing(self._text, start + 2, BRACES, quoted=quoted)
        if stop < 0:
            # What follows is searched once, not for every further one.
            self._braces_unclosed = True
            return None
        braced = _BRACED.match(self._text, start + 2, stop - 1)
        if braced is None or braced.end() != stop - 1 or self._depth >= _DEEPEST:
            return self._keep(start, stop)
        if braced["index"] is not None:
            return self._element(braced, start, stop, quoted=quoted)
        return self._with_operator(braced, start, stop, quoted=quoted)

    def _element(self, braced: re.Match[str], start: int, stop: int, *, quoted: bool) -> Value | list[Word]:
        """``${ARRAY[@]}`` and ``${ARRAY[0]}``."""
        name, index = braced["name"], braced["index"]
        words = None if name in self._variables.unsure else self._variables.arrays.get(name)
        if words is None or braced["op"] is not None:
            return self._keep(start, stop)
        self._at = stop
        for word in words:
            if word.text in word.open and word.text == f"${{{name}[@]}}":
                self._note(f"{word.text} is added to under a condition that is not known: what that adds is left open")
        if index == "@" or (index == "*" and not quoted):
            return list(words)
        if index != "*":
            if int(index) >= len(words) or any(word.open for word in words[: int(index) + 1]):
                return self._keep(start, stop)
            word = words[int(index)]
            return Value(word.text, word.offsets, word.open)
        joined = Piece()
        for number, word in enumerate(words):
            if number:
                joined.add(" ", [self._offsets[start]])
            joined.expand(word.text, word.offsets, self._offsets[start], self._offsets[stop - 1])
            joined.open += word.open
        return Value("".join(joined.text), joined.offsets, tuple(joined.open))

    def _with_operator(self, braced: re.Match[str], start: int, stop: int, *, quoted: bool) -> Value | list[Word]:
        """``${NAME}``, ``${NAME:-default}``, ``${NAME:=default}``, ``${NAME+alternative}``."""
        name, operator = braced["name"], braced["op"] or ""
        if name in self._variables.unsure:
            return self._keep(start, stop)
        current = self._variables.known(name)
        if current is not None and operator.startswith(":") and current.open and current.text == "".join(current.open):
            # Nobody knows whether it is empty.
            return self._keep(start, stop)
        known = current is not None and bool(current.text or not operator.startswith(":"))
        if operator.endswith("+"):
            if not known and name not in self._variables.values and name in self._variables.arrays:
                return self._keep(start, stop)
            value = self._default(braced, quoted=quoted) if known else Value("")
        elif known and current is not None:
            value = current
        elif operator.endswith(("-", "=")) and name not in self._variables.arrays:
            value = self._default(braced, quoted=quoted)
            if not value.text.startswith("$"):
                self._note(f"${{{name}}} is not set here: its default {value.text!r} was used")
            if operator.endswith("="):
                self._variables.values[name] = value
            elif not quoted and braced["word"][:1] in _QUOTES and braced["word"][:1] == braced["word"][-1:]:
                # Its blanks separate no words.
                self._at = stop
                return [self._quoted_word(value, braced)]
        else:
            return self._keep(start, stop)
        self._at = stop
        return value

    def _quoted_word(self, value: Value, braced: re.Match[str]) -> Word:
        first, last = braced.span("word")
        line, column = self.place(first)
        start, stop = self._offsets[first], self._offsets[last - 1] + 1
        return Word(value.text, line, column, 0, start, max(start, stop), value.offsets, value.open)

    def _default(self, braced: re.Match[str], *, quoted: bool) -> Value:
        """The word behind ``:-``, with the variables in it replaced."""
        self._at = braced.start("word")
        self._depth += 1
        pieces, _pure = self._quoted(braced.end("word"), "", within="default" if quoted else "bare")
        self._depth -= 1
        joined = pieces[0]
        for piece in pieces[1:]:
            joined.add(" ", [self._offsets[braced.start("word")]])
            joined.join(piece)
        return Value("".join(joined.text), joined.offsets, tuple(joined.open))

    def _keep(self, start: int, stop: int) -> Value:
        """Text whose value is not known."""
        self._at = stop
        text = self._text[start:stop]
        self._note(f"{text} is not set in this text: it was kept as written")
        return Value(text, self._offsets[start:stop], (text,))

    def _substitution(self, piece: Piece) -> None:
        """A ``$(command)``, ``<(command)`` or backquoted command, kept as written."""
        text, start = self._text, self._at
        if text[start] == "`":
            stop = closing(text, start + 1, BACKQUOTES)
        else:
            stop = closing(text, start + 2, ARITHMETIC if text.startswith("$((", start) else COMMAND)
        if stop < 0:
            raise self._fail(start, "the command substitution is never closed")
        self._at = stop
        kind = "an arithmetic result" if text.startswith("$((", start) else "a command's output"
        kind = "a file" if text[start] in "<>" else kind
        self._note(f"{text[start:stop]} would be replaced by {kind}: it was kept as written")
        piece.add(text[start:stop], self._offsets[start:stop])
        piece.open.append(text[start:stop])


_ESCAPABLE: Final = {
    "double": '"\\$`\n',
    "default": '"\\$`\n}',
    "document": "\\$`\n",
}
