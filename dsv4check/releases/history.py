"""Which releases know a flag, a choice or a key, from ``rules/releases/flags/history.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Final

from dsv4check.data import rules_dir
from dsv4check.records import dataclass

NO_RELEASE: Final = "<0"
"""A version specifier that nothing satisfies."""


@dataclass(frozen=True, slots=True)
class FlagHistory:
    """In which releases a flag, a key of a JSON-valued flag or a choice exists.

    Names are spelled ``--flag``, ``--flag=choice``, ``dest.key``, ``dest.key=choice`` or
    ``attention-backend=NAME``; ``speculative_config.key`` is one of ``dest.key``.
    """

    releases: tuple[str, ...]
    """Oldest first."""
    always: frozenset[str]
    """Names that every release knows."""
    ranges: Mapping[str, tuple[tuple[int, int], ...]]
    """Other names -> runs of releases that know them, as inclusive pairs of indices into ``releases``."""

    def exists(self, name: str) -> bool:
        """True when any release knows the name."""
        return name in self.always or name in self.ranges

    def removed_in(self, name: str, release: str) -> str | None:
        """The release that dropped ``name``: the one after the last before ``release`` that had it."""
        here = self.releases.index(release)
        ends = [last for _, last in self.ranges.get(name, ()) if last < here]
        return self.releases[max(ends) + 1] if ends else None

    def arrives_in(self, name: str, release: str) -> str | None:
        """The first release after ``release`` that has ``name``."""
        here = self.releases.index(release)
        starts = [first for first, _ in self.ranges.get(name, ()) if first > here]
        return self.releases[min(starts)] if starts else None


@cache
def flag_history() -> FlagHistory:
    """History of flags over all known releases (cached; read only when something is unknown)."""
    raw = json.loads((rules_dir() / "releases" / "flags" / "history.json").read_text(encoding="utf-8"))
    return FlagHistory(
        releases=tuple(raw["releases"]),
        always=frozenset(raw["always"]),
        ranges={name: tuple((first, last) for first, last in runs) for name, runs in raw["ranges"].items()},
    )


def release_data(name: str, release: str) -> dict[str, str]:
    """Which releases know a name, for a problem's data.

    Keys: ``arrives_in``, ``removed_in`` (only where they apply), ``vllm_spec`` (the releases to move to, as a
    specifier that is never satisfied when there is none) and ``when`` (a clause for the message).
    """
    history = flag_history()
    data: dict[str, str] = {"vllm_spec": NO_RELEASE, "when": ""}
    if not history.exists(name) or release not in history.releases:
        return data
    arrives, removed = history.arrives_in(name, release), history.removed_in(name, release)
    if arrives is not None:
        last = _last_of_run(name, arrives)
        data.update(arrives_in=arrives, vllm_spec=f">={arrives}" + (f",<={last}" if last else ""))
        data["when"] = f"; it exists from {arrives} on"
        if last:
            data["when"] = f"; it exists in {arrives} - {last}"
    if removed is not None:
        data["removed_in"] = removed
        data["when"] = f"; it was removed in {removed}" + (f" and is back in {arrives}" if arrives else "")
        if arrives is None:
            data["vllm_spec"] = f"<{removed}"
    return data


def _last_of_run(name: str, first: str) -> str | None:
    """Last release of the run that starts at ``first``, None when it lasts to the newest."""
    history = flag_history()
    start = history.releases.index(first)
    for begin, end in history.ranges.get(name, ()):
        if begin == start:
            return None if end == len(history.releases) - 1 else history.releases[end]
    return None
