"""One start of vLLM out of the lines that were kept of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from typing import Final

from dsv4check.triage.events import Found, log_line, replace_event, same_text
from dsv4check.triage.frames import HEADER, exception_of, is_broken_frame
from dsv4check.triage.kept_lines import KeptLines
from dsv4check.triage.prefixes import PlainLine, PrefixReader
from dsv4check.triage.records import ErrorEvent, LogLine, Run
from dsv4check.triage.root_cause import mark_consequences
from dsv4check.triage.skim import LINE_LIMIT
from dsv4check.triage.skimmed import Skimmed
from dsv4check.triage.tracebacks import Tracebacks

_PASTED: Final = 60
"""Lines that a person pastes, at most."""
_NARROW: Final = range(50, 401)
"""Widths of a terminal or a mail that wraps lines."""
_NUMBER: Final = re.compile(r"\s{0,8}(\d{1,7})(?:[:|.)] ?|[ \t]|$)")
_WIDEST: Final = 40
"""Blanks that may stand in front of every line, and one more."""
_CHINESE: Final = re.compile(rb"(?:[\x00-\x7f]|[\x81-\xfe][\x80-\xfe]|\xa8[\x40-\x7e]|[\x81-\xfe]\d[\x81-\xfe]\d)*+")
"""GB 18030, but for pairs that are more likely a letter with an accent and another one."""
_FATAL: Final = ("EngineDeadError", "OutOfMemoryError")


def read_run(skimmed: Skimmed, source: str) -> Run:
    """The start with its errors and its stated facts."""
    reader = PrefixReader(quoted=_is_quoted(skimmed))
    errors = Tracebacks(source)
    kept = KeptLines(source, everything=skimmed.banner is None and len(skimmed.lines) <= _PASTED)
    first: LogLine | None = None
    plain = _joined(_lines(skimmed, reader), _width(skimmed))
    for index, line in enumerate(plain):
        if not line.number:
            errors.gap()
        elif not errors.take(index, line):
            kept.take(index, line)
        if first is None and line.number == skimmed.banner:
            first = log_line(source, line)
    found = errors.finish()
    skimmed.left_out = errors.register.left_out
    if not found:
        found = list(_mentioned(skimmed, source))
    beyond = _beyond(skimmed, {item.event.line.number for item in found})
    events = [_judged(item, kept, beyond.get(item.event.line.number, 0), skimmed.answered) for item in found]
    return Run(first, kept.all(), mark_consequences(events))


def _lines(skimmed: Skimmed, reader: PrefixReader) -> Iterator[PlainLine]:
    numbered = _is_numbered(skimmed)
    margin = _margin(skimmed, numbered=numbered)
    for number, raw in skimmed.all_lines():
        if number:
            text = decode(raw)
            if numbered:
                text = _NUMBER.sub("", text, count=1)
            if margin:
                text = text[margin:] if text[:margin].isspace() else text.lstrip()
            yield from reader.read(number, text)
        else:
            yield PlainLine(0, "", "", "", wrapped=True)


def _is_quoted(skimmed: Skimmed) -> bool:
    """True for a mail or an answer that quotes: a terminal that wraps lines may begin one with the same mark."""
    before = True
    for count, (_, raw) in enumerate(skimmed.all_lines()):
        if count >= 5_000:
            break
        quoted = raw[:8].lstrip(b" ").startswith(b">")
        if quoted and before:
            return True
        before = quoted
    return False


def _margin(skimmed: Skimmed, *, numbered: bool) -> int:
    """How many blanks stand in front of every line."""
    margin = _WIDEST
    for _, raw in islice(skimmed.all_lines(), 500):
        text = decode(raw[:200])
        if numbered:
            text = _NUMBER.sub("", text, count=1)
        if not text.isspace():
            margin = min(margin, len(text) - len(text.lstrip(" ")))
        if not margin:
            return 0
    return margin if margin < _WIDEST else 0


def _is_numbered(skimmed: Skimmed) -> bool:
    """True for a paste out of an editor that shows the numbers of lines."""
    numbers = []
    for _, raw in islice(skimmed.all_lines(), 200):
        found = _NUMBER.match(decode(raw[:100]))
        if found is None:
            return False
        numbers.append(int(found[1]))
    return len(numbers) > 2 and all(after == before + 1 for before, after in pairwise(numbers))


def decode(raw: bytes) -> str:
    """The text of a line: UTF-8, else GB 18030, else Latin-1."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        # A line that was cut may end inside of a character.
        cut = len(raw) >= LINE_LIMIT and error.start > len(raw) - 4
        if cut:
            return raw.decode("utf-8", "ignore")
    if _CHINESE.fullmatch(raw):
        # What Chinese consoles write.
        return raw.decode("gb18030", "replace")
    return raw.decode("latin-1")


def _width(skimmed: Skimmed) -> int:
    """The width at which a terminal or a mail program has wrapped the lines; 0 when they are not wrapped."""
    longest = 0
    kinds: set[str] = set()
    for count, (_, raw) in enumerate(skimmed.all_lines()):
        if count >= 3_000:
            break
        text = decode(raw[:2_000]).rstrip()
        if len(text) >= longest:
            if len(text) > longest:
                longest, kinds = len(text), set()
            # Ranks that say the same do so at the same length.
            kinds.add(same_text(text))
    return longest if longest in _NARROW and len(kinds) >= 3 else 0


def _joined(lines: Iterator[PlainLine], width: int) -> Iterator[PlainLine]:
    """The lines, those put together again that were wrapped."""
    held: PlainLine | None = None
    for line in lines:
        if held is None:
            held = line
            continue
        bare = not (line.wrapped or line.level) and bool(line.text)
        # Where the blank at the end of a piece is lost, the piece is one shorter.
        full = len(held.raw) == width or (held.wrapped and len(held.raw) == width - 1)
        cut = bool(width) and full and bare and not _is_whole(line.text)
        if cut or (is_broken_frame(held.text) and (bare or not held.wrapped) and 'File "' not in line.text):
            # A line that is put together is as long as its last piece, for the question whether another one follows.
            blank = held.raw.endswith(" ") or (cut and len(held.raw) < width)
            gap = " " if blank and not line.text.startswith(" ") else "" if cut else _gap(held.text, line.text)
            held = replace(held, text=held.text + gap + (line.text if cut else line.text.lstrip()), raw=line.raw)
            continue
        yield held
        held = line
    if held is not None:
        yield held


def _is_whole(text: str) -> bool:
    """True for a line that cannot be the rest of another one."""
    return text.startswith((HEADER, "  ", "Process ", "[rank")) or exception_of(text) is not None


def _gap(front: str, rest: str) -> str:
    """The blank that stood where a frame's line was broken between two words."""
    return " " if front.endswith((",", "line", " in")) and not rest.startswith(" ") else ""


def _mentioned(skimmed: Skimmed, source: str) -> Iterator[Found]:
    """Errors that a text only mentions, for reports without a log."""
    for index, (number, raw) in enumerate(skimmed.all_lines()):
        text = decode(raw[:2_000])
        for word in ("Error: ", "Exception: "):
            at = text.find(word)
            if at < 0:
                continue
            begin = at
            while begin > 0 and (text[begin - 1].isalnum() or text[begin - 1] in "._"):
                begin -= 1
            said = text[begin:].strip().strip("`'\"")
            found = exception_of(said)
            if found is not None and found[1]:
                line = LogLine(source, number, said)
                yield Found(ErrorEvent(found[0], found[1], line, excerpt=(text.strip()[:400],)), index, index, "")
                break


def _beyond(skimmed: Skimmed, numbers: set[int]) -> dict[int, int]:
    """How often lines came that were only counted, by the number of the kept one that says an error."""
    return {
        number: count for number, raw in skimmed.all_lines() if number in numbers and (count := skimmed.surplus(raw))
    }


def _judged(found: Found, kept: KeptLines, beyond: int, answered: int) -> ErrorEvent:
    """The error with what became of the process that said it."""
    event = found.event
    if beyond:
        event = replace_event(event, times=event.times + beyond)
    # A process that is not named may be any.
    went_on = all(
        kept.progress.get(stream, -1) > at for stream, at in found.streams.items() if stream.strip("|")
    ) and any(stream.strip("|") for stream in found.streams)
    served = kept.up_at is not None and found.last < kept.up_at
    later = kept.answered_at > found.last or answered > event.line.number
    quiet = event.line.level in ("WARNING", "INFO", "DEBUG")
    if (went_on or served or (kept.up_at is not None and later) or quiet) and event.kind not in _FATAL:
        event = replace_event(event, survived=True)
    return event
