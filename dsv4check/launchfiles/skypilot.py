"""SkyPilot tasks: the shell texts under ``setup`` and ``run``, and the machines they run on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import yaml

from dsv4check.launchfiles.expansion import stated
from dsv4check.launchfiles.records import VALUE, Context, Launch, Stated
from dsv4check.launchfiles.settings_nodes import environment, part
from dsv4check.launchfiles.shell import servers_of_shell
from dsv4check.launchfiles.yaml_nodes import Document, get, items, key_of, pairs, text_of

_DOCKER = "docker:"
_OWN_KEYS = ("accelerators", "cloud", "infra", "image_id", "instance_type", "any_of", "ordered", "use_spot")


def skypilot_launches(document: Document, context: Context) -> list[Launch] | None:
    """The servers of a task."""
    root = document.root
    resources = get(root, "resources")
    if text_of(get(root, "run")) is None or not any(get(resources, name) is not None for name in _OWN_KEYS):
        return None
    gpu, gpus, notes = _accelerators(document, resources)
    nodes = document.stated(get(root, "num_nodes"))
    env = environment(document, get(root, "envs"))
    if gpus is not None:
        env["SKYPILOT_NUM_GPUS_PER_NODE"] = gpus
    if nodes is not None:
        env["SKYPILOT_NUM_NODES"] = nodes
    # What is null in the file is given on the command line.
    env = {name: value for name, value in env.items() if value.value or text_of(get(root, "envs", name)) is not None}
    image = _image(document, get(resources, "image_id"))
    title = text_of(get(root, "name"))
    found: list[Launch] = []
    for name in ("setup", "run"):
        node, key = get(root, name), key_of(root, name)
        if node is None or key is None or text_of(node) is None:
            continue
        found += [
            Launch(
                "skypilot",
                f"task {title}" if title else f"line {context.line(server.place.start)}",
                replace(server, image=server.image or image, notes=(*server.notes, *notes)),
                (document.span(key),),
                image=server.image or image,
                gpu=gpu,
                gpus=gpus,
                nodes=nodes,
            )
            for server in servers_of_shell(document.located(node), env, context)
        ]
    return found or None


def _image(document: Document, node: yaml.Node | None) -> Stated | None:
    word = document.word(node, VALUE)
    if word is None or not word.text.startswith(_DOCKER):
        return None
    return stated(part(word, len(_DOCKER)))


def _accelerators(
    document: Document, resources: yaml.Node | None
) -> tuple[Stated | None, Stated | None, tuple[str, ...]]:
    """GPU and number of GPUs, where there is no choice between several."""
    found = list(_choices(document, get(resources, "accelerators")))
    for node in (*items(get(resources, "any_of")), *items(get(resources, "ordered"))):
        found += _choices(document, get(node, "accelerators"))
    names = {gpu.value for gpu, _count in found}
    counts = {count.value for _gpu, count in found if count is not None}
    gpu = found[0][0] if len(names) == 1 else None
    gpus = next((count for _gpu, count in found if count is not None), None) if len(counts) == 1 else None
    if len(names) > 1:
        return None, gpus, (f"SkyPilot may choose any of {', '.join(sorted(names))}: no GPU was assumed",)
    return gpu, gpus, ()


def _choices(document: Document, node: yaml.Node | None) -> Iterator[tuple[Stated, Stated | None]]:
    """``B200:8``, ``{B200: 8}``, or a list of either."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if not isinstance(item, yaml.SequenceNode):
                yield from _choices(document, item)
    elif isinstance(node, yaml.MappingNode):
        for key, value in pairs(node):
            yield Stated(key.value, document.span(key)), document.stated(value)
    elif (word := document.word(node, VALUE)) is not None:
        name, colon, _count = word.text.partition(":")
        count = stated(part(word, len(name) + 1)) if colon else Stated("1", word.span)
        yield stated(part(word, 0, len(name))), count
