"""Values of llm-d: one launch for each role (prefill, decode).

Two shapes: those of the modelservice chart (``modelArtifacts`` and containers, after its templates), and settings
by role with the arguments in one text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import yaml

from dsv4check.launchfiles.container import servers_of_container
from dsv4check.launchfiles.helm_values import image_of
from dsv4check.launchfiles.kubernetes_containers import Surroundings, container_launches, expanded, variables_of
from dsv4check.launchfiles.kubernetes_gpus import gpu_of_pod, gpus_of_resources
from dsv4check.launchfiles.records import VALUE, Context, FileWord, Launch, Server, Stated
from dsv4check.launchfiles.settings_nodes import (
    environment,
    flag,
    flag_of_key,
    implied,
    is_false,
    is_true,
    part,
    split_arguments,
)
from dsv4check.launchfiles.yaml_nodes import Document, get, items, key_of, pairs, text_of

FORMAT: Final = "llm-d"
_TEXTS: Final = ("extra-args", "extraArgs", "extra_args", "args", "vllmArgs", "vllm_args", "serve_args", "serve-args")
_DEPLOYED: Final = ("parallelism", "replicas", "tp")
"""Keys of a role; a benchmark's workload has none of them and calls its arguments ``serve_args``."""
_ROLES: Final = ("prefill", "decode")
_SIZES: Final = {
    "tensor": "--tensor-parallel-size",
    "tp": "--tensor-parallel-size",
    "pipeline": "--pipeline-parallel-size",
    "data": "--data-parallel-size",
    "dataLocal": "--data-parallel-size-local",
}


def modelservice_launches(document: Document, context: Context) -> list[Launch] | None:
    """The roles of a modelservice chart's values."""
    root = document.root
    uri = document.word(get(root, "modelArtifacts", "uri"), VALUE)
    if get(root, "modelArtifacts") is None or get(root, "apiVersion") is not None:
        return None
    found: list[Launch] = []
    for key, role in pairs(root):
        for container in items(get(role, "containers")):
            found += _of_container(document, key.value, role, container, uri, context)
    return found or None


def _of_container(
    document: Document, name: str, role: yaml.Node, container: yaml.Node, uri: FileWord | None, context: Context
) -> Iterator[Launch]:
    pod = get(role, "extraConfig") or role
    nodes = document.stated(get(role, "parallelism", "workers"))
    manner = text_of(get(container, "modelCommand")) or "custom"
    if manner == "custom" or uri is None:
        around = Surroundings(f"role {name}", nodes=nodes)
        for launch in container_launches(document, container, pod, around, context):
            yield replace(launch, format=FORMAT, gpu=launch.gpu or _accelerator(document, role))
        return
    model = _model(uri, text_of(get(document.root, "modelArtifacts", "mountPath")) or "/model-cache")
    known = variables_of(document, get(container, "env"))
    words = [model, *_sizes(document, role, least=2)]
    if manner == "imageDefault":
        words.insert(0, implied("--model", model.span))
    served = document.word(get(document.root, "modelArtifacts", "name"), VALUE)
    if served is not None:
        words += (implied("--served-model-name", served.span), served)
    words += [expanded(word, known) for word in document.words(get(container, "args"))]
    env = environment(document, get(container, "env"))
    image = document.stated(get(container, "image")) or image_of(document, get(container, "image"))
    gpu, notes = gpu_of_pod(document, pod)
    key = key_of(container, "args") or key_of(container, "modelCommand")
    place = model.span if key is None else document.span(key)
    servers = [Server(("vllm", "serve"), tuple(words), place, env=env, image=image)]
    if manner == "imageDefault":
        servers = servers_of_container(context, image=image, command=(), args=words, env=env, place=place)
    for server in servers:
        yield Launch(
            FORMAT,
            f"role {name} container {text_of(get(container, 'name')) or 'vllm'}",
            replace(server, notes=(*server.notes, *notes)),
            (place,),
            image=image,
            gpu=gpu or _accelerator(document, role),
            gpus=gpus_of_resources(document, get(container, "resources")),
            nodes=nodes,
        )


def _model(uri: FileWord, mounted: str) -> FileWord:
    """``hf://ORG/NAME``, ``pvc+hf://CLAIM/.../ORG/NAME`` or ``pvc://CLAIM/PATH`` as the chart hands it to vLLM."""
    protocol, separator, rest = uri.text.partition("://")
    start = len(protocol) + len(separator)
    if protocol == "hf":
        return part(uri, start)
    pieces = rest.split("/")
    if protocol == "pvc+hf" and len(pieces) > 2:
        return part(uri, len(uri.text) - len("/".join(pieces[-2:])))
    if protocol == "pvc" and len(pieces) > 1:
        return FileWord(f"{mounted}/{'/'.join(pieces[1:])}", uri.span, VALUE, uri.open)
    return uri


def _accelerator(document: Document, role: yaml.Node) -> Stated | None:
    """``acceleratorTypes``: a label of the nodes and its values."""
    values = items(get(role, "acceleratorTypes", "labelValues"))
    return document.stated(values[0]) if len(values) == 1 else None


def role_values_launches(document: Document, context: Context) -> list[Launch] | None:
    """Settings by role, with ``model`` for all of them."""
    root = document.root
    # Settings of the roles may stand below those of the endpoint picker, which is no object of a cluster.
    if get(root, "apiVersion") is not None and text_of(get(root, "kind")) != "EndpointPickerConfig":
        return None
    found = [launch for key, role in pairs(root) if (launch := _of_role(document, key, role)) is not None]
    return found or None


def _of_role(document: Document, key: yaml.ScalarNode, role: yaml.Node) -> Launch | None:
    root = document.root
    text = next((name for name in _TEXTS if get(role, name) is not None), None)
    model = document.word(get(role, "model"), VALUE) or document.word(get(root, "model"), VALUE)
    if text is None or not (text.startswith("serve") or any(get(role, name) is not None for name in _DEPLOYED)):
        return None
    if model is None and key.value not in _ROLES:
        return None
    # Without a model it is chosen when the launch is made; the flags can be looked at all the same.
    words = [*([] if model is None else [model]), *_sizes(document, role, least=1)]
    for name, value in pairs(role):
        spelled = flag_of_key(name.value) if name.value not in _TEXTS and name.value != "model" else None
        if spelled is not None and "-" in name.value:
            words += _flag(document, name, value, spelled)
    node = get(role, text)
    word = document.word(node)
    words += document.words(node) if word is None else split_arguments(word)
    place = document.span(key)
    image = next(
        (
            found
            for owner in (role, root)
            if (found := document.stated(get(owner, "image")) or image_of(document, get(owner, "image"))) is not None
        ),
        None,
    )
    env = environment(document, get(root, "env"), get(role, "env"))
    head = key_of(role, text)
    return Launch(
        FORMAT,
        f"role {key.value}",
        Server(("vllm", "serve"), tuple(words), place, env=env, image=image),
        (place,) if head is None else (place, document.span(head)),
        image=image,
        gpu=_of_either(document, role, "accelerator") or document.stated(get(root, "gpu")),
        gpus=_of_either(document, role, "lws", "gpusPerNode") or document.stated(get(root, "num_gpus")),
        nodes=_of_either(document, role, "lws", "size"),
    )


def _of_either(document: Document, role: yaml.Node, *keys: str) -> Stated | None:
    return document.stated(get(role, *keys)) or document.stated(get(document.root, *keys))


def _flag(document: Document, key: yaml.ScalarNode, value: yaml.Node, spelled: str) -> list[FileWord]:
    if is_true(value):
        return [flag(document, spelled, key)]
    if is_false(value):
        return [flag(document, "--no-" + spelled[2:], key)]
    word = document.word(value, VALUE)
    return [] if word is None else [flag(document, spelled, key), word]


def _sizes(document: Document, role: yaml.Node, *, least: int) -> list[FileWord]:
    """The flags of ``parallelism``, from ``least`` on."""
    words: list[FileWord] = []
    sizes = pairs(get(role, "parallelism"))
    if not sizes:
        sizes = [(key, value) for key, value in pairs(role) if key.value == "tp"]
    for key, value in sizes:
        word = document.word(value, VALUE)
        if key.value in _SIZES and word is not None and not (word.text.isdigit() and int(word.text[:9]) < least):
            words += (flag(document, _SIZES[key.value], key), word)
    return words
