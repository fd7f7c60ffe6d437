"""Engine arguments given by name (``LLM(kv_cache_dtype="fp8")``, Ray's ``engine_kwargs``) as command line words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

from dsv4check.launchfiles.records import DERIVED, VALUE, FileWord
from dsv4check.launchfiles.text import Span
from dsv4check.records import dataclass
from dsv4check.releases.flag_table import FlagSpec, load_flag_table

NEWEST: Final = "0.33.0"
"""The release whose flags tell the arguments of the engine from those of the server."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument with its value."""

    name: str
    key: Span | None
    """Where the name stands; None where it goes without saying."""
    value: Any
    """True, False, None, a list or a mapping; anything else is the text of a scalar."""
    span: Span
    """Where the value stands, with its quotes."""
    open: tuple[str, ...] = ()
    """Expressions in the value that are not known."""
    offsets: Sequence[int] = ()
    """Of each character of a scalar, where that is known."""
    spans: tuple[Span, ...] = ()
    """Of each item of a list."""


@cache
def _server_only() -> frozenset[str]:
    """The arguments that only the server has: a release's table lists them in front of the model."""
    names = list(load_flag_table(NEWEST).by_dest)
    return frozenset(names[: names.index("model")])


def engine_words(arguments: Iterable[Argument]) -> tuple[list[FileWord], tuple[str, ...]]:
    """The words of the arguments, and notes on what was left out."""
    table = load_flag_table(NEWEST)
    words: list[FileWord] = []
    left_out: list[str] = []
    for argument in arguments:
        if argument.name in _server_only():
            left_out.append(argument.name)
        elif argument.value is not None:
            words += _words(argument, table.by_dest.get(argument.name))
    if not left_out:
        return words, ()
    is_are = "is an argument" if len(left_out) == 1 else "are arguments"
    return words, (f"{', '.join(left_out)} {is_are} of the server, not of the engine: left out",)


def _words(argument: Argument, spec: FlagSpec | None) -> list[FileWord]:
    bare = "--" + argument.name.replace("_", "-")
    key = argument.key or argument.span
    flag = FileWord(bare, key, DERIVED if argument.key is None else VALUE)
    value = argument.value
    if isinstance(value, bool):
        if spec is not None and spec.takes_value and spec.nargs != "?":
            return [flag, FileWord(str(value), argument.span, VALUE)]
        if value:
            return [flag]
        if spec is not None and not spec.negative:
            # A flag without a negative form is off unless it is given.
            return []
        return [FileWord("--no-" + bare[2:], key, VALUE)]
    if isinstance(value, list) and spec is not None and spec.nargs == "+":
        spans = argument.spans if len(argument.spans) == len(value) else (argument.span,) * len(value)
        return [flag, *(_item(item, span, argument.open) for item, span in zip(value, spans, strict=True))]
    if isinstance(value, (list, dict)):
        text = json.dumps(value, ensure_ascii=False)
        return [flag, FileWord(text, argument.span, VALUE, argument.open)]
    return [flag, FileWord(str(value), argument.span, VALUE, argument.open, argument.offsets)]


def _item(value: Any, span: Span, unknown: tuple[str, ...]) -> FileWord:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return FileWord(text, span, VALUE, tuple(item for item in unknown if item in text))
