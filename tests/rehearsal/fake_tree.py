"""A folder that looks like an unpacked vLLM, and packages beside it."""

from __future__ import annotations

from pathlib import Path

NEEDED = ("torch", "transformers", "pydantic", "numpy", "triton")


def tree(folder: Path, version: str = "0.29.0") -> Path:
    """A folder that looks like an unpacked wheel."""
    (folder / "vllm" / "engine").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").touch()
    (folder / "vllm" / "_version.py").write_text(f"__version__ = version = '{version}'\n", encoding="utf-8")
    return folder


def beside(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "__init__.py").touch()
    return folder
