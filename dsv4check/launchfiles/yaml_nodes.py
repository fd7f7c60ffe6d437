"""YAML and JSON as trees of nodes with exact places; no value is ever made into a Python object.

The text is cut into its documents first, so that one that cannot be read loses only itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import yaml

from dsv4check.launchfiles.records import ITEM, TEMPLATE, Context, FileWord, NotUnderstood, Stated
from dsv4check.launchfiles.text import Located, Span
from dsv4check.launchfiles.yaml_compose import Refused, as_yaml, compose
from dsv4check.launchfiles.yaml_scalars import scalar_places
from dsv4check.records import dataclass, field

MAX_DOCUMENTS: Final = 2_000
_MAX_MERGES: Final = 20
_MARKER: Final = re.compile(r"^(?:---|\.\.\.)(?=[ \t\r\n]|\Z)", re.MULTILINE)
# Possessive: a comment of several `#` can be cut in many ways, which would all be tried.
_NOTHING: Final = re.compile(r"(?:---|\.\.\.)?(?:[ \t\r\n]++|#[^\n]*+|^%[^\n]*+)*+", re.MULTILINE)
_MOUSTACHE: Final = re.compile(r"\$?\{\{[^{}]{0,300}\}\}")
_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file."""

    root: yaml.Node
    text: Located
    """The document's text; the nodes' marks are indices into it."""
    words_by_node: dict[int, FileWord] = field(default_factory=dict)
    """What was traced already: an alias can stand in many places."""

    def span(self, node: yaml.Node) -> Span:
        """Where a node stands in the file; for a scalar the value with its quotes, without anchor and tag."""
        if isinstance(node, yaml.ScalarNode):
            start, stop, _each = _places(self, node)
            return self.text.span(start, stop)
        return self.text.span(node.start_mark.index, node.end_mark.index)

    def word(self, node: yaml.Node | None, slot: str = ITEM) -> FileWord | None:
        """A scalar as a word, its text as it is written (``0.90``, ``yes``); None for null and for collections."""
        value = text_of(node)
        if value is None or not isinstance(node, yaml.ScalarNode):
            return None
        known = self.words_by_node.get(id(node))
        if known is not None:
            return known if known.slot == slot else replace(known, slot=slot)
        start, stop, places = _places(self, node)
        offsets = self.text.offsets
        first = offsets[start]
        mapped = (first,) * len(value) if places is None else _mapped(offsets, places)
        unknown = tuple(_MOUSTACHE.findall(value)) if "{{" in value else ()
        word = FileWord(value, self.text.span(start, stop), slot, unknown, mapped)
        self.words_by_node[id(node)] = word
        return word

    def words(self, node: yaml.Node | None, slot: str = ITEM) -> list[FileWord]:
        """The scalars of a list, or a scalar alone."""
        found = (self.word(item, slot) for item in (items(node) or ([] if node is None else [node])))
        return [word for word in found if word is not None]

    def stated(self, node: yaml.Node | None) -> Stated | None:
        """A scalar as a fact."""
        value = text_of(node)
        return None if value is None or node is None else Stated(value, self.span(node))

    def located(self, node: yaml.Node) -> Located:
        """A scalar's value as text to be read further."""
        word = self.word(node)
        return Located.at("", self.span(node).start, self.span(node).start) if word is None else word.located()


def _mapped(offsets: Any, places: Any) -> Any:
    if isinstance(offsets, range) and offsets.step == 1:
        base = offsets.start
        if isinstance(places, range):
            return range(base + places.start, base + places.stop)
        return [base + place for place in places]
    return [offsets[place] for place in places]


def _places(document: Document, node: yaml.ScalarNode) -> tuple[int, int, Any]:
    start, stop = node.start_mark.index, node.end_mark.index
    return scalar_places(document.text.text, start, stop, node.style or "", node.value)


def text_of(node: yaml.Node | None) -> str | None:
    """The text of a scalar; None for null, for a collection and for nothing."""
    if not isinstance(node, yaml.ScalarNode):
        return None
    value: str = node.value
    if not node.style and value in _NULL and node.tag != "tag:yaml.org,2002:str":
        return None
    return value


def items(node: yaml.Node | None) -> list[yaml.Node]:
    """The items of a list; nothing for anything else."""
    return node.value if isinstance(node, yaml.SequenceNode) else []


def get(node: yaml.Node | None, *keys: str) -> yaml.Node | None:
    """The value below the keys, one inside the other; None where one is missing."""
    for key in keys:
        if not isinstance(node, yaml.MappingNode):
            return None
        node = _value(node, key)
        if node is None:
            return None
    return node


def _value(node: yaml.MappingNode, key: str) -> yaml.Node | None:
    merges = False
    for key_node, value in reversed(node.value):
        name = key_node.value
        if name == key:
            found: yaml.Node = value
            return found
        merges = merges or name == "<<"
    if merges:
        return next((value for name, value in pairs(node) if name.value == key), None)
    return None


def pairs(node: yaml.Node | None) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """Keys and values of a mapping with ``<<`` resolved, of a key that is there twice the last; else nothing."""
    if not isinstance(node, yaml.MappingNode):
        return []
    return list(_merged(node, 0).values())


def _merged(node: yaml.MappingNode, depth: int) -> dict[str, tuple[yaml.ScalarNode, yaml.Node]]:
    own = {}
    merges: list[yaml.Node] = []
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value == "<<" and not key.style:
            merges += items(value) or [value]
        else:
            own[key.value] = (key, value)
    if not merges or depth >= _MAX_MERGES:
        return own
    found: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
    for merge in reversed(merges):
        if isinstance(merge, yaml.MappingNode):
            found.update(_merged(merge, depth + 1))
    return {**found, **own}


def key_of(node: yaml.Node | None, name: str) -> yaml.ScalarNode | None:
    """The key itself, where a mapping has it."""
    return next((key for key, _value in pairs(node) if key.value == name), None)


def nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    """Every node below ``root`` and itself, in the order of the text; what is aliased comes once."""
    seen = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.MappingNode):
            for key, value in reversed(node.value):
                stack += (value, key)
        elif isinstance(node, yaml.SequenceNode):
            stack += reversed(node.value)


def mappings(root: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Every mapping below ``root`` and itself, each once."""
    return (node for node in nodes(root) if isinstance(node, yaml.MappingNode))


def yaml_documents(text: Located, context: Context) -> list[Document]:
    """The documents of a YAML stream or of a JSON file.

    What cannot be read is added to ``context.problems``.
    """
    content = text.text
    if content.lstrip()[:1] in ("{", "["):
        content = as_yaml(content)
    cuts = [match.start() for match in _MARKER.finditer(content)]
    if len(cuts) > MAX_DOCUMENTS:
        line = context.line(text.offsets[cuts[MAX_DOCUMENTS]])
        why = f"more than {MAX_DOCUMENTS:,} documents; the rest was not read"
        context.problems.append(NotUnderstood(line, why))
        cuts = cuts[: MAX_DOCUMENTS + 1]
        content = content[: cuts.pop()]
    found = []
    for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True):
        if start == stop or _NOTHING.fullmatch(content, start, stop):
            continue
        piece = content[start:stop]
        if piece.startswith("..."):
            piece = "   " + piece[3:]
        part = text.part(start, stop)
        try:
            root = compose(piece)
        except Refused as refused:
            template = "{{" in piece or "{%" in piece
            offset = part.offsets[min(max(refused.index, 0), len(piece))]
            why = TEMPLATE if template and refused.syntax else refused.why
            context.problems.append(NotUnderstood(context.line(offset), why, template and refused.syntax))
            continue
        if root is not None:
            found.append(Document(root, Located(piece, part.offsets)))
    return found
