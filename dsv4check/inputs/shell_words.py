"""Splitting shell text into words and operators, with the place of every character.

``shlex`` loses positions, keeps backslash-newlines as words and knows neither comments inside a line nor
variables, so the text is read here. Nothing is run: command substitutions stay as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from dsv4check.errors import InputError
from dsv4check.inputs.shell_quoting import ANSI_QUOTED, ESCAPED
from dsv4check.inputs.shell_values import Operator, Piece, Value, Variables, Word

_NO_BREAK: Final = "\u00a0"
_BLANKS: Final = " \t\r\f\v" + _NO_BREAK
_OPERATORS: Final = re.compile(
    r"\d?&>>?|&>>?|\d*>&\d+-?|\d*<&\d+-?|\d*>>|\d*>\||\d*>|<<<|\d*<<-?|\d*<|\|\||\|&|\||&&|&|;;|;|\n"
)
_VARIABLE: Final = re.compile(
    r"\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}|(?P<special>[@*#?$!\d]))"
)
_BRACED: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<array>\[[@*]\])?(?:(?P<op>:?[-=?+])(?P<word>.*))?\Z", re.DOTALL)
_BETWEEN_FIELDS: Final = re.compile(r"[ \t\n]+")


class ShellTextError(InputError):
    """Text that no shell would take: a quote that is never closed."""

    def __init__(self, source: str, line: int, column: int, reason: str) -> None:
        super().__init__(f"{source}, line {line}, column {column}: {reason}")
        self.line = line
        self.reason = reason


class Lexer:
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
        self._text = text
        self._source = source
        self._variables = variables
        self._offsets: Sequence[int] = range(len(text) + 1) if offsets is None else offsets
        self._place_of = place or self._place_in_text
        self._at = 0
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._line = 0
        self._first_line = first_line
        self.notes: dict[str, None] = {}
        self.documents: list[tuple[int, int]] = []

    def _place_in_text(self, at: int) -> tuple[int, int]:
        while self._line + 1 < len(self._line_starts) and self._line_starts[self._line + 1] <= at:
            self._line += 1
        while self._line_starts[self._line] > at:
            self._line -= 1
        return self._line + self._first_line, at - self._line_starts[self._line] + 1

    def place(self, at: int) -> tuple[int, int]:
        """Line and column of an index into the text."""
        return self._place_of(self._offsets[at])

    def _fail(self, at: int, message: str) -> InputError:
        line, column = self.place(at)
        return ShellTextError(self._source, line, column, message)

    def _note(self, message: str) -> None:
        self.notes.setdefault(message)

    def __iter__(self) -> Iterator[Word | Operator]:
        text, end = self._text, len(self._text)
        announced: list[tuple[str, bool]] = []
        indented: bool | None = None
        while True:
            self._skip_blanks()
            if self._at >= end:
                return
            at = self._at
            if text[at] == "#":
                self._at = end if (newline := text.find("\n", at)) < 0 else newline
                continue
            if match := _OPERATORS.match(text, at):
                self._at = match.end()
                yield Operator(match.group(), *self.place(at))
                if match.group().lstrip("0123456789") in ("<<", "<<-"):
                    indented = match.group().endswith("-")
                elif match.group() == "\n":
                    for delimiter, indent in announced:
                        self._document(delimiter, indent)
                    announced = []
                continue
            if text[at] in "()":
                self._at += 1
                yield Operator(text[at], *self.place(at))
                continue
            for word in self._word():
                if indented is not None:
                    announced.append((word.text, indented))
                    indented = None
                yield word

    def _document(self, delimiter: str, indented: bool) -> None:
        """Move behind the here-document that starts at the cursor; without its last line it reaches to the end."""
        start, stop = self._at, len(self._text)
        while self._at < stop:
            begin = self._at
            newline = self._text.find("\n", begin)
            self._at = stop if newline < 0 else newline + 1
            content = self._text[begin : self._at].rstrip("\r\n")
            if (content.lstrip("\t") if indented else content) == delimiter:
                stop = begin
                break
        if start < stop:
            self.documents.append((start, stop))

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
        plain, quoted, pure = 0, False, True

        def finish() -> Word:
            if piece.ready is not None:
                return piece.ready
            joined = "".join(piece.text)
            first, last = offsets[start], offsets[self._at - 1] + 1 if self._at > start else offsets[start]
            if pure and joined and piece.offsets and piece.offsets[0] >= 0 and piece.offsets[-1] >= 0:
                # Nothing but the value of a variable: what is to be shown, and changed, stands where it was set.
                first, last = piece.offsets[0], piece.offsets[-1] + 1
            line, column = self._place_of(first)
            return Word(joined, line, column, plain, first, last, tuple(piece.offsets), tuple(piece.open))

        while self._at < end:
            char = text[self._at]
            if char in _BLANKS or char in "\n|&;<>()":
                break
            if char == "\\":
                if (skip := self._continuation(self._at)) is not None:
                    self._at = skip
                    continue
                quoted, pure = True, False
                piece.add(text[self._at + 1 : self._at + 2], offsets[self._at + 1 : self._at + 2])
                self._at += 2
            elif char == "'":
                quoted, pure = True, False
                close = text.find("'", self._at + 1)
                if close < 0:
                    raise self._fail(self._at, "the single quote is never closed")
                piece.add(text[self._at + 1 : close], offsets[self._at + 1 : close])
                self._at = close + 1
            elif match := ANSI_QUOTED.match(text, self._at):
                quoted, pure = True, False
                content = re.sub(r"\\(.)", lambda m: ESCAPED.get(m[1], m[0]), match[1], flags=re.DOTALL)
                piece.add(content, [offsets[self._at]] * len(content))
                self._at = match.end()
            elif char == '"' or text.startswith('$"', self._at):
                quoted = True
                self._at += char == "$"
                pieces, only = self._double_quoted()
                pure = pure and only
                piece.join(pieces[0])
                for following in pieces[1:]:
                    yield finish()
                    piece = following
            elif char == "$" and (expanded := self._variable(quoted=False)) is not None:
                if not quoted:
                    plain = plain or sum(map(len, piece.text))
                quoted = True
                fields = self._fields(expanded)
                if fields:
                    piece.join(fields[0])
                for following in fields[1:]:
                    if piece.text or piece.ready is not None:
                        yield finish()
                    piece = following
                empty = not piece.text and piece.ready is None
                if empty and (self._at >= end or text[self._at] in _BLANKS + "\n|&;<>()"):
                    return
            elif char == "`" or text.startswith("$(", self._at):
                self._substitution(piece)
            else:
                pure = False
                piece.add(char, offsets[self._at : self._at + 1])
                self._at += 1
                if not quoted:
                    plain += 1
        yield finish()

    @staticmethod
    def _fields(expanded: Value | list[Word]) -> list[Piece]:
        """An unquoted expansion cut at its blanks."""
        if isinstance(expanded, list):
            return [Piece.of(word) for word in expanded]
        text, offsets = expanded.text, expanded.offsets or [-1] * len(expanded.text)
        pieces = []
        at = 0
        for match in _BETWEEN_FIELDS.finditer(text):
            pieces.append(Piece([text[at : match.start()]], list(offsets[at : match.start()])))
            at = match.end()
        pieces.append(Piece([text[at:]], list(offsets[at:])))
        for piece in pieces:
            piece.open += [name for name in expanded.open if name in piece.text[0]]
            piece.text = [part for part in piece.text if part]
        return pieces

    def _double_quoted(self) -> tuple[list[Piece], bool]:
        """The content of a double-quoted string at the cursor, and whether it is nothing but one variable.

        Several pieces for ``"${ARRAY[@]}"``.
        """
        text, end, start = self._text, len(self._text), self._at
        self._at += 1
        pieces = [Piece()]
        expansions, others = 0, 0
        while self._at < end:
            char = text[self._at]
            if char == '"':
                self._at += 1
                return pieces, expansions == 1 and not others
            if char == "\\" and text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                escaped = text[self._at + 1]
                if escaped != "\n":
                    pieces[-1].add(escaped, self._offsets[self._at + 1 : self._at + 2])
                self._at += 2
                others += 1
            elif char == "$" and (expanded := self._variable(quoted=True)) is not None:
                expansions += 1
                if isinstance(expanded, Value):
                    pieces[-1].add(expanded.text, expanded.offsets or [-1] * len(expanded.text))
                    pieces[-1].open += expanded.open
                elif expanded:
                    pieces[-1].join(Piece.of(expanded[0]))
                    pieces.extend(Piece.of(word) for word in expanded[1:])
            elif char == "`" or text.startswith("$(", self._at):
                self._substitution(pieces[-1])
                others += 1
            else:
                pieces[-1].add(char, self._offsets[self._at : self._at + 1])
                self._at += 1
                others += 1
        raise self._fail(start, "the double quote is never closed")

    def _variable(self, *, quoted: bool) -> Value | list[Word] | None:
        """Value of the ``$NAME`` or ``${NAME...}`` at the cursor, which moves on; None when there is none."""
        match = _VARIABLE.match(self._text, self._at)
        if match is None:
            return None
        name, default, operator = match.group("name"), "", ""
        if match.group("special"):
            return self._keep(match)
        default_at = 0
        if name is None:
            braced = _BRACED.match(match.group("braced"))
            if braced is None:
                return self._keep(match)
            name = braced.group("name")
            if braced.group("array"):
                if name not in self._variables.arrays or name in self._variables.unsure:
                    return self._keep(match)
                self._at = match.end()
                return list(self._variables.arrays[name])
            operator, default = braced.group("op") or "", braced.group("word") or ""
            default_at = match.start("braced") + max(braced.start("word"), 0)
        current = self._variables.known(name)
        if current is None and name in self._variables.unsure:
            return self._keep(match)
        known = current is not None and bool(current.text or not operator.startswith(":"))
        if operator.endswith("+"):
            value = self._default(default, default_at, quoted=quoted) if known else Value("")
        elif known and current is not None:
            value = current
        elif operator.endswith(("-", "=")):
            value = self._default(default, default_at, quoted=quoted)
            if not value.text.startswith("$"):
                self._note(f"${{{name}}} is not set here: its default {value.text!r} was used")
            if operator.endswith("="):
                self._variables.values[name] = value
        else:
            return self._keep(match)
        self._at = match.end()
        return value

    def _default(self, text: str, at: int, *, quoted: bool) -> Value:
        """The word behind ``:-``, with the variables in it replaced."""
        if not quoted:
            bare = text.strip("\"'")
            at += len(text) - len(text.lstrip("\"'"))
            text = bare
        offsets = self._offsets[at : at + len(text)]
        if "$" not in text:
            return Value(text, offsets)
        inner = Lexer('"' + text.replace('"', '\\"') + '"', self._source, self._variables, place=lambda _at: (1, 1))
        words = [item for item in inner if isinstance(item, Word)]
        joined = " ".join(word.text for word in words)
        open_ = tuple(name for word in words for name in word.open)
        self.notes.update(inner.notes)
        return Value(joined, [self._offsets[at]] * len(joined), open_)

    def _keep(self, match: re.Match[str]) -> Value:
        self._at = match.end()
        self._note(f"{match.group()} is not set in this text: it was kept as written")
        return Value(match.group(), self._offsets[match.start() : match.end()], (match.group(),))

    def _substitution(self, piece: Piece) -> None:
        """A ``$(command)`` or backquoted command, kept as written."""
        text, start = self._text, self._at
        if text[start] == "`":
            close = text.find("`", start + 1)
            stop = -1 if close < 0 else close + 1
        else:
            depth, stop = 0, -1
            for index in range(start + 1, len(text)):
                depth += {"(": 1, ")": -1}.get(text[index], 0)
                if depth == 0:
                    stop = index + 1
                    break
        if stop < 0:
            raise self._fail(start, "the command substitution is never closed")
        self._at = stop
        kind = "an arithmetic result" if text.startswith("$((", start) else "a command's output"
        self._note(f"{text[start:stop]} would be replaced by {kind}: it was kept as written")
        piece.add(text[start:stop], self._offsets[start:stop])
        piece.open.append(text[start:stop])
