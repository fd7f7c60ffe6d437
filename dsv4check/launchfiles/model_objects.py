"""Objects of a cluster that describe a served model without a container: KubeAI's ``Model``, ``VLLMRuntime``."""

from __future__ import annotations

import re
from typing import Final

import yaml

from dsv4check.launchfiles.records import VALUE, Context, FileWord, Launch, Server, Stated
from dsv4check.launchfiles.settings_nodes import environment, flag, implied, is_true, part
from dsv4check.launchfiles.yaml_nodes import Document, get, key_of, pairs, text_of

_PROFILE: Final = re.compile(r"(?P<gpu>[\w.-]+):(?P<count>[1-9]\d{0,3})")
_SWITCHES: Final = {
    "enableLoRA": "--enable-lora",
    "enableTool": "--enable-auto-tool-choice",
    "enableChunkedPrefill": "--enable-chunked-prefill",
    "enablePrefixCaching": "--enable-prefix-caching",
}
_OFF_UNLESS_ASKED: Final = ("enableChunkedPrefill", "enablePrefixCaching")
_VALUES: Final = {
    "toolCallParser": "--tool-call-parser",
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "maxNumSeqs": "--max-num-seqs",
    "tensorParallelSize": "--tensor-parallel-size",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
}


def model_object_launches(document: Document, context: Context) -> list[Launch] | None:
    """The launch that an operator makes of the object; None for objects of other kinds."""
    root = document.root
    version, kind = text_of(get(root, "apiVersion")) or "", text_of(get(root, "kind"))
    if version.startswith("kubeai.org/") and kind == "Model":
        return _of_kubeai(document, get(root, "spec"))
    if version.startswith("production-stack.vllm.ai/") and kind == "VLLMRuntime":
        return _of_runtime(document, get(root, "spec"))
    return None


def _name(document: Document) -> str:
    kind, name = text_of(get(document.root, "kind")), text_of(get(document.root, "metadata", "name"))
    return f"{kind}/{name}" if name else str(kind)


def _of_kubeai(document: Document, spec: yaml.Node | None) -> list[Launch]:
    url = document.word(get(spec, "url"), VALUE)
    if url is None or (text_of(get(spec, "engine")) or "").lower() != "vllm":
        return []
    scheme = url.text.partition("://")[0] if "://" in url.text else ""
    model = part(url, len("hf://")) if scheme == "hf" else url
    words = [model, *document.words(get(spec, "args"))]
    image = document.stated(get(spec, "image"))
    gpu, gpus = _profile(document.word(get(spec, "resourceProfile"), VALUE))
    env = environment(document, get(spec, "env"))
    server = Server(("vllm", "serve"), tuple(words), model.span, env=env, image=image)
    heads = tuple(document.span(key) for name in ("url", "args") if (key := key_of(spec, name)) is not None)
    return [Launch("kubernetes", _name(document), server, heads, image=image, gpu=gpu, gpus=gpus)]


def _profile(word: FileWord | None) -> tuple[Stated | None, Stated | None]:
    """``nvidia-gpu-h100:8``: what the cluster calls the GPU, and how many."""
    match = None if word is None else _PROFILE.fullmatch(word.text)
    if word is None or match is None:
        return None, None
    count = part(word, match.start("count"))
    product = re.sub(r"^(?:nvidia|amd)-gpu-", "", match["gpu"])
    at = match.end("gpu") - len(product)
    place = part(word, at, match.end("gpu"))
    return Stated(product, place.span), Stated(count.text, count.span)


def _of_runtime(document: Document, spec: yaml.Node | None) -> list[Launch]:
    described, config = get(spec, "model"), get(spec, "vllmConfig")
    model = document.word(get(described, "modelURL"), VALUE)
    if model is None:
        return []
    words = [model]
    for node in (described, config):
        for key, value in pairs(node):
            word = document.word(value, VALUE)
            if key.value in _SWITCHES and is_true(value):
                words.append(flag(document, _SWITCHES[key.value], key))
            elif key.value in _VALUES and word is not None and word.text:
                words += (flag(document, _VALUES[key.value], key), word)
    for name in _OFF_UNLESS_ASKED:
        at = key_of(config, name) or key_of(spec, "vllmConfig")
        if at is not None and not is_true(get(config, name)):
            words.append(implied("--no-" + _SWITCHES[name][2:], document.span(at)))
    words += document.words(get(config, "extraArgs"))
    image = _image(document, get(spec, "deploymentConfig", "image"))
    server = Server(
        ("vllm", "serve"), tuple(words), model.span, env=environment(document, get(config, "env")), image=image
    )
    keys = (key_of(spec, name) for name in ("model", "vllmConfig"))
    heads = tuple(document.span(item) for item in keys if item is not None)
    gpus = document.stated(get(spec, "deploymentConfig", "resources", "gpu"))
    return [Launch("kubernetes", _name(document), server, heads, image=image, gpus=gpus)]


def _image(document: Document, node: yaml.Node | None) -> Stated | None:
    """``registry`` and ``name`` beside each other."""
    name, registry = document.stated(get(node, "name")), text_of(get(node, "registry"))
    if name is None or not registry:
        return name
    return Stated(f"{registry}/{name.value}", name.span)
