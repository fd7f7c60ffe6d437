"""Settings inside other objects: the values of a Helm release, and YAML that stands in a text of another file.

Flux's HelmRelease and Argo CD's Application hold a chart's values, a RayService the text of a Serve configuration, a
ConfigMap whole files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml

from dsv4check.launchfiles.engine_settings import SETTINGS_RECOGNISERS
from dsv4check.launchfiles.records import Context, Launch
from dsv4check.launchfiles.yaml_nodes import Document, mappings, pairs, yaml_documents

_VALUES: Final = frozenset(("values", "valuesObject"))
_TEXTS: Final = re.compile(r"(?:serveConfigV2|values|.*\.ya?ml)\Z")
_HINT: Final = re.compile(r"deepseek|vllm|servingEngineSpec|llm_configs", re.IGNORECASE)


def embedded_launches(document: Document, context: Context) -> list[Launch]:
    """The launches in settings below the objects of a document."""
    if not any(word in document.text.text for word in ("values", "serveConfigV2", ".yaml", ".yml")):
        return []
    found = []
    for inner in _inner(document, context):
        for _name, recogniser in SETTINGS_RECOGNISERS:
            launches = recogniser(inner, context)
            if launches is not None:
                found += launches
                break
    return found


def _inner(document: Document, context: Context) -> Iterator[Document]:
    for mapping in mappings(document.root):
        for key, value in pairs(mapping):
            if isinstance(value, yaml.MappingNode) and key.value in _VALUES:
                yield Document(value, document.text)
            elif isinstance(value, yaml.ScalarNode) and _is_yaml(key.value, value.value):
                yield from yaml_documents(document.located(value), context)


def _is_yaml(key: str, text: str) -> bool:
    return "\n" in text and bool(_TEXTS.match(key) and _HINT.search(text))
