"""Reading release wheels as text: what is unpacked of them, and what they require."""

from __future__ import annotations

import re
import shutil
import zipfile
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from dsv4check.rehearsal.environment import RehearsalUnavailable

_COMPILED: Final = re.compile(r"\.(so(\.[\d.]+)?|a|o|dll|dylib|pyd|cubin|fatbin|ptx|cuh?|c|cc|cpp|h|hpp|inl)$")
"""Machine code, and sources that only a compiler reads."""
_READ: Final = frozenset((".py", ".pyi", ".json", ".jinja", ".yaml", ".yml", ".toml", ".txt"))
_LARGE: Final = 4 << 20
"""A file of no known kind above this size is a binary (vLLM's server in Rust has no suffix)."""

LEFT_OUT: Final = frozenset(
    (
        # Put in place by steps of their own.
        "torch",
        "flashinfer-python",
        # Compiled for CUDA, and loaded only when a GPU computes, decodes media or loads weights.
        "fastsafetensors",
        "flashinfer-cubin",
        "instanttensor",
        "pynvvideocodec",
        "tokenspeed-mla",
        "torchaudio",
        "torchcodec",
        "torchvision",
        # Large, and imported only where a request is served or a draft proposes tokens.
        "numba",
        "opencv-python-headless",
        "ray",
    )
)
"""Requirements of vLLM and FlashInfer that its start-up code does not import. All others are installed: vLLM looks
for packages and decides by what it finds, and a new release may import a new one."""
_CUDA_FAMILIES: Final = ("nvidia-", "cuda-", "nccl")
_OF_CUDA_FAMILIES_KEPT: Final = frozenset(("nvidia-cutlass-dsl", "nvidia-ml-py"))
"""FlashInfer and vLLM's model registry import these."""
_WITHOUT_EXTRAS: Final = frozenset(("humming-kernels", "mistral-common", "nvidia-cutlass-dsl"))
"""Their extras bring CUDA libraries or OpenCV."""


def unpack(wheel: Path, target: Path) -> int:
    """Unpack what is text into ``target``, which appears only when it is complete; returns the bytes written."""
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    written = 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            for item in archive.infolist():
                if not item.is_dir() and kept(item.filename, item.file_size):
                    archive.extract(item, part)
                    written += item.file_size
    except (zipfile.BadZipFile, EOFError) as error:
        shutil.rmtree(part, ignore_errors=True)
        wheel.unlink(missing_ok=True)  # so that the next run fetches it again
        raise RehearsalUnavailable(f"{wheel.name} is damaged ({error}); run the command again") from None
    part.rename(target)
    return written


def kept(name: str, size: int) -> bool:
    """Whether a member of a wheel is unpacked."""
    path = PurePosixPath(name)
    if any(part.endswith(".dist-info") for part in path.parts[:1]):
        return True
    if any(part.endswith(".data") for part in path.parts[:1]):
        return False
    if _COMPILED.search(path.name):
        return False
    return path.suffix in _READ or size <= _LARGE


def requirements(folder: Path, distribution: str) -> list[Requirement]:
    """What an unpacked wheel requires on this platform, without extras. Raises RehearsalUnavailable."""
    wanted = canonicalize_name(distribution)
    for info in folder.glob("*.dist-info"):
        if canonicalize_name(info.name.partition("-")[0]) != wanted:
            continue
        try:
            text = (info / "METADATA").read_text(encoding="utf-8")
            stated = [Requirement(line) for line in HeaderParser().parsestr(text).get_all("Requires-Dist") or ()]
        except (OSError, ValueError, InvalidRequirement) as error:
            raise RehearsalUnavailable(f"the metadata of {distribution} cannot be read ({error})") from None
        return [item for item in stated if item.marker is None or item.marker.evaluate({"extra": ""})]
    raise RehearsalUnavailable(f"the wheel of {distribution} has no metadata")


def for_startup(stated: list[Requirement]) -> list[Requirement]:
    """Those that the start-up code needs, without markers and without extras that bring libraries for a GPU."""
    chosen = []
    for item in stated:
        name = canonicalize_name(item.name)
        if name in LEFT_OUT or (name.startswith(_CUDA_FAMILIES) and name not in _OF_CUDA_FAMILIES_KEPT):
            continue
        copy = Requirement(str(item))
        copy.marker = None
        if name in _WITHOUT_EXTRAS:
            copy.extras = set()
        chosen.append(copy)
    return chosen


def pin(stated: list[Requirement], name: str) -> str | None:
    """The version that ``name`` is pinned to with ``==``, if it is."""
    for item in stated:
        if canonicalize_name(item.name) == name:
            exact = [part.version for part in item.specifier if part.operator == "==" and "*" not in part.version]
            if exact:
                return exact[0]
    return None
