"""Where the text of a Python literal stands, character by character."""

from __future__ import annotations

import ast
import re
from typing import Final

from dsv4check.launchfiles.python_scan import Module
from dsv4check.launchfiles.python_values import Known
from dsv4check.launchfiles.text import Span

_FAR: Final = 4_096
"""Characters that may lie between two words of one literal."""


def literal_text(known: Known, node: ast.expr, module: Module) -> tuple[str, Span, tuple[int, ...]]:
    """A scalar's text, where it stands, and its characters' offsets where the literal has them as they are."""
    literal = known.node or node
    span = module.span(literal)
    written = module.source.text[span.start : span.stop]
    text = known.value if isinstance(known.value, str) else str(known.value)
    if isinstance(literal, ast.Constant) and not isinstance(literal.value, str) and literal.value == known.value:
        # `0.90`, not the 0.9 that it is.
        text = written
    return text, span, _aligned(text, written, span.start) if isinstance(known.value, str) else ()


def _aligned(text: str, written: str, start: int) -> tuple[int, ...]:
    """Where the characters of a literal's text stand; a word with escapes or values in it stands where it begins."""
    offsets: list[int] = []
    cursor = 0
    for piece in re.findall(r"\s+|\S+", text):
        at = written.find(piece, cursor, cursor + len(piece) + _FAR)
        if at < 0 or (piece.isspace() and written[cursor:at].strip()):
            offsets += [start + min(cursor, len(written) - 1)] * len(piece)
        else:
            offsets += range(start + at, start + at + len(piece))
            cursor = at + len(piece)
    return tuple(offsets)
