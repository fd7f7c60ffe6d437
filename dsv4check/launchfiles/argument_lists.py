"""Lists of arguments of ``vllm serve`` in YAML and JSON, with the model as a key or beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import yaml

from dsv4check.launchfiles.argv import servers_of_argv
from dsv4check.launchfiles.records import VALUE, Context, FileWord, Launch, Server
from dsv4check.launchfiles.settings_nodes import distinctive, environment
from dsv4check.launchfiles.yaml_nodes import Document, get, items, pairs, text_of

_LISTS: Final = ("args", "arguments", "extra_args", "vllm_args", "engine_args", "server_args", "cmd", "command")
_MODELS: Final = ("model", "model_id", "model_name", "model_path")
_LEAST: Final = 2
"""Flags of vLLM's own that a list has at least."""


def argument_list_launches(document: Document, context: Context) -> list[Launch] | None:
    """The servers whose arguments are listed."""
    found = [launch for key, node in _entries(document.root) for launch in _launches(document, key, node, context)]
    return found or None


def _entries(root: yaml.Node) -> Iterator[tuple[yaml.ScalarNode | None, yaml.MappingNode]]:
    """Every mapping, and the key it stands under."""
    stack: list[tuple[yaml.ScalarNode | None, yaml.Node]] = [(None, root)]
    seen = set()
    while stack:
        key, node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield key, node
            stack += reversed(pairs(node))
        else:
            stack += [(None, item) for item in reversed(items(node))]


def _launches(
    document: Document, key: yaml.ScalarNode | None, node: yaml.MappingNode, context: Context
) -> Iterator[Launch]:
    for name, value in pairs(node):
        if name.value not in _LISTS or not isinstance(value, yaml.SequenceNode):
            continue
        words = document.words(value)
        if len(words) != len(value.value) or distinctive([word.text for word in words]) < _LEAST:
            continue
        if servers_of_argv(words, {}, replace(context, problems=[])):
            # A command of its own: it is found as one.
            continue
        model = None if _has_model(words) else _model(document, key, node)
        if model is None and not _has_model(words):
            continue
        env = environment(document, get(node, "env"), get(node, "environment"))
        arguments = words if model is None else [model, *words]
        place = document.span(name)
        server = Server((), tuple(arguments), place, env=env, image=document.stated(get(node, "image")))
        label = model.text if model is not None else f"line {context.line(place.start)}"
        yield Launch("arguments", f"{name.value} of {label}", server, (place,), image=server.image)


def _has_model(words: list[FileWord]) -> bool:
    return bool(words) and (
        any(word.text == "--model" or word.text.startswith("--model=") for word in words)
        or not words[0].text.startswith("-")
    )


def _model(document: Document, key: yaml.ScalarNode | None, node: yaml.MappingNode) -> FileWord | None:
    for name in _MODELS:
        word = document.word(get(node, name), VALUE)
        if word is not None:
            return word
    if key is not None and "/" in (text_of(key) or ""):
        return document.word(key, VALUE)
    return None
