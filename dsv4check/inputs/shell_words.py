"""Splitting pasted shell text into words and operators, with the place of each.

``shlex`` loses positions, keeps backslash-newlines as words and knows neither comments inside a line nor
variables, so the text is read here. Nothing is run: command substitutions stay as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dsv4check.errors import InputError
from dsv4check.records import dataclass

_NO_BREAK: Final = "\u00a0"
_BLANKS: Final = " \t\r\f\v" + _NO_BREAK
_OPERATORS: Final = re.compile(
    r"\d?&>>?|&>>?|\d*>&\d+-?|\d*<&\d+-?|\d*>>|\d*>\||\d*>|<<<|\d*<<-?|\d*<|\|\||\|&|\||&&|&|;;|;|\n"
)
_VARIABLE: Final = re.compile(
    r"\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\}|(?P<special>[@*#?$!\d]))"
)
_ANSI_QUOTED: Final = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_BRACED: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<array>\[[@*]\])?(?:(?P<op>:?[-=?+])(?P<word>.*))?\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Word:
    """One word after quote removal."""

    text: str
    line: int
    column: int
    plain: int
    """How many characters at its start were written without quotes or escapes."""


@dataclass(frozen=True, slots=True)
class Operator:
    """``|``, ``&&``, ``>``, a newline, ..."""

    text: str
    line: int
    column: int


class Lexer:
    """Reads words and operators one by one.

    ``variables`` may grow while reading: what a line assigns is known on the next. ``arrays`` holds bash
    arrays. ``first_line`` is the number of the text's first line. ``notes`` collects what was read differently
    from how it looks, ``documents`` the here-documents, each as (text, number of its first line): they are
    the input of a command and no commands themselves.
    """

    def __init__(
        self,
        text: str,
        source: str,
        variables: dict[str, str],
        arrays: dict[str, list[str]],
        *,
        first_line: int = 1,
    ) -> None:
        self._text = text
        self._source = source
        self._variables = variables
        self._arrays = arrays
        self._at = 0
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._line = 0
        self._first_line = first_line
        self.notes: dict[str, None] = {}
        self.documents: list[tuple[str, int]] = []

    def _place(self, at: int) -> tuple[int, int]:
        while self._line + 1 < len(self._line_starts) and self._line_starts[self._line + 1] <= at:
            self._line += 1
        while self._line_starts[self._line] > at:
            self._line -= 1
        return self._line + self._first_line, at - self._line_starts[self._line] + 1

    def _fail(self, at: int, message: str) -> InputError:
        line, column = self._place(at)
        return InputError(f"{self._source}, line {line}, column {column}: {message}")

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
                yield Operator(match.group(), *self._place(at))
                if match.group().lstrip("0123456789") in ("<<", "<<-"):
                    indented = match.group().endswith("-")
                elif match.group() == "\n":
                    for delimiter, indent in announced:
                        self._document(delimiter, indent)
                    announced = []
                continue
            if text[at] in "()":
                self._at += 1
                yield Operator(text[at], *self._place(at))
                continue
            for word in self._word():
                if indented is not None:
                    announced.append((word.text, indented))
                    indented = None
                yield word

    def _document(self, delimiter: str, indented: bool) -> None:
        """Move behind the here-document that starts at the cursor; without its last line it reaches to the end."""
        start, stop = self._at, len(self._text)
        line = self._place(start)[0] if start < stop else 0
        while self._at < stop:
            begin = self._at
            newline = self._text.find("\n", begin)
            self._at = stop if newline < 0 else newline + 1
            content = self._text[begin : self._at].rstrip("\r\n")
            if (content.lstrip("\t") if indented else content) == delimiter:
                stop = begin
                break
        if start < stop:
            self.documents.append((self._text[start:stop], line))

    def _skip_blanks(self) -> None:
        text, end = self._text, len(self._text)
        while self._at < end:
            if text[self._at] in _BLANKS:
                if text[self._at] == _NO_BREAK:
                    line, _ = self._place(self._at)
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
            line, _ = self._place(at)
            self._note(
                f"line {line}: blanks follow the backslash at the end of the line, so a shell ends the command"
                " there; it was read on"
            )
            return after + 1
        return None

    def _word(self) -> Iterator[Word]:
        """One word; an unquoted variable with blanks in it gives several."""
        text, end, start = self._text, len(self._text), self._at
        line, column = self._place(start)
        parts: list[str] = []
        plain, quoted = 0, False

        def finish() -> Word:
            return Word("".join(parts), line, column, plain)

        while self._at < end:
            char = text[self._at]
            if char in _BLANKS or char in "\n|&;<>()":
                break
            if char == "\\":
                if (skip := self._continuation(self._at)) is not None:
                    self._at = skip
                    continue
                quoted = True
                parts.append(text[self._at + 1 : self._at + 2])
                self._at += 2
            elif char == "'":
                quoted = True
                close = text.find("'", self._at + 1)
                if close < 0:
                    raise self._fail(self._at, "the single quote is never closed")
                parts.append(text[self._at + 1 : close])
                self._at = close + 1
            elif match := _ANSI_QUOTED.match(text, self._at):
                quoted = True
                parts.append(re.sub(r"\\(.)", lambda m: _ESCAPED.get(m[1], m[0]), match[1], flags=re.DOTALL))
                self._at = match.end()
            elif char == '"' or text.startswith('$"', self._at):
                quoted = True
                self._at += char == "$"
                pieces = self._double_quoted()
                parts.append(pieces[0])
                for piece in pieces[1:]:
                    yield finish()
                    parts = [piece]
            elif char == "$" and (expanded := self._variable(quoted=False)) is not None:
                words = re.split(r"[ \t\n]+", expanded) if isinstance(expanded, str) else expanded
                if not quoted:
                    plain = plain or sum(map(len, parts))
                quoted = True
                if words:
                    parts.append(words[0])
                for piece in words[1:]:
                    if parts != [""]:
                        yield finish()
                    parts = [piece]
                if not "".join(parts) and self._at < end and text[self._at] in _BLANKS + "\n":
                    return
            elif char == "`" or text.startswith("$(", self._at):
                parts.append(self._substitution())
            else:
                parts.append(char)
                self._at += 1
                if not quoted:
                    plain += 1
        yield finish()

    def _double_quoted(self) -> list[str]:
        """The content of a double-quoted string at the cursor; several pieces for ``"${ARRAY[@]}"``."""
        text, end, start = self._text, len(self._text), self._at
        self._at += 1
        pieces = [""]
        while self._at < end:
            char = text[self._at]
            if char == '"':
                self._at += 1
                return pieces
            if char == "\\" and text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                escaped = text[self._at + 1]
                pieces[-1] += "" if escaped == "\n" else escaped
                self._at += 2
            elif char == "$" and (expanded := self._variable(quoted=True)) is not None:
                if isinstance(expanded, str):
                    pieces[-1] += expanded
                elif expanded:
                    pieces[-1] += expanded[0]
                    pieces.extend(expanded[1:])
            elif char == "`" or text.startswith("$(", self._at):
                pieces[-1] += self._substitution()
            else:
                pieces[-1] += char
                self._at += 1
        raise self._fail(start, "the double quote is never closed")

    def _variable(self, *, quoted: bool) -> str | list[str] | None:
        """Value of the ``$NAME`` or ``${NAME...}`` at the cursor, which moves on; None when there is none."""
        match = _VARIABLE.match(self._text, self._at)
        if match is None:
            return None
        name, default, operator = match.group("name"), "", ""
        if match.group("special"):
            return self._keep(match)
        if name is None:
            braced = _BRACED.match(match.group("braced"))
            if braced is None:
                return self._keep(match)
            name = braced.group("name")
            if braced.group("array"):
                if name not in self._arrays:
                    return self._keep(match)
                self._at = match.end()
                return list(self._arrays[name])
            operator, default = braced.group("op") or "", braced.group("word") or ""
        known = name in self._variables and bool(self._variables[name] or not operator.startswith(":"))
        if operator.endswith("+"):
            value = default if known else ""
        elif known:
            value = self._variables[name]
        elif operator.endswith(("-", "=")):
            value = default if quoted else default.strip("\"'")
            if not value.startswith("$"):
                self._note(f"${{{name}}} is not set here: its default {value!r} was used")
        else:
            return self._keep(match)
        self._at = match.end()
        return value

    def _keep(self, match: re.Match[str]) -> list[str]:
        self._at = match.end()
        self._note(f"{match.group()} is not set in this text: it was kept as written")
        return [match.group()]

    def _substitution(self) -> str:
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
        self._note(f"{text[start:stop]} would be replaced by a command's output: it was kept as written")
        return text[start:stop]


def quote(text: str) -> str:
    """A word as a shell would need it written, so that reading it again gives the same word.

    A word with a variable in it is put in double quotes: the variable is meant to be replaced.
    """
    if text and _SAFE.fullmatch(text):
        return text
    if _WITH_VARIABLE.search(text) and not _NOT_IN_DOUBLE.search(text):
        return f'"{text}"'
    return "'" + text.replace("'", "'\"'\"'") + "'"


_SAFE: Final = re.compile(r"[A-Za-z0-9@%_+=:,./^-]+")
_WITH_VARIABLE: Final = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})")
_NOT_IN_DOUBLE: Final = re.compile(r'["\\`!\n]|\$\(|\$\{[A-Za-z_]\w*[^}\w]|\$\{(?![A-Za-z_])')
