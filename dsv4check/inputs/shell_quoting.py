"""Writing words for a shell."""

from __future__ import annotations

import re
from typing import Final

ANSI_QUOTED: Final = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


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
