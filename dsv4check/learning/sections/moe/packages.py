"""Optional packages of the expert kernels that vLLM's wheel does not bring along."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Final

from ...source import LearningError, Source

DISTRIBUTIONS: Final = {
    "b12x": "b12x",
    "cutedsl": "nvidia-cutlass-dsl",
    "deep_gemm": None,
    "flashinfer": "flashinfer-python",
    "humming": "humming-kernels",
    "quark": "amd-quark",
    "triton_kernels": None,
}
"""The distribution on PyPI of each package that an expert kernel imports or asks for with ``has_...``. None: part of
vLLM's own wheel. The names are PyPI's; no release's text has all of them."""


def optional_packages(source: Source, answer: Mapping[str, Any]) -> dict[str, str]:
    """``{format.KERNEL: distribution}`` for kernels that need a package beyond vLLM's requirements.

    Only kernels whose module has one that was chosen: what no choice leads to needs nothing.
    """
    required = _required(source)
    found = {}
    for form, modules in answer["modules"].items():
        used = {module for kernel in _chosen(answer, form) for module in modules.get(kernel, ())}
        for kernel, own in modules.items():
            for package in sorted(set().union(*(_asked(source, module) for module in used & set(own)))):
                distribution = DISTRIBUTIONS[package]
                if distribution is not None and distribution not in required:
                    found[f"{form}.{kernel}"] = distribution
    return found


def _chosen(answer: Mapping[str, Any], form: str) -> set[str]:
    """Every kernel that some launch ends with."""
    tables = [item["answers"] for item in answer["sweeps"] if item["format"] == form and "answers" in item]
    return {kernel for table in tables for by in table.values() for kernel in by.values() if isinstance(kernel, str)}


def _asked(source: Source, module: str) -> set[str]:
    """Packages that a kernel's module imports at its top or looks for with vLLM's helpers.

    Helpers are ``has_...`` of ``vllm.utils`` and everything in ``vllm.utils.<package>``.
    """
    path = module.removeprefix("vllm.").replace(".", "/")
    path = source.first(f"{path}.py", f"{path}/__init__.py")
    tree = source.tree(path)
    found = set()
    for item in tree.body:
        if isinstance(item, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in item.names} & set(DISTRIBUTIONS)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
            continue
        if node in tree.body:
            found |= {node.module.partition(".")[0]} & set(DISTRIBUTIONS)
        if node.module.startswith("vllm.utils."):
            found |= {node.module.rsplit(".", 1)[1]} & set(DISTRIBUTIONS)
            found |= {_package(alias.name, path) for alias in node.names if alias.name.startswith("has_")}
    return found


def _package(helper: str, path: str) -> str:
    """The package that a helper ``has_...`` looks for."""
    name = helper.removeprefix("has_")
    for package in DISTRIBUTIONS:
        if name == package or name.startswith(f"{package}_"):
            return package
    raise LearningError(f"{path}: {helper} looks for a package that sections/moe/packages.py does not know")


def _required(source: Source) -> set[str]:
    """Distributions that vLLM's own metadata requires without an extra."""
    files = list(source.package.parent.glob("vllm-*.dist-info/METADATA"))
    if len(files) != 1:
        raise LearningError(f"{source.package.parent} has {len(files)} vllm-*.dist-info/METADATA")
    lines = re.findall(r"^Requires-Dist: ([\w.-]+)(.*)$", files[0].read_text(encoding="utf-8"), re.MULTILINE)
    return {name.lower().replace("_", "-") for name, rest in lines if "extra ==" not in rest}
