"""The example launches that rules fire on, for triage: what a log leaves open is filled in from them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from dsv4check.data import compiled_path, installed, rules_dir
from dsv4check.deployment import Command, Token
from dsv4check.engine.rule import listing, read_sources
from dsv4check.inputs.gpu import resolve_gpu
from dsv4check.inputs.packages import parse_packages
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.problems import Origin
from dsv4check.request import Request

COMPILED_EXAMPLES: Final = "examples"
"""Name of the compiled twin that holds the examples of all rules."""
_OF_TESTS: Final = frozenset({"checkpoint", "log"})
"""Examples that need a checkpoint made for them, or are no launches."""


def firing_examples(rule_id: str) -> tuple[Mapping[str, Any], ...]:
    """The launches of a bundled rule that trigger it, as its file writes them; none for a rule of the user's own."""
    return tuple(_all_examples().get(rule_id, ()))


def firing_examples_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The same for every rule below a folder, by id. Raises InputError for a file that cannot be read."""
    found = {}
    for record, _area, _path in read_sources(folder):
        launches = (record.get("examples") or {}).get("fires") or []
        found[str(record["id"])] = [launch for launch in launches if not _OF_TESTS & set(launch)]
    return dict(sorted(found.items()))


def example_request(launch: Mapping[str, Any]) -> Request:
    """The launch of an example. Raises InputError when it cannot be read."""
    args = launch.get("args") or []
    words = shlex.split(args) if isinstance(args, str) else [str(word) for word in args]
    if launch.get("model"):
        words = [str(launch["model"]), *words]
    return Request(
        command=Command(("vllm", "serve"), tuple(Token(word, Origin("flag", word)) for word in words)),
        vllm=resolve_vllm(str(launch["vllm"])),
        hardware=resolve_gpu(
            launch.get("gpu"),
            gpus=launch.get("gpus"),
            nodes=launch.get("nodes"),
            memory_gib=launch.get("gpu_memory_gib"),
        ),
        env={name: str(value) for name, value in (launch.get("env") or {}).items()},
        packages=parse_packages({name: str(value) for name, value in (launch.get("packages") or {}).items()}),
        config_overrides=launch.get("config_overrides"),
        config_like=launch.get("config_like"),
    )


@cache
def _all_examples() -> Mapping[str, Any]:
    folder = rules_dir() / "checks"
    twin = compiled_path(COMPILED_EXAMPLES)
    if twin.is_file():
        content = json.loads(twin.read_bytes())
        if installed() or content["listing"] == listing(folder):
            examples: Mapping[str, Any] = content["examples"]
            return examples
    return firing_examples_of(folder)
