"""What a project says about its launches: facts, exclusions and ignores, from its configuration file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4check.errors import InputError
from dsv4check.gate.globs import matches
from dsv4check.gate.settings_file import ConfigFile, find_config, read_config
from dsv4check.records import dataclass, field

if TYPE_CHECKING:
    from dsv4check.gate.settings_schema import FactKeys


@dataclass(frozen=True, slots=True)
class Facts:
    """What the launches of a file are checked with, where the file does not say it."""

    vllm: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    gpu_memory_gib: float | None = None
    model: str | None = None
    model_config: Path | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    skip: str = ""
    """Why launches of the file are not checked; empty where they are."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts of the files that globs name (``[[launch]]``)."""

    globs: tuple[str, ...]
    facts: Facts


@dataclass(frozen=True, slots=True)
class ConfiguredIgnore:
    """Findings that the configuration says do not count (``[[ignore]]``)."""

    globs: tuple[str, ...]
    rules: tuple[str, ...]
    """Ids or names, as they are written."""
    reason: str
    launch: str = ""
    """Part of the launch's name; empty for every launch."""
    line: int = 1
    """Where the table begins."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A project's configuration; without a file everything is empty."""

    start: Path
    """The current folder: shown paths start from it."""
    folder: Path
    """Folder of the configuration file: its globs and paths start from it."""
    source: str = ""
    """The file, as reports call it; empty when there is none."""
    facts: Facts = field(default_factory=Facts)
    files: tuple[FileFacts, ...] = ()
    fail_on: str | None = None
    """``error``, ``warning``, ``note`` or ``never``."""
    strict: bool = False
    exclude: tuple[str, ...] = ()
    baseline: Path | None = None
    rules: Path | None = None
    ignores: tuple[ConfiguredIgnore, ...] = ()
    notes: tuple[str, ...] = ()

    def relative(self, shown: str) -> str:
        """A shown path as it is seen from the configuration's folder; absolute where it lies outside."""
        if self.start == self.folder and not shown.startswith("/"):
            return shown
        path = os.path.normpath(os.path.join(self.start, shown))
        relative = os.path.relpath(path, self.folder)
        return path if relative == ".." or relative.startswith("../") else relative

    def excludes(self, shown: str) -> bool:
        """True for a file, or a folder, that is not looked at."""
        return bool(self.exclude) and _named(self.relative(shown), self.exclude)

    def facts_for(self, shown: str) -> Facts:
        """The facts for the launches of a file."""
        path = self.relative(shown)
        facts = self.facts
        for item in self.files:
            if _named(path, item.globs):
                facts = _merged(facts, item.facts)
        return facts


def load_settings(start: Path, config: Path | None = None, isolated: bool = False) -> Settings:
    """The configuration that holds in a folder: the file that was named, or the nearest one at or above it.

    Raises InputError for a file that is missing or broken, for unknown keys and for values of a wrong type.
    """
    here = Path(os.path.abspath(start))
    if isolated:
        if config is not None:
            raise InputError("--isolated and --config: give only one of them")
        return Settings(here, here)
    found = find_config(here) if config is None else read_config(here / config, str(config))
    return Settings(here, here) if found is None else _settings(here, found)


def _settings(start: Path, found: ConfigFile) -> Settings:
    from dsv4check.gate.settings_file import ignore_lines, validated

    table = validated(found)
    lines = ignore_lines(found, len(table.ignore))
    folder = found.path.parent
    return Settings(
        start=start,
        folder=folder,
        source=found.shown,
        facts=_facts(table, folder),
        files=tuple(
            FileFacts(tuple(item.path), replace(_facts(item, folder), skip=item.skip or "")) for item in table.launch
        ),
        fail_on=table.fail_on,
        strict=table.strict,
        exclude=tuple(table.exclude),
        baseline=_below(folder, table.baseline),
        rules=_below(folder, table.rules),
        ignores=tuple(
            ConfiguredIgnore(tuple(item.path), tuple(item.rules), item.reason, item.launch or "", line)
            for item, line in zip(table.ignore, lines, strict=True)
        ),
        notes=found.notes,
    )


def _facts(table: FactKeys, folder: Path) -> Facts:
    return Facts(
        vllm=table.vllm,
        gpu=table.gpu,
        gpus=table.gpus,
        nodes=table.nodes,
        gpu_memory_gib=table.gpu_memory_gib,
        model=table.model,
        model_config=_below(folder, table.model_config_path),
        packages=dict(table.packages or {}),
        env={name: _text(value) for name, value in (table.env or {}).items()},
    )


def _merged(base: Facts, over: Facts) -> Facts:
    """Facts that win over others where they say something."""
    said: dict[str, Any] = {
        name: value
        for name in ("vllm", "gpu", "gpus", "nodes", "gpu_memory_gib", "model", "model_config")
        if (value := getattr(over, name)) is not None
    }
    packages, env = {**base.packages, **over.packages}, {**base.env, **over.env}
    return replace(base, **said, packages=packages, env=env, skip=over.skip or base.skip)


def _text(value: str | int | bool) -> str:
    # Both ways in which switches are read from the environment (a number, a word) understand 1 and 0.
    return str(int(value)) if isinstance(value, bool) else str(value)


def _below(folder: Path, path: str | None) -> Path | None:
    return None if path is None else folder / path


def _named(path: str, globs: tuple[str, ...]) -> bool:
    return any(matches(path, glob) for glob in globs)
