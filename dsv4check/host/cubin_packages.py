"""GPU code in the packages beside vLLM: PyTorch, NCCL, FlashInfer's prebuilt kernels, FlashMLA and DeepEP."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from dsv4check.records import dataclass

from .elf import CannotBeRead
from .fatbin import DeviceCode, Target, read_cubin, read_device_code
from .records import Observation, State

_NO_IMAGE: Final = '"no kernel image is available for execution on the device"'
_JIT: Final = (
    "FlashInfer compiles or downloads the kernels it needs when they are first used: that takes nvcc or the network."
)
_MOST_FILES: Final = 10_000
_NAMED_SM: Final = re.compile(r"sm_?(\d{2,3})([af]?)(?![0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Package:
    id: str
    what: str
    folder: str
    """Where its files lie in site-packages."""
    ending: str
    state: State
    """What it is when nothing in it runs on the GPU."""
    why: str
    only: str = ""
    """The beginning of the file names that count."""


_PACKAGES: Final = (
    _Package(
        "torch", "PyTorch", "torch/lib", ".so", State.ERROR, f"Every launch ends with {_NO_IMAGE}.", "libtorch_cuda"
    ),
    _Package(
        "nccl",
        "NCCL",
        "nvidia/nccl/lib",
        ".so.2",
        State.WARNING,
        f"A launch on several GPUs ends with {_NO_IMAGE}.",
    ),
    _Package("flashinfer-cubin", "FlashInfer's cubins", "flashinfer_cubin", ".cubin", State.NOTE, _JIT),
    _Package("flashinfer-jit-cache", "FlashInfer's prebuilt kernels", "flashinfer_jit_cache", ".so", State.NOTE, _JIT),
    _Package("flash-mla", "FlashMLA of its own", "flash_mla", ".so", State.NOTE, "vLLM uses its own FlashMLA."),
    _Package(
        "deep-ep", "DeepEP", "deep_ep", ".so", State.WARNING, f"The DeepEP all-to-all backends end with {_NO_IMAGE}."
    ),
)


def look_at_packages(site: Path, capability: tuple[int, int] | None) -> list[Observation]:
    """One observation for each of these packages that is there."""
    found = (_look(site, package, capability) for package in _PACKAGES)
    return [observation for observation in found if observation is not None]


def _look(site: Path, package: _Package, capability: tuple[int, int] | None) -> Observation | None:
    folder = site / package.folder
    files = list(islice(_files(folder, package), _MOST_FILES + 1))
    if not files:
        return None
    more = len(files) > _MOST_FILES
    codes: list[DeviceCode] = []
    errors: list[str] = []
    for path in files[:_MOST_FILES]:
        try:
            codes.append(_cubin(path) if package.ending == ".cubin" else read_device_code(path))
        except CannotBeRead as error:
            errors.append(f"{path.name}: {error}")
    observation: dict[str, Any] = {
        "id": f"extension-package-{package.id}",
        "area": "extensions",
        "what": f"GPU code in {package.what}",
        "source": str(files[0] if len(files) == 1 else folder),
    }
    with_code = [code for code in codes if code.count]
    if not with_code:
        if not errors:
            return None
        return Observation(**observation, state=State.UNKNOWN, why=f"It cannot be read: {errors[0]}.")
    return Observation(**observation, **_said(package, with_code, errors, capability, more))


def _said(
    package: _Package,
    codes: Sequence[DeviceCode],
    errors: Sequence[str],
    capability: tuple[int, int] | None,
    more: bool,
) -> dict[str, Any]:
    units = Counter[frozenset[Target]]()
    for code in codes:
        units.update(code.units)
    targets = DeviceCode(units).targets
    found = ", ".join(target.name for target in targets)
    data: dict[str, Any] = {"targets": [target.name for target in targets], "files": len(codes)}
    if len(codes) > 1:
        found += f" ({'the first ' if more else ''}{len(codes)} files)"
    if errors:
        data["unreadable_files"] = len(errors)
        found += f"; {len(errors)} cannot be read"
    said: dict[str, Any] = {"found": found, "data": data}
    if capability is None:
        return said | {
            "state": State.NOTE,
            "why": "The GPU is not known, so it was not judged whether this code runs on it.",
        }
    usable = sum(code.usable(capability) > 0 for code in codes)
    data["usable_files"] = usable
    said["wanted"] = f"code for SM {capability[0]}.{capability[1]}"
    if usable:
        why = f"{usable} of {len(codes)} files have code for this GPU." if len(codes) > 1 else ""
        return said | {"state": State.OK, "why": why}
    return said | {"state": package.state, "why": f"Nothing in it runs on this GPU. {package.why}"}


def _files(folder: Path, package: _Package) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            if file.endswith(package.ending) and file.startswith(package.only):
                yield Path(place, file)


def _cubin(path: Path) -> DeviceCode:
    """Where a cubin does not say whether its target is an ``a`` or ``f``, its file name mostly does."""
    target = read_cubin(path)
    suffixes = [match[2].lower() for match in _NAMED_SM.finditer(path.name) if int(match[1]) == target.sm]
    return DeviceCode({frozenset({Target(target.sm, target.suffix or (suffixes[0] if suffixes else ""))}): 1})
