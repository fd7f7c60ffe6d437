"""Items of lists put in and taken away: YAML's block and flow lists, JSON, Python, a Dockerfile's exec form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from dsv4check.gate.spelling import Change, NotPlainError, spelled_like
from dsv4check.launchfiles.records import FileWord
from dsv4check.launchfiles.text import Span

_DASH: Final = re.compile(r"[ \t]*-[ \t]+")
_REST: Final = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\r?\n|$)")
"""What may follow an item on its line."""
_BETWEEN: Final = re.compile(r"[ \t]*,(?:[ \t\r\n\\]|#[^\n]*\n)*")
"""What stands between two items of a flow list."""
_ASSIGNS: Final = re.compile(r"[ \t\r\n]*[=:][ \t\r\n]*")
_SWITCH: Final = re.compile(r"[ \t]*[=:][ \t]*(?:True|False|true|false)\b")
_FLOW_REST: Final = re.compile(r"[ \t]*(?P<comma>,)?[ \t]*(?:#[^\n]*?)?(?P<end>\r?\n)")


def inserted_items(text: str, anchor: FileWord, values: Sequence[str], style: str) -> list[Change]:
    """New items behind an existing one, in quotes of the given style (``"``, ``'``, or none where none are needed)."""
    style = style if style in ('"', "'") else ""
    spelled = [spelled_like(style, value) for value in values]
    at = anchor.span.stop
    start, stop = _line(text, anchor.span)
    prefix = text[start : anchor.span.start]
    rest = text[at:stop]
    if _DASH.fullmatch(prefix) and _REST.fullmatch(rest):
        end = "\r\n" if rest.endswith("\r\n") or (not rest.endswith("\n") and "\r\n" in text) else "\n"
        lines = "".join(f"{prefix}{item}{end}" for item in spelled)
        if not rest.endswith("\n"):
            return [Change(Span(stop, stop), end + lines.removesuffix(end))]
        return [Change(Span(stop, stop), lines)]
    flow = _FLOW_REST.fullmatch(rest) if not prefix.strip(" \t") else None
    if flow is None:
        return [Change(Span(at, at), "".join(f", {item}" for item in spelled))]
    lines = f",{flow['end']}".join(f"{prefix}{item}" for item in spelled)
    if flow["comma"]:
        return [Change(Span(stop, stop), f"{lines},{flow['end']}")]
    return [Change(Span(at, at), ","), Change(Span(stop, stop), f"{lines}{flow['end']}")]


def without_items(text: str, words: Sequence[FileWord]) -> list[Change]:
    """Items taken away, with the lines or the commas that are theirs."""
    changes: list[Change] = []
    run: list[FileWord] = []
    for word in words:
        start, stop = _line(text, word.span)
        if _DASH.fullmatch(text[start : word.span.start]) and _REST.fullmatch(text[word.span.stop : stop]):
            changes.append(Change(Span(start, stop), ""))
            continue
        if run and not _BETWEEN.fullmatch(text[run[-1].span.stop : word.span.start]):
            changes.append(_without_run(text, run))
            run = []
        run.append(word)
    if run:
        changes.append(_without_run(text, run))
    return changes


def without_pair(text: str, words: Sequence[FileWord]) -> Change:
    """A key of a mapping, or a keyword argument, taken away with its value."""
    begin, end = words[0].span.start, words[-1].span.stop
    if len(words) == 1:
        switch = _SWITCH.match(text, end)
        end = end if switch is None else switch.end()
    elif not _ASSIGNS.fullmatch(text[words[0].span.stop : words[-1].span.start]) or len(words) > 2:
        raise NotPlainError(f"{words[0].text!r} and its value do not stand side by side")
    start, stop = _line(text, Span(begin, end))
    if not text[start:begin].strip(" \t") and _REST.fullmatch(text[end:stop]):
        before = text[:start].rstrip()
        if not before.endswith(("(", "{", ",")):
            return Change(Span(start, stop), "")
    return _without_range(text, begin, end, words[0].text)


def _without_run(text: str, run: Sequence[FileWord]) -> Change:
    """Items of a flow list that stand behind one another."""
    return _without_range(text, run[0].span.start, run[-1].span.stop, run[0].text)


def _without_range(text: str, begin: int, end: int, name: str) -> Change:
    """A part between commas, with one of them and with the lines that are its own."""
    following = re.compile(r"[ \t\r\n]*,[ \t]*").match(text, end)
    if following:
        start = text.rfind("\n", 0, begin) + 1
        rest = re.compile(r"(?:#[^\n]*)?\n").match(text, following.end())
        if rest and not text[start:begin].strip(" \t"):
            return Change(Span(start, rest.end()), "")
        return Change(Span(begin, following.end()), "")
    leading = re.search(r",[ \t\r\n]*$", text[:begin])
    if leading:
        return Change(Span(leading.start(), end), "")
    raise NotPlainError(f"{name!r} stands alone in its list")


def _line(text: str, span: Span) -> tuple[int, int]:
    """The line a range lies on, with its end."""
    start = text.rfind("\n", 0, span.start) + 1
    end = text.find("\n", span.stop)
    return start, len(text) if end < 0 else end + 1
