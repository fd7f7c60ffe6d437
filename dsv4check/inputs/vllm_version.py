"""Which vLLM a launch runs: as stated, as installed, or the newest known."""

from __future__ import annotations

import re
from collections.abc import Callable

from packaging.version import Version

from dsv4check.deployment import VllmBuild
from dsv4check.errors import InputError
from dsv4check.problems import Origin
from dsv4check.releases.facts import known_releases
from dsv4check.releases.timeline import (
    FIRST_SUPPORT,
    before_first_support,
    brackets,
    nearest_release,
    newest_release,
    parse_version,
    representative,
    without_tags,
)

_IMAGE_TAG = re.compile(r"^(?:[\w.\-]+(?::\d+)?/)*(?P<name>[\w.\-]*vllm[\w.\-]*):(?P<tag>[\w.\-]+)(?:@\S+)?$", re.I)
_VERSION_IN_TAG = re.compile(
    r"^v?(?P<version>\d+\.\d+(?:\.\d+)?(?:(?:a|b|rc)\d+)?"
    r"(?:\.post\d+)?(?:\.dev\d+)?(?:[+_][0-9a-z.]+)?)(?:-|$)",
    re.I,
)
_TAG_SUFFIX = re.compile(r"(?:-(?:cu\d+|rocm[\d.]*|cpu|xpu|x86_64|aarch64|amd64|arm64|ubuntu[\d.]+))+", re.I)
"""What follows the version in the tags of vLLM's own images."""
_MOVING = frozenset(("nightly", "main", "dev", "head"))
_MAX_TEXT = 200


def installed_vllm() -> str | None:
    """Version of the vllm distribution in this environment, from its metadata; never imported."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("vllm")
    except PackageNotFoundError:
        return None


def resolve_vllm(text: str | None, installed: Callable[[], str | None] = installed_vllm) -> VllmBuild:
    """Decide which vLLM is meant.

    ``text`` is what the user typed (``0.24.0``, ``v0.24.0``, ``0.24``, an image reference with a tag,
    ``latest``, ``nightly``, a development version); without it ``installed()`` is asked, and without an
    installed vLLM the newest known release is taken, with a note. Raises InputError for text that names no
    version.
    """
    if text is not None and text.strip():
        return _from_text(text.strip(), Origin("option", "--vllm"))
    found = installed()
    if found is not None and parse_version(found) is not None:
        return _from_version(found, Origin("default", "installed vllm"), "")
    newest = newest_release()
    note = f"no vLLM version was given and none is installed here: assuming {newest}, the newest release known"
    return VllmBuild(newest, "release", newest, Origin("default", newest), note=note)


def unstated_vllm() -> VllmBuild:
    """A launch of which nobody says what runs it: judged by the newest release, as far as all others agree."""
    names = known_releases()[::-1]
    note = (
        f"no vLLM version is stated: judged as {names[0]}, the newest release known; a finding counts only where every"
        " release since 0.20.0 has it"
    )
    return VllmBuild(names[0], "unstated", names[0], Origin("default", names[0]), brackets=names, note=note)


def _from_text(text: str, origin: Origin) -> VllmBuild:
    """Take a version, an image reference, the tag of one, or a moving name apart."""
    if len(text) > _MAX_TEXT:
        raise InputError(f"vLLM version: {len(text)} characters are too long for one")
    image = _IMAGE_TAG.match(text)
    word = image["tag"] if image else text.removeprefix("vllm==").removeprefix("vllm=").strip()
    lowered = word.lower()
    if lowered in ("latest", "stable") or lowered.startswith("latest-"):
        newest = newest_release()
        note = f"{text!r} is read as {newest}, the newest release known"
        return VllmBuild(newest, "release", newest, origin, note=note)
    if lowered.split("-")[0] in _MOVING or lowered.endswith("-nightly"):
        newest = newest_release()
        note = f"{text!r} is a moving development build: {newest}, the newest release known, stands in for it"
        sha = re.search(r"-([0-9a-f]{7,40})(?:-|$)", lowered)
        commit = sha[1] if sha else None
        return VllmBuild(text, "development", newest, origin, brackets=(newest,), commit=commit, note=note)
    if image is not None and re.search(r"-py3(?:-|$)", lowered):
        raise InputError(f"vLLM version {text!r}: NVIDIA numbers its images by month; expected the vLLM release in it")
    version = _VERSION_IN_TAG.match(word)
    behind = word[version.end("version") :] if version is not None else ""
    if version is None or (image is None and behind and not _TAG_SUFFIX.fullmatch(behind)):
        wanted = "expected a release (0.24.0), a development build (0.23.1rc1.dev788) or an image with one"
        raise InputError(f"vLLM version {text!r}: {wanted}")
    found = version["version"].replace("_", "+", 1)
    note = ""
    if re.fullmatch(r"\d+\.\d+", found):
        found = f"{found}.0"
        note = f"{text!r} is read as {found}"
    return _from_version(found, origin, note)


def _from_version(text: str, origin: Origin, note: str) -> VllmBuild:
    """Build the record for a PEP 440 version."""
    parsed = parse_version(text)
    if parsed is None:
        raise InputError(f"vLLM version {text!r}: not a PEP 440 version")
    if without_tags(text):
        return _untagged(text, parsed, origin)
    if before_first_support(text):
        # The rule on such versions fires by the version itself; the oldest facts let the rest be read.
        early = f"{text} does not know DeepSeek-V4 at all; the facts of {FIRST_SUPPORT}, the first that does"
        return VllmBuild(text, "release", FIRST_SUPPORT, origin, note=f"{early}, are used for the rest")
    if parsed.dev is not None or (parsed.pre is not None and parsed.micro > 0):
        return _development(text, parsed, origin)
    release, gap = nearest_release(text)
    notes = [part for part in (note, gap) if part]
    if not gap and parsed.pre is not None:
        notes.append(f"{text} is a pre-release of {release}: the facts of {release} are used")
    if not gap and parsed.post is not None:
        notes.append(f"{text} is a rebuild of {release}: the facts of {release} are used")
    version = release if not gap and Version(text) == Version(release) else text
    return VllmBuild(version, "release", release, origin, note="; ".join(notes))


def _untagged(text: str, parsed: Version, origin: Origin) -> VllmBuild:
    """A build from a checkout without tags: no release is known to be near."""
    names = known_releases()[::-1]
    note = (
        f"{text} is a development build made without tags, so its release cannot be told from its number: judged as"
        f" {names[0]}, the newest release known; a finding counts only where every release since {FIRST_SUPPORT} has it"
    )
    return VllmBuild(text, "development", names[0], origin, brackets=names, commit=_commit(parsed), note=note)


def _commit(parsed: Version) -> str | None:
    sha = re.search(r"(?:^|\.)g([0-9a-f]{6,40})(?:\.|$)", parsed.local or "")
    return sha[1] if sha else None


def _development(text: str, parsed: Version, origin: Origin) -> VllmBuild:
    """A build between releases: tag, number and commit, and the releases it may resemble."""
    base = ".".join(str(part) for part in parsed.release)
    if parsed.pre is not None:
        base += "".join(str(part) for part in parsed.pre)
    number = parsed.dev if parsed.dev is not None else 0
    around = brackets(base, number)
    release = representative(base, number, around)
    if len(around) > 1:
        note = f"{text} is a development build; its code lies near {', '.join(around)}, shown as {release}"
    else:
        note = f"{text} is a development build; the facts of {release} are used"
    return VllmBuild(
        text,
        "development",
        release,
        origin,
        brackets=around,
        dev_base=base,
        dev_number=number,
        commit=_commit(parsed),
        note=note,
    )
