"""Setting and removing keys of a JSON value, and writing it the way the user wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dsv4check.inputs.flags.convert import human_readable_int


def set_nested(data: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of ``data`` with the value at ``path``; mappings on the way are made where they lack."""
    result = dict(data)
    key = _spelled(result, path[0])
    if len(path) == 1:
        result[key] = value
        return result
    inner = result.get(key)
    result[key] = set_nested(inner if isinstance(inner, Mapping) else {}, path[1:], value)
    return result


def remove_key(data: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """A copy of ``data`` without the value at ``path``; mappings that become empty go too."""
    result = dict(data)
    key = _spelled(result, path[0])
    if key not in result:
        return result
    if len(path) == 1:
        del result[key]
        return result
    inner = result[key]
    if isinstance(inner, Mapping):
        left = remove_key(inner, path[1:])
        if left or not inner:
            result[key] = left
        else:
            del result[key]
    return result


def _spelled(data: Mapping[str, Any], key: str) -> str:
    """The key as the user wrote it: the speculative config takes dashes for underscores."""
    if key in data:
        return key
    dashed = key.replace("_", "-")
    return dashed if dashed in data else key


def dump_like(value: Any, sample: str | None) -> str:
    """``value`` as JSON, with blanks behind commas and colons if the sample has them."""
    if sample is not None and ('": ' in sample or ", " in sample):
        return json.dumps(value)
    return json.dumps(value, separators=(",", ":"))


def text_of(value: Any, *, dotted: bool = False) -> str:
    """A value as one word of a command line.

    In the dotted form a word that reads as JSON or as a number is taken as such, so a string that does is
    written with quotes.
    """
    if isinstance(value, str):
        return json.dumps(value) if dotted and _reads_as_value(value) else value
    if value is None:
        return "null" if dotted else "None"
    return json.dumps(value, separators=(",", ":"))


def _reads_as_value(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        try:
            human_readable_int(text)
        except ValueError:
            return False
    return True
