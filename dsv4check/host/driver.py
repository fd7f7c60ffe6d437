"""The NVIDIA driver, against the CUDA that PyTorch and the vLLM wheel were built with."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsv4check.host.nvml import NoNvmlError, ask, nvml_session
from dsv4check.host.records import Observation, State

Cuda = tuple[int, int]

_MINIMUM_DRIVER: Final = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""Linux driver that runs every toolkit of a CUDA major (CUDA Compatibility, minor version compatibility)."""
_MAIN_CUDA: Final = "13.0"
"""Default of VLLM_MAIN_CUDA_VERSION (``vllm/envs.py``) in every release from 0.20.0 to 0.33.0."""


def cuda_version(text: str | None) -> Cuda | None:
    """Read ``13.0``, ``cu129``, ``13`` or ``libcudart.so.13``; None for anything else."""
    bare = (text or "").strip().removeprefix("libcudart.so.")
    if match := re.fullmatch(r"(\d{1,2})(?:\.(\d{1,2}))?(?:\.\d+)*", bare, re.ASCII):
        return int(match[1]), int(match[2] or 0)
    if match := re.fullmatch(r"cu(\d{2})(\d)", bare, re.ASCII):
        return int(match[1]), int(match[2])
    return None


def cuda_of_wheel(version: str | None) -> tuple[str | None, str]:
    """The CUDA that a vLLM build of this version was compiled with, and where that stands; None when unknown.

    A build for another CUDA than the main one carries it in its local version (``0.26.0+cu129``); a release
    without one is built for the main CUDA. Development builds without one may have been built with any.
    """
    from dsv4check.releases.facts import known_releases

    if version is None:
        return None, ""
    local = version.partition("+")[2]
    if match := re.search(r"(?:^|[._-])cu(\d{2})(\d)(?:$|[._-])", local, re.ASCII):
        return f"{match[1]}.{match[2]}", f"version {version}"
    if not local and version in known_releases():
        return _MAIN_CUDA, "vllm/envs.py: VLLM_MAIN_CUDA_VERSION"
    return None, ""


def look_at_driver(
    nvml: Any = None,
    torch_cuda: str | None = None,
    wheel_cuda: str | None = None,
    needs_cudart: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> list[Observation]:
    """The driver, and whether it runs what is installed.

    ``torch_cuda`` is ``torch.version.cuda``, ``wheel_cuda`` the CUDA of the vLLM build (``cuda_of_wheel``) and
    ``needs_cudart`` the runtime that its extensions link (``libcudart.so.13``); None where one is not known.
    """
    asked = {"PyTorch": torch_cuda, "the vLLM wheel": wheel_cuda, "the compiled extensions of vLLM": needs_cudart}
    needs = {who: cuda for who, text in asked.items() if (cuda := cuda_version(text)) is not None}
    seen: list[Observation] = []
    try:
        with nvml_session(nvml) as session:
            version = ask(session, "nvmlSystemGetDriverVersion")
            number = ask(session, "nvmlSystemGetCudaDriverVersion_v2") or ask(session, "nvmlSystemGetCudaDriverVersion")
    except NoNvmlError as missing:
        seen.append(_no_driver(missing, needs, os.environ if env is None else env, root))
    else:
        version = version.decode(errors="replace") if isinstance(version, bytes) else version
        cuda = divmod(number // 10, 100) if isinstance(number, int) and number > 0 else None
        seen.append(_against_driver(str(version) if version else None, cuda, needs))
    if (builds := _builds(torch_cuda, wheel_cuda, needs_cudart)) is not None:
        seen.append(builds)
    return seen


def _against_driver(version: str | None, cuda: Cuda | None, needs: Mapping[str, Cuda]) -> Observation:
    data: dict[str, Any] = {
        "driver": version,
        "cuda": _text(cuda),
        "needed_cuda": _text(max(needs.values(), default=None)),
    }
    found = f"driver {version or 'of unknown version'}" + (f", CUDA {_text(cuda)}" if cuda else "")

    def seen(state: State, why: str, advice: str = "", rule: str = "") -> Observation:
        return Observation(
            id="driver-cuda",
            area="driver",
            state=state,
            what="NVIDIA driver",
            found=found,
            wanted=_wanted(needs),
            why=why,
            advice=advice,
            source="NVML: nvmlSystemGetDriverVersion, nvmlSystemGetCudaDriverVersion_v2",
            data={**data, "rule": rule} if rule else data,
        )

    if cuda is None:
        return seen(State.UNKNOWN, "the driver did not say which CUDA it supports, so it is not compared.")
    if not needs:
        return seen(
            State.NOTE, "Which CUDA PyTorch and vLLM were built with is not known here, so nothing is compared."
        )
    who, needed = max(needs.items(), key=lambda item: item[1])
    who = f"{who[:1].upper()}{who[1:]}"
    if cuda[0] < needed[0]:
        minimum = _MINIMUM_DRIVER.get(needed[0])
        return seen(
            State.ERROR,
            f"{who} needs CUDA {needed[0]}, and a driver runs its own CUDA major and older ones: PyTorch stops with "
            '"The NVIDIA driver on your system is too old".',
            f"Update the driver to {minimum or f'one for CUDA {needed[0]}'} or newer, or take a build for "
            f"CUDA {cuda[0]}; on data-centre GPUs alone, the cuda-compat package of CUDA {needed[0]} is a third way "
            "(VLLM_ENABLE_CUDA_COMPATIBILITY=1).",
            "HO001",
        )
    if _before(version, _MINIMUM_DRIVER.get(cuda[0])):
        return seen(
            State.WARNING,
            f"A driver of this version does not bring CUDA {_text(cuda)} itself: a libcuda of a compatibility package "
            "is loaded in front of it. That works on data-centre GPUs only; others stop with CUDA error 804.",
            "Where the GPU is no data-centre model, take /usr/local/cuda/compat out of LD_LIBRARY_PATH.",
            "HO002",
        )
    if cuda < needed:
        return seen(
            State.WARNING,
            f"{who} is built with CUDA {_text(needed)}. Within CUDA {cuda[0]} compiled code runs on any driver from "
            f"{_MINIMUM_DRIVER.get(cuda[0], 'the first')} on, but code that is shipped as PTX needs a driver of its "
            'own CUDA or newer, and stops with "the provided PTX was compiled with an unsupported toolchain".',
            f"Update the driver to one for CUDA {_text(needed)} if such an error appears.",
            "HO001",
        )
    return seen(State.OK, "The driver runs what is installed.")


def _builds(torch_cuda: str | None, wheel_cuda: str | None, needs_cudart: str | None) -> Observation | None:
    """PyTorch and vLLM have to be built for one CUDA major: they load one runtime."""
    torch = cuda_version(torch_cuda)
    linked = cuda_version(needs_cudart)
    wheel = linked or cuda_version(wheel_cuda)
    if torch is None or wheel is None:
        return None
    same = torch[0] == wheel[0]
    # What the version alone says may be wrong for a build from source; what the files link is not.
    bad = State.WARNING if linked is None else State.ERROR
    return Observation(
        id="driver-cuda-builds",
        area="driver",
        state=State.OK if same else bad,
        what="CUDA of PyTorch and of vLLM",
        found=f"PyTorch {torch_cuda}, vLLM {needs_cudart or wheel_cuda}",
        wanted="" if same else f"one CUDA major ({wheel[0]}) for both",
        why="Both are built for one CUDA major."
        if same
        else f"The compiled extensions of vLLM look for libcudart.so.{wheel[0]}, which a PyTorch for CUDA {torch[0]} "
        "does not bring, and vLLM fails as it is imported.",
        advice=""
        if same
        else f"Install the PyTorch of the same version for CUDA {wheel[0]}, or vLLM's build for CUDA {torch[0]}.",
        source="torch/version.py, " + ("DT_NEEDED of vLLM's extensions" if linked else "vLLM's version"),
        data={"torch_cuda": torch_cuda, "vllm_cuda": needs_cudart or wheel_cuda} | ({} if same else {"rule": "HO012"}),
    )


def _no_driver(missing: NoNvmlError, needs: Mapping[str, Cuda], env: Mapping[str, str], root: Path) -> Observation:
    why, advice, data = _absence(env, root)
    return Observation(
        id="driver-cuda",
        area="driver",
        state=State.UNKNOWN,
        what="NVIDIA driver",
        wanted=_wanted(needs),
        why=f"{missing.why[:1].upper()}{missing.why[1:]}. {why}".strip(),
        advice=". ".join(part.rstrip(".") for part in (missing.advice, advice) if part),
        source="NVML: nvmlInit",
        data={**data, "needed_cuda": _text(max(needs.values(), default=None))},
    )


def _absence(env: Mapping[str, str], root: Path) -> tuple[str, str, dict[str, Any]]:
    """Why there is no driver to ask, from what surrounds the process: the sentence, the advice, the data."""
    devices = _any(root / "dev", "nvidia[0-9]*")
    container = any(_exists(root / name) for name in (".dockerenv", "run/.containerenv")) or bool(
        env.get("KUBERNETES_SERVICE_HOST") or env.get("container")
    )
    data: dict[str, Any] = {"device_files": devices, "container": container}
    if devices:
        why = "There is a /dev/nvidia*, so a driver is loaded."
        if container:
            why += " In a container its libraries are mounted only for the capabilities that are asked for."
            return why, "Set NVIDIA_DRIVER_CAPABILITIES=compute,utility for the container.", data
        return why, "", data
    if not container:
        if _exists(root / "dev/kfd"):
            return "There is a /dev/kfd, an AMD GPU, which is not looked at here.", "", data
        return "There is no /dev/nvidia*, so no NVIDIA driver is loaded on this machine.", "", data
    given = env.get("NVIDIA_VISIBLE_DEVICES")
    if given is not None and given.strip() in ("", "void", "none"):
        why = f"This is a container with NVIDIA_VISIBLE_DEVICES={given.strip() or '(empty)'}, which gives it no GPU."
    else:
        why = "This is a container without /dev/nvidia*: it was started without `--gpus`."
    return why, "Start it with `docker run --gpus all`, or in Kubernetes with a limit for nvidia.com/gpu.", data


def _wanted(needs: Mapping[str, Cuda]) -> str:
    needed = max(needs.values(), default=None)
    if needed is None:
        return ""
    minimum = _MINIMUM_DRIVER.get(needed[0])
    return f"CUDA {_text(needed)}" + (f", driver {minimum} or newer" if minimum else "")


def _before(version: str | None, bound: str | None) -> bool:
    """Whether a driver version is older than another; False where one of them is no driver version."""
    if version is None or bound is None or not re.fullmatch(r"\d{1,5}(\.\d{1,5}){0,3}", version, re.ASCII):
        return False
    return [int(part) for part in version.split(".")] < [int(part) for part in bound.split(".")]


def _text(cuda: Cuda | None) -> str | None:
    return None if cuda is None else f"{cuda[0]}.{cuda[1]}"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _any(folder: Path, pattern: str) -> bool:
    try:
        return next(iter(folder.glob(pattern)), None) is not None
    except OSError:
        return False
