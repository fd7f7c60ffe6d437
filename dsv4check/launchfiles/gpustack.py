"""GPUStack models, alone or in a catalog: ``backend: vLLM`` with ``backend_parameters``."""

from __future__ import annotations

import re
from typing import Final

import yaml

from dsv4check.launchfiles.records import VALUE, Context, FileWord, Launch, Server
from dsv4check.launchfiles.settings_nodes import environment, part
from dsv4check.launchfiles.yaml_nodes import Document, get, key_of, mappings, text_of

_SOURCES: Final = ("huggingface_repo_id", "model_scope_model_id", "local_path")
_FLAG_AND_VALUE: Final = re.compile(r"(--?[\w.-]+)\s+(?=\S)")


def gpustack_launches(document: Document, context: Context) -> list[Launch] | None:
    """The models that GPUStack serves with vLLM."""
    if "backend" not in document.text.text:
        return None
    found = [launch for node in mappings(document.root) if (launch := _launch(document, node)) is not None]
    return found or None


def _launch(document: Document, node: yaml.MappingNode) -> Launch | None:
    backend = text_of(get(node, "backend"))
    model = next((word for name in _SOURCES if (word := document.word(get(node, name), VALUE)) is not None), None)
    if model is None or backend is None or not backend.lower().startswith("vllm"):
        return None
    words: list[FileWord] = [model]
    for word in document.words(get(node, "backend_parameters")):
        match = _FLAG_AND_VALUE.match(word.text)
        if match is None:
            words.append(word)
        else:
            words += (part(word, 0, match.end(1)), part(word, match.end()))
    image = document.stated(get(node, "image_name"))
    server = Server(
        ("vllm", "serve"), tuple(words), model.span, env=environment(document, get(node, "env")), image=image
    )
    head = key_of(node, "backend_parameters") or key_of(node, "backend")
    return Launch(
        "gpustack",
        f"model {text_of(get(node, 'name')) or model.text}",
        server,
        () if head is None else (document.span(head),),
        image=image,
        vllm=document.stated(get(node, "backend_version")),
        gpus=document.stated(get(node, "gpu_selector", "gpus_per_replica")),
    )
