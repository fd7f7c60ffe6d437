"""Settings of vLLM in YAML mappings, as words: flags by their name, arguments in one text, values as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import yaml

from dsv4check.launchfiles.engine_words import NEWEST, Argument
from dsv4check.launchfiles.expansion import stated
from dsv4check.launchfiles.kubernetes_containers import variables_of
from dsv4check.launchfiles.records import DERIVED, SHELL, VALUE, FileWord, Stated
from dsv4check.launchfiles.text import Located, Span
from dsv4check.launchfiles.yaml_nodes import Document, items, nodes, pairs, text_of
from dsv4check.releases.flag_table import load_flag_table

_BOOL: Final = "tag:yaml.org,2002:bool"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"
_TRUE: Final = frozenset(("true", "yes", "on"))
_OPENING: Final = {"{": "}", "[": "]"}
_COMMON: Final = frozenset(
    """
    --model --host --port --dtype --seed --config --tokenizer --revision --runner --convert --headless --uds --help
    --quantization --api-key --log-level --middleware --root-path --watermark --chat-template --max-log-len --grpc
    """.split()  # noqa: SIM905
)
"""Flags that other programs have, too."""


def _tag(node: yaml.Node | None) -> str:
    """The type that YAML gives a scalar."""
    if not isinstance(node, yaml.ScalarNode):
        return ""
    if node.tag:
        return str(node.tag)
    return str(_resolver().resolve(yaml.ScalarNode, node.value, (not node.style, False)))


@cache
def _resolver() -> Any:
    return yaml.resolver.Resolver()


def is_true(node: yaml.Node | None) -> bool:
    """True for ``true`` and its other spellings in YAML."""
    return node is not None and _tag(node) == _BOOL and str(node.value).lower() in _TRUE


def is_false(node: yaml.Node | None) -> bool:
    """True for ``false`` and its other spellings in YAML."""
    return node is not None and _tag(node) == _BOOL and str(node.value).lower() not in _TRUE


def plain(node: yaml.Node, depth: int = 0) -> Any:
    """The value that a node stands for, as JSON knows values."""
    if depth > 50:
        return None
    if isinstance(node, yaml.MappingNode):
        return {key.value: plain(value, depth + 1) for key, value in pairs(node)}
    if isinstance(node, yaml.SequenceNode):
        return [plain(item, depth + 1) for item in node.value]
    text, tag = text_of(node), _tag(node)
    if text is None or tag == _BOOL:
        return None if text is None else is_true(node)
    if tag in (_INT, _FLOAT):
        try:
            return int(text) if tag == _INT else float(text)
        except (ValueError, OverflowError):
            return text
    return text


def argument(document: Document, key: yaml.ScalarNode, value: yaml.Node) -> Argument:
    """An engine argument and its value."""
    name, place, span = key.value, document.span(key), _trimmed(document, value)
    if isinstance(value, (yaml.MappingNode, yaml.SequenceNode)):
        spans = tuple(document.span(item) for item in items(value))
        return Argument(name, place, plain(value), span, (), (), spans)
    word = document.word(value, VALUE)
    if word is None:
        return Argument(name, place, None, span)
    if is_true(value) or is_false(value):
        return Argument(name, place, is_true(value), span)
    return Argument(name, place, word.text, span, word.open, word.offsets)


def _trimmed(document: Document, node: yaml.Node) -> Span:
    """Where a node stands, without the blanks and comments behind a block that end only where the next one starts."""
    span = document.span(node)
    if isinstance(node, yaml.ScalarNode) or getattr(node, "flow_style", False):
        return span
    last = span.start
    for child in nodes(node):
        if isinstance(child, yaml.ScalarNode):
            last = max(last, document.span(child).stop)
    return Span(span.start, last) if span.start < last <= span.stop else span


def environment(document: Document, *nodes: yaml.Node | None) -> dict[str, Stated]:
    """Variables in mappings, and in lists of ``{name, value}``."""
    return {name: stated(word) for name, word in variables_of(document, *nodes).items()}


def flag(document: Document, name: str, key: yaml.Node) -> FileWord:
    """A flag that a key stands for."""
    return FileWord(name, document.span(key), VALUE)


def implied(text: str, span: Span) -> FileWord:
    """A word that nothing spells."""
    return FileWord(text, span, DERIVED)


def part(word: FileWord, start: int, stop: int | None = None) -> FileWord:
    """The characters of a word from ``start`` to ``stop``."""
    end = len(word.text) if stop is None else stop
    located = word.located().part(start, end)
    text = located.text
    return FileWord(text, located.span(), word.slot, tuple(i for i in word.open if i in text), located.offsets[:-1])


def split_arguments(word: FileWord) -> list[FileWord]:
    """Arguments in one text, cut at blanks outside quotes, braces and brackets: JSON needs no quotes there."""
    return [_unquoted(piece, word) for piece in _pieces(word.located())]


def _pieces(text: Located) -> Iterator[Located]:
    content, at, nests = text.text, 0, True
    while at < len(content):
        if content[at].isspace() or content.startswith("\\\n", at):
            at += 1
            continue
        stop = _piece_end(content, at) if nests else None
        if stop is None:
            # Something is never closed: from here on blanks are all that counts.
            nests = False
            stop = next((index for index in range(at, len(content)) if content[index].isspace()), len(content))
        yield text.part(at, stop)
        at = stop


def _piece_end(content: str, at: int) -> int | None:
    """Where the argument that starts at ``at`` ends; None where a quote or a bracket is never closed."""
    quote = ""
    closing: list[str] = []
    while at < len(content):
        char = content[at]
        if quote:
            at += char == "\\" and quote == '"'
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in _OPENING:
            closing.append(_OPENING[char])
        elif closing and char == closing[-1]:
            closing.pop()
        elif char.isspace() and not closing:
            return at
        at += 1
    return None if quote or closing else min(at, len(content))


def _unquoted(piece: Located, word: FileWord) -> FileWord:
    text, span = piece.text, piece.span()
    if len(text) > 1 and text[0] in "\"'" and text.find(text[0], 1) == len(text) - 1:
        piece = piece.part(1, len(text) - 1)
    opened = tuple(item for item in word.open if item in piece.text)
    return FileWord(piece.text, span, SHELL, opened, piece.offsets[:-1])


@cache
def _spellings() -> frozenset[str]:
    return frozenset(load_flag_table(NEWEST).by_option)


def flag_of_key(name: str) -> str | None:
    """The flag that a key names (``max-model-len``, ``max_model_len``), None for others."""
    spelled = "--" + name.replace("_", "-")
    return spelled if spelled in _spellings() else None


def distinctive(names: list[str]) -> int:
    """How many of the flags are vLLM's own, not also those of other programs."""
    found = {name.partition("=")[0].partition(".")[0].replace("_", "-") for name in names if name.startswith("--")}
    return len((found & _spellings()) - _COMMON)
