"""Which published checkpoint a path or a name of a log stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from dsv4check.inputs.checkpoint import PublishedModel, find_published, guess_sibling
from dsv4check.triage.records import Fact, LogReading
from dsv4check.triage.version_banner import place

FAMILY: Final = re.compile(r"deepseek[-_. ]?v4|\bds[-_]?v4", re.IGNORECASE)
_SPELLINGS: Final = (
    (re.compile(r"^deepseek[-_. ]?v[-_. ]?4", re.IGNORECASE), "DeepSeek-V4"),
    (re.compile(r"^ds[-_]?v[-_]?4", re.IGNORECASE), "DeepSeek-V4"),
)
_LONGEST: Final = 4096


def published_like(names: Iterable[str]) -> PublishedModel | None:
    """The checkpoint that the first telling one of ``names`` stands for, by its last part or by a folder above it."""
    for name in names:
        if not name or len(name) > _LONGEST or not FAMILY.search(name):
            continue
        for part in _parts(name):
            found = find_published(part) or guess_sibling(part)
            if found is not None:
                return found
    return None


def _parts(name: str) -> Iterator[str]:
    """The name, then its parts from the last one on, each as it is and in the publisher's spelling."""
    pieces = [piece for piece in re.split(r"[/\\=]+", name) if FAMILY.search(piece)]
    for piece in [name, *reversed(pieces)]:
        yield piece
        plain = piece.rpartition("/")[2].replace("_", "-")
        # ``models--org--name`` of the Hugging Face cache.
        plain = plain.rpartition("--")[2]
        for pattern, spelling in _SPELLINGS:
            plain = pattern.sub(spelling, plain)
        yield plain


_NAMED: Final = re.compile(
    r"(?<![\w./-])(?:[\w.-]{1,60}/)?DeepSeek[-_]V4(?:\.1)?[-_](?:Flash|Pro)[\w.-]{0,60}", re.IGNORECASE
)
_MOST: Final = 200


def shown_models(reading: LogReading) -> Iterator[Fact]:
    """DeepSeek-V4 models that a report's own words name, each checkpoint once."""
    seen: set[str] = set()
    for count, match in enumerate(_NAMED.finditer(reading.head)):
        if count >= _MOST:
            return
        name = match.group().rstrip(".-_")
        entry = published_like([name])
        if entry is not None and entry.id not in seen:
            seen.add(entry.id)
            yield Fact("model", entry.id, "prose", place(reading, match.start()))
