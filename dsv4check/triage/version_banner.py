"""Which vLLM runs which model, as its first lines say it, and as package lists, images and reports say it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dsv4check.launchfiles.images import release_of_image
from dsv4check.triage.records import Fact, LogLine, LogReading, Run

_VERSION: Final = r"v?(?P<version>\d{1,3}\.\d{1,4}[\w.+]{0,80})"
_BANNERS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("version banner", re.compile(rf"[█▀▄]\s{{1,8}}version\s{{1,8}}{_VERSION}\s*$")),
    ("version banner", re.compile(rf"vLLM (?:API )?server version {_VERSION}")),
    ("engine config", re.compile(rf"Initializing a V1 LLM engine \({_VERSION}\)")),
    # A usage report, and the snapshot of a crash.
    ("engine config", re.compile(rf"Dumping input data for V1 LLM engine \({_VERSION}\)")),
)
_MODELS: Final = (
    re.compile(r"[█▀▄]\s{1,8}model\s{1,8}(?P<model>\S.{0,400}?)\s*$"),
    re.compile(r"vLLM server version \S+, serving model (?P<model>\S.{0,400}?)\s*$"),
)
_TEXTS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("collect_env", re.compile(rf"^[\s>|]*vLLM Version\s*: *{_VERSION}", re.MULTILINE | re.IGNORECASE)),
    ("package list", re.compile(rf"(?<![\w-])vllm(?:\[[\w,]{{1,60}}\])? ?== ?{_VERSION}")),
    ("package list", re.compile(rf"^Name: vllm\s*\nVersion: {_VERSION}", re.MULTILINE)),
    ("package list", re.compile(rf"^[\s>|]*vllm[ \t|]{{2,40}}{_VERSION}\b", re.MULTILINE)),
    ("package list", re.compile(rf"(?<![\w-])vllm-{_VERSION}-(?:cp|py)\d")),
    (
        "prose",
        re.compile(rf"(?<![\w/-])vllm(?:[ -]?(?:version|版本|release))?\s{{0,3}}[:：=]?\s{{0,3}}{_VERSION}", re.I),
    ),
)
_IMAGE: Final = re.compile(
    r"(?<![\w./:@-])(?:[\w.-]{1,80}(?::\d{1,5})?/){0,4}[\w.-]{0,80}vllm[\w.-]{0,80}:[\w.-]{1,100}", re.IGNORECASE
)
_PREVIEW: Final = re.compile(r"0\.1\.dev\d|0\.0\.0|0\.1\.0(?:\+|$)")
_MOST: Final = 50


def banner_facts(run: Run) -> Iterator[Fact]:
    """Version and model of a start, from the lines vLLM begins with."""
    opening = () if run.first is None or run.first in run.lines[:1] else (run.first,)
    for line in (*opening, *run.lines):
        text = line.text
        if "version" in text or "V1 LLM engine" in text:
            for how, pattern in _BANNERS:
                match = pattern.search(text)
                if match is not None:
                    yield Fact("vllm", match["version"].rstrip("."), how, line)
                    break
        if "model" in text:
            for pattern in _MODELS:
                match = pattern.search(text)
                if match is not None:
                    yield Fact("model", match["model"], "version banner", line)
                    break


def text_versions(reading: LogReading) -> Iterator[Fact]:
    """Versions in what stands around a log: strongest kind of text first."""
    for how, pattern in _TEXTS[:-1]:
        for count, match in enumerate(pattern.finditer(reading.head)):
            if count >= _MOST:
                break
            yield Fact("vllm", _bare(match["version"]), how, place(reading, match.start()))
    for image in images(reading.head):
        if release_of_image(image) is not None:
            yield Fact("vllm", image, "image", place(reading, reading.head.find(image)))
    how, pattern = _TEXTS[-1]
    for count, match in enumerate(pattern.finditer(reading.head)):
        if count >= _MOST:
            break
        yield Fact("vllm", _bare(match["version"]), how, place(reading, match.start()))


def images(text: str) -> tuple[str, ...]:
    """References of container images that are called like vLLM's, in order."""
    found: dict[str, None] = {}
    for match in _IMAGE.finditer(text):
        found[match.group().rstrip(".:")] = None
        if len(found) >= _MOST:
            break
    return tuple(found)


def is_preview(version: str) -> bool:
    """True for a build whose number says nothing: made from a branch whose tags were not fetched."""
    return bool(_PREVIEW.match(version))


def place(reading: LogReading, offset: int) -> LogLine:
    """The line of the head that a find stands in."""
    head = reading.head
    start = head.rfind("\n", 0, offset) + 1
    stop = head.find("\n", offset)
    text = head[start : stop if stop >= 0 else len(head)][:500]
    return LogLine(reading.sources[0] if reading.sources else "-", head.count("\n", 0, offset) + 1, text.strip())


def _bare(version: str) -> str:
    """Without the full stop that ends a sentence."""
    return version.rstrip(".")
