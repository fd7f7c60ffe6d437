"""``pins``: the versions a release's wheel asks for, from its own metadata (``Requires-Dist``)."""

from __future__ import annotations

from email.parser import HeaderParser
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ..release import Release
from ..source import LearningError

PACKAGES: Final = frozenset(
    {"torch", "torchvision", "torchaudio", "triton", "numpy", "numba", "transformers", "tokenizers", "safetensors"}
    | {"huggingface-hub", "fastsafetensors", "flashinfer-python", "flashinfer-cubin", "nvidia-cutlass-dsl"}
    | {"nvidia-cudnn-frontend", "tilelang", "apache-tvm-ffi", "quack-kernels", "humming-kernels", "tokenspeed-mla"}
    | {"deep-gemm", "nixl", "ray", "xgrammar", "llguidance", "outlines-core", "lm-format-enforcer"}
    | {"compressed-tensors", "mistral-common", "pydantic", "protobuf", "fastapi", "openai", "setuptools"}
    | {"opencv-python-headless"}
)
"""The packages whose version decides whether a launch works: kernels, model and tokenizer code, the API server."""
EXTRAS: Final = ("b12x", "helion")
"""Extras of the wheel that hold one optional kernel package of the same name."""

_SERVER: Final = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.12.0",
    "python_version": "3.12",
    "sys_platform": "linux",
    "extra": "",
}
"""The machine whose requirements count: that of vLLM's own images."""


def learn(release: Release) -> dict[str, Any]:
    """Packages and extras with their specifiers, and the Python versions, from the wheel's ``METADATA``."""
    folder = release.source.package.parent
    files = sorted(folder.glob("vllm-*.dist-info/METADATA"))
    if len(files) != 1:
        raise LearningError(f"vllm-*.dist-info/METADATA: expected one beside the package, found {len(files)}")
    header = HeaderParser().parsestr(files[0].read_text(encoding="utf-8"))
    python = header["Requires-Python"]
    lines = header.get_all("Requires-Dist") or []
    if not python or not lines:
        raise LearningError("METADATA has no Requires-Python or no Requires-Dist")
    requirements = [_requirement(line) for line in lines]
    packages = {
        name: _specifier(item)
        for item in requirements
        if (name := canonicalize_name(item.name)) in PACKAGES and item.specifier and _applies(item, "")
    }
    if "torch" not in packages:
        raise LearningError("METADATA: Requires-Dist names no torch with a version")
    extras = {
        name: _specifier(item)
        for item in requirements
        if (name := canonicalize_name(item.name)) in EXTRAS and _applies(item, name) and not _applies(item, "")
    }
    found: dict[str, Any] = {
        "packages": packages,
        "requires_python": ",".join(sorted(part.strip() for part in str(python).split(","))),
    }
    if extras:
        found["extras"] = extras
    return found


def _requirement(line: str) -> Requirement:
    try:
        return Requirement(line)
    except InvalidRequirement as error:
        raise LearningError(f"METADATA: Requires-Dist: {line}: {error}") from None


def _applies(item: Requirement, extra: str) -> bool:
    return item.marker is None or item.marker.evaluate({**_SERVER, "extra": extra})


def _specifier(item: Requirement) -> str:
    return ",".join(sorted(str(part) for part in item.specifier))
