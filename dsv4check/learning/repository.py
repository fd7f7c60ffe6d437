"""The release files of this repository: what is there, what a newly learned release makes of them, and writing it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.version import Version

from dsv4check.data import load_yaml
from dsv4check.releases.facts import SECTIONS_APART

from .write import facts_text, flags_text, history_text, section_text


@dataclass(frozen=True)
class Learned:
    """What one release says about itself."""

    version: str
    sections: Mapping[str, Any] = field(default_factory=dict)
    """Section name -> facts."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """The flag table."""

    def same_facts(self, other: Learned) -> bool:
        """True when nothing but the version differs."""
        apart = {"release": ""}
        return dict(self.sections) == dict(other.sections) and {**self.flags, **apart} == {**other.flags, **apart}


class Repository:
    """``rules/releases/`` of a checkout."""

    def __init__(self, rules: Path) -> None:
        self.folder = rules / "releases"

    @cached_property
    def versions(self) -> tuple[str, ...]:
        """Every release there are facts for, oldest first."""
        names = [path.stem for path in self.folder.glob("*.yaml") if path.stem[:1].isdigit()]
        return tuple(sorted(names, key=Version))

    def load(self, version: str) -> Learned:
        """A release as the files have it."""
        facts = load_yaml((self.folder / f"{version}.yaml").read_text(encoding="utf-8"))
        for section in SECTIONS_APART:
            text = _read(self.folder / section / f"{version}.yaml")
            if text is not None:
                facts[section] = load_yaml(text)
        flags = json.loads((self.folder / "flags" / f"{version}.json").read_text(encoding="utf-8"))
        return Learned(version, {name: value for name, value in facts.items() if name != "version"}, flags)

    def previous(self, version: str) -> str | None:
        """The newest known release older than ``version``."""
        older = [name for name in self.versions if Version(name) < Version(version)]
        return older[-1] if older else None

    def twins(self, learned: Learned) -> list[str]:
        """Other known releases with the very same facts."""
        others = [self.load(name) for name in self.versions if name != learned.version]
        return [other.version for other in others if learned.same_facts(other)]

    def texts(self, learned: Learned) -> dict[Path, str]:
        """The files as they are with ``learned`` among the releases."""
        everything = {name: self.load(name) for name in self.versions if name != learned.version}
        everything[learned.version] = learned
        ordered = {name: everything[name] for name in sorted(everything, key=Version)}
        history = history_text(
            {name: item.flags for name, item in ordered.items()},
            {name: item.sections for name, item in ordered.items()},
        )
        together = {name: facts for name, facts in learned.sections.items() if name not in SECTIONS_APART}
        return {
            self.folder / f"{learned.version}.yaml": facts_text(learned.version, together),
            **{
                self.folder / name / f"{learned.version}.yaml": section_text(learned.sections[name])
                for name in SECTIONS_APART
                if name in learned.sections
            },
            self.folder / "flags" / f"{learned.version}.json": flags_text(learned.flags),
            self.folder / "flags" / "history.json": history,
        }

    def outdated(self, learned: Learned) -> list[Path]:
        """The files that would change."""
        return [path for path, text in self.texts(learned).items() if _read(path) != text]

    def write(self, learned: Learned) -> list[Path]:
        """Write what differs; each file is replaced as a whole. Returns what was written."""
        changed = []
        for path, text in self.texts(learned).items():
            if _read(path) == text:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}.new")
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, path)
            changed.append(path)
        self.__dict__.pop("versions", None)
        return changed


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
