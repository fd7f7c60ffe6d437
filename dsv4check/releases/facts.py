"""Facts of one release, from ``rules/releases/<version>.yaml`` and the files of single sections beside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from dsv4check.data import load_data, rules_dir
from dsv4check.errors import InputError
from dsv4check.records import dataclass, field

if TYPE_CHECKING:
    from dsv4check.deployment import VllmBuild

SECTIONS_APART: Final = ("parameters", "weights")
"""Sections in a file of their own (``rules/releases/<section>/<version>.yaml``): most checks do without them."""


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseFacts:
    """What one vLLM release does with DeepSeek-V4. Loaded once, compared by identity."""

    version: str
    data: Mapping[str, Any]
    own: Mapping[str, Any] = field(default_factory=dict)
    """Sections that were learned from a build's own tree; they count before the release's."""
    tree: str = ""
    """Folder of the tree that ``own`` was learned from."""

    @property
    def identity(self) -> str:
        """What sets these facts apart from all others of this process."""
        return f"{self.version} with {self.tree}" if self.tree else self.version

    def section(self, name: str) -> Mapping[str, Any]:
        """The facts of one area (``kv_cache``, ``attention``, ``moe``, ...); empty when the release has none."""
        if name in self.own:
            value = self.own[name]
        else:
            value = _apart(name, self.version) if name in SECTIONS_APART else self.data.get(name)
        return value if isinstance(value, Mapping) else {}


@cache
def _apart(name: str, version: str) -> Any:
    path = f"releases/{name}/{version}"
    return load_data(path) if (rules_dir() / f"{path}.yaml").is_file() else None


@cache
def known_releases() -> tuple[str, ...]:
    """Every release there are facts for, oldest first."""
    from packaging.version import Version

    names = [path.stem for path in (rules_dir() / "releases").glob("*.yaml") if path.stem[:1].isdigit()]
    return tuple(sorted(names, key=Version))


@cache
def load_facts(version: str) -> ReleaseFacts:
    """Facts of a known release.

    Raises InputError when there is no file for ``version``.
    """
    if version not in known_releases():
        raise InputError(f"no facts for vLLM {version}; known releases: {', '.join(known_releases())}")
    return ReleaseFacts(version=version, data=load_data(f"releases/{version}"))


def facts_of(build: VllmBuild) -> ReleaseFacts:
    """What decides for a build: its own code as far as it was read, and its release's facts for the rest.

    Raises InputError when there are no facts for the release.
    """
    return load_facts(build.release) if build.own is None else build.own.over(build.release)
