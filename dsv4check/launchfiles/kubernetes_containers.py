"""One container of a pod: its command as Kubernetes starts it, its environment, mounts and GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import yaml

from dsv4check.launchfiles.container import servers_of_container
from dsv4check.launchfiles.expansion import Expanded, stated
from dsv4check.launchfiles.kubernetes_gpus import gpu_of_pod, gpus_of_resources
from dsv4check.launchfiles.multinode import spread
from dsv4check.launchfiles.records import VALUE, Context, FileWord, Launch, NotUnderstood, Server, Stated
from dsv4check.launchfiles.shell import servers_of_shell
from dsv4check.launchfiles.templates import guarded_word, restored
from dsv4check.launchfiles.text import Span
from dsv4check.launchfiles.yaml_nodes import Document, get, items, key_of, pairs, text_of
from dsv4check.records import dataclass

_EXPANSION: Final = re.compile(r"\$\$|\$\(([^()]*)\)")
_COMMAND_IN_ONE: Final = re.compile(r"\s*(?:\S*/)?(?:vllm\s+serve|python\S*\s+-m\s+(?:vllm|dynamo\.vllm)\b)")
_LONGEST: Final = 1 << 16
"""Characters of a word after expansion: variables made of variables can double with each."""
_MOST_VALUES: Final = 1 << 16
"""Characters that the expansions of one environment may add."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the objects around a container say about it."""

    label: str
    """``Deployment/dsv4-flash``."""
    nodes: Stated | None = None
    gpus: Stated | None = None
    env: tuple[yaml.Node, ...] = ()
    """Lists of variables that stand outside the container."""
    volumes: tuple[yaml.Node, ...] = ()
    """Volumes that stand outside the pod."""
    path: str = ""
    """The key of the part that is being read (a Dynamo service)."""
    spread: bool = False
    """True where an operator starts the command on all nodes and adds what it needs for that."""


def variables_of(document: Document, *lists: yaml.Node | None) -> dict[str, FileWord]:
    """The environment that lists of ``{name, value}`` (or mappings) set, without what stands in a Secret."""
    known: dict[str, FileWord] = {}
    left = _MOST_VALUES
    for node in lists:
        entries: list[tuple[str | None, yaml.Node | None, yaml.Node]]
        if isinstance(node, yaml.MappingNode):
            entries = [(key.value, value, value) for key, value in pairs(node)]
        else:
            entries = [(text_of(get(item, "name")), get(item, "value"), item) for item in items(node)]
        for name, value, place in entries:
            if not name:
                continue
            word = document.word(value, VALUE)
            if word is None and (get(place, "valueFrom") is not None or isinstance(value, yaml.MappingNode)):
                known.pop(name, None)
                continue
            if word is None:
                start = document.span(place).start
                word = FileWord("", Span(start, start), VALUE)
            elif left > 0:
                written = len(word.text)
                word = expanded(word, known)
                left -= max(len(word.text) - written, 0)
            known[name] = word
    return known


def expanded(word: FileWord, variables: Mapping[str, FileWord]) -> FileWord:
    """``$(NAME)`` replaced by the container's variables, ``$$`` by ``$``, as Kubernetes does it."""
    if "$" not in word.text:
        return word
    matches = list(_EXPANSION.finditer(word.text))
    if not matches:
        return word
    pieces = Expanded(word)
    at = 0
    for match in matches:
        pieces.keep(at, match.start())
        if match.group() == "$$":
            pieces.keep(match.start(), match.start() + 1)
        elif (value := variables.get(match.group(1))) is not None and pieces.length + len(value.text) < _LONGEST:
            pieces.put(value)
        else:
            pieces.unknown(match.start(), match.end())
        at = match.end()
    pieces.keep(at, len(word.text))
    return pieces.word(single=len(matches) == 1 and matches[0].span() == (0, len(word.text)))


def mounts_of(container: yaml.Node, *volumes: yaml.Node | None) -> dict[str, str]:
    """Path in the container -> path of the host or name of the claim."""
    sources: dict[str, str | None] = {}
    for volume in (item for node in volumes for item in items(node)):
        name = text_of(get(volume, "name"))
        if name:
            sources[name] = text_of(get(volume, "hostPath", "path")) or text_of(
                get(volume, "persistentVolumeClaim", "claimName")
            )
    found = {}
    for mount in items(get(container, "volumeMounts")):
        name = text_of(get(mount, "name"))
        path = text_of(get(mount, "mountPath")) or text_of(get(mount, "mountPoint"))
        if not name or not path:
            continue
        # A name that no volume explains is that of a claim template, or of a claim of the object around the pod.
        source = sources.get(name, name)
        if source:
            below = text_of(get(mount, "subPath"))
            found[path.rstrip("/") or path] = f"{source.rstrip('/')}/{below.strip('/')}" if below else source
    return found


def heads_of(document: Document, node: yaml.Node, *names: str) -> tuple[Span, ...]:
    """The first line of a mapping and those of some of its keys."""
    found = [document.span(key) for key, _value in pairs(node)[:1]]
    found += [document.span(key) for name in names if (key := key_of(node, name)) is not None]
    return tuple(dict.fromkeys(found))


def container_launches(
    document: Document, container: yaml.Node, pod: yaml.Node | None, around: Surroundings, context: Context
) -> list[Launch]:
    """The launches of one container."""
    known = variables_of(document, *around.env, get(container, "env"), get(container, "envs"))
    env = {name: stated(word) for name, word in known.items() if not word.open}
    image = document.stated(get(container, "image"))
    mounts = mounts_of(container, get(pod, "volumes"), *around.volumes)
    heads = heads_of(document, container, "image", "command", "args")
    command_node, args_node = get(container, "command"), get(container, "args")
    servers: list[Server] = []
    if isinstance(command_node, yaml.ScalarNode) or isinstance(args_node, yaml.ScalarNode):
        servers = _of_text(document, command_node, args_node, known, env, context)
    if not servers:
        command = [guarded_word(expanded(word, known)) for word in document.words(command_node)]
        args = [guarded_word(expanded(word, known)) for word in document.words(args_node)]
        if not command and not args:
            return []
        place = heads[0] if heads else document.span(container)
        servers = servers_of_container(
            context, image=image, command=command, args=args, env=env, mounts=mounts, place=place
        )
    if not servers:
        first = next(iter(document.words(command_node)), None)
        if first is not None and _COMMAND_IN_ONE.match(first.text):
            why = "the first item of `command` is the name of a program, blanks and all: write each word as an item"
            context.problems.append(NotUnderstood(context.line(first.span.start), why))
        return []
    # A shell keeps the name of a variable whose value is not known: its text is not what the process gets.
    unknown = {name: stated(word) for name, word in known.items() if word.open}
    servers = [restored(replace(server, env={**unknown, **server.env})) for server in servers]
    gpu, notes = gpu_of_pod(document, pod)
    gpus = gpus_of_resources(document, get(container, "resources")) or around.gpus
    name = text_of(get(container, "name"))
    parts = (around.label, around.path, f"container {name}" if name else "")
    label = " ".join(part for part in parts if part)
    if around.spread:
        servers = [spread(server, around.nodes, gpus) for server in servers]
    return [
        Launch(
            "kubernetes",
            label,
            replace(server, notes=(*server.notes, *notes)) if notes else server,
            heads,
            image=server.image or image,
            gpu=gpu,
            gpus=gpus,
            nodes=around.nodes,
        )
        for server in servers
    ]


def _of_text(
    document: Document,
    command: yaml.Node | None,
    args: yaml.Node | None,
    variables: Mapping[str, FileWord],
    env: Mapping[str, Stated],
    context: Context,
) -> list[Server]:
    """``command: vllm serve ...``: Kubernetes takes lists alone, some operators take text."""
    for node in (command, args):
        word = document.word(node)
        if word is not None and re.search(r"\s", word.text):
            note = "`command` and `args` of a container are lists of words; this text was read as a shell reads it"
            found = servers_of_shell(guarded_word(expanded(word, variables)).located(), env, context)
            if found:
                return [replace(server, notes=(*server.notes, note)) for server in found]
    return []
