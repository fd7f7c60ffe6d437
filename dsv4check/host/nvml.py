"""NVML, the library of the NVIDIA driver, asked through `pynvml` (nvidia-ml-py)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class NoNvmlError(Exception):
    """NVML cannot be asked; ``why`` and ``advice`` are for the reader."""

    def __init__(self, why: str, advice: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.advice = advice


@contextmanager
def nvml_session(nvml: Any = None) -> Iterator[Any]:
    """NVML, initialised, through the module given or ``pynvml``; raises NoNvmlError when it cannot be asked."""
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            raise NoNvmlError(
                "the Python package that asks the driver (pynvml) is not installed", "pip install 'dsv4check[gpu]'"
            ) from None
    try:
        nvml.nvmlInit()
    except Exception as error:
        raise NoNvmlError(f"NVML says: {nvml_words(error)}") from None
    try:
        yield nvml
    finally:
        # Nothing is left to ask by then, and what was read stays true.
        with suppress(Exception):
            nvml.nvmlShutdown()


def nvml_words(error: BaseException) -> str:
    """What NVML says of an error, on one line."""
    try:
        words = " ".join(str(error).split())
    except Exception:
        words = ""
    return (words or type(error).__name__)[:200]


def ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """The answer of one NVML function; None where it has none, for this driver, this GPU or this pynvml."""
    try:
        return getattr(nvml, name)(*arguments)
    except Exception:
        return None
