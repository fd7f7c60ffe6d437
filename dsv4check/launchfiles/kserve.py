"""Models that KServe serves without a container of the manifest's own.

``InferenceService`` with ``predictor.model`` (the Hugging Face runtime hands its arguments on to vLLM), and
``LLMInferenceService``, whose presets run ``vllm serve`` with what the object says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml

from dsv4check.launchfiles.expansion import split_words, stated
from dsv4check.launchfiles.kubernetes_containers import (
    Surroundings,
    expanded,
    heads_of,
    mounts_of,
    variables_of,
)
from dsv4check.launchfiles.kubernetes_gpus import gpu_of_pod, gpus_of_resources
from dsv4check.launchfiles.records import DERIVED, VALUE, Context, FileWord, Launch, Server
from dsv4check.launchfiles.text import Span
from dsv4check.launchfiles.yaml_nodes import Document, get, items, key_of, text_of

_MOUNTED: Final = "/mnt/models"
_HUB: Final = "hf://"
_FORMATS: Final = frozenset(("huggingface", "vllm"))
_RUNTIME_FLAGS: Final = frozenset(("--model-name", "--model-dir", "--backend", "--return-token-type-ids"))
"""Flags of the Hugging Face runtime itself."""
_PARALLELISM: Final = {
    "tensor": "--tensor-parallel-size",
    "pipeline": "--pipeline-parallel-size",
    "data": "--data-parallel-size",
    "dataLocal": "--data-parallel-size-local",
}
_MORE: Final = "VLLM_ADDITIONAL_ARGS"


def kserve_launches(
    document: Document, node: yaml.Node, around: Surroundings, context: Context, seen: set[int]
) -> Iterator[Launch]:
    """The launches that a part of an object describes by its model alone.

    ``seen`` gets the containers that are part of them.
    """
    kind = around.label.partition("/")[0]
    if kind == "InferenceService" and (model := get(node, "predictor", "model")) is not None:
        launch = _predictor(document, get(node, "predictor"), model, around)
        if launch is not None:
            yield launch
    if kind == "LLMInferenceService" and get(node, "model", "uri") is not None:
        for role, part in (("", node), ("prefill", get(node, "prefill"))):
            if part is not None:
                launch = _preset(document, node, part, role, around, context, seen)
                if launch is not None:
                    yield launch


def _model_word(document: Document, node: yaml.Node | None) -> tuple[FileWord | None, dict[str, str]]:
    """A storage URI as vLLM's model, and what is mounted for it."""
    word = document.word(node, VALUE)
    if word is None or not word.text:
        return None, {}
    if word.text.startswith(_HUB):
        # hf://organisation/model:revision
        name = word.text[len(_HUB) :].partition(":")[0]
        offsets = word.offsets[len(_HUB) : len(_HUB) + len(name)]
        span = Span(offsets[0], offsets[-1] + 1) if offsets else word.span
        return FileWord(name, span, DERIVED, word.open, offsets), {}
    return FileWord(_MOUNTED, word.span, DERIVED), {_MOUNTED: word.text}


def _predictor(document: Document, pod: yaml.Node | None, model: yaml.Node, around: Surroundings) -> Launch | None:
    known = variables_of(document, get(model, "env"))
    args = [expanded(word, known) for word in document.words(get(model, "args"))]
    name = (text_of(get(model, "modelFormat", "name")) or "").lower()
    if name not in _FORMATS or get(model, "command") is not None:
        return None
    found, mounts = _model_word(document, get(model, "storageUri"))
    flags: list[FileWord] = []
    at = 0
    while at < len(args):
        flag, equals, _value = args[at].text.partition("=")
        width = 1 if equals or at + 1 >= len(args) or args[at + 1].text.startswith("-") else 2
        if flag.replace("_", "-") == "--model-id":
            value = args[at + width - 1]
            start = len(flag) + 1 if equals else 0
            found = FileWord(value.text[start:], value.span, value.slot, value.open, value.offsets[start:])
        elif flag.replace("_", "-") not in _RUNTIME_FLAGS:
            flags += args[at : at + width]
        at += width
    if found is None:
        return None
    heads = heads_of(document, model, "args", "storageUri", "runtime")
    words = (FileWord("--model", found.span, DERIVED), found, *flags)
    env = {key: stated(word) for key, word in known.items()}
    mounts = {**mounts_of(model, get(pod, "volumes")), **mounts}
    gpu, notes = gpu_of_pod(document, pod)
    note = "read as the arguments of vLLM's engine, to which KServe's Hugging Face runtime hands them on"
    server = Server((), words, heads[0], "engine", env, mounts=mounts, notes=(note, *notes))
    image = document.stated(get(model, "image"))
    gpus = gpus_of_resources(document, get(model, "resources"))
    return Launch("kubernetes", f"{around.label} model", server, heads, image=image, gpu=gpu, gpus=gpus)


def _preset(
    document: Document,
    spec: yaml.Node,
    part: yaml.Node,
    role: str,
    around: Surroundings,
    context: Context,
    seen: set[int],
) -> Launch | None:
    """``vllm serve`` of a preset; None where the object has a command of its own."""
    pod = get(part, "template")
    container = next(
        (item for item in items(get(pod, "containers")) if text_of(get(item, "name")) in ("main", None)), None
    )
    if get(container, "command") is not None:
        return None
    found, mounts = _model_word(document, get(spec, "model", "uri"))
    if found is None:
        return None
    known = variables_of(document, get(container, "env"))
    if container is not None:
        seen.add(id(container))
    args = [expanded(word, known) for word in document.words(get(container, "args"))]
    words = [] if args and not args[0].text.startswith("-") else [found]
    words += [*_named(document, spec), *_parallelism(document, part)] if not args else []
    words += args
    if _MORE in known:
        words += split_words(known[_MORE], context)
    heads = heads_of(document, part, "model", "template", "parallelism")
    gpu, notes = gpu_of_pod(document, pod)
    note = "`vllm serve` is started by KServe's preset, which may add flags of its own"
    server = Server(
        ("vllm", "serve"),
        tuple(words),
        heads[0],
        env={key: stated(word) for key, word in known.items()},
        mounts={**({} if container is None else mounts_of(container, get(pod, "volumes"))), **mounts},
        notes=(note, *notes),
    )
    return Launch(
        "kubernetes",
        " ".join(text for text in (around.label, role, "model") if text),
        server,
        heads,
        image=document.stated(get(container, "image")),
        gpu=gpu,
        gpus=gpus_of_resources(document, get(container, "resources")),
    )


def _named(document: Document, spec: yaml.Node) -> list[FileWord]:
    word = document.word(get(spec, "model", "name"), VALUE)
    return [] if word is None else [FileWord("--served-model-name", word.span, DERIVED), word]


def _parallelism(document: Document, part: yaml.Node) -> list[FileWord]:
    node = get(part, "parallelism")
    found = []
    for name, flag in _PARALLELISM.items():
        word, key = document.word(get(node, name), VALUE), key_of(node, name)
        if word is not None and key is not None and re.fullmatch(r"\d+", word.text):
            found += [FileWord(flag, document.span(key), DERIVED), word]
    key = key_of(node, "expert")
    if key is not None and text_of(get(node, "expert")) in ("true", "True"):
        found.append(FileWord("--enable-expert-parallel", document.span(key), DERIVED))
    return found
