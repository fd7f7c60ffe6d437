"""Where a vLLM version stands: among the releases, or on the timeline of development builds.

The version of a development build, e.g. ``0.23.1rc1.dev788+gfa4321de3``, counts commits on ``main``
since a tag there, while releases are cut from branches and have no such number. So dev788 already holds
code that 0.24.0 lacks, although it sorts before 0.24.0. Development builds are therefore never compared
with releases by version; each has *brackets*, the releases its code may resemble, and known facts by
base and number in ``rules/releases/development.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version

from dsv4check.data import load_data
from dsv4check.errors import InputError
from dsv4check.records import dataclass, field
from dsv4check.releases.facts import known_releases

FIRST_SUPPORT = "0.20.0"
"""The first release that registers DeepSeek-V4; 0.19.1 does not know the model type."""


@dataclass(frozen=True, slots=True)
class DevelopmentFact:
    """Something known about a range of development builds that no release shows."""

    base: str
    """The tag the number counts from, ``0.23.1rc1``."""
    first: int
    last: int
    """Inclusive range of build numbers it is known for."""
    code: str
    """Kebab-case name, e.g. ``swa-rows-512``; empty for an entry that only narrows ``brackets``."""
    summary: str = ""
    brackets: tuple[str, ...] = ()
    """Releases between which the build is known to lie, when that is narrower than the default."""
    nearest: str = ""
    """The release that shares most code with these builds."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Fact values that differ from the nearest release, as ``area: {key: value}``."""
    references: tuple[str, ...] = ()


def parse_version(text: str) -> Version | None:
    """The PEP 440 version, or None when ``text`` is none."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def newest_release() -> str:
    """The newest release there are facts for."""
    return known_releases()[-1]


@cache
def before_first_support(version: str) -> bool:
    """True when the version is older than the first release that knows DeepSeek-V4 (0.20.0).

    Development builds count from the tag they follow: ``0.19.2rc1.dev5`` is before, and so is a
    pre-release of 0.20.0 itself, whose preview images carried unreleased code.
    """
    parsed = parse_version(version)
    if parsed is None or without_tags(version):
        return False
    return parsed.release < Version(FIRST_SUPPORT).release


@cache
def without_tags(version: str) -> bool:
    """True for ``0.1.dev15830+g8d599d76a``: built from a checkout without tags, where the number counts all commits.

    It tells nothing about the release. The preview images of DeepSeek-V4 carry such versions.
    """
    parsed = parse_version(version)
    return parsed is not None and parsed.dev is not None and parsed.release[:2] == (0, 1)


def neighbours(version: str) -> tuple[str | None, str | None]:
    """The newest known release not after ``version`` and the oldest one after it (by release number)."""
    target = Version(version).release
    below = [name for name in known_releases() if Version(name).release <= target]
    above = [name for name in known_releases() if Version(name).release > target]
    return (below[-1] if below else None, above[0] if above else None)


@cache
def nearest_release(version: str) -> tuple[str, str]:
    """The known release whose facts stand in for ``version``, and a note when it is not the same.

    An unknown patch release takes the facts of the release before it, because patch releases are cut from
    that release's branch. Versions newer than every known release take the newest.
    """
    plain = ".".join(str(part) for part in Version(version).release)
    for name in known_releases():
        if Version(name) == Version(plain):
            return name, ""
    below, above = neighbours(plain)
    if below is None:
        assert above is not None
        return above, f"no facts for vLLM {version}; the nearest is {above}"
    if above is None:
        return below, f"no facts for vLLM {version}, which is newer than all known releases; using {below}"
    return below, f"no facts for vLLM {version}; nearest are {below} and {above}, using {below}"


@cache
def development_facts() -> tuple[DevelopmentFact, ...]:
    """Every entry of ``rules/releases/development.yaml``; raises InputError when the file is malformed."""
    path = "rules/releases/development.yaml"
    content = load_data("releases/development")
    entries = content.get("builds") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise InputError(f"{path}: expected a list under 'builds'")
    try:
        return tuple(
            DevelopmentFact(
                base=str(entry["base"]),
                first=int(entry["from"]),
                last=int(entry["to"]),
                code=str(entry.get("code", "")),
                summary=str(entry.get("summary", "")),
                brackets=tuple(str(name) for name in entry.get("brackets", ())),
                nearest=str(entry.get("nearest", "")),
                data=entry.get("data", {}),
                references=tuple(str(ref) for ref in entry.get("references", ())),
            )
            for entry in entries
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: bad entry under 'builds': {error}") from None


def known_development(base: str | None, number: int | None) -> tuple[DevelopmentFact, ...]:
    """What is known about the build ``base`` + ``number`` commits; empty for releases."""
    if base is None or number is None:
        return ()
    return tuple(fact for fact in development_facts() if fact.base == base and fact.first <= number <= fact.last)


def brackets(base: str, number: int | None) -> tuple[str, ...]:
    """The releases that the code of a development build may resemble, oldest first.

    ``base`` is the tag (``0.23.1rc1``). On ``main`` the tag stays for many weeks, so the build lies
    somewhere between the newest release of the base's minor and the second minor after it, capped at the
    newest known. A base without ``rc`` (``0.20.1.dev3``) comes from the branch of the release before it.
    An entry in ``development.yaml`` narrows this.
    """
    for fact in known_development(base, number):
        if fact.brackets:
            return fact.brackets
    target = Version(base)
    if target.pre is None and target.micro > 0:
        return _branch_brackets(target, number)
    minors = sorted({Version(name).release[:2] for name in known_releases()})
    start = [minor for minor in minors if minor <= target.release[:2]]
    if not start:
        return (known_releases()[0],)
    index = minors.index(start[-1])
    chosen = [_of_minor(minors[index], newest=True)]
    chosen += [_of_minor(minor, newest=False) for minor in minors[index + 1 : index + 3]]
    return tuple(chosen)


def representative(base: str, number: int | None, among: tuple[str, ...]) -> str:
    """The single release to display for a development build.

    ``nearest`` of a known entry, else the middle bracket: a build is more likely to hold what the release
    after its tag holds than to equal either end.
    """
    for fact in known_development(base, number):
        if fact.nearest:
            return fact.nearest
    return among[len(among) // 2] if len(among) > 2 else among[0]


def _branch_brackets(target: Version, number: int | None) -> tuple[str, ...]:
    """Brackets of ``X.Y.Z.devN`` without rc: the release before it and, past its tag, the next one."""
    earlier = [name for name in known_releases() if Version(name).release < target.release]
    later = [name for name in known_releases() if Version(name).release >= target.release]
    if not earlier:
        return (later[0],)
    if not number or not later:
        return (earlier[-1],)
    return (earlier[-1], later[0])


def _of_minor(minor: tuple[int, ...], *, newest: bool) -> str:
    """The newest or the first known release of one minor."""
    names = [name for name in known_releases() if Version(name).release[:2] == minor]
    return names[-1] if newest else names[0]
