"""What stands around a line before vLLM's own prefix: terminals, containers, clusters, log collectors, Markdown."""

from __future__ import annotations

import html
import json
import re
from typing import Any, Final

from dsv4check.records import dataclass

# An escape sequence in any spelling: the byte itself, what `cat -v`, JSON or syslog make of it, or nothing at all.
_ESCAPE: Final = re.compile(
    r"(?:\x1b|\^\[|\\x1b|\\u001b|\\033|#033)(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[=>()][0-9A-B]?)"
    r"|(?<![\w\])'\"])\[(?:0|\d{1,2}(?:;\d{1,3}){1,4}|[39]\dm?)m"
)
_CONTROLS: Final = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 0x7F, 0x200B, 0xFEFF])
_ENTITY: Final = re.compile(r"&(?:gt|lt|amp|quot|apos|nbsp|#\d{1,5}|#x[0-9a-fA-F]{1,5});")
_TAG: Final = re.compile(r"</?(?:details|summary|pre|code|p|br|div|span)(?: [^<>]{0,200})?/?>", re.IGNORECASE)
_FENCE: Final = re.compile(r"^\s{0,8}(?:```|~~~)[\w+-]{0,20}\s*$")
_STREAM_HEADER: Final = re.compile(r"^[\x01\x02]\x00{3}[\s\S]{4}")

_ISO: Final = r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|\ ?[+-]\d\d:?\d\d)?"
_WRAPPER: Final = re.compile(
    rf"""
      (?P<cri>{_ISO}\ (?:stdout|stderr)\ (?P<tag>[FP])(?:\ |$))
    | (?P<step>[^\t]{{1,100}}\t[^\t]{{1,100}}\t(?={_ISO}))
    | (?P<journal>(?:[A-Z][a-z][a-z]\ [\ \d]\d\ \d\d:\d\d:\d\d(?:\.\d{{1,6}})?|{_ISO})
        \ [\w.-]{{1,80}}\ (?!vllm\ serve:)[\w.@/\\:-]{{1,80}}?\[\d{{1,8}}\]:\ ?)
    | (?P<kernel>[A-Z][a-z][a-z]\ [\ \d]\d\ \d\d:\d\d:\d\d\ [\w.-]{{1,80}}\ (?=kernel:|systemd))
    | (?P<time>\[?{_ISO}\]?(?:\ \|)?(?:[\ \t]|$))
    | (?P<pod>\[pod/[^\]\s]{{1,300}}\]\ ?)
    | (?P<compose>[A-Za-z0-9][\w.-]{{0,80}}\ {{1,40}}\|(?:\ |$))
    """,
    re.VERBOSE,
)
_QUOTE: Final = re.compile(r"^\s{0,3}(?:>\s?)+")
_TEXT_KEYS: Final = ("log", "message", "msg", "MESSAGE", "line", "text", "body", "textPayload")
_INNER_KEYS: Final = ("attributes", "content", "_source", "jsonPayload", "event")
_LEVEL_KEYS: Final = ("levelname", "level", "severity", "lvl")
_LEVELS: Final = {
    "TRACE": "DEBUG",
    "DEBUG": "DEBUG",
    "INFO": "INFO",
    "NOTICE": "INFO",
    "WARN": "WARNING",
    "WARNING": "WARNING",
    "ERR": "ERROR",
    "ERROR": "ERROR",
    "CRITICAL": "CRITICAL",
    "FATAL": "CRITICAL",
}


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """A line without what containers and collectors put around it."""

    text: str
    label: str = ""
    """Container, pod or host it came from, to keep interleaved streams apart."""
    level: str = ""
    """From a record of a collector; empty when it says none."""
    process: str = ""
    wrapped: bool = False
    """Something was taken off."""
    partial: bool = False
    """The runtime cut the line; the next one of the same label goes on."""


def clean(raw: str, *, quoted: bool = True) -> str:
    """The line without escape sequences, control characters, entities and marks of Markdown around it.

    ``quoted``: a ``>`` in front is the mark of a quotation.
    """
    text = raw
    if text[:1] in "\x01\x02" and text:
        text = _STREAM_HEADER.sub("", text)
    if "[" in text:
        text = _ESCAPE.sub("", text)
    if not text.isprintable():
        text = text.translate(_CONTROLS).replace("\u00a0", " ")
    if "&" in text and _ENTITY.search(text):
        text = html.unescape(text)
    if "<" in text:
        text = _TAG.sub("", text)
    if quoted and text.startswith((">", " >", "  >", "   >")):
        text = _QUOTE.sub("", text)
    if "`" in text:
        text = "" if _FENCE.match(text) else _without_ticks(text)
    return text.rstrip()


def unwrap(text: str) -> Unwrapped:
    """Takes off what is known around the line, however many layers."""
    label = level = process = ""
    wrapped = partial = False
    for _ in range(6):
        if text.startswith("{") and text.endswith("}"):
            record = _record(text)
            if record is None:
                break
            text = str(next(record[key] for key in _TEXT_KEYS if isinstance(record.get(key), str)))
            partial = "stream" in record and "log" in record and not text.endswith("\n")
            text = text.rstrip("\r\n")
            for key in ("exc_info", "stack", "exception", "traceback"):
                if isinstance(record.get(key), str) and "Traceback" in record[key]:
                    text = f"{text}\n{record[key]}"
            level = _level(record) or level
            process = _process(record) or process
            text = text if text.isprintable() else clean_lines(text)
            wrapped = True
            continue
        found = _WRAPPER.match(text)
        if found is None:
            break
        wrapped = True
        if found["cri"]:
            partial = found["tag"] == "P"
        name = found["pod"] or found["compose"] or found["step"]
        if name:
            label += name.strip(" |\t")
        text = text[found.end() :]
        if found["step"]:
            text = text.lstrip("\ufeff")
    return Unwrapped(text, label, level, process, wrapped, partial)


def clean_lines(text: str) -> str:
    """Several lines, each cleaned."""
    return "\n".join(clean(line) for line in text.split("\n"))


def level_of(word: Any) -> str:
    """vLLM's word for a level, empty for what is none."""
    return _LEVELS.get(word.strip().upper(), "") if isinstance(word, str) else ""


def _record(text: str) -> dict[str, Any] | None:
    """The record of a collector; None for any other text in braces."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    for key in _INNER_KEYS:
        inner = record.get(key)
        if isinstance(inner, dict) and any(isinstance(inner.get(name), str) for name in _TEXT_KEYS):
            return inner
    return record if any(isinstance(record.get(key), str) for key in _TEXT_KEYS) else None


def _level(record: dict[str, Any]) -> str:
    return next((level for key in _LEVEL_KEYS if (level := level_of(record.get(key)))), "")


def _process(record: dict[str, Any]) -> str:
    name = record.get("processName", record.get("process_name"))
    return name if isinstance(name, str) and name != "MainProcess" and len(name) < 60 else ""


def _without_ticks(text: str) -> str:
    """Without a code fence that stands on the same line as the code."""
    text = text.rstrip()
    for mark in ("```", "`"):
        if text.startswith(mark) and text.endswith(mark) and len(text) > 2 * len(mark):
            return text[len(mark) : -len(mark)].strip("`")
    if text.startswith("```"):
        return text[3:]
    return text.removesuffix("```")
