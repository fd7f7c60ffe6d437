"""Files read in tests, and what is found in them in a form that is short to compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from dsv4check.launchfiles.records import Context, FileWord, Launch
from dsv4check.launchfiles.text import SourceText

SAMPLES = Path(__file__).parent / "samples"
Reader = Callable[[Context], list[Launch]]


def context_of(text: str, path: str = "file", **more: object) -> Context:
    return Context(SourceText(path, text), **more)  # type: ignore[arg-type]


def sample(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def texts(launch: Launch) -> list[str]:
    return [word.text for word in launch.server.words]


def flags(launch: Launch) -> dict[str, str | bool]:
    """Flag -> value, True for a flag that stands alone."""
    found: dict[str, str | bool] = {}
    last = ""
    for text in texts(launch):
        if text.startswith("-"):
            last, equals, value = text.partition("=")
            found[last] = value if equals else True
        elif last and found[last] is True:
            found[last] = text
    return found


def env(launch: Launch) -> dict[str, str]:
    return {name: stated.value for name, stated in launch.server.env.items()}


def word(launch: Launch, text: str) -> FileWord:
    return next(item for item in launch.server.words if item.text == text)


def place(context: Context, launch: Launch, text: str) -> tuple[int, int]:
    """Line and column of a word."""
    return context.source.place(word(launch, text).span.start)


def written(context: Context, item: FileWord) -> str:
    """What stands in the file for a word."""
    return context.source.text[item.span.start : item.span.stop]


def check_places(context: Context, launches: list[Launch]) -> None:
    """Every place lies in the file, and every word that is said to stand there as it is does so."""
    length = len(context.source.text)
    for launch in launches:
        spans = [item.span for item in launch.server.words] + [launch.server.place, *launch.heads]
        spans += [stated.span for stated in launch.server.env.values()]
        assert all(0 <= span.start <= span.stop <= length for span in spans)
        for item in launch.server.words:
            assert len(item.offsets) in (0, len(item.text))
            assert all(-1 <= offset <= length for offset in item.offsets)
            located = item.located()
            assert located.text == item.text


def described(launches: list[Launch]) -> list[Mapping[str, object]]:
    return [{"name": launch.name, "words": texts(launch), "env": env(launch)} for launch in launches]
