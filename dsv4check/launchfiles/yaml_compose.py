"""One YAML document made into a tree of nodes, or refused: what is broken, nested too deeply, or stands for too much.

No value is ever made into a Python object.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import yaml

from dsv4check.launchfiles.records import TEMPLATE

MAX_DEPTH: Final = 100
MAX_VALUES: Final = 200_000
"""Values of a document after aliases are followed: a few nested aliases can stand for billions."""
_LONG: Final = 64
"""Characters of a value that count as one more: aliases multiply text as well."""
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\t', re.DOTALL)
_SURROGATE: Final = re.compile(r"(\\\\)|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_DEEP_LINE: Final = re.compile(rf"^[ \t?-]{{{MAX_DEPTH // 2}}}", re.MULTILINE)
_UNREADABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

if TYPE_CHECKING:
    _Base = yaml.SafeLoader
else:
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):
    """Leaves values as they are written: what type one would have is asked for nowhere."""

    def resolve(self, kind: object, value: object, implicit: object) -> str:
        return ""


class Refused(Exception):  # noqa: N818
    """A document that is not read: why, and where; ``syntax`` where the text itself is wrong."""

    def __init__(self, index: int, why: str, *, syntax: bool = False) -> None:
        super().__init__(why)
        self.index = index
        self.why = why
        self.syntax = syntax


def as_yaml(content: str) -> str:
    """JSON text that the loader takes, character by character in the same places."""
    if "\t" not in content and "\\u" not in content:
        return content

    def replaced(match: re.Match[str]) -> str:
        token = match.group()
        # Half of a character beyond the basic plane: YAML writes it in another way, and no flag holds one.
        return " " if token == "\t" else _SURROGATE.sub(lambda half: half[1] or r"\ufffd", token)

    return _JSON_TOKEN.sub(replaced, content)


def compose(piece: str) -> yaml.Node | None:
    """The root of a document; None for one without content.

    Raises:
        Refused: It cannot be read.
    """
    try:
        _check_depth(piece)
        loader = _Loader(piece)
        try:
            root: yaml.Node | None = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError:
        match = _UNREADABLE.search(piece)
        why = f"character U+{ord(match.group()):04X} is not allowed" if match else "unreadable characters"
        raise Refused(match.start() if match else 0, f"not YAML: {why}", syntax=False) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", None) or error).split("\n")[0]
        raise Refused(0 if mark is None else mark.index, f"not YAML: {problem}", syntax=True) from None
    except (ValueError, RecursionError) as error:
        raise Refused(0, f"not YAML: {type(error).__name__}") from None
    if root is not None:
        _count(root, {}, set())
    return root


def _check_depth(piece: str) -> None:
    """Refuse what is nested too deeply for a loader that calls itself, before it does."""
    depth = deepest = 0
    if piece.count("[") + piece.count("{") > MAX_DEPTH:
        for match in re.finditer(r"[\[{]|([\]}])", piece):
            depth += -1 if match.group(1) else 1
            deepest = max(deepest, depth)
    if deepest <= MAX_DEPTH and not _DEEP_LINE.search(piece):
        return
    # Brackets in strings count above; the loader's events tell exactly, and do not need a stack.
    depth = 0
    for event in yaml.parse(piece, Loader=_Loader):
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
            if depth > MAX_DEPTH:
                raise Refused(
                    0 if event.start_mark is None else event.start_mark.index,
                    f"nested more than {MAX_DEPTH} levels deep",
                )
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1


def _count(node: yaml.Node, sizes: dict[int, int], inside: set[int]) -> int:
    """Values a node stands for once aliases are followed."""
    if isinstance(node, yaml.ScalarNode):
        return 1 + len(node.value) // _LONG
    key = id(node)
    if (known := sizes.get(key)) is not None:
        return known
    if key in inside:
        raise Refused(node.start_mark.index, "not YAML that can be read: an alias contains itself")
    inside.add(key)
    size = 1
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                if isinstance(name, yaml.MappingNode) and name.start_mark.index == node.start_mark.index + 1:
                    # `{{ .Values.image }}` without quotes is a mapping inside a mapping to a YAML loader.
                    raise Refused(node.start_mark.index, TEMPLATE, syntax=True)
                size += _count(name, sizes, inside)
            size += _count(value, sizes, inside)
    else:
        for item in node.value:
            size += _count(item, sizes, inside)
    inside.discard(key)
    if size > MAX_VALUES:
        raise Refused(node.start_mark.index, f"aliases stand for more than {MAX_VALUES:,} values")
    sizes[key] = size
    return size
