"""``non-default args: {...}``: everything a server was started with, as vLLM logs it before it does anything else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dsv4check.records import dataclass, field
from dsv4check.triage.records import LogLine, LogReading, Run
from dsv4check.triage.reprs import MAX_TEXT, Reading, read_repr

MARK: Final = "non-default args: {"
_CONTINUATION: Final = re.compile(
    r"\n[^\S\n]*+(?:\([A-Za-z]\w*(?: pid=\d+)?(?:, ip=\S+)?\)[^\S\n]*+)?"
    r"(?:(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d (?:\[\S+\] )?)?"
)
"""A line end inside the arguments, with the prefix that a terminal or a logger put in front of the next line."""
_NEXT_LINES: Final = 400


@dataclass(frozen=True, slots=True)
class DefaultArgs:
    """What one such line states."""

    values: dict[str, Any] = field(default_factory=dict)
    line: LogLine | None = None
    cut: bool = False
    """True where the log does not have the end of it."""

    @property
    def model(self) -> str | None:
        """The model, as argument or as flag."""
        for name in ("model", "model_tag"):
            value = self.values.get(name)
            if isinstance(value, str) and value.strip():
                return value
        return None


def read_default_args(reading: LogReading, run: Run) -> DefaultArgs | None:
    """The arguments of a start; None where the log does not state them."""
    for index, line in enumerate(run.lines):
        at = line.text.find(MARK)
        if at < 0:
            continue
        best = _read(line.text, at)
        if best.cut:
            for text in (_with_following(run.lines, index), _in_head(reading.head, line, at)):
                again = _read(text, text.find(MARK)) if MARK in text else best
                if _richer(again, best):
                    best = again
        return DefaultArgs(_named(best.value), line, best.cut)
    if run.first is None and MARK in reading.head:
        # A report that holds nothing but this line.
        best = _read(_joined(reading.head[reading.head.find(MARK) :][:MAX_TEXT]), 0)
        return DefaultArgs(_named(best.value), None, best.cut)
    return None


def _read(text: str, at: int) -> Reading:
    return read_repr(text, at + len(MARK) - 1)


def _richer(new: Reading, old: Reading) -> bool:
    size = [len(item.value) if isinstance(item.value, dict) else -1 for item in (new, old)]
    return size[0] > size[1] or (size[0] == size[1] and old.cut and not new.cut)


def _with_following(lines: Sequence[LogLine], index: int) -> str:
    """The line and those that follow it without a gap: a terminal's width cut it into pieces."""
    first = lines[index]

    def parts() -> Iterator[str]:
        yield first.text
        size = len(first.text)
        expected = first.number + 1
        for line in lines[index + 1 : index + _NEXT_LINES]:
            size += len(line.text)
            if line.source != first.source or line.number != expected or size > MAX_TEXT:
                return
            expected += 1
            yield line.text

    return "".join(parts())


def _in_head(head: str, line: LogLine, at: int) -> str:
    """The same arguments where the text's beginning has them, with line ends taken out."""
    begins = line.text[at : at + 120]
    found = head.find(begins)
    return "" if found < 0 else _joined(head[found : found + MAX_TEXT])


def _joined(text: str) -> str:
    return _CONTINUATION.sub("", text)


def _named(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    return {name: item for name, item in value.items() if isinstance(name, str)}
