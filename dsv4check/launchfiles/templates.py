"""Commands in text that another program fills in first: ``{{ .Values.tp }}``, ``${{ inputs.model }}``.

A shell would cut ``{{ .Values.tp }}`` into three words. With a ``$`` in front and without its blanks it is an
expansion whose value is not known, which stays one word; both are put right again afterwards.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from dsv4check.launchfiles.records import ITEM, VALUE, FileWord, Launch, Server, Stated
from dsv4check.launchfiles.text import Located

_TEMPLATE: Final = re.compile(r"(\$?)(\{\{[^{}]{0,300}\}\})")
_VARIABLE: Final = re.compile(r"\$\{[A-Za-z_]\w*[^{}]{0,200}\}")
_PLACEHOLDER: Final = re.compile(r"(?:^|(?<==))<(?:[A-Z][A-Z0-9_ /-]*|(?:your|path|model|insert)\b[^<>]{0,80})>$")
_HIDE: Final = {ord(blank): hidden for blank, hidden in zip(" \t\r\n", "\ue000\ue001\ue002\ue003", strict=True)}
"""Characters that no file holds in place of blanks."""
_SHOW: Final = {ord(hidden): blank for blank, hidden in zip(" \t\r\n", "\ue000\ue001\ue002\ue003", strict=True)}


def guarded(text: Located) -> Located:
    """Text with each template made an expansion."""
    if "{{" not in text.text:
        return text
    pieces: list[str] = []
    offsets: list[int] = []
    at = 0
    for match in _TEMPLATE.finditer(text.text):
        start, stop = match.span(2)
        pieces.append(text.text[at:start])
        offsets += text.offsets[at:start]
        if not match[1]:
            pieces.append("$")
            offsets.append(text.offsets[start])
        pieces.append(match[2].translate(_HIDE))
        offsets += text.offsets[start:stop]
        at = stop
    pieces.append(text.text[at:])
    return Located("".join(pieces), [*offsets, *text.offsets[at:]])


def guarded_word(word: FileWord) -> FileWord:
    """A word that may be a script, its templates made expansions."""
    if "{{" not in word.text:
        return word
    text = guarded(word.located())
    return replace(word, text=text.text, offsets=tuple(text.offsets[:-1]))


def restored(server: Server) -> Server:
    """A server read from such text, everything as it is written."""
    stated = [server.image, *server.env.values()]
    texts = [word.text for word in server.words] + [item.value for item in stated if item is not None]
    if not any("{{" in text for text in (*texts, *server.notes)):
        return server
    return replace(
        server,
        words=tuple(_restored(word) for word in server.words),
        env={name: _as_written(item) for name, item in server.env.items()},
        image=None if server.image is None else _as_written(server.image),
        notes=tuple(_shown(note) for note in server.notes),
    )


def _shown(text: str) -> str:
    return _TEMPLATE.sub(r"\2", text).translate(_SHOW)


def _as_written(stated: Stated) -> Stated:
    return Stated(_shown(stated.value), stated.span) if "{{" in stated.value else stated


def _restored(word: FileWord) -> FileWord:
    matches = list(_TEMPLATE.finditer(word.text))
    if not matches:
        return word
    pieces: list[str] = []
    offsets: list[int] = []
    known = len(word.offsets) == len(word.text)
    unknown = [item for item in word.open if "{{" not in item]
    at = 0
    for match in matches:
        # A sign of its own (`${{ ... }}`) has a place of its own.
        start = match.start()
        added = bool(match[1]) and not (known and word.offsets[start] != word.offsets[start + 1])
        pieces.append(word.text[at:start])
        offsets += word.offsets[at:start]
        at = start + added
        unknown.append(word.text[at : match.end()].translate(_SHOW))
    pieces.append(word.text[at:])
    text = "".join(pieces).translate(_SHOW)
    return replace(
        word,
        text=text,
        open=tuple(dict.fromkeys(unknown)),
        offsets=(*offsets, *word.offsets[at:]) if known else (),
    )


def with_placeholders(launch: Launch) -> Launch:
    """A launch with ``${NAME}`` and ``<NAME>`` in its words as open: something fills them in before it starts.

    Words of shell text were read as the shell reads them, and a compose file's as compose does.
    """
    if launch.format == "compose":
        return launch
    words = tuple(map(_opened, launch.server.words))
    if words == launch.server.words:
        return launch
    return replace(launch, server=replace(launch.server, words=words))


def _opened(word: FileWord) -> FileWord:
    if word.slot not in (ITEM, VALUE) or ("$" not in word.text and "<" not in word.text):
        return word
    found = [*_VARIABLE.findall(word.text), *_PLACEHOLDER.findall(word.text)]
    return replace(word, open=tuple(dict.fromkeys((*word.open, *found)))) if found else word
