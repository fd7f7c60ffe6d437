"""Which vLLM runs which model, as its first lines say it, and as package lists, images and reports say it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
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
_COLLECTED: Final = re.compile(rf"^[\s>|]*vLLM Version\s*: *{_VERSION}", re.MULTILINE | re.IGNORECASE)
_COLLECTED_HINT: Final = re.compile(r"vllm version *:", re.IGNORECASE)
_NAMED: Final = re.compile(rf"^Name: vllm\s*\nVersion: {_VERSION}", re.MULTILINE)
_PACKAGES: Final = (
    re.compile(rf"vllm(?:\[[\w,]{{1,60}}\])? ?== ?{_VERSION}"),
    re.compile(rf"vllm[ \t|]{{2,40}}{_VERSION}\b"),
    re.compile(rf"vllm-{_VERSION}-(?:cp|py)\d"),
)
_MARKUP: Final = r"[*_`\"']{0,3}"
_SAID: Final = re.compile(
    rf"vllm{_MARKUP}(?:[ -]?(?:version|版本|release))?{_MARKUP}\s{{0,3}}[:：=]?{_MARKUP}\s{{0,3}}{_MARKUP}{_VERSION}",
    re.IGNORECASE,
)
_BUILD: Final = re.compile(
    r"(?<![\w.=/+-])v?(?P<version>0\.\d{1,4}(?:\.\d{1,4})?(?:rc\d{1,3})?\.dev\d{1,6}\+g[0-9a-f]{6,40}[\w.]{0,40})"
)
_RELEASE: Final = re.compile(
    r"(?<![\w.=/:+-])v(?P<version>0\.(?:1\d|[2-9]\d)\.\d{1,2}(?:rc\d{1,2}|\.post\d)?)(?![\w.]*\w)"
)
_WORKS: Final = re.compile(
    r"(?:works?|fine|ok|good|fixed)\s(?:\w{1,12}\s)?(?:on|with|in|under)\s{1,3}\Z", re.IGNORECASE
)
_NOT_OURS: Final = re.compile(r"ascend|omni|sglang|\bNPU|\b910|w8a8", re.IGNORECASE)
_IMAGE: Final = re.compile(
    r"(?<![\w./:@-])(?:[\w.-]{1,80}(?::\d{1,5})?/){0,4}[\w.-]{0,80}vllm[\w.-]{0,80}:[\w.-]{1,100}", re.IGNORECASE
)
_IMAGE_TAIL: Final = re.compile(r"[\w.-]{0,80}:[\w.-]")
_IMAGE_START: Final = re.compile(r"[\w./:-]{0,400}\Z")
_OPENING: Final = 4000
"""Characters that a report names its version in without saying of what."""
_PREVIEW: Final = re.compile(r"0\.1\.dev\d|0\.0\.0|0\.1\.0(?:\+|$)")
_MOST: Final = 50
_MOST_TAGGED: Final = 2000


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
    """Versions in what stands around a log: strongest kind of text first.

    A build that is spelled out says more than an image's tag, and a tag that moves (``nightly``) says nearly nothing.
    """
    head = reading.head
    named = _mentions(head)
    collected = list(_COLLECTED.finditer(head)) if _COLLECTED_HINT.search(head) else []
    yield from _facts(reading, "collect_env", collected)
    yield from _facts(reading, "package list", _listed(head, named))
    builds = list(_BUILD.finditer(head)) if ".dev" in head and "+g" in head else []
    yield from _facts(reading, "prose", builds)
    found = [image for image in images(head) if release_of_image(image) is not None]
    exact = [image for image in found if any(letter.isdigit() for letter in image.rpartition(":")[2].partition("-")[0])]
    yield from _image_facts(reading, exact)
    said = [match for at in named if (match := _SAID.match(head, at)) is not None and _is_whole(head, at)]
    said = [match for match in said if not _WORKS.search(head[max(0, match.start() - 40) : match.start()])]
    yield from _facts(reading, "prose", said)
    if not said and not builds:
        yield from _facts(reading, "prose", _bare_releases(head))
    yield from _image_facts(reading, [image for image in found if image not in exact])


def _mentions(text: str) -> list[int]:
    """Where the text says vLLM."""
    lowered = text.lower()
    if len(lowered) != len(text):
        return [match.start() for match in re.finditer("vllm", text, re.IGNORECASE)]
    found = []
    at = lowered.find("vllm")
    while at >= 0:
        found.append(at)
        at = lowered.find("vllm", at + 4)
    return found


def _is_whole(text: str, at: int) -> bool:
    return at == 0 or not (text[at - 1].isalnum() or text[at - 1] in "_-/")


def _listed(head: str, named: list[int]) -> Iterator[re.Match[str]]:
    pinned, row, wheel = _PACKAGES
    own = [at for at in named if _is_whole(head, at) and head.startswith("vllm", at)]
    yield from (match for at in own if (match := pinned.match(head, at)))
    yield from _NAMED.finditer(head) if "Name: vllm" in head else ()
    for at in own:
        match = row.match(head, at)
        if match is not None and not head[head.rfind("\n", 0, at) + 1 : at].strip(" \t>|"):
            yield match
    yield from (match for at in own if (match := wheel.match(head, at)))


def _bare_releases(head: str) -> Iterator[re.Match[str]]:
    """``(model, v0.24.0)``: a version that no name stands beside, in a text about vLLM alone."""
    opening = head[:_OPENING]
    if "v0." not in opening or _NOT_OURS.search(opening):
        return
    for match in _RELEASE.finditer(opening):
        if not _WORKS.search(opening[max(0, match.start() - 40) : match.start()]):
            yield match


def _facts(reading: LogReading, how: str, matches: Iterable[re.Match[str]]) -> Iterator[Fact]:
    for count, match in enumerate(matches):
        if count >= _MOST:
            return
        yield Fact("vllm", match["version"].rstrip(".-_"), how, place(reading, match.start()))


def _image_facts(reading: LogReading, names: Iterable[str]) -> Iterator[Fact]:
    for image in names:
        yield Fact("vllm", image, "image", place(reading, reading.head.find(image)))


def images(text: str) -> tuple[str, ...]:
    """References of container images that are called like vLLM's, in order."""
    found: dict[str, None] = {}
    read_to = 0
    tagged = (at for at in _mentions(text) if _IMAGE_TAIL.match(text, at + 4) is not None)
    for at in islice(tagged, _MOST_TAGGED):
        if at < read_to:
            continue
        before = _IMAGE_START.search(text[max(0, at - 400) : at])
        match = _IMAGE.search(text, at - (len(before.group()) if before is not None else 0), at + 200)
        if match is None:
            continue
        read_to = match.end()
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
