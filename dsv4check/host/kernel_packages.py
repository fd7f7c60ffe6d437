"""The packages that hold the kernels: whether their parts agree, and which copy vLLM takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsv4check.host.interpreter import InterpreterFacts
from dsv4check.host.records import Observation, State

_CUTLASS: Final = "nvidia-cutlass-dsl"
CUTLASS_PARTS: Final = tuple(f"{_CUTLASS}-libs-{part}" for part in ("base", "core", "cu12", "cu13"))
"""Packages that are unpacked into the folder of nvidia-cutlass-dsl."""


def torch_build_seen(facts: InterpreterFacts) -> Observation | None:
    """Whether PyTorch is built for a GPU; nothing without vLLM beside it, whose build would have to fit."""
    build = facts.torch
    if build is None:
        return None
    version = facts.installed("vllm") or ""
    data = {"version": build.version, "cuda": build.cuda, "hip": build.hip, "git": build.git, "kind": build.kind}
    found = {
        "cuda": f"{build.version} for CUDA {build.cuda}",
        "rocm": f"{build.version} for ROCm {build.hip}",
        "cpu": f"{build.version} for the CPU",
    }[build.kind]
    state, why, advice = State.OK, "", ""
    if build.kind == "cpu" and "cpu" not in version:
        state = State.ERROR
        why = "This PyTorch sees no GPU, and the compiled extensions of vLLM find no CUDA library with it."
        advice = "Install the PyTorch of the same version that is built for CUDA."
    elif build.kind == "rocm" and "rocm" not in version:
        state = State.WARNING
        why = "This PyTorch is for AMD GPUs; it fits a vLLM that is built for ROCm, not the wheel for CUDA."
        advice = "Install the PyTorch that is built for CUDA, unless this is a ROCm machine."
    if "vllm" not in facts.distributions and "vllm" not in facts.modules and state is not State.OK:
        state, advice = State.NOTE, ""
    return package_seen("package-torch-build", state, "build of PyTorch", found, "", why, advice, build.source, data)


def flashinfer_parts(facts: InterpreterFacts, env: Mapping[str, str]) -> list[Observation]:
    """FlashInfer compares itself with its two packages of kernels as it is imported."""
    main = facts.installed("flashinfer-python")
    if main is None:
        return []
    skipped = bool(env.get("FLASHINFER_DISABLE_VERSION_CHECK"))
    found: list[Observation] = []
    for name, rule in (("flashinfer-cubin", "PK007"), ("flashinfer-jit-cache", "PK017")):
        part = facts.installed(name)
        if part is None:
            continue
        # The cache's version ends in its CUDA version, so FlashInfer compares the beginnings of the texts.
        same = part == main if name == "flashinfer-cubin" else part.startswith(main)
        why = advice = ""
        if not same:
            why = (
                "FLASHINFER_DISABLE_VERSION_CHECK lets it be imported, with kernels of another version."
                if skipped
                else "FlashInfer compares the two as it is imported and raises RuntimeError."
            )
            advice = f"pip install '{name}=={main}'"
        found.append(
            package_seen(
                f"package-{name}-match",
                State.OK if same else State.WARNING if skipped else State.ERROR,
                f"{name} beside flashinfer-python",
                f"{part} beside {main}",
                "" if same else main,
                why,
                advice,
                "flashinfer/jit/env.py",
                {} if same else {"rule": rule},
            )
        )
    return found


def cutlass_parts(facts: InterpreterFacts) -> list[Observation]:
    """nvidia-cutlass-dsl is several packages in one folder, which have to be of one version."""
    main = facts.installed(_CUTLASS)
    parts = {name: facts.installed(name) for name in CUTLASS_PARTS}
    other = {name: version for name, version in parts.items() if version and main and version != main}
    if not other:
        return []
    return [
        package_seen(
            f"package-{_CUTLASS}-match",
            State.WARNING,
            f"the parts of {_CUTLASS}",
            ", ".join(f"{name} {version}" for name, version in {_CUTLASS: main, **other}.items()),
            f"{main} for all of them",
            "They are one program in one folder; mixed, the compressor and indexer kernels were reported to fail when "
            "they are compiled at start-up.",
            f"Install {_CUTLASS} and all its libs-* packages anew, in one version.",
            data={"rule": "PK013"},
        )
    ]


def kernels_apart(facts: InterpreterFacts) -> list[Observation]:
    """DeepGEMM and FlashMLA: the copies in the vLLM wheel, and packages of their own beside it."""
    found: list[Observation] = []
    vllm = facts.modules.get("vllm")
    apart = facts.modules.get("deep_gemm")
    if apart is not None:
        sm120 = _headers(Path(apart))
        found.append(
            package_seen(
                "package-deep-gemm-own",
                State.WARNING,
                "DeepGEMM of its own",
                facts.installed("deep-gemm") or "a module without metadata",
                "",
                "vLLM imports it in place of the copy in its wheel. On SM12x it needs kernels for SM12x: its include "
                f"folder has {'some' if sm120 else 'none'} (sm120_*).",
                "Uninstall it, unless it was built for this vLLM.",
                f"{apart}; vllm/utils/deep_gemm.py: _import_deep_gemm",
                {"sm120_headers": sm120, "rule": "PK011"},
            )
        )
    if vllm is None:
        return found
    for module, what in (("deep_gemm", "DeepGEMM"), ("flashmla", "FlashMLA")):
        folder = Path(vllm) / "third_party" / module
        there = _is_folder(folder)
        covered = module == "deep_gemm" and apart is not None
        found.append(
            package_seen(
                f"package-{module.replace('_', '-')}-wheel",
                State.OK if there else State.NOTE if covered else State.WARNING,
                f"{what} in vLLM",
                "there" if there else "missing",
                "",
                ""
                if there
                else f"This build of vLLM has no vllm.third_party.{module}: kernels of {what} are not in it.",
                "" if there or covered else "Use the official wheel, or build vLLM for CUDA.",
                str(folder),
                {"sm120_headers": _headers(folder)} if module == "deep_gemm" and there else {},
            )
        )
    if "flash_mla" in facts.modules:
        why = "vLLM does not use it: it takes FlashMLA from its own wheel (vllm.third_party.flashmla)."
        found.append(
            package_seen(
                "package-flash-mla-own", State.NOTE, "FlashMLA of its own", facts.modules["flash_mla"], why=why
            )
        )
    return found


def _headers(folder: Path) -> bool | None:
    """Whether a DeepGEMM has kernels for SM12x among the headers that it compiles; None where it has no headers."""
    names = [
        name for name in _names(folder / "include" / "deep_gemm" / "impls") if name.endswith((".cuh", ".h", ".hpp"))
    ]
    return any(name.startswith("sm120_") for name in names) if names else None


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def package_seen(
    id_: str,
    state: State,
    what: str,
    found: str = "",
    wanted: str = "",
    why: str = "",
    advice: str = "",
    source: str = "",
    data: Mapping[str, Any] | None = None,
) -> Observation:
    """An observation of the area ``packages``."""
    return Observation(id_, "packages", state, what, found, wanted, why, advice, source, data or {})
