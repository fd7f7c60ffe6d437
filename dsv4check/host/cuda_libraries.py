"""The CUDA and PyTorch libraries that compiled extensions ask the loader for, and where they lie."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from .records import Observation, State

_LOOKED_FOR: Final = re.compile(
    r"lib(?:cudart|nvrtc|cublas|cublasLt|cusparse|cusparseLt|cusolver|curand|cufft|cufile|cupti|cudnn|nccl|nvJitLink"
    r"|nvshmem_host|torch|torch_cpu|torch_cuda|torch_python|c10|c10_cuda)\.so[.\d]*"
)
_RUNTIME: Final = re.compile(r"libcudart\.so\.(\d+)")
_SYSTEM_FOLDERS: Final = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64")


def look_at_libraries(
    needed: Mapping[str, Iterable[str]], site: Path, root: Path, env: Mapping[str, str]
) -> list[Observation]:
    """The CUDA runtime the extensions were built for, and the libraries that are nowhere.

    ``needed``: of each extension, the libraries it needs. ``site``: the folder the packages lie in.
    """
    by_library: dict[str, list[str]] = {}
    for extension, libraries in needed.items():
        for library in libraries:
            if _LOOKED_FOR.fullmatch(library):
                by_library.setdefault(library, []).append(extension)
    if not by_library:
        return []
    found = {name: _place(name, site, root, env) for name in sorted(by_library)}
    return [*_runtime(by_library, found, len(needed)), _missing(by_library, found, site)]


def _runtime(by_library: Mapping[str, list[str]], found: Mapping[str, str], total: int) -> Iterator[Observation]:
    runtimes = {int(match[1]): name for name in by_library if (match := _RUNTIME.fullmatch(name))}
    if not runtimes:
        return
    names = [runtimes[major] for major in sorted(runtimes)]
    text = ", ".join(f"{name} ({len(by_library[name])} of {total} extensions)" for name in names)
    mixed = len(runtimes) > 1
    yield Observation(
        id="extensions-cuda-runtime",
        area="extensions",
        state=State.WARNING if mixed else State.OK,
        what="CUDA runtime that the extensions need",
        found=text,
        why="Extensions of two CUDA generations are in one process: this installation is put together of two builds."
        if mixed
        else "",
        advice="Install vLLM into a fresh environment." if mixed else "",
        source=f"DT_NEEDED of {by_library[names[0]][0]}",
        data={"cuda_majors": sorted(runtimes), "found_at": {name: found[name] for name in names}},
    )


def _missing(by_library: Mapping[str, list[str]], found: Mapping[str, str], site: Path) -> Observation:
    missing = [name for name, place in found.items() if not place]
    users = sorted({user for name in missing for user in by_library[name]})
    state, why, advice = State.OK, "", ""
    if missing and not os.path.isdir(site / "torch"):
        state = State.UNKNOWN
        why = f"PyTorch does not lie in {site}: whether these libraries are found cannot be said from here."
    elif missing:
        state = State.WARNING
        named = ", ".join(users) if len(users) <= 3 else f"{len(users)} extensions ({users[0]}, ...)"
        why = f"Not in the usual places; unless the loader has others, importing {named} ends with "
        why += '"cannot open shared object file".'
        advice = "Install vLLM into a fresh environment, so that pip brings the PyTorch and CUDA it was built with."
    return Observation(
        id="extensions-libraries",
        area="extensions",
        state=state,
        what="CUDA and PyTorch libraries that the extensions need",
        found=f"not found: {', '.join(missing)}" if missing else f"all {len(found)} found",
        wanted=", ".join(found),
        why=why,
        advice=advice,
        source=f"DT_NEEDED; looked for below {site}, /usr/local/cuda*, LD_LIBRARY_PATH and the system's folders",
        data={"found_at": dict(found), "missing": missing},
    )


def _place(name: str, site: Path, root: Path, env: Mapping[str, str]) -> str:
    """Where a library lies; empty when it is nowhere."""
    for folder in _folders(site, root, env):
        try:
            if (folder / name).exists():
                return str(folder / name)
        except (OSError, ValueError):
            continue
    return ""


def _folders(site: Path, root: Path, env: Mapping[str, str]) -> Iterator[Path]:
    yield site / "torch" / "lib"
    for pattern in ("nvidia/*/lib", "nvidia/lib"):
        yield from sorted(site.glob(pattern))
    for folder in env.get("LD_LIBRARY_PATH", "").split(":"):
        if folder.startswith("/"):
            yield root / folder.lstrip("/")
    for pattern in ("usr/local/cuda*/lib64", "usr/local/cuda*/lib", "usr/local/cuda*/targets/*/lib"):
        yield from sorted(root.glob(pattern))
    for folder in _SYSTEM_FOLDERS:
        yield root / folder
