"""Facts of one release, from ``rules/releases/<version>.yaml`` and the files of single sections beside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from dsv4check.data import load_data, rules_dir
from dsv4check.errors import InputError
from dsv4check.records import dataclass

SECTIONS_APART: Final = ("parameters", "weights")
"""Sections in a file of their own (``rules/releases/<section>/<version>.yaml``): most checks do without them."""


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseFacts:
    """What one vLLM release does with DeepSeek-V4. Loaded once, compared by identity."""

    version: str
    data: Mapping[str, Any]

    def section(self, name: str) -> Mapping[str, Any]:
        """The facts of one area (``kv_cache``, ``attention``, ``moe``, ...); empty when the release has none."""
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
