"""Text from outside as GitHub's Markdown: nothing of it is taken for markup, mentions nobody and opens no tag."""

from __future__ import annotations

import re
from html import escape
from typing import Final

from dsv4check.report.gate_words import flat, visible

# Anywhere in a line; the last two at its start, where they make a list, a rule or a heading.
_MARKUP: Final = re.compile(r"[\\`*_\[\]|~#]|^[-+](?=\s)|^[-=]+\Z")
# A backtick ends a code span, a bar the cell of a table even within one, and a backslash may undo the bar's own.
_NO_CODE: Final = re.compile(r"[`|\\]")
_MENTION: Final = "@\u200b"
"""With a blank of no width behind the sign, the name is not notified."""


def escaped(text: str) -> str:
    """The text in one line, to stand in a paragraph or in a cell of a table."""
    return _MARKUP.sub(r"\\\g<0>", in_html(text))


def in_html(text: str) -> str:
    """The text in one line, to stand in a tag, where Markdown is not looked for."""
    return escape(flat(text), quote=False).replace("@", _MENTION)


def code(text: str) -> str:
    """The text in one line as code, to stand in a paragraph or in a cell of a table."""
    line = flat(text)
    return f"<code>{escaped(text)}</code>" if _NO_CODE.search(line) or not line else f"`{line}`"


def fence(text: str, language: str) -> str:
    """A block of code that no run of backticks in the text closes."""
    content = visible("\n".join(text.splitlines()), "\n\t")
    ticks = "`" * max(3, _longest_run(content) + 1)
    return f"{ticks}{language}\n{content}\n{ticks}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
