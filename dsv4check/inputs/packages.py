"""Package versions beside vLLM: as stated with ``--package``, completed by what the release pins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from dsv4check.errors import InputError
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts

_PACKAGE = re.compile(r"^\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:===|==|=|@)\s*(\S+)\s*$")
_SEPARATORS = re.compile(r"[-_.]+")


@dataclass(frozen=True, slots=True)
class EffectivePackage:
    """One package as the launch will find it, as far as that is known."""

    name: str
    """PEP 503 name, e.g. ``flashinfer-python``."""
    version: str | None
    """The version: as stated, or the release's pin when that names exactly one; None for a range."""
    spec: str | None
    """What the release asks for (PEP 440 specifier); None when it does not name the package."""
    origin: str
    """``stated`` or ``pin``."""


def normalise_name(name: str) -> str:
    """PEP 503 form of a project name: lower case, runs of ``-``, ``_`` and ``.`` become one ``-``."""
    return _SEPARATORS.sub("-", name.strip()).lower()


def parse_package(text: str) -> tuple[str, str]:
    """Read one ``--package`` value, ``name=version`` or ``name==version``.

    Returns (PEP 503 name, version as typed). Raises InputError when the text has another shape or the
    version is none by PEP 440.
    """
    match = _PACKAGE.match(text)
    if match is None:
        raise InputError(f"--package {text!r}: expected name=version, e.g. flashinfer-python=0.6.14")
    name, version = match.groups()
    from packaging.version import InvalidVersion, Version

    try:
        Version(version)
    except InvalidVersion:
        raise InputError(f"--package {text!r}: {version!r} is not a version (expected e.g. 0.6.14)") from None
    return normalise_name(name), version


def parse_packages(stated: Mapping[str, str] | Iterable[str] | None) -> dict[str, str]:
    """Read what was said about packages: ``--package`` values, or the ``packages`` object of a batch line.

    Returns PEP 503 name -> version; for a name given twice the last one counts. In an object a value that is
    no PEP 440 version (``"built from source"``) is kept as it is, so that version conditions stay undecided
    instead of the line being refused. Raises InputError for anything else that cannot be read.
    """
    if stated is None:
        return {}
    if isinstance(stated, Mapping):
        return _from_mapping(stated)
    if isinstance(stated, str):
        raise InputError(f"packages: expected a list of name=version, got the text {stated!r}")
    return dict(parse_package(text) for text in stated)


def _from_mapping(values: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, version in values.items():
        if version is None:
            continue
        if not isinstance(name, str) or not name.strip() or not isinstance(version, str):
            raise InputError(f"packages: {name!r}: expected a version string, got {version!r}")
        found[normalise_name(name)] = version.strip().removeprefix("==").strip()
    return found


def effective_packages(stated: Mapping[str, str], facts: ReleaseFacts) -> dict[str, EffectivePackage]:
    """Every package that was stated or that the release pins, keyed by PEP 503 name.

    The pins come from the ``Requires-Dist`` lines of the release's own wheel (facts area ``pins``). A
    stated version always wins; ``spec`` then still says what the release asked for.
    """
    pins = facts.section("pins").get("packages")
    specs: Mapping[str, str] = pins if isinstance(pins, Mapping) else {}
    found = {
        name: EffectivePackage(name=name, version=_exact(spec), spec=spec, origin="pin") for name, spec in specs.items()
    }
    for raw_name, version in stated.items():
        name = normalise_name(raw_name)
        found[name] = EffectivePackage(name=name, version=version, spec=specs.get(name), origin="stated")
    return found


@cache
def pinned_versions(facts: ReleaseFacts) -> dict[str, str]:
    """The packages that the release pins to one version, PEP 503 name -> version."""
    return {
        name: package.version for name, package in effective_packages({}, facts).items() if package.version is not None
    }


def off_pin(package: EffectivePackage) -> bool | None:
    """Whether a package lies outside what the release asks for; None when that cannot be told."""
    if package.spec is None or package.version is None:
        return None
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        # Local labels (``2.11.0+cu129``) satisfy ``==2.11.0``, as they do for pip.
        return not SpecifierSet(package.spec).contains(Version(package.version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return None


def _exact(spec: str) -> str | None:
    """The one version of ``==X``; None for a range or a wildcard."""
    if spec.startswith("==") and "," not in spec and not spec.endswith(".*"):
        return spec.removeprefix("==").removeprefix("=").strip()
    return None
