"""Manifests read in tests."""

from __future__ import annotations

from pathlib import Path

from dsv4check.launchfiles.records import Context, FileWord, Launch, Stated
from dsv4check.launchfiles.text import SourceText
from dsv4check.launchfiles.yaml_launches import yaml_launches

SAMPLES = Path(__file__).parent / "samples"


class Manifest:
    """A file, its launches, and where things stand in it."""

    def __init__(self, text: str, path: str = "some.yaml", **outside: object) -> None:
        self.text = text
        self.context = Context(SourceText(path, text), **outside)  # type: ignore[arg-type]
        self.format, self.launches = yaml_launches(self.context)

    @classmethod
    def sample(cls, name: str) -> Manifest:
        return cls((SAMPLES / name).read_text(encoding="utf-8"), name)

    @property
    def only(self) -> Launch:
        assert self.context.problems == []
        assert len(self.launches) == 1
        return self.launches[0]

    @property
    def problems(self) -> list[tuple[int, str]]:
        return [(problem.line, problem.why) for problem in self.context.problems]

    def at(self, item: FileWord | Stated | None) -> tuple[int, int]:
        """Line and column."""
        assert item is not None
        return self.context.source.place(item.span.start)

    def written(self, item: FileWord | Stated | None) -> str:
        """What stands there in the file."""
        assert item is not None
        return self.text[item.span.start : item.span.stop]

    def word(self, text: str, launch: int = 0) -> FileWord:
        return next(word for word in self.launches[launch].server.words if word.text == text)

    def lines(self, launch: int = 0) -> list[int]:
        """Lines of the heads."""
        return [self.context.line(span.start) for span in self.launches[launch].heads]


def texts(launch: Launch) -> list[str]:
    return [word.text for word in launch.server.words]


def env(launch: Launch) -> dict[str, str]:
    return {name: stated.value for name, stated in launch.server.env.items()}


def value(stated: Stated | None) -> str | None:
    return None if stated is None else stated.value


def check_places(manifest: Manifest) -> None:
    """No place lies outside the file."""
    size = len(manifest.text)
    for launch in manifest.launches:
        stated = [launch.image, launch.gpu, launch.gpus, launch.nodes, *launch.server.env.values()]
        spans = [item.span for item in (*stated, *launch.server.words) if item is not None]
        for span in (*spans, launch.server.place, *launch.heads):
            assert 0 <= span.start <= span.stop <= size
        for word in launch.server.words:
            assert len(word.offsets) in (0, len(word.text))
            assert all(-1 <= offset <= size for offset in word.offsets)
