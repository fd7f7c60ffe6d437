"""A file for ``vllm serve --config`` on its own: a mapping whose keys are flags."""

from __future__ import annotations

import re
from typing import Final

from dsv4check.launchfiles.records import Context, Launch, Server
from dsv4check.launchfiles.settings_nodes import distinctive, flag_of_key, implied
from dsv4check.launchfiles.yaml_nodes import Document, get, key_of, pairs, text_of

_NOTHING_BEFORE: Final = re.compile(r"(?:---[ \t]*|[ \t]*#[^\n]*|[ \t\r\n]+|%[^\n]*\n)*")
LEAST: Final = 3
"""Flags that a file has at least; without a model they are vLLM's own."""


def vllm_config_launches(document: Document, context: Context) -> list[Launch] | None:
    """The launch that the file is the configuration of; the file itself is read when its command is."""
    path, root = context.source.path, document.root
    keys = [key for key, _value in pairs(root)]
    if not path.endswith((".yaml", ".yml")) or get(root, "apiVersion") is not None or len(keys) < LEAST:
        return None
    if not _NOTHING_BEFORE.fullmatch(context.source.text[: document.span(root).start]):
        return None
    flags = [found for key in keys if (found := flag_of_key(key.value)) is not None]
    own = distinctive(flags)
    has_model = text_of(get(root, "model")) is not None
    if len(flags) < LEAST or 2 * len(flags) <= len(keys) or own < (1 if has_model else LEAST):
        return None
    first = document.span(keys[0])
    model = key_of(root, "model")
    server = Server(("vllm", "serve"), (implied("--config", first), implied(path, first)), first)
    heads = (first,) if model is None else (document.span(model), first)
    return [Launch("vllm-config", path.rsplit("/", 1)[-1], server, heads, config_file=path)]
