"""Recipes of srt-slurm: a job's workers as arguments of the engine by role (``backend.vllm_config``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import yaml

from dsv4check.launchfiles.engine_words import engine_words
from dsv4check.launchfiles.multinode import spread
from dsv4check.launchfiles.records import VALUE, Context, FileWord, Launch, Server, Stated
from dsv4check.launchfiles.settings_nodes import argument, environment, flag, implied, is_false, is_true
from dsv4check.launchfiles.yaml_nodes import Document, get, key_of, pairs, text_of

_NODES: Final = {"aggregated": "agg", "prefill": "prefill", "decode": "decode"}
"""Role -> how the keys of ``resources`` call it."""


def srt_slurm_launches(document: Document, context: Context) -> list[Launch] | None:
    """One launch for each role of a job."""
    backend = get(document.root, "backend")
    config = get(backend, "vllm_config")
    if config is None or text_of(get(backend, "type")) not in ("vllm", None):
        return None
    return [_launch(document, key, role) for key, role in pairs(config) if isinstance(role, yaml.MappingNode)]


def _launch(document: Document, key: yaml.ScalarNode, role: yaml.Node) -> Launch:
    root = document.root
    backend, resources = get(root, "backend"), get(root, "resources")
    place = document.span(key)
    words: list[FileWord] = []
    stated = key_of(role, "model")
    # `model.path` is a name that the cluster's own settings resolve, `identity` and the served name are the model's.
    model = next(
        (
            word
            for node in (get(root, "identity", "model", "repo"), get(role, "served-model-name"))
            if (word := document.word(node, VALUE)) is not None and "/" in word.text
        ),
        document.word(get(root, "model", "path"), VALUE),
    )
    if stated is None and model is not None:
        words += (implied("--model", model.span), model)
    for name, value in pairs(role):
        words += _words(document, name, value)
    image = document.stated(get(root, "model", "container"))
    called = _NODES.get(key.value, key.value)
    count = document.stated(get(resources, "gpus_per_node"))
    own = document.stated(get(resources, f"gpus_per_{called}"))
    server = Server(
        ("python3", "-m", "dynamo.vllm"),
        tuple(words),
        place,
        "engine",
        environment(document, get(root, "environment"), get(backend, f"{key.value}_environment")),
        image,
    )
    gpus, nodes = _smaller(own, count), _nodes(own, count)
    return Launch(
        "srt-slurm",
        f"role {key.value}",
        spread(server, nodes, gpus),
        (place,),
        image=image,
        gpu=document.stated(get(resources, "gpu_type")),
        gpus=gpus,
        nodes=nodes,
    )


def _words(document: Document, key: yaml.ScalarNode, value: yaml.Node) -> list[FileWord]:
    """A flag, alone where its value is true, left out where it is false."""
    if is_false(value):
        return []
    if isinstance(value, (yaml.MappingNode, yaml.SequenceNode)):
        given = argument(document, key, value)
        return engine_words([replace(given, name=given.name.replace("-", "_"))])[0]
    spelled = flag(document, "--" + key.value, key)
    word = None if is_true(value) else document.word(value, VALUE)
    return [spelled] if word is None else [spelled, word]


def _smaller(own: Stated | None, node: Stated | None) -> Stated | None:
    """GPUs of one node that a worker gets."""
    if own is None or node is None:
        return own or node
    if own.value.isdecimal() and node.value.isdecimal() and int(own.value[:6]) < int(node.value[:6]):
        return own
    return node


def _nodes(own: Stated | None, node: Stated | None) -> Stated | None:
    """Nodes that one worker spans."""
    if own is None or node is None or not own.value.isdecimal() or not node.value.isdecimal():
        return None
    each = int(node.value[:6])
    return Stated(str(-(-int(own.value[:6]) // each)), own.span) if each else None
