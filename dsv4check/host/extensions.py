"""Which GPUs the compiled extensions of a vLLM installation can run on: read from the files, nothing is loaded.

vLLM's files differ from release to release, so every shared library of the package is looked at. Of the packages
beside it those count that bring GPU code of their own; DeepGEMM, Triton and TileLang compile theirs at run time.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from dsv4check.records import dataclass

from .cubin_packages import look_at_packages
from .cuda_libraries import look_at_libraries
from .cuobjdump import find_cuobjdump, read_with_cuobjdump
from .elf import CannotBeRead
from .fatbin import DeviceCode, read_device_code
from .records import Observation, State

_MAIN: Final = re.compile(r"_(?:moe_)?C(?:_stable_libtorch)?")
"""Imported by vLLM's CUDA platform; without one of them there is no RMS norm, no cache operation, no MoE routing."""
_FLASHMLA: Final = ("_flashmla_C", "_flashmla_extension_C")
_FLASHMLA_MAJORS: Final = (9, 10)
_NO_IMAGE: Final = '"no kernel image is available for execution on the device"'
# Some hundred in the largest known installation.
_MOST_FILES: Final = 2_000


@dataclass(frozen=True, slots=True)
class _Extension:
    path: Path
    name: str
    """Path within site-packages: ``vllm/_C.abi3.so``."""
    stem: str
    """The module's name: ``_C``."""
    top: bool
    """True for a module directly in the package."""

    @property
    def main(self) -> bool:
        return self.top and _MAIN.fullmatch(self.stem) is not None

    @property
    def flashmla(self) -> bool:
        return self.top and self.stem == _FLASHMLA[0]

    @property
    def id(self) -> str:
        folders = self.name.split("/")[1:-1]
        words = re.sub(r"[^a-z0-9]+", "-", "-".join((*folders, self.stem)).lower())
        return "extension-" + words.strip("-")


def look_at_extensions(
    package: Path,
    capability: tuple[int, int] | None,
    *,
    site: Path | None = None,
    root: Path = Path("/"),
    env: Mapping[str, str] | None = None,
) -> list[Observation]:
    """The extensions of a vLLM package, the libraries they need, and the GPU code of the packages beside it.

    ``package``: the folder ``vllm``. ``capability``: of the GPU that will run the launch, None when it is not known.
    ``site``: where the other packages lie (default: beside the package). ``root``: ``/``, another one for tests.
    """
    site = package.parent if site is None else site
    env = os.environ if env is None else env
    extensions = _extensions(package)
    beside = look_at_packages(site, capability)
    if not extensions:
        return [_text_only(package), *beside]
    tool = find_cuobjdump(env)
    observations: list[Observation] = []
    needed: dict[str, Sequence[str]] = {}
    cuda = False
    for extension in extensions:
        try:
            code = read_device_code(extension.path)
        except CannotBeRead as error:
            read = read_with_cuobjdump(tool, extension.path) if tool else None
            if read is None:
                observations.append(_unreadable(extension, str(error), capability, tool))
                cuda = cuda or extension.main
                continue
            code = read
        cuda = cuda or (extension.main and code.count > 0)
        needed[extension.name] = code.needed
        observations.append(_judge(extension, code, capability))
    observations += _absent(package, extensions, capability, cuda)
    return [*_unique(observations), *look_at_libraries(needed, site, root, env), *beside]


def _extensions(package: Path) -> list[_Extension]:
    """Every shared library of the package, by name."""
    found: list[_Extension] = []
    for folder, folders, files in os.walk(package):
        folders.sort()
        for file in sorted(files):
            if file.endswith(".so") and len(found) < _MOST_FILES:
                path = Path(folder, file)
                name = Path(package.name, path.relative_to(package)).as_posix()
                found.append(_Extension(path, name, file.split(".")[0], Path(folder) == package))
    return found


def _unique(observations: Sequence[Observation]) -> Iterator[Observation]:
    """Two builds of one module (for two interpreters) must not share an id."""
    from dataclasses import replace

    seen: Counter[str] = Counter()
    for observation in observations:
        seen[observation.id] += 1
        count = seen[observation.id]
        yield observation if count == 1 else replace(observation, id=f"{observation.id}-{count}")


def _judge(extension: _Extension, code: DeviceCode, capability: tuple[int, int] | None) -> Observation:
    state, why, advice = _verdict(extension, code, capability)
    found = ", ".join(target.name for target in code.targets if not target.ptx)
    ptx = ", ".join(target.name for target in code.targets if target.ptx)
    if ptx:
        found = f"{found}; PTX {ptx}" if found else f"PTX {ptx}"
    data: dict[str, object] = {
        "targets": [target.name for target in code.targets],
        "parts": code.count,
        "needed_libraries": list(code.needed),
    }
    if capability is not None and code.count:
        data["usable_parts"] = code.usable(capability)
    return Observation(
        id=extension.id,
        area="extensions",
        state=state,
        what=f"GPU code in {extension.name}",
        found=found or ("code for AMD GPUs" if code.amd else "no GPU code"),
        wanted=f"code for SM {_sm(capability)}" if capability is not None and _asked(extension, capability) else "",
        why=why,
        advice=advice,
        source=str(extension.path),
        data=data,
    )


def _asked(extension: _Extension, capability: tuple[int, int]) -> bool:
    """True for an extension that a DeepSeek-V4 launch on such a GPU cannot do without."""
    return extension.main or (extension.flashmla and capability[0] in _FLASHMLA_MAJORS)


def _verdict(extension: _Extension, code: DeviceCode, capability: tuple[int, int] | None) -> tuple[State, str, str]:
    """State, what follows, and what to do."""
    if not code.count:
        return _without_code(extension, code, capability)
    if capability is None:
        return State.NOTE, "The GPU is not known, so it was not judged whether this code runs on it.", ""
    asked = _asked(extension, capability)
    sm = _sm(capability)
    if any(target.runs_on(capability) for target in code.targets if not target.ptx):
        return State.OK, "", ""
    usable = code.usable(capability)
    if usable:
        why = f"SM {sm} has only PTX in {usable} of {code.count} parts, which the driver compiles when it is loaded"
        if not asked or usable == code.count:
            return State.OK, f"{why}.", ""
        why += f"; the other parts end with {_NO_IMAGE} when they are called."
        return State.WARNING, why, _build_advice(capability)
    if asked:
        return State.ERROR, f"A DeepSeek-V4 launch on SM {sm} ends with {_NO_IMAGE}.", _build_advice(capability)
    if extension.flashmla:
        return State.NOTE, f"FlashMLA has kernels for SM 9.0 and 10.x alone; SM {sm} cannot use it.", ""
    return State.NOTE, f"What is built on it cannot be used on SM {sm}: a call would end with {_NO_IMAGE}.", ""


def _without_code(
    extension: _Extension, code: DeviceCode, capability: tuple[int, int] | None
) -> tuple[State, str, str]:
    if not extension.main:
        deep_gemm = "deep_gemm" in extension.name
        return State.OK, "DeepGEMM compiles its kernels when they are first used." if deep_gemm else "", ""
    build = "AMD GPUs" if code.amd else "machines without an NVIDIA GPU"
    if capability is None:
        return State.NOTE, f"This is a build for {build}.", ""
    why = f"This is a build for {build}: the GPU with SM {_sm(capability)} cannot be used."
    return State.ERROR, why, "Install the CUDA wheel of this release."


def _build_advice(capability: tuple[int, int]) -> str:
    major, minor = capability
    return (
        f"Take a wheel or image that was built for SM {major}.{minor}, or build vLLM with "
        f"TORCH_CUDA_ARCH_LIST={major}.{minor}{'a' if major >= 9 else ''}."
    )


def _absent(
    package: Path, extensions: Sequence[_Extension], capability: tuple[int, int] | None, cuda: bool
) -> Iterator[Observation]:
    """Extensions that are needed and not there, in a package that has others."""
    tops = {extension.stem for extension in extensions if extension.top}
    if not any(extension.main for extension in extensions):
        yield _not_there("_C", package, 'vLLM finds no platform: "Failed to infer device type".')
    if not cuda or capability is None or capability[0] not in _FLASHMLA_MAJORS:
        return
    for stem in _FLASHMLA:
        if stem not in tops:
            why = (
                f'On SM {_sm(capability)} DeepSeek-V4 uses FlashMLA, which is refused: "vllm.{stem} is not available". '
                "Only another --attention-backend works."
            )
            yield _not_there(stem, package, why)


def _not_there(stem: str, package: Path, why: str) -> Observation:
    return Observation(
        id=_Extension(package, f"vllm/{stem}.so", stem, True).id,
        area="extensions",
        state=State.ERROR,
        what=f"compiled extension vllm.{stem}",
        found="not there",
        wanted=f"vllm/{stem}*.so",
        why=why,
        advice="Install a wheel of this release, or build it with a CUDA toolkit that knows this GPU (12.9 or newer).",
        source=str(package),
    )


def _text_only(package: Path) -> Observation:
    return Observation(
        id="extensions",
        area="extensions",
        state=State.UNKNOWN,
        what="compiled extensions of vLLM",
        found="none",
        why="The package has no compiled extensions: it is unpacked source text, or an editable install that was not "
        "built; which GPUs it runs on cannot be said.",
        source=str(package),
    )


def _unreadable(extension: _Extension, error: str, capability: tuple[int, int] | None, tool: str | None) -> Observation:
    also = "; cuobjdump cannot read it either" if tool else ""
    return Observation(
        id=extension.id,
        area="extensions",
        state=State.UNKNOWN,
        what=f"GPU code in {extension.name}",
        wanted=f"code for SM {_sm(capability)}" if capability is not None and _asked(extension, capability) else "",
        why=f"The file cannot be read: {error}{also}.",
        source=str(extension.path),
    )


def _sm(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
