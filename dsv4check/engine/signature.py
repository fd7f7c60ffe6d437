"""How a hazard looks in a log: the one description that triage and the rehearsal's comparison search with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from dsv4check.records import dataclass

_KEYS: Final = frozenset({"text", "frame"})


@dataclass(frozen=True, slots=True)
class Signature:
    """One way a hazard shows itself."""

    text: str
    """Regular expression, searched in what a log says about one error (exception line and all that belongs to it,
    several lines) or in one line of a log without its prefix. Empty: any error with the frame."""
    frame: str = ""
    """Regular expression, searched in each frame of the traceback as ``vllm/path/file.py:function``; empty: any."""

    def matches_text(self, said: str) -> bool:
        """True when ``said`` alone shows it; never for a signature that needs a frame."""
        return not self.frame and _stands_in(self.text, said)

    def matches(self, said: str, frames: Iterable[str] = ()) -> bool:
        """True when the text and, where one is asked for, the frame are there."""
        if self.text and not _stands_in(self.text, said):
            return False
        return not self.frame or any(_stands_in(self.frame, frame) for frame in frames)


def signature_from_record(item: Any) -> Signature:
    """A signature of a rule file: a text, or a mapping with ``text`` and ``frame``.

    Raises ValueError for anything else, and for one that any error would match.

    The expressions are compiled when they are first searched with: a check of a launch never needs them.
    """
    if isinstance(item, str):
        signature = Signature(item)
    elif isinstance(item, dict) and not set(item) - _KEYS:
        signature = Signature(str(item.get("text") or ""), str(item.get("frame") or ""))
    else:
        raise ValueError(f"a signature is a text or a mapping with text and frame, not {item!r}")
    if not signature.text and not signature.frame:
        raise ValueError(f"a signature needs a text or a frame, not {item!r}")
    return signature


def check_signature(signature: Signature) -> None:
    """Raises ValueError that quotes the expression which is not a regular one."""
    for text in (signature.text, signature.frame):
        try:
            compiled(text)
        except re.error as error:
            raise ValueError(f"signature {text!r}: {error}") from None


def _stands_in(pattern: str, said: str) -> bool:
    """True when the expression matches somewhere; it is compiled only where its plain part is there."""
    # Imported here: every check loads the rules, and only a log is searched.
    from dsv4check.engine.literal import required_literal

    return required_literal(pattern) in said and compiled(pattern).search(said) is not None


@cache
def compiled(text: str) -> re.Pattern[str]:
    """The regular expression, read as ``^`` and ``$`` of lines."""
    return re.compile(text, re.MULTILINE)
