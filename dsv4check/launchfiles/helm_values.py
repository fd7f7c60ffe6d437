"""Helm values of vLLM's production stack: what its chart makes of ``servingEngineSpec.modelSpec``.

From helm/templates/deployment-vllm-multi.yaml and ray-cluster.yaml of vllm-project/production-stack.
"""

from __future__ import annotations

from typing import Final

import yaml

from dsv4check.launchfiles.images import split_image
from dsv4check.launchfiles.kubernetes_gpus import gpu_of_pod
from dsv4check.launchfiles.records import VALUE, Context, FileWord, Launch, Server, Stated
from dsv4check.launchfiles.settings_nodes import environment, flag, implied, is_true
from dsv4check.launchfiles.yaml_nodes import Document, get, items, key_of, pairs, text_of

_FLAGS: Final = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
}
_OTHER_KEYS: Final = frozenset(
    ("enableChunkedPrefill", "enablePrefixCaching", "extraArgs", "v0", "v1", "prometheusMultiprocDir")
)
_ONLY_WITH_RAY: Final = {"pipelineParallelSize": "--pipeline-parallel-size"}


def helm_values_launches(document: Document, context: Context) -> list[Launch] | None:
    """The servers of ``modelSpec``."""
    specs = get(document.root, "servingEngineSpec", "modelSpec")
    if specs is None:
        return None
    nodes = items(specs) or [specs]
    return [launch for node in nodes if (launch := _launch(document, node)) is not None] or None


def _launch(document: Document, spec: yaml.Node) -> Launch | None:
    model = document.word(get(spec, "modelURL"), VALUE)
    if model is None:
        return None
    words = [model, *_of_spec(document, spec)]
    config = get(spec, "vllmConfig")
    notes: list[str] = []
    if config is not None:
        words += _of_config(document, config, key_of(spec, "vllmConfig"), notes, ray=get(spec, "raySpec") is not None)
    words += _of_lmcache(document, spec)
    image = image_of(document, spec)
    gpu, more_notes = gpu_of_pod(document, spec)
    server = Server(
        ("vllm", "serve"),
        tuple(words),
        model.span,
        env=environment(document, get(spec, "env")),
        image=image,
        notes=(*notes, *more_notes),
    )
    heads = [document.span(key) for name in ("vllmConfig", "modelURL") if (key := key_of(spec, name)) is not None]
    return Launch(
        "helm-values",
        f"modelSpec {text_of(get(spec, 'name')) or model.text}",
        server,
        tuple(heads),
        image=image,
        gpu=gpu,
        gpus=document.stated(get(spec, "requestGPU")),
    )


def image_of(document: Document, node: yaml.Node | None) -> Stated | None:
    """``repository`` and ``tag`` beside each other."""
    repository, tag = document.stated(get(node, "repository")), document.stated(get(node, "tag"))
    if repository is None:
        return None
    registry = text_of(get(node, "registry"))
    name = f"{registry}/{repository.value}" if registry else repository.value
    if tag is None or split_image(name)[1]:
        return Stated(name, repository.span)
    return Stated(f"{name}:{tag.value}", tag.span)


def _of_spec(document: Document, spec: yaml.Node) -> list[FileWord]:
    words: list[FileWord] = []
    for key, value in pairs(spec):
        if key.value == "enableLoRA" and is_true(value):
            words.append(flag(document, "--enable-lora", key))
        elif key.value == "enableTool" and is_true(value):
            words.append(flag(document, "--enable-auto-tool-choice", key))
        elif key.value == "toolCallParser" and (word := document.word(value, VALUE)) is not None:
            words += (flag(document, "--tool-call-parser", key), word)
    return words


def _of_config(
    document: Document, config: yaml.Node, head: yaml.Node | None, notes: list[str], *, ray: bool
) -> list[FileWord]:
    words: list[FileWord] = []
    chunked = key_of(config, "enableChunkedPrefill")
    if chunked is not None:
        on = is_true(get(config, "enableChunkedPrefill"))
        words.append(flag(document, "--enable-chunked-prefill" if on else "--no-enable-chunked-prefill", chunked))
    caching = key_of(config, "enablePrefixCaching")
    if caching is not None and is_true(get(config, "enablePrefixCaching")):
        words.append(flag(document, "--enable-prefix-caching", caching))
    elif caching is not None:
        words.append(flag(document, "--no-enable-prefix-caching", caching))
    elif head is not None:
        # The chart switches it off unless it is asked for.
        words.append(implied("--no-enable-prefix-caching", document.span(head)))
        notes.append("the chart adds --no-enable-prefix-caching where enablePrefixCaching is not true")
    known = {**_FLAGS, **(_ONLY_WITH_RAY if ray else {})}
    unknown: list[str] = []
    for key, value in pairs(config):
        word = document.word(value, VALUE)
        if key.value in known and word is not None:
            words += (flag(document, known[key.value], key), word)
        elif key.value not in _OTHER_KEYS and key.value not in known:
            unknown.append(key.value)
    if unknown:
        notes.append(f"the chart makes no flag of {', '.join(unknown)} in vllmConfig")
    words += document.words(get(config, "extraArgs"))
    return words


def _of_lmcache(document: Document, spec: yaml.Node) -> list[FileWord]:
    node = get(spec, "lmcacheConfig")
    key = key_of(node, "enabled")
    if key is None or not is_true(get(node, "enabled")):
        return []
    role = text_of(get(node, "kvRole")) or "kv_both"
    text = '{"kv_connector":"LMCacheConnectorV1","kv_role":"' + role.replace('"', "") + '"}'
    return [implied("--kv-transfer-config", document.span(key)), implied(text, document.span(key))]
