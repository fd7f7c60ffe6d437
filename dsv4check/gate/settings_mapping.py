"""Changes of a vLLM ``--config`` file: a flag that a fix adds to the command becomes a key of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

from dsv4check.deployment import Token
from dsv4check.gate.rewrite import NotPlainError, spelled_like

_LONGEST: Final = 1 << 16
"""Characters of a file that is changed: such files hold the flags of one launch."""
_DOCUMENT_END: Final = re.compile(r"^\.\.\.[ \t]*\r?$", re.MULTILINE)


def with_settings(text: str, before: Sequence[Token], after: Sequence[Token]) -> str:
    """``text`` with the flags that ``after`` adds to ``before`` as keys. Raises NotPlainError where that cannot be."""
    known = {id(token) for token in before}
    added = [token.text for token in after if id(token) not in known and token not in before]
    if len(after) - len(added) != len(before):
        raise NotPlainError("the change takes words away that stand elsewhere")
    for flag, value in _flags(added):
        text = _with_key(text, flag.removeprefix("--"), value)
    return text


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    at = 0
    while at < len(words):
        flag, equals, value = words[at].partition("=")
        if not flag.startswith("--"):
            raise NotPlainError(f"{words[at]!r} is no flag of the file")
        at += 1
        if equals:
            yield flag, value
        elif at < len(words) and not words[at].startswith("--"):
            yield flag, words[at]
            at += 1
        else:
            yield flag, None


def _with_key(text: str, key: str, value: str | None) -> str:
    root = _root(text)
    pairs: list[tuple[yaml.Node, yaml.Node]] = [] if root is None else root.value
    same = [pair for pair in pairs if str(pair[0].value).replace("_", "-") == key]
    if len(same) > 1:
        raise NotPlainError(f"{key} is given twice")
    if same:
        changed = _with_value(text, key, same[0], value)
        name = same[0][0].value
    else:
        name, changed = _with_line(text, key, pairs, value)
    wanted = _loaded(text)
    wanted[name] = True if value is None else value
    found = _loaded(changed)
    if value is not None:
        found[name] = str(found.get(name))
    if found != wanted:
        raise NotPlainError("the changed file would be read differently")
    return changed


def _with_value(text: str, key: str, pair: tuple[yaml.Node, yaml.Node], value: str | None) -> str:
    name, node = pair
    start, stop = node.start_mark.index, node.end_mark.index
    raw = text[start:stop]
    if not isinstance(node, yaml.ScalarNode) or start < name.end_mark.index or raw[:1] in ("|", ">", "&", "*", "!"):
        raise NotPlainError(f"the value of {key} is not a plain one")
    if "\n" in raw:
        raise NotPlainError(f"the value of {key} stands on several lines")
    if not raw:
        colon = text.find(":", name.end_mark.index) + 1
        return f"{text[:colon]} {_spelled('', value)}{text[colon:]}"
    return text[:start] + _spelled(raw, value) + text[stop:]


def _with_line(text: str, key: str, pairs: Sequence[tuple[yaml.Node, yaml.Node]], value: str | None) -> tuple[str, str]:
    """The name and the text with a line for a key behind all others."""
    names = [str(name.value) for name, _node in pairs]
    if any("_" in name for name in names) and not any("-" in name for name in names):
        key = key.replace("-", "_")
    indent = " " * (pairs[0][0].start_mark.column if pairs else 0)
    end = "\r\n" if "\r\n" in text else "\n"
    last = pairs[-1][1].end_mark.index if pairs else 0
    marker = _DOCUMENT_END.search(text, last)
    at = marker.start() if marker else len(text)
    glue = "" if at == 0 or text[at - 1] == "\n" else end
    return key, f"{text[:at]}{glue}{indent}{key}: {_spelled('', value)}{end}{text[at:]}"


def _spelled(raw: str, value: str | None) -> str:
    return "true" if value is None else spelled_like(raw, value, bare=True)


def _root(text: str) -> yaml.MappingNode | None:
    """The file's mapping; None for a file without any value."""
    if len(text) > _LONGEST:
        raise NotPlainError("the file is too long to be changed")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        raise NotPlainError("the file is not valid YAML") from None
    if root is None:
        return None
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        raise NotPlainError("the file is no list of keys, each on its line")
    return root


def _loaded(text: str) -> dict[Any, Any]:
    try:
        content = yaml.load(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, OverflowError):
        raise NotPlainError("the changed file would not be valid YAML") from None
    return content if isinstance(content, dict) else {}
