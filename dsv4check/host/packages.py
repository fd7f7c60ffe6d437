"""The packages beside vLLM, against what the release pins and against each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from dsv4check.host.interpreter import Distribution, InterpreterFacts
from dsv4check.host.kernel_packages import (
    CUTLASS_PARTS,
    cutlass_parts,
    flashinfer_parts,
    kernels_apart,
    package_seen,
    torch_build_seen,
)
from dsv4check.host.records import Observation, State
from dsv4check.records import dataclass

NAMES: Final = (
    "vllm",
    "torch",
    "torchvision",
    "torchaudio",
    "triton",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "flash-mla",
    "deep-gemm",
    "tilelang",
    "apache-tvm-ffi",
    "nvidia-cutlass-dsl",
    *CUTLASS_PARTS,
    "quack-kernels",
    "humming-kernels",
    "b12x",
    "helion",
    "transformers",
    "tokenizers",
    "compressed-tensors",
    "xgrammar",
    "numpy",
    "pydantic",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "ray",
)
"""What ``ask_interpreter`` is asked for."""

_QUIET: Final = frozenset({"vllm", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-nccl-cu12"}) | {
    "nvidia-nccl-cu13"
}
"""Asked for what others make of them; nothing is said of them here."""


@dataclass(frozen=True, slots=True)
class _Drift:
    """What follows from another version than the pinned one, and the rules that say it."""

    why: str
    older: str = ""
    newer: str = ""


_UNTESTED: Final = "vLLM is not tested with it, and pip reports the conflict."
_COMPILED: Final = "Its kernels are compiled with it at start-up and are not tested with another version."
_DRIFTS: Final[Mapping[str, _Drift]] = {
    "torch": _Drift(
        "The compiled extensions of the wheel look for symbols of the PyTorch that they were built against; vLLM "
        "can fail as early as its import (undefined symbol).",
        "PK016",
        "PK016",
    ),
    "torchvision": _Drift("It is built for one PyTorch; with another one its operators fail as it is imported."),
    "torchaudio": _Drift("It is built for one PyTorch; with another one its library fails as it is imported."),
    "flashinfer-python": _Drift(
        "vLLM calls it with the arguments of the pinned version; refused arguments and wrong output were reported.",
        "PK008",
        "PK009",
    ),
    "nvidia-cutlass-dsl": _Drift(_COMPILED, "PK010", "PK010"),
    "tilelang": _Drift(_COMPILED),
    "quack-kernels": _Drift(_COMPILED),
    "humming-kernels": _Drift(_COMPILED),
    "apache-tvm-ffi": _Drift("FlashInfer and TileLang load their compiled kernels through it."),
    "transformers": _Drift("vLLM reads configurations and tokenizers through it; names come and go between versions."),
    "tokenizers": _Drift("transformers refuses one outside its own range as it is imported."),
}


def look_at_packages(
    facts: InterpreterFacts,
    release_pins: Mapping[str, Any],
    extras: Collection[str] = (),
    *,
    env: Mapping[str, str] | None = None,
) -> list[Observation]:
    """What is installed, against the release's ``pins`` section (empty where none is known).

    ``extras`` names packages that this launch needs beyond them (``ray``, ``b12x``); ``env`` is the environment
    of the server.
    """
    pins: Mapping[str, str] = release_pins.get("packages", {})
    optional: Mapping[str, str] = release_pins.get("extras", {})
    has_vllm = "vllm" in facts.distributions or "vllm" in facts.modules
    seen = [_python(facts, str(release_pins.get("requires_python", "")))]
    if not pins:
        why = "The pins of this build are not known, so versions are listed without being compared."
        seen.append(package_seen("package-pins", State.UNKNOWN, "pins of the release", why=why))
    if not has_vllm:
        why = f"{facts.executable} has no vLLM: what is installed is compared, what is missing is not counted."
        seen.append(package_seen("package-vllm", State.UNKNOWN, "vLLM", found="not installed", why=why))
    for name in (name for name in NAMES if name not in _QUIET):
        found = facts.distributions.get(name, ())
        wanted = pins.get(name) or optional.get(name) or (_of_torch(facts, name) if name == "triton" else "")
        if len(found) > 1:
            seen.append(_twice(found))
        if found:
            seen.append(_installed(name, found[0], wanted))
        elif has_vllm and (name in pins or name in extras or name in ("torch", "flashinfer-python")):
            seen.append(_missing(name, wanted))
        elif has_vllm and name in optional:
            why = "Optional: no launch needs it that does not name it."
            seen.append(package_seen(f"package-{name}", State.NOTE, name, "not installed", wanted=wanted, why=why))
    if facts.torch is not None and (build := torch_build_seen(facts)) is not None:
        seen.append(build)
    seen += flashinfer_parts(facts, env or {})
    seen += cutlass_parts(facts)
    seen += kernels_apart(facts)
    return seen


def _python(facts: InterpreterFacts, wanted: str) -> Observation:
    fits = _fits(facts.version, wanted)
    return package_seen(
        "python-version",
        State.NOTE if not wanted else State.UNKNOWN if fits is None else State.OK if fits else State.ERROR,
        "Python",
        f"{facts.version} ({facts.executable})",
        wanted=wanted,
        why="The wheel of this release cannot be installed in it."
        if fits is False
        else "This is no version that can be compared."
        if fits is None
        else "",
        advice="Make an environment with a Python that the release takes." if fits is False else "",
        source="METADATA: Requires-Python" if wanted else "",
        data={"version": facts.version, "implementation": facts.implementation, "prefix": facts.prefix},
    )


def _installed(name: str, found: Distribution, wanted: str) -> Observation:
    id_, source = f"package-{name}", f"{found.location}"
    data: dict[str, Any] = {"name": name, "version": found.version or None, "pin": wanted or None}
    if not found.version:
        why = "Its metadata names no version: the rest of an installation that was removed or interrupted."
        return package_seen(id_, State.WARNING, name, "no version", wanted, why, f"Install {name} anew.", source, data)
    fits = _fits(found.version, wanted)
    if not wanted:
        return package_seen(id_, State.OK, name, found.version, source=source, data=data)
    if fits is None:
        why = "This is no version that can be compared."
        return package_seen(id_, State.UNKNOWN, name, found.version, wanted, why, source=source, data=data)
    if fits:
        return package_seen(id_, State.OK, name, found.version, wanted, source=source, data=data)
    drift = _DRIFTS.get(name, _Drift(_UNTESTED))
    older = _older(found.version, wanted)
    rule = drift.older if older else drift.newer
    if rule:
        data["rule"] = rule
    fatal = name == "torch" and not _same_minor(found.version, wanted)
    exact = wanted.removeprefix("==") if wanted.startswith("==") and "," not in wanted else ""
    order = "older than" if older else "not" if older is None else "newer than"
    return package_seen(
        id_,
        State.ERROR if fatal else State.WARNING,
        name,
        found.version,
        wanted,
        f"It is {order} what the release pins. {drift.why}",
        f"pip install '{name}=={exact}'" if exact else f"pip install '{name}{wanted}'",
        source,
        data,
    )


def _missing(name: str, wanted: str) -> Observation:
    fatal = name == "torch"
    return package_seen(
        f"package-{name}",
        State.ERROR if fatal else State.WARNING,
        name,
        "not installed",
        wanted,
        "vLLM imports it at once."
        if fatal
        else "The release requires it: what needs it stops with ModuleNotFoundError.",
        f"pip install '{name}{wanted}'",
        data={"name": name, "version": None, "pin": wanted or None, "rule": "HO021"},
    )


def _twice(found: tuple[Distribution, ...]) -> Observation:
    name = found[0].name
    folders = {str(Path(item.location).parent) for item in found}
    one = len(folders) == 1
    return package_seen(
        f"package-{name}-twice",
        State.WARNING,
        f"{name}, installed more than once",
        ", ".join(item.version or "no version" for item in found),
        "one installation",
        "Two metadata folders stand side by side, so files of both may be mixed and the version read is either."
        if one
        else "Python imports the first one on its path; the others are hidden, and pip may change another one.",
        f"Uninstall {name} until pip finds none, then install it once.",
        ", ".join(item.location for item in found),
        {"name": name, "versions": [item.version for item in found]},
    )


def _of_torch(facts: InterpreterFacts, name: str) -> str:
    """What torch's own metadata asks of a package; empty where it asks nothing on this platform."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    for line in next((item.requires for item in facts.distributions.get("torch", ())), ()):
        try:
            requirement = Requirement(line)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        except (InvalidRequirement, ValueError):
            continue
        if applies and canonicalize_name(requirement.name) == name:
            return str(requirement.specifier)
    return ""


def _fits(version: str, wanted: str) -> bool | None:
    """Whether a version satisfies a specifier; local labels (``+cu130``) name the build and do not count."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(wanted).contains(Version(Version(version).public), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return None


def _older(version: str, wanted: str) -> bool | None:
    """Whether a version lies below everything that a specifier allows; None where it is neither below nor above."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    own = Version(Version(version).public)
    low = [
        Version(part.version)
        for part in SpecifierSet(wanted)
        if part.operator in ("==", ">=", ">", "~=") and "*" not in part.version
    ]
    high = [
        Version(part.version)
        for part in SpecifierSet(wanted)
        if part.operator in ("==", "<=", "<") and "*" not in part.version
    ]
    if low and own < max(low):
        return True
    return False if high and own >= min(high) else None


def _same_minor(version: str, wanted: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).release[:2] == Version(wanted.removeprefix("==")).release[:2]
    except InvalidVersion:
        return False
