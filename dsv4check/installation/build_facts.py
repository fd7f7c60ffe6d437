"""What a build does, learned from its own tree; the facts of a release fill what its text leaves open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from dsv4check.deployment import VllmBuild
from dsv4check.errors import InputError
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.installation.code_answers import TreeCode
from dsv4check.installation.tree import VllmTree
from dsv4check.learning.registry import SECTIONS, learner
from dsv4check.learning.release import source_only
from dsv4check.problems import Origin
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts, known_releases, load_facts

if TYPE_CHECKING:
    from dsv4check.installation.fingerprint import Answer
    from dsv4check.learning.source import Source

_ONLY_BY_RUNNING: Final = frozenset({"cache_planning", "env", "moe", "parameters"})
"""Sections that no tree's text tells: they are learned by running the release's own code."""
_MOST_DIFFERENCES: Final = 40
_LONGEST: Final = 80
"""A value is cut after this many characters."""
_NAMED: Final = 3
"""Differences that a note names."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact in which a build is not like a release."""

    path: str
    """``kv_cache.spec.alignment``"""
    release: str
    """The release's value as JSON; empty where it has none."""
    build: str

    def __str__(self) -> str:
        return f"{self.path} is {self.build or 'gone'}, was {self.release or 'not there'}"


@dataclass(frozen=True, slots=True, eq=False)
class BuildFacts:
    """What was learned from one tree. Read once, compared by identity."""

    tree: VllmTree
    learned: Mapping[str, Mapping[str, Any]]
    """Section -> facts, in the shape of ``rules/releases/<version>.yaml``."""
    unread: Mapping[str, str]
    """Section -> why it could not be learned."""
    nearest: str
    """The known release that the learned sections agree with best."""
    differs: tuple[Difference, ...]
    """What differs from it; at most 40."""
    code: TreeCode
    """Answers the ``code`` of rules."""

    def over(self, release: str) -> ReleaseFacts:
        """The build's facts, those of ``release`` where nothing was learned. Raises InputError for one not known."""
        return _overlay(self, release)

    def notes(self, build: VllmBuild) -> tuple[str, ...]:
        """What a report says about the way in which ``build`` was judged."""
        return tuple(_notes(self, build))


@lru_cache(maxsize=64)
def _overlay(own: BuildFacts, release: str) -> ReleaseFacts:
    """The same object every time: what is worked out from facts is kept by their identity."""
    return ReleaseFacts(release, load_facts(release).data, own.learned, str(own.tree.package))


@lru_cache(maxsize=8)
def read_build(tree: VllmTree) -> BuildFacts:
    """Learn what a tree does, in about five seconds; never raises for what its code looks like."""
    learned: dict[str, Mapping[str, Any]] = {}
    unread: dict[str, str] = {}
    text = source_only(tree.package)
    for name in SECTIONS:
        if name in _ONLY_BY_RUNNING:
            unread[name] = "it is learned by running the code, not by reading it"
            continue
        try:
            # Through JSON, as the files of the releases: no tuples, and an order that does not depend on the reading.
            section = json.loads(json.dumps(learner(name)(text), sort_keys=True))
        except Exception as error:  # the code of a fork may look like anything, and a reader may trip in any way
            unread[name] = _reason(error)
            continue
        learned[name] = section
    nearest = _nearest(learned, tree.version)
    return BuildFacts(
        tree,
        learned,
        unread,
        nearest,
        _differences(learned, nearest),
        TreeCode(tree.source, partial(_fingerprints, tree)),
    )


def _fingerprints(tree: VllmTree, _source: Source) -> Mapping[str, Answer]:
    # Imported here: most launches meet no rule that asks for one.
    from dsv4check.installation.fingerprint import fingerprints_of

    return fingerprints_of(tree)


def build_of_tree(tree: VllmTree, stated: str | None = None) -> VllmBuild:
    """Which vLLM a tree is, with what its own code says.

    ``stated``: the version that the user names; without it the tree's own counts. A tree that says none is a
    development build near the release that it resembles most. Raises InputError for a stated text that is no version.
    """
    own = read_build(tree)
    build = _named(tree, stated)
    if build is None:
        around = _around(own.nearest)
        return VllmBuild("(no version)", "development", own.nearest, _ORIGIN, around, own=own)
    if build.kind != "development":
        return replace(build, own=own)
    if own.nearest not in build.brackets or build.may_be_any or len(build.brackets) == 1:
        build = replace(build, brackets=_around(own.nearest))
    # What its number says is left out: the code itself was looked at.
    return replace(build, release=own.nearest, note="", own=own)


def tree_at(vllm_path: str) -> VllmTree:
    """The vLLM package at a path. Raises InputError where there is none."""
    # Imported here: a tree that is at hand need not be looked for.
    from dsv4check.installation.locate import find_tree

    found = find_tree(vllm_path, None)
    if not isinstance(found, VllmTree):
        raise InputError(found)
    return found


_ORIGIN: Final = Origin("option", "--vllm-path")


def _named(tree: VllmTree, stated: str | None) -> VllmBuild | None:
    if stated is not None:
        return resolve_vllm(stated)
    if tree.version is None:
        return None
    try:
        return replace(resolve_vllm(tree.version), origin=_ORIGIN)
    except InputError:
        return None


def _around(release: str) -> tuple[str, ...]:
    """A release and its neighbours, oldest first: where the parts may come from that were not read."""
    names = known_releases()
    index = names.index(release)
    return names[max(index - 1, 0) : index + 2]


def _reason(error: Exception) -> str:
    text = (str(error).splitlines() or [""])[0][: 2 * _LONGEST]
    return text if type(error).__name__ == "LearningError" and text else f"{type(error).__name__}: {text}"


# -- compared with releases ------------------------------------------------------------------------------------


def _nearest(learned: Mapping[str, Any], version: str | None) -> str:
    """The release with the fewest differing values; of several, the one that the version names, else the newest."""
    own = {name: frozenset(_leaves("", section)) for name, section in learned.items()}
    names = known_releases()
    far = {
        release: sum(len(own[name] ^ _shipped_leaves(release, name)) for name in own) for release in names
    }  # fmt: skip
    closest = [name for name in names if far[name] == min(far.values())]
    for name in _preferred(version):
        if name in closest:
            return name
    return closest[-1]


def _preferred(version: str | None) -> tuple[str, ...]:
    try:
        build = None if version is None else resolve_vllm(version)
    except InputError:
        build = None
    return () if build is None else (build.release, *build.brackets)


@lru_cache(maxsize=512)
def _shipped_leaves(release: str, section: str) -> frozenset[str]:
    return frozenset(_leaves("", load_facts(release).section(section)))


def _leaves(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(f"{path}[]", inner)
    else:
        yield f"{path}={json.dumps(value)}"


def _differences(learned: Mapping[str, Any], release: str) -> tuple[Difference, ...]:
    shipped = load_facts(release)
    found: list[Difference] = []
    for name, section in learned.items():
        for difference in _compare(name, shipped.section(name), section):
            if len(found) == _MOST_DIFFERENCES:
                return tuple(found)
            found.append(difference)
    return tuple(found)


def _compare(path: str, release: Any, build: Any) -> Iterator[Difference]:
    if release == build:
        return
    if isinstance(release, Mapping) and isinstance(build, Mapping):
        for key in sorted({*release, *build}, key=str):
            if key not in release or key not in build:
                yield Difference(f"{path}.{key}", _shown(release, key), _shown(build, key))
            else:
                yield from _compare(f"{path}.{key}", release[key], build[key])
    else:
        yield Difference(path, _value(release), _value(build))


def _shown(values: Mapping[str, Any], key: str) -> str:
    return _value(values[key]) if key in values else ""


def _value(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


# -- in words --------------------------------------------------------------------------------------------------


def _notes(own: BuildFacts, build: VllmBuild) -> Iterator[str]:
    like = build.release if build.kind != "development" or len(build.brackets) == 1 else ", ".join(build.brackets)
    several = ", as far as these agree" if like != build.release else ""
    yield (
        f"judged by its own code in {own.tree.package} ({len(own.learned)} of {len(SECTIONS)} parts read;"
        f" {', '.join(sorted(own.unread))} as in {like}{several}; flags as in {build.release})"
    )
    odd = {name: why for name, why in own.unread.items() if name not in _ONLY_BY_RUNNING}
    if odd:
        yield "not read in this tree: " + "; ".join(f"{name} ({why})" for name, why in sorted(odd.items()))
    if own.tree.version is not None and own.tree.version != build.version:
        yield f"the tree says that it is {own.tree.version} ({own.tree.version_from}), judged as {build.version}"
    compared = build.release if build.kind == "release" else own.nearest
    differs = own.differs if compared == own.nearest else _differences(own.learned, compared)
    if differs:
        more = f" and {len(differs) - _NAMED} more" if len(differs) > _NAMED else ""
        if len(differs) == _MOST_DIFFERENCES:
            more = " and many more"
        yield f"this tree is not like {compared}: {'; '.join(map(str, differs[:_NAMED]))}{more}"
