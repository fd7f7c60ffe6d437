"""Launches in YAML and JSON files: each document goes to the first reader that knows its kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import yaml

from dsv4check.launchfiles.argv import servers_of_argv
from dsv4check.launchfiles.compose import compose_launches
from dsv4check.launchfiles.container import servers_of_container
from dsv4check.launchfiles.embedded import embedded_launches
from dsv4check.launchfiles.engine_settings import SETTINGS_RECOGNISERS
from dsv4check.launchfiles.expansion import split_words, stated
from dsv4check.launchfiles.kubernetes import kubernetes_launches
from dsv4check.launchfiles.kubernetes_containers import heads_of, variables_of
from dsv4check.launchfiles.records import Context, FileWord, Launch, Server, Stated
from dsv4check.launchfiles.templates import with_placeholders
from dsv4check.launchfiles.text import Located
from dsv4check.launchfiles.text_servers import text_servers
from dsv4check.launchfiles.yaml_nodes import Document, get, pairs, text_of, yaml_documents

Recogniser = Callable[[Document, Context], list[Launch] | None]
"""The launches of a document of its kind; None for a document of another kind."""

_SERVER: Final = re.compile(
    r"vllm\s+serve|api_server|-m\s+vllm|dynamo\.vllm|(?:docker|podman|nerdctl)\s+(?:container\s+)?run\b|vllm['\",\s]+serve"
)
_HINT: Final = re.compile(r"vllm|api_server|docker|podman|nerdctl")
_PROSE: Final = frozenset(("name", "description", "title", "summary", "help", "message", "comment", "doc", "notes"))
_ENVIRONMENTS: Final = ("env", "envs", "environment", "variables")
_MAX_DEPTH: Final = 300


def yaml_launches(context: Context, text: Located | None = None) -> tuple[str, list[Launch]]:
    """The format and the launches of a YAML or JSON file, or of such text inside another file.

    The format is that of the first launch; without one, that of the first document whose kind is known, else empty.
    """
    source = Located.verbatim(context.source) if text is None else text
    known = ""
    found: list[Launch] = []
    for document in yaml_documents(source, context):
        for name, recogniser in RECOGNISERS:
            launches = recogniser(document, context)
            if launches is not None:
                known = known or (launches[0].format if launches else name)
                found += map(with_placeholders, launches)
                break
        found += embedded_launches(document, context)
    return (found[0].format if found else known), found


def text_launches(document: Document, context: Context) -> list[Launch] | None:
    """Shell text with a server anywhere in a document: ``run:`` blocks, steps of a CI workflow, tasks."""
    if _HINT.search(document.text.text) is None:
        return None
    return list(_Reader(document, context).read(document.root, {}, 0)) or None


RECOGNISERS: Final[tuple[tuple[str, Recogniser], ...]] = (
    ("compose", compose_launches),
    ("kubernetes", kubernetes_launches),
    *SETTINGS_RECOGNISERS,
    ("yaml", text_launches),
)
"""Format and reader, in the order they are asked."""


class _Reader:
    """Walks a document once; variables of the objects around a text are its environment."""

    def __init__(self, document: Document, context: Context) -> None:
        self._document = document
        self._context = context
        self._seen: set[int] = set()

    def read(self, node: yaml.Node, env: Mapping[str, Stated], depth: int) -> Iterator[Launch]:
        """The launches below a node."""
        if id(node) in self._seen or depth > _MAX_DEPTH:
            return
        self._seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            yield from self._text(node, env)
        elif isinstance(node, yaml.SequenceNode):
            yield from self._list(node, env, depth)
        elif isinstance(node, yaml.MappingNode):
            env = {**env, **self._environment(node)}
            servers = self._container(node, env)
            if servers:
                yield from self._launches(servers, node)
                return
            for key, value in pairs(node):
                if not (key.value in _PROSE and isinstance(value, yaml.ScalarNode)):
                    yield from self.read(value, env, depth + 1)

    def _environment(self, node: yaml.Node) -> dict[str, Stated]:
        lists = [value for name in _ENVIRONMENTS if (value := get(node, name)) is not None]
        if not lists:
            return {}
        return {name: stated(word) for name, word in variables_of(self._document, *lists).items()}

    def _text(self, node: yaml.ScalarNode, env: Mapping[str, Stated]) -> Iterator[Launch]:
        if _SERVER.search(node.value) is not None:
            yield from self._launches(text_servers(self._document.located(node), env, self._context), None)

    def _list(self, node: yaml.SequenceNode, env: Mapping[str, Stated], depth: int) -> Iterator[Launch]:
        """A list is the words of a command, lines of one script, or a list of anything else."""
        texts = [text_of(item) for item in node.value]
        if not texts or None in texts:
            for item in node.value:
                yield from self.read(item, env, depth + 1)
            return
        words = self._document.words(node)
        if not _SERVER.search("\n".join(word.text for word in words)):
            return
        servers = servers_of_argv(words, env, self._context)
        if not servers:
            servers = text_servers(_lines(words), env, self._context)
        yield from self._launches(servers, None)

    def _container(self, node: yaml.Node, env: Mapping[str, Stated]) -> list[Server]:
        """``image`` with ``command`` or ``args`` beside it, as a container is described anywhere."""
        image = self._document.stated(get(node, "image"))
        if image is None:
            return []
        command, args = (self._words(get(node, name)) for name in ("command", "args"))
        if get(node, "args") is None and get(self._document.root, "apiVersion") is None:
            # Container tools other than Kubernetes mean what is handed to the image's entry point.
            command, args = self._words(get(node, "entrypoint")), command
        if not command and not args:
            return []
        place = self._document.span(node)
        return servers_of_container(self._context, image=image, command=command, args=args, env=env, place=place)

    def _words(self, node: yaml.Node | None) -> list[FileWord]:
        if isinstance(node, yaml.SequenceNode):
            return self._document.words(node)
        word = self._document.word(node)
        return [] if word is None else split_words(word, self._context)

    def _launches(self, servers: list[Server], node: yaml.Node | None) -> Iterator[Launch]:
        heads = () if node is None else heads_of(self._document, node, "image", "command", "args")
        for server in servers:
            line = self._context.line(server.place.start)
            yield Launch("yaml", f"line {line}", server, heads, image=server.image)


def _lines(words: list[FileWord]) -> Located:
    """Items of a list as the lines of one script."""
    text: list[str] = []
    offsets: list[int] = []
    for word in words:
        located = word.located()
        text += (located.text, "\n")
        offsets += located.offsets
    offsets.append(offsets[-1] if offsets else 0)
    return Located("".join(text), offsets)
