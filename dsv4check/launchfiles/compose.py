"""Launches in compose files: the services of Docker Compose, Podman Compose and Swarm stacks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import yaml

from dsv4check.launchfiles.compose_values import interpolated
from dsv4check.launchfiles.container import servers_of_container
from dsv4check.launchfiles.env_files import env_of_file, read_env
from dsv4check.launchfiles.expansion import split_words, stated
from dsv4check.launchfiles.records import ITEM, VALUE, Context, FileWord, Launch, Stated
from dsv4check.launchfiles.text import Span
from dsv4check.launchfiles.yaml_nodes import Document, get, items, key_of, pairs, text_of

_SCRIPT_OPTION: Final = re.compile(r"-[a-z]*c")
_COUNT: Final = re.compile(r"[1-9]\d{0,4}")
_MAX_EXTENDS: Final = 8
_CUT = (
    "compose cuts a `command` that is text into words, so only its first word would reach the shell: it was read as"
    " the whole script; write it as a list with one item"
)


def compose_launches(document: Document, context: Context) -> list[Launch] | None:
    """The launches of the services; None for a document that is no compose file."""
    services = get(document.root, "services")
    entries = [(key, value) for key, value in pairs(services) if isinstance(value, yaml.MappingNode)]
    if not any(get(value, name) is not None for _key, value in entries for name in ("image", "build", "command")):
        return None
    content = context.neighbour(".env")
    variables = {**({} if content is None else read_env(content)), **context.variables}
    by_name: dict[str, yaml.Node] = {key.value: value for key, value in entries}
    found: list[Launch] = []
    for key, value in entries:
        found += _Service(document, context, variables, key, _layers(by_name, value)).launches()
    return found


def _layers(services: Mapping[str, yaml.Node], service: yaml.Node) -> list[yaml.Node]:
    """A service and those of the same file that it extends, itself first."""
    layers = [service]
    while len(layers) <= _MAX_EXTENDS:
        extends = get(layers[-1], "extends")
        if extends is None or get(extends, "file") is not None:
            break
        base = services.get(text_of(extends) or text_of(get(extends, "service")) or "")
        if base is None or any(base is layer for layer in layers):
            break
        layers.append(base)
    return layers


class _Service:
    """One service."""

    def __init__(
        self,
        document: Document,
        context: Context,
        variables: Mapping[str, str],
        key: yaml.ScalarNode,
        layers: Sequence[yaml.Node],
    ) -> None:
        self._document = document
        self._context = context
        self._variables = variables
        self._key = key
        self._layers = layers

    def _get(self, name: str) -> yaml.Node | None:
        """The value of a key, in the service or what it extends; null is none."""
        for layer in self._layers:
            value = get(layer, name)
            if value is not None and not (isinstance(value, yaml.ScalarNode) and text_of(value) is None):
                return value
        return None

    def _word(self, node: yaml.Node | None, slot: str = VALUE) -> FileWord | None:
        word = self._document.word(node, slot)
        return None if word is None else interpolated(word, self._variables)

    def _list(self, node: yaml.Node | None) -> list[FileWord]:
        """The scalars of a list, or a scalar alone."""
        if isinstance(node, yaml.ScalarNode):
            word = self._word(node)
            return [] if word is None else [word]
        return [word for item in items(node) if (word := self._word(item, ITEM)) is not None]

    def launches(self) -> list[Launch]:
        """The launches of the service."""
        image_word = self._word(self._get("image"))
        image = None if image_word is None else stated(image_word)
        heads = self._heads()
        command_node, entry_node = self._get("command"), self._get("entrypoint")
        entrypoint = self._argv(entry_node)
        text = self._word(command_node)
        notes: tuple[str, ...] = ()
        if text is not None and entrypoint and _SCRIPT_OPTION.fullmatch(entrypoint[-1].text):
            args = [text]
            notes = (_CUT,) if re.search(r"\s", text.text.strip()) else ()
        else:
            args = self._argv(command_node)
        if not entrypoint and not args:
            return []
        if entry_node is not None and not entrypoint:
            # An empty entry point clears the image's: the command is all there is.
            entrypoint, args = args, []
        env, unknown = self._environment()
        servers = servers_of_container(
            self._context,
            image=image,
            command=entrypoint,
            args=args,
            env=env,
            mounts=self._mounts(),
            gpus=self._devices(),
            place=self._document.span(self._key),
        )
        return [
            Launch(
                "compose",
                f"service {self._key.value}",
                replace(server, notes=(*server.notes, *notes), env={**unknown, **server.env}),
                heads,
                image=server.image or image,
                gpus=_number(server.gpus),
            )
            for server in servers
        ]

    def _argv(self, node: yaml.Node | None) -> list[FileWord]:
        if isinstance(node, yaml.SequenceNode):
            return self._list(node)
        word = self._word(node)
        return [] if word is None else split_words(word, self._context)

    def _heads(self) -> tuple[Span, ...]:
        keys = [self._key]
        for name in ("image", "entrypoint", "command"):
            keys += [key for layer in self._layers if (key := key_of(layer, name)) is not None][:1]
        return tuple(self._document.span(key) for key in keys)

    def _environment(self) -> tuple[dict[str, Stated], dict[str, Stated]]:
        """The variables, and those whose value is not known: of them a shell keeps the name."""
        env: dict[str, Stated] = {}
        unknown: dict[str, Stated] = {}
        for layer in reversed(self._layers):
            files = get(layer, "env_file")
            nodes = items(files) or ([] if files is None else [files])
            for node in nodes:
                path = self._word(get(node, "path") if isinstance(node, yaml.MappingNode) else node)
                if path is not None:
                    env.update(env_of_file(path.text, path.span, self._context))
        for layer in reversed(self._layers):
            for name, value in self._pairs(get(layer, "environment")):
                unknown.pop(name, None)
                if value is not None and value.open:
                    env.pop(name, None)
                    unknown[name] = stated(value)
                elif value is not None:
                    env[name] = stated(value)
                elif name in self._variables:
                    env[name] = Stated(self._variables[name], self._document.span(self._key))
                else:
                    env.pop(name, None)
        return env, unknown

    def _pairs(self, node: yaml.Node | None) -> list[tuple[str, FileWord | None]]:
        """``environment`` as names and values; no value for one that is handed on from outside."""
        if isinstance(node, yaml.MappingNode):
            return [(key.value, self._word(value)) for key, value in pairs(node)]
        found: list[tuple[str, FileWord | None]] = []
        for item in items(node):
            raw = self._document.word(item, ITEM)
            if raw is None:
                continue
            name, equals, _text = raw.text.partition("=")
            found.append((name, interpolated(_behind(raw, len(name) + 1), self._variables) if equals else None))
        return found

    def _mounts(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for layer in reversed(self._layers):
            for item in items(get(layer, "volumes")):
                source, target = self._mount(item)
                if source and target:
                    found[target.rstrip("/") or target] = source
        return found

    def _mount(self, item: yaml.Node) -> tuple[str, str]:
        if isinstance(item, yaml.MappingNode):
            source, target = self._word(get(item, "source")), self._word(get(item, "target"))
            return (source.text if source else ""), (target.text if target else "")
        word = self._word(item, ITEM)
        # A variable that is kept as written may hold colons: ${HF_HOME:?set it}.
        parts = [] if word is None else re.split(r":(?![^{}]{0,99}\})", word.text)
        return (parts[0], parts[1]) if len(parts) > 1 else ("", "")

    def _devices(self) -> Stated | None:
        """GPUs as ``gpus`` or ``deploy`` ask for them: a number, or ``all``."""
        gpus = self._word(self._get("gpus"))
        if gpus is not None:
            return stated(gpus)
        asked = [*items(self._get("gpus")), *items(get(self._get("deploy"), "resources", "reservations", "devices"))]
        for device in asked:
            kinds = {word.text for word in self._list(get(device, "capabilities"))}
            driver = text_of(get(device, "driver"))
            if kinds and not kinds & {"gpu", "compute", "nvidia"} and driver != "nvidia":
                continue
            count = self._word(get(device, "count"))
            if count is not None:
                return stated(count)
            ids = get(device, "device_ids")
            if items(ids) and ids is not None:
                return Stated(str(len(items(ids))), self._document.span(ids))
        return None


def _behind(word: FileWord, start: int) -> FileWord:
    """The value in an item ``NAME=value``, where it stands."""
    offsets = word.offsets[start:]
    span = Span(offsets[0], offsets[-1] + 1) if offsets else Span(word.span.stop, word.span.stop)
    return FileWord(word.text[start:], span, word.slot, word.open, offsets)


def _number(gpus: Stated | None) -> Stated | None:
    return gpus if gpus is not None and _COUNT.fullmatch(gpus.value) else None
