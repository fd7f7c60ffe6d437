"""YAML and JSON read by the readers of settings alone."""

from __future__ import annotations

from dsv4check.launchfiles.engine_settings import SETTINGS_RECOGNISERS
from dsv4check.launchfiles.records import Context, Launch
from dsv4check.launchfiles.text import Located
from dsv4check.launchfiles.yaml_nodes import yaml_documents


def settings_launches(context: Context) -> list[Launch]:
    found: list[Launch] = []
    for document in yaml_documents(Located.verbatim(context.source), context):
        for _format, recogniser in SETTINGS_RECOGNISERS:
            launches = recogniser(document, context)
            if launches is not None:
                found += launches
                break
    return found
