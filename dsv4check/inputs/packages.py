"""Package versions beside vLLM: as stated with ``--package``, and as the release pins them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from dsv4check.errors import InputError
from dsv4check.releases.facts import ReleaseFacts

_PACKAGE = re.compile(r"^\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:===|==|=|@)\s*(\S+)\s*$")
_SEPARATORS = re.compile(r"[-_.]+")
_ABSURD = re.compile(r"\d{100}")
"""Python refuses to read a number of thousands of digits."""


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
    from packaging.version import InvalidVersion, Version

    name, version = match.groups()
    _refuse_absurd(name, version)
    try:
        Version(version)
    except InvalidVersion:
        raise InputError(f"--package {text!r}: {version!r} is not a version (expected e.g. 0.6.14)") from None
    return normalise_name(name), version


def _refuse_absurd(name: str, version: str) -> None:
    if _ABSURD.search(version):
        raise InputError(f"package {name}: a number of a hundred digits is no version")


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
        _refuse_absurd(name, version)
        found[normalise_name(name)] = version.strip().removeprefix("==").strip()
    return found


@cache
def pinned_versions(facts: ReleaseFacts) -> dict[str, str]:
    """The packages that the release pins to one version, PEP 503 name -> version.

    From the ``Requires-Dist`` lines of the release's own wheel (facts area ``pins``).
    """
    specs: Mapping[str, str] = facts.section("pins").get("packages", {})
    return {name: version for name, spec in specs.items() if (version := _exact(spec)) is not None}


def _exact(spec: str) -> str | None:
    """The one version of ``==X``; None for a range or a wildcard."""
    if spec.startswith("==") and "," not in spec and not spec.endswith(".*"):
        return spec.removeprefix("==").removeprefix("=").strip()
    return None
