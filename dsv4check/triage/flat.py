"""Logs that lost their line ends, as chats show what was pasted into them: each line on a line again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_FLAT_LENGTH: Final = 240
"""Shorter texts are lines."""
_REFUSED: Final = " vllm serve: error: "

_PROCESS: Final = r"\([A-Za-z_][\w.:-]{0,80}(?: rank=\d{1,5})? pid=\d{1,9}\) "
_RECORD: Final = (
    rf"(?:{_PROCESS})?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]{{1,100}}:\d{{1,6}}\] "
)
_RECORDS: Final = 3
_HEADER: Final = r"Traceback \(most recent call last\)"
_BEGIN: Final = re.compile(
    rf"{_RECORD}|{_PROCESS}(?=\S| )|{_HEADER}:|The above exception was the direct"
    r"|During handling of the above exception|(?<= )vllm serve: error: |(?<= )usage: vllm serve"
    r"|  File \"|(?<= )File \"(?=[^\"]{1,500}\", line \d)|Process [\w-]{1,60}:(?= Traceback)"
)
_FRAME: Final = re.compile(r"\s{0,40}File \"[^\"]{1,500}\", line \d{1,7}, in (?:<[\w ]{1,30}>|[\w.]{1,200})")
_RAISED: Final = re.compile(
    r"(?<= )(?<!raise )(?<!from )(?<!except )(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Interrupt)"
    r"(?:: (?=\S)|$)"
)
_PLAIN_RECORD: Final = re.compile(_RECORD)
_LINE_PREFIX: Final = re.compile(rf"(?:{_RECORD}|{_PROCESS})")
_BREAK: Final = re.compile(rf" (?={_RECORD}|{_PROCESS})".encode())


def may_be_flat(text: str) -> bool:
    """True for a text that is worth a closer look."""
    return len(text) > _FLAT_LENGTH or _REFUSED in text


def in_lines(text: str) -> str:
    """The text with its lines, where it is a log that has lost them; any other text as it stands."""
    if "\n" in text:
        return text
    records = sum(1 for _ in zip(range(_RECORDS), _PLAIN_RECORD.finditer(text), strict=False))
    traceback = "Traceback (most recent call last)" in text and text.count('File "') > 1
    if records < _RECORDS and not traceback and _REFUSED not in text:
        return text
    starts = [*_starts(text)]
    if not starts:
        return text
    lines = []
    for start, end in zip([0, *starts], [*starts, len(text)], strict=True):
        piece = text[start:end].rstrip()
        if piece:
            lines += _frame_lines(piece)
    return "\n".join(lines)


def broken(piece: bytes) -> bytes:
    """A part of a log in one line that is too long for one, with a line end before what a process begins."""
    return _BREAK.sub(b"\n", piece)


def is_flat(piece: bytes, limit: int) -> bool:
    """True when a line is longer than any of vLLM's, because it holds a log."""
    longest = max(piece.split(b"\n"), key=len)
    return len(longest) > limit and sum(1 for _ in zip(range(_RECORDS), _BREAK.finditer(longest), strict=False)) == 3


def _starts(text: str) -> Iterator[int]:
    """Where lines begin. What stands right behind a prefix is the text of its line, or Ray's second process."""
    before = ""
    end = 0
    for found in _BEGIN.finditer(text):
        gap = text[end : found.start()] if found.start() - end < 5 else "far"
        prefix = _LINE_PREFIX.fullmatch(found[0]) is not None
        logged = _PLAIN_RECORD.fullmatch(before) is not None
        inside = bool(before) and (gap == "" and not logged if prefix else not gap.strip())
        if not inside:
            yield found.start()
        before, end = found[0] if prefix else "", found.end()


def _frame_lines(piece: str) -> list[str]:
    """A frame, its quoted source and the exception behind it, each on its line."""
    prefix = _LINE_PREFIX.match(piece)
    front = prefix[0] if prefix is not None else ""
    frame = _FRAME.match(piece, len(front))
    if frame is None:
        return [piece]
    head, rest = piece[: frame.end()], piece[frame.end() :]
    raised = _RAISED.search(rest)
    lines = [head]
    code = rest[: raised.start()].strip() if raised is not None else rest.strip()
    if code:
        lines.append(f"{front}    {code}")
    if raised is not None:
        lines.append(f"{front}{rest[raised.start() :].strip()}")
    return lines
