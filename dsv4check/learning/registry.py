"""The sections of ``rules/releases/<version>.yaml`` and the module that learns each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, cast

from .release import Release

SECTIONS: Final = (
    "attention",
    "block_size",
    "cache_planning",
    "config_fields",
    "connectors",
    "engine_config",
    "env",
    "kernels",
    "kv_cache",
    "memory",
    "moe",
    "parallel",
    "parameters",
    "pins",
    "runner",
    "spec_decode",
    "weights",
)
"""In the order of the files."""


def learner(section: str) -> Callable[[Release], dict[str, Any]]:
    """``learn`` of a section's module, imported when it is asked for."""
    module = importlib.import_module(f"{__package__}.sections.{section}")
    return cast("Callable[[Release], dict[str, Any]]", module.learn)
