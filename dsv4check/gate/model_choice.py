"""Which model a launch serves, and whether it is a DeepSeek-V4 model at all."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from dsv4check.deployment import ServeFlags
from dsv4check.gate.settings import Facts
from dsv4check.inputs.checkpoint import PublishedModel, find_published, guess_sibling
from dsv4check.launchfiles.records import Launch
from dsv4check.records import dataclass

_FAMILY: Final = re.compile(r"deepseek[-_ ]?v4|\bds[-_]?v4", re.IGNORECASE)
_TELLING: Final = ("tokenizer_mode", "reasoning_parser", "tool_call_parser", "served_model_name")
"""Flags whose value shows that a path of any name holds a DeepSeek-V4 model."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What to read the model's config from."""

    name: str | None = None
    """The model as the command names it."""
    config_like: str | None = None
    """The published checkpoint that stands in for it."""
    model_config: str | None = None
    other: str = ""
    """Why it is no DeepSeek-V4 launch; empty where it is, or may be, one."""
    unknown: str = ""
    """Why it cannot be checked though it is, or may be, one."""
    note: str = ""


def choose_model(launch: Launch, flags: ServeFlags, options: Facts, configured: Facts, open_model: bool) -> ModelChoice:
    """Find the model's config: stated, published, mounted from a path that names it, or told by the served name.

    ``open_model``: the model's word has a part whose value is not known.
    """
    name = flags.model
    given = options.model_config or configured.model_config
    stated = options.model or configured.model
    telling = _telling(flags)
    if name is None and stated is None and given is None:
        return _without_name(telling)
    if given is not None and (name is None or _may_be_family(name, telling, open_model)):
        return ModelChoice(name or str(given), model_config=str(given))
    if stated is not None and (name is None or open_model or not _names_a_model(name)):
        return _stated(name or stated, stated)
    if name is None:
        return ModelChoice(other="no model is named")
    if open_model:
        # It may be any model: nothing is said of it, and that is said.
        return ModelChoice(name, unknown=f"the model {name} is not set in this file")
    if find_published(name) or guess_sibling(name) or _lies_here(name):
        return ModelChoice(name)
    mounted = _mounted(name, launch.server.mounts)
    hints = [
        (mounted, f"{name} is mounted from {mounted}"),
        *((told, f"it is served as {told}") for told in telling),
        (name, f"{name} lies below a folder of that name"),
    ]
    for hint, why in hints:
        entry = _entry_of(hint)
        if entry is not None:
            return ModelChoice(name, config_like=entry.id, note=f"{why}: read as {entry.id}")
    if _is_family(name, telling):
        why = f"which DeepSeek-V4 model {name} is cannot be told: its config.json is not here"
        return ModelChoice(name, unknown=why)
    return ModelChoice(name, other=f"{name} is no DeepSeek-V4 model by its name")


def _lies_here(name: str) -> bool:
    """True for a model's folder, or its config.json, on this machine."""
    return os.path.isfile(name) or os.path.isfile(os.path.join(name, "config.json"))


def _entry_of(hint: str) -> PublishedModel | None:
    """The checkpoint that a path or a name stands for: by its last part, else by the last folder that says one."""
    if not hint:
        return None
    parts = [hint, *(part for part in reversed(hint.split("/")) if _FAMILY.search(part))]
    return next((entry for part in parts if (entry := find_published(part) or guess_sibling(part))), None)


def _telling(flags: ServeFlags) -> list[str]:
    values = []
    for dest in _TELLING:
        value = flags.values.get(dest)
        values += [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)] if value else []
    return values


def _without_name(telling: list[str]) -> ModelChoice:
    if any(_FAMILY.search(text) for text in telling):
        return ModelChoice(unknown="the command names no model")
    return ModelChoice(other="the command names no model")


def _stated(name: str, stated: str) -> ModelChoice:
    entry = find_published(stated) or guess_sibling(stated)
    if entry is not None:
        return ModelChoice(name, config_like=entry.id)
    return ModelChoice(name, model_config=stated)


def _names_a_model(name: str) -> bool:
    """True for a name that says by itself which model it is."""
    return find_published(name) is not None or guess_sibling(name) is not None or not name.startswith((".", "/", "~"))


def _is_family(name: str, telling: list[str]) -> bool:
    return bool(_FAMILY.search(name)) or any(_FAMILY.search(text) for text in telling)


def _may_be_family(name: str, telling: list[str], open_model: bool) -> bool:
    return open_model or _is_family(name, telling) or name.startswith((".", "/", "~"))


def _mounted(name: str, mounts: Mapping[str, str]) -> str:
    """The path of the host behind a path in the container; empty where nothing is mounted there."""
    best = max((target for target in mounts if _below(name, target)), key=len, default=None)
    if best is None or not mounts[best]:
        return ""
    return mounts[best].rstrip("/") + name.rstrip("/")[len(best.rstrip("/")) :]


def _below(path: str, folder: str) -> bool:
    base = folder.rstrip("/")
    return bool(base) and (path.rstrip("/") == base or path.startswith(base + "/"))
