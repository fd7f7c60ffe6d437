"""The commands that a report shows, with what stands around them: environment, image, GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from dsv4check.deployment import Command, Token
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import PublishedModel
from dsv4check.inputs.flags.parser import parse_flags
from dsv4check.launchfiles.dynamo import engine_server
from dsv4check.launchfiles.extract import MARKS, extract
from dsv4check.launchfiles.records import Context, Launch, Server
from dsv4check.launchfiles.text import SourceText
from dsv4check.problems import Origin
from dsv4check.records import dataclass, field
from dsv4check.releases.flag_table import load_flag_table
from dsv4check.releases.timeline import newest_release
from dsv4check.triage.command_regions import launch_regions
from dsv4check.triage.model_hint import published_like
from dsv4check.triage.records import LogLine, LogReading
from dsv4check.triage.version_banner import place

_PLAIN: Final = re.compile(r"[A-Za-z]{1,20}[,.;:]?")
_SENTENCE: Final = 3
"""So many plain words behind each other are no values of a flag."""
_MOST_TEXT: Final = 200_000


@dataclass(frozen=True, slots=True)
class ShownLaunch:
    """One launch in a report."""

    words: tuple[str, ...]
    """Model and flags; a word whose value the text does not state is left out with its flag."""
    env: dict[str, str] = field(default_factory=dict)
    image: str | None = None
    gpu: str | None = None
    gpus: str | None = None
    nodes: str | None = None
    line: LogLine | None = None
    notes: tuple[str, ...] = ()
    model: str | None = None
    entrypoint: str = "serve"

    @property
    def known(self) -> PublishedModel | None:
        """The DeepSeek-V4 checkpoint that its words name."""
        return published_like([self.model or "", *self.words])


def shown_launches(reading: LogReading) -> tuple[ShownLaunch, ...]:
    """The launches in the text around a log, in order. Never raises."""
    found: list[ShownLaunch] = []
    for text, at, whole in launch_regions(reading.head[:_MOST_TEXT]):
        source = SourceText("-", text)
        if not MARKS.search(text):
            continue
        try:
            launches = extract(Context(source)).launches
        except (ValueError, RecursionError):
            continue
        offset = at if whole else None
        for launch in launches:
            shown = _shown(launch, reading, at if offset is None else at + launch.server.place.start)
            if shown is not None and not any(shown.words == other.words for other in found):
                found.append(shown)
    return tuple(found)


def _shown(launch: Launch, reading: LogReading, at: int) -> ShownLaunch | None:
    server = engine_server(launch)
    if server.other or server.entrypoint not in ("serve", "api_server", "engine"):
        return None
    if not _is_meant(server):
        return None
    words, notes = _known_words(server)
    image = launch.image or server.image
    stated = launch.gpus or server.gpus
    return ShownLaunch(
        words=words,
        env={name: item.value for name, item in server.env.items() if "$" not in item.value},
        image=image.value if image is not None else None,
        gpu=launch.gpu.value if launch.gpu is not None else None,
        gpus=stated.value if stated is not None else None,
        nodes=launch.nodes.value if launch.nodes is not None else None,
        line=place(reading, at),
        notes=(*server.notes, *notes),
        model=_model(words, server.entrypoint),
        entrypoint=server.entrypoint,
    )


def _is_meant(server: Server) -> bool:
    """False for a sentence about ``vllm serve``."""
    return any(word.open or word.text.startswith("-") or "/" in word.text for word in server.words)


def _known_words(server: Server) -> tuple[tuple[str, ...], list[str]]:
    kept: list[str] = []
    notes = []
    for word in server.words:
        if not word.open:
            kept.append(word.text)
            continue
        flag = kept.pop() if kept and kept[-1].startswith("--") and not word.text.startswith("-") else word.text
        notes.append(f"{flag.partition('=')[0]}: its value is not in the text ({', '.join(word.open)}), left out")
    return _without_sentence(kept), notes


def _without_sentence(words: list[str]) -> tuple[str, ...]:
    """The words up to where a sentence goes on behind the command: several plain words in a row."""
    first = 0
    while first < len(words):
        stop = first
        while stop < len(words) and not words[stop].startswith("-"):
            stop += 1
        if sum(bool(_PLAIN.fullmatch(word)) for word in words[first + 1 : stop]) >= _SENTENCE:
            return (*words[:first], words[first].rstrip(",;.")) if first else tuple(words[:1])
        first = stop + 1
    return tuple(words)


def _model(words: Sequence[str], entrypoint: str) -> str | None:
    for index, word in enumerate(words):
        if word == "--model" and index + 1 < len(words):
            return words[index + 1]
        if word.startswith("--model="):
            return word.partition("=")[2]
    if entrypoint == "api_server":
        return None
    if words and not words[0].startswith("-"):
        return words[0]
    # A model behind the flags: which word it is only the parser can tell.
    command = Command(("vllm", "serve"), tuple(Token(word, Origin("flag", word)) for word in words))
    try:
        return parse_flags(command, load_flag_table(newest_release()), read_file=_no_file).model
    except InputError:
        return None


def _no_file(path: str) -> str:
    raise OSError(f"{path} lies on another machine")
