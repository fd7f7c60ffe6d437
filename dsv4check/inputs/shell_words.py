"""Splitting shell text into words and operators, with the place of every character.

``shlex`` loses positions, keeps backslash-newlines as words and knows neither comments inside a line nor
variables, so the text is read here. Nothing is run: command substitutions stay as they are written.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from dsv4check.inputs.shell_expansion import Expander, ShellTextError, stands_in_text
from dsv4check.inputs.shell_quoting import ANSI_QUOTED, ESCAPED
from dsv4check.inputs.shell_scan import ARITHMETIC, behind_document, closing
from dsv4check.inputs.shell_values import HereDocument, Operator, Piece, Value, Variables, Word

__all__ = ["Lexer", "ShellTextError"]

_NO_BREAK: Final = "\u00a0"
_BLANKS: Final = " \t\r\f\v" + _NO_BREAK
_OPERATORS: Final = re.compile(
    r"\d?&>>?|&>>?|\d*>&\d+-?|\d*<&\d+-?|\d*>>|\d*>\||\d*>|\d*<<<|\d*<<-?|\d*<>?|\|\||\|&|\||&&|&|;;&|;;|;&|;|\n"
)
_BETWEEN_FIELDS: Final = re.compile(r"[ \t\n]+")
_LONGEST_VALUE: Final = 2000
_FARTHEST: Final = 200
"""Characters that may lie between two that follow each other in a text (an indentation); more is another place."""
_ENDS_WORD: Final = frozenset(_BLANKS + "\n|&;<>()")
_ORDINARY: Final = re.compile(r"[^ \t\r\f\v\u00a0\n|&;<>()\\'\"$`]+")


class Lexer(Expander):
    """Reads words and operators one by one.

    ``variables`` may grow while reading: what a line assigns is known on the next. ``offsets`` gives for each
    character of ``text`` (and for its end) where it stands in the file, ``place`` the line and column of such an
    offset; without them the text is a file of its own that starts on ``first_line``. ``notes`` collects what was
    read differently from how it looks, ``documents`` the here-documents, each as a range of ``text``: they are the
    input of a command and no commands themselves.
    """

    def __init__(
        self,
        text: str,
        source: str,
        variables: Variables,
        *,
        offsets: Sequence[int] | None = None,
        place: Callable[[int], tuple[int, int]] | None = None,
        first_line: int = 1,
    ) -> None:
        super().__init__(text, source, variables, range(len(text) + 1) if offsets is None else offsets)
        self._place_of: Callable[[int], tuple[int, int]] = place or self._place_in_text
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._first_line = first_line
        self.documents: list[tuple[int, int]] = []
        self.here_documents: list[HereDocument] = []
        self._unbalanced = False

    def _place_in_text(self, at: int) -> tuple[int, int]:
        line = bisect_right(self._line_starts, at)
        return line - 1 + self._first_line, at - self._line_starts[line - 1] + 1

    def place(self, at: int) -> tuple[int, int]:
        """Line and column of an index into the text."""
        return self._place_of(self._offsets[at])

    def __iter__(self) -> Iterator[Word | Operator]:
        text, end = self._text, len(self._text)
        announced: list[tuple[str, bool, bool]] = []
        indented: bool | None = None
        while True:
            self._skip_blanks()
            if self._at >= end:
                return
            at = self._at
            if text[at] == "#":
                self._at = end if (newline := text.find("\n", at)) < 0 else newline
                continue
            if text.startswith("((", at) and not self._unbalanced:
                stop = closing(text, at + 1, ARITHMETIC)
                # What follows is searched once, not for every further one.
                self._unbalanced = stop < 0
                if stop > 0 and text[stop - 2] == ")":
                    self._at = stop
                    yield self._kept_word(at, stop)
                    continue
            if not self._at_process_substitution() and (match := _OPERATORS.match(text, at)):
                self._at = match.end()
                yield Operator(match.group(), *self.place(at))
                if match.group().lstrip("0123456789") in ("<<", "<<-"):
                    indented = match.group().endswith("-")
                elif match.group() == "\n":
                    for delimiter, indent, quoted in announced:
                        self._document(delimiter, indented=indent, quoted=quoted)
                    announced = []
                continue
            if text[at] in "()":
                self._at += 1
                yield Operator(text[at], *self.place(at))
                continue
            for word in self._word():
                if indented is not None:
                    announced.append((word.text, indented, word.plain < len(word.text)))
                    indented = None
                yield word

    def _at_process_substitution(self) -> bool:
        return self._text.startswith(("<(", ">("), self._at)

    def _kept_word(self, start: int, stop: int) -> Word:
        """Text that is one word as it stands, and not known."""
        text, offsets = self._text[start:stop], self._offsets[start:stop]
        return Word(text, *self.place(start), 0, offsets[0], offsets[-1] + 1, offsets, (text,))

    def _document(self, delimiter: str, *, indented: bool, quoted: bool) -> None:
        """Move behind the here-document that starts at the cursor; without its last line it reaches to the end."""
        start = self._at
        stop, behind = behind_document(self._text, start, delimiter, indented=indented)
        if start < stop:
            self.documents.append((start, stop))
            text, offsets = self._text[start:stop], self._offsets[start : stop + 1]
            if not quoted and any(char in text for char in "$\\"):
                pieces, _pure = self._quoted(stop, "", within="document")
                text = "".join(part for piece in pieces for part in piece.text)
                offsets = [*(place for piece in pieces for place in piece.offsets), self._offsets[stop]]
            self.here_documents.append(HereDocument(start, stop, delimiter, text, offsets))
        self._at = behind

    def _skip_blanks(self) -> None:
        text, end = self._text, len(self._text)
        while self._at < end:
            if text[self._at] in _BLANKS:
                if text[self._at] == _NO_BREAK:
                    line, _ = self.place(self._at)
                    self._note(
                        f"line {line}: a no-break space, which a shell takes as an ordinary character, was read as"
                        " a blank"
                    )
                self._at += 1
            elif (skip := self._continuation(self._at)) is not None:
                self._at = skip
            else:
                return

    def _continuation(self, at: int) -> int | None:
        """Index behind a backslash-newline at ``at``, None when there is none."""
        text = self._text
        if not text.startswith("\\", at):
            return None
        if text.startswith("\\\n", at):
            return at + 2
        if text.startswith("\\\r\n", at):
            return at + 3
        after = at + 1
        while after < len(text) and text[after] in " \t\r":
            after += 1
        if after == len(text):
            return after
        if after > at + 1 and text[after] == "\n":
            line, _ = self.place(at)
            self._note(
                f"line {line}: blanks follow the backslash at the end of the line, so a shell ends the command"
                " there; it was read on"
            )
            return after + 1
        return None

    def _word(self) -> Iterator[Word]:
        """One word; an unquoted variable with blanks in it gives several."""
        text, end, start = self._text, len(self._text), self._at
        offsets = self._offsets
        piece = Piece()
        plain, quoted, pure, solid, vanished, expansions = 0, False, True, False, False, 0

        def finish() -> Word:
            if piece.ready is not None:
                return piece.ready
            joined = "".join(piece.text)
            first, last = self._written(start, self._at)
            if pure and expansions == 1 and joined and (value := self._whole_value(piece.offsets)) is not None:
                # Nothing but the value of a variable: what is to be shown, and changed, stands where it was set.
                first, last = value
            line, column = self._place_of(first)
            return Word(joined, line, column, plain, first, last, tuple(piece.offsets), tuple(piece.open))

        while self._at < end:
            char = text[self._at]
            if char in _ENDS_WORD and not self._at_process_substitution():
                break
            if char == "\\":
                if (skip := self._continuation(self._at)) is not None:
                    self._at = skip
                    continue
                quoted, pure = True, False
                piece.add(text[self._at + 1 : self._at + 2], offsets[self._at + 1 : self._at + 2])
                self._at = min(self._at + 2, end)
            elif char == "'":
                quoted, pure, solid = True, False, True
                close = text.find("'", self._at + 1)
                if close < 0:
                    raise self._fail(self._at, "the single quote is never closed")
                piece.add(text[self._at + 1 : close], offsets[self._at + 1 : close])
                self._at = close + 1
            elif match := ANSI_QUOTED.match(text, self._at):
                quoted, pure, solid = True, False, True
                content = re.sub(r"\\(.)", lambda m: ESCAPED.get(m[1], m[0]), match[1], flags=re.DOTALL)
                piece.add(content, [offsets[self._at]] * len(content))
                self._at = match.end()
            elif char == '"' or text.startswith('$"', self._at):
                quoted = True
                self._at += char == "$"
                pieces, only = self._double_quoted()
                # An empty array leaves no word behind, whatever quotes it stands in.
                solid = solid or bool(pieces[0].text) or not pieces[0].vanished
                vanished = vanished or pieces[0].vanished
                pure = pure and only
                expansions += 1
                piece.join(pieces[0])
                for following in pieces[1:]:
                    yield finish()
                    piece = following
            elif char == "$" and (expanded := self._variable(quoted=False)) is not None:
                quoted = True
                expansions += 1
                pure = pure and stands_in_text(expanded[0])
                fields = self._fields(*expanded)
                if fields:
                    piece.join(fields[0])
                for following in fields[1:]:
                    if piece.text or piece.ready is not None:
                        yield finish()
                    piece = following
                empty = not piece.text and piece.ready is None and not solid
                if empty and (self._at >= end or text[self._at] in _ENDS_WORD):
                    return
            elif char in "`<>" or text.startswith("$(", self._at):
                quoted, pure = True, False
                self._substitution(piece)
            else:
                pure = False
                match = _ORDINARY.match(text, self._at)
                stop = self._at + 1 if match is None else match.end()
                piece.add(text[self._at : stop], offsets[self._at : stop])
                if not quoted:
                    plain += stop - self._at
                self._at = stop
        if solid or piece.text or piece.ready is not None or not vanished:
            yield finish()

    def _written(self, start: int, stop: int) -> tuple[int, int]:
        """Where the text from ``start`` to ``stop`` stands; without the values that were put into it from elsewhere."""
        offsets = self._offsets
        if stop <= start:
            return offsets[start], offsets[start]
        first = last = offsets[start]
        if isinstance(offsets, range):
            return first, offsets[stop - 1] + 1
        for at in range(start + 1, stop):
            if not last <= offsets[at] <= last + _FARTHEST:
                break
            last = offsets[at]
        return first, last + 1

    def _whole_value(self, offsets: Sequence[int]) -> tuple[int, int] | None:
        """Where a value stands that was written in one piece, with its quotes; None for any other."""
        base = self._offsets.start if isinstance(self._offsets, range) else None
        if len(offsets) > _LONGEST_VALUE and offsets[-1] - offsets[0] != len(offsets) - 1:
            return None
        for before, after in pairwise(offsets[:_LONGEST_VALUE]):
            escaped = after - before == 2 and base is not None and self._text[before + 1 - base] == "\\"
            if after - before != 1 and not escaped:
                return None
        first, last = offsets[0], offsets[-1] + 1
        if base is not None and first - base > 0 and last - base < len(self._text):
            around = self._text[first - 1 - base], self._text[last - base]
            if around in (("'", "'"), ('"', '"')):
                return first - 1, last + 1
        return first, last

    @staticmethod
    def _fields(value: Value | list[Word], first: int, last: int) -> list[Piece]:
        """An unquoted expansion cut at its blanks."""
        if isinstance(value, list):
            return [Piece.of(word) for word in value]
        whole = Piece()
        whole.expand(value.text, value.offsets, first, last)
        pieces = []
        at = 0
        # What is not known is one word, whatever blanks it is written with.
        gaps = () if value.text in value.open else _BETWEEN_FIELDS.finditer(value.text)
        for match in gaps:
            pieces.append(Piece([value.text[at : match.start()]], list(whole.offsets[at : match.start()])))
            at = match.end()
        pieces.append(Piece([value.text[at:]], list(whole.offsets[at:])))
        for piece in pieces:
            within = (name for name in value.open[:99] if name in piece.text[0])
            piece.open += value.open if len(pieces) == 1 else within
            piece.text = [part for part in piece.text if part]
        return pieces
