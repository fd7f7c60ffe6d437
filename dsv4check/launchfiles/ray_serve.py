"""Ray Serve LLM: ``llm_configs`` of an application, or one such configuration as a file of its own."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from dsv4check.launchfiles.engine_words import engine_words
from dsv4check.launchfiles.records import VALUE, Context, Launch, Server
from dsv4check.launchfiles.settings_nodes import argument, environment, implied
from dsv4check.launchfiles.yaml_nodes import Document, get, items, key_of, mappings, pairs, text_of


def ray_serve_launches(document: Document, context: Context) -> list[Launch] | None:
    """The engines of Ray Serve applications."""
    found = [_launch(document, name, node) for name, node in _configurations(document.root)]
    return [launch for launch in found if launch is not None] or None


def _configurations(root: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    """Each configuration, and the name of its application."""
    if get(root, "model_loading_config") is not None:
        yield "", root
    for application in items(get(root, "applications")):
        arguments = get(application, "args")
        if arguments is None:
            continue
        for node in mappings(arguments):
            if get(node, "model_loading_config") is not None:
                yield text_of(get(application, "name")) or "", node


def _launch(document: Document, application: str, node: yaml.Node) -> Launch | None:
    loading = get(node, "model_loading_config")
    identity = document.word(get(loading, "model_id"), VALUE)
    model = document.word(get(loading, "model_source"), VALUE) or identity
    if model is None:
        return None
    settings = get(node, "engine_kwargs")
    arguments = [argument(document, key, value) for key, value in pairs(settings) if key.value != "model"]
    words, notes = engine_words(arguments)
    runtime = get(node, "runtime_env")
    key = key_of(node, "engine_kwargs") or key_of(node, "model_loading_config")
    heads = () if key is None else (document.span(key),)
    image = document.stated(get(runtime, "image_uri")) or document.stated(get(runtime, "container", "image"))
    server = Server(
        (),
        (implied("--model", model.span), model, *words),
        model.span,
        "engine",
        environment(document, get(runtime, "env_vars")),
        image=image,
        notes=notes,
    )
    names = [f"application {application}" if application else "", f"model {identity.text}" if identity else ""]
    return Launch(
        "ray-serve",
        " ".join(name for name in names if name),
        server,
        heads,
        image=image,
        gpu=document.stated(get(node, "accelerator_type")),
    )
