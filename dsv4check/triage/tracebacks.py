"""Errors out of interleaved lines: each process' lines are read as a stream of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dsv4check.triage.events import Draft, Found, Register, chained, replace_event
from dsv4check.triage.frames import (
    DIRECT_CAUSE,
    HANDLING,
    HEADER,
    exception_of,
    frame_of,
    is_carets,
    is_progress,
    without_gutter,
)
from dsv4check.triage.messages import continues, only_announced, unwrap_ray
from dsv4check.triage.native import is_native_error, refused_command_line
from dsv4check.triage.prefixes import PlainLine

_MOST_STREAMS: Final = 500
_STRAYS: Final = 60


class Tracebacks:
    """Takes the lines of one start in order and gives its errors."""

    def __init__(self, source: str) -> None:
        self.register = Register()
        self._source = source
        self._streams: dict[str, _Stream] = {}

    def take(self, index: int, line: PlainLine) -> bool:
        """The next line; True when it stands inside of a traceback or a message that began before."""
        stream = self._streams.get(line.stream)
        if stream is None:
            if len(self._streams) >= _MOST_STREAMS:
                self._finish_streams()
            stream = self._streams[line.stream] = _Stream(line.stream, self._source, self.register)
        return stream.take(index, line)

    def gap(self) -> None:
        """Lines are missing here: nothing that was begun goes on behind it."""
        self._finish_streams()

    def finish(self) -> list[Found]:
        """All errors in the log's order."""
        self._finish_streams()
        return self.register.all()

    def _finish_streams(self) -> None:
        for stream in self._streams.values():
            stream.finish()
        self._streams.clear()


class _Stream:
    """What one process wrote."""

    def __init__(self, name: str, source: str, register: Register) -> None:
        self._name = name
        self._source = source
        self._register = register
        self._draft: Draft | None = None
        self._last: Found | None = None
        self._chain = False
        self._strays = 0
        self._usage = -10_000

    def take(self, index: int, line: PlainLine) -> bool:
        text = line.text
        if text.lstrip()[:1] in ("|", "+"):
            text, gutter = without_gutter(text)
            if gutter:
                line = replace(line, text=text)
        stripped = text.strip()
        indent = len(text) - len(text.lstrip())
        if "%" in stripped and is_progress(stripped):
            # Other processes draw their bars into a traceback.
            return False
        if HEADER in text:
            self._header(index, line, indent)
            return True
        if stripped.startswith((DIRECT_CAUSE, HANDLING)):
            self._close()
            self._chain = True
            return True
        frame = frame_of(text)
        if frame is not None:
            draft = self._for_frame(index, line, indent)
            if draft is not None:
                draft.add_frame(frame)
                draft.note(index, line)
                if draft.style == "traceback":
                    draft.line = line
            return True
        draft = self._draft
        if draft is not None and draft.style == "traceback":
            if self._in_traceback(draft, index, line, stripped):
                return draft.style == "traceback"
        elif draft is not None:
            if only_announced(draft, line, stripped):
                self._draft = None
            elif continues(draft, line, stripped):
                draft.note(index, line)
                draft.say(text.rstrip())
                return True
            self._close()
        self._idle(index, line, stripped)
        return False

    def finish(self) -> None:
        self._close()
        self._emit()

    def _header(self, index: int, line: PlainLine, indent: int) -> None:
        title = self._title(line)
        self._close()
        self._draft = Draft(index, line, "traceback", indent)
        self._draft.excerpt[:0] = title

    def _title(self, line: PlainLine) -> list[str]:
        """Takes back the first line of the record, which only announced its traceback."""
        draft = self._draft
        if draft is None or draft.style != "logged" or draft.line.module != line.module or len(draft.message) > 1:
            return []
        self._draft = None
        return draft.excerpt

    def _for_frame(self, index: int, line: PlainLine, indent: int) -> Draft | None:
        draft = self._draft
        if draft is not None and draft.style == "traceback":
            return draft
        if draft is not None and draft.message and draft.message[0].startswith("Fatal Python error"):
            draft.style = "stack"
            # Threads that only wait come first or last; the one that failed is called the current one.
            return draft if draft.message[-1].startswith(("Current thread", "Stack (most")) else None
        if draft is not None and draft.kind.startswith("RayTaskError"):
            # Ray's wrapper quotes the traceback of the worker.
            inner = Draft(draft.first, line, "traceback", 0)
            inner.excerpt = draft.excerpt
            self._draft = inner
            return inner
        title = self._title(line)
        self._close()
        self._draft = Draft(index, line, "traceback", max(indent - 2, 0))
        self._draft.excerpt[:0] = title
        return self._draft

    def _in_traceback(self, draft: Draft, index: int, line: PlainLine, stripped: str) -> bool:
        """Reads a line below a header; False when the traceback is over without its last line."""
        if not stripped or is_carets(line.text) or stripped.startswith("[Previous line repeated"):
            return True
        indent = len(line.text) - len(line.text.lstrip())
        other = bool(line.level) and line.module != draft.line.module
        found = None
        if not other and indent <= draft.base:
            found = exception_of(stripped, strict=self._frame_indent(draft) <= draft.base)
        if found is not None:
            draft.kind, message = found
            draft.style = "exception"
            draft.line = line
            draft.note(index, line)
            draft.say(message)
            return True
        if not draft.quoted and not other:
            draft.frames[-1] = replace(draft.frames[-1], code=stripped[:300])
            draft.quoted = True
            draft.note(index, line)
            return True
        if other:
            self._close()
            return False
        if indent <= draft.base:
            self._strays += 1
            if self._strays > _STRAYS:
                self._close()
                return False
            return not is_native_error(stripped)
        return True

    def _frame_indent(self, draft: Draft) -> int:
        text = draft.line.text
        return len(text) - len(text.lstrip()) if draft.frames else 2

    def _idle(self, index: int, line: PlainLine, stripped: str) -> None:
        """A line outside of everything: does an error begin?"""
        if not stripped:
            return
        if stripped.startswith("usage: "):
            self._usage = index
            return
        refused = refused_command_line(stripped, after_usage=index - self._usage < 2_000)
        if refused is not None:
            self._begin(index, line, "argparse", "argparse", refused)
            return
        if stripped[:1] in "-*":
            stripped = stripped.lstrip("-* ")
        found = exception_of(stripped)
        if found is not None and not found[0].endswith("Warning"):
            self._begin(index, line, "exception", *found)
        elif line.level in ("ERROR", "CRITICAL"):
            if line.text.startswith("  ") or is_carets(line.text):
                # From the inside of a traceback whose upper part is not there.
                return
            self._begin(index, line, "logged", "", stripped)
        elif is_native_error(stripped) and line.level != "INFO" and line.level != "DEBUG":
            self._begin(index, line, "native", "", stripped)

    def _begin(self, index: int, line: PlainLine, style: str, kind: str, message: str) -> None:
        self._draft = Draft(index, line, style)
        self._draft.kind = kind
        self._draft.say(message)

    def _close(self) -> None:
        """The error that is read is complete."""
        draft, self._draft = self._draft, None
        self._strays = 0
        chain, self._chain = self._chain, False
        if draft is None:
            self._chain = chain
            return
        if not draft.frames and not draft.kind and not draft.message:
            return
        unwrap_ray(draft)
        event = draft.event(self._source)
        found = Found(event, draft.first, draft.last, self._name)
        if self._last is not None:
            before = self._last.event
            if chain:
                found = Found(chained(event, before), self._last.first, draft.last, self._name)
            elif "Group" in before.kind and "sub-exception" in before.message and before.caused_by is None:
                # The exceptions of a group are drawn below it.
                self._last.event = replace_event(before, caused_by=event)
                return
            else:
                self._emit()
        self._last = found

    def _emit(self) -> None:
        if self._last is not None:
            self._register.add(self._last)
            self._last = None
