"""Where vLLM's own cache ops are looked up: by importing their module, or one file alone for Triton's interpreter.

With a GPU the module is imported as vLLM itself would. Without one, ``vllm.triton_utils`` switches Triton off and much
of vLLM cannot be imported; :func:`interpreted` then loads the one file that defines the kernel, with every other
module of vLLM that it imports either real (plain files) or one of the answers in ``_ANSWERS``. The kernels themselves
are the release's own text, run by Triton's interpreter on CPU tensors (``TRITON_INTERPRET=1``).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Platform:
    """A platform that is none in particular: every ``is_...`` question is answered with no."""

    device_type = "cpu"

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("is_", "has_", "supports_")):
            return lambda *_args, **_kwargs: False
        raise AttributeError(name)


def _no(*_args: Any, **_kwargs: Any) -> bool:
    return False


def _fp8_range() -> tuple[float, float]:
    return -448.0, 448.0


def _answers() -> dict[str, dict[str, Any]]:
    import triton
    import triton.language as tl

    return {
        "vllm.triton_utils": {"HAS_TRITON": True, "triton": triton, "tl": tl},
        "vllm.platforms": {"current_platform": _Platform()},
        "vllm.utils.import_utils": {"has_cutedsl": _no, "has_deep_gemm": _no},
        "vllm.utils.deep_gemm": {"mqa_logits_use_mx_scales": _no},
        "vllm.model_executor.layers.quantization.utils.quant_utils": {"get_fp8_min_max": _fp8_range},
    }


class _Finder:
    """Finds vLLM's plain files as they are, its packages without running their ``__init__``, and the answers above."""

    def __init__(self, root: str, answers: dict[str, dict[str, Any]]) -> None:
        self.root = root
        self.answers = answers

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """A spec for a module of vLLM; ``None`` for all others."""
        if name != "vllm" and not name.startswith("vllm."):
            return None
        folder = os.path.join(self.root, *name.split(".")[1:])
        if name in self.answers or os.path.isdir(folder):
            spec = importlib.util.spec_from_loader(name, self, is_package=True)  # type: ignore[arg-type]
            if spec is not None:
                spec.submodule_search_locations = [folder]
            return spec
        return importlib.util.spec_from_file_location(name, folder + ".py") if os.path.isfile(folder + ".py") else None

    def create_module(self, spec: Any) -> types.ModuleType:
        """An empty module, or one of the answers."""
        module = types.ModuleType(spec.name)
        for name, value in self.answers.get(spec.name, {}).items():
            setattr(module, name, value)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run: the module holds what it shall hold."""


def vllm_root() -> str:
    """The folder of the ``vllm`` package on the path, found without importing it; empty when there is none."""
    loaded = sys.modules.get("vllm")
    if loaded is not None and getattr(loaded, "__path__", None):
        return str(next(iter(loaded.__path__)))
    try:
        spec = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        return ""
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return places[0] if places else ""


@contextmanager
def _apart(root: str) -> Iterator[None]:
    """Import below ``vllm`` here without leaving a trace: what the process had imported of vLLM is put back."""
    finder = _Finder(root, _answers())
    before = {name: module for name, module in sys.modules.items() if name == "vllm" or name.startswith("vllm.")}
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
            del sys.modules[name]
        sys.modules.update(before)


def interpreted(module: str) -> Any:
    """One module of the vLLM tree, its Triton kernels ready for the interpreter.

    Raises ImportError with the reason when the module, Triton or the interpreter is not there.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise ImportError("Triton's interpreter is off (TRITON_INTERPRET=1 must be set before Triton is imported)")
    root = vllm_root()
    if not root:
        raise ImportError("no vllm on the path")
    with _apart(root):
        return importlib.import_module(module)


@contextmanager
def exact_fp8() -> Iterator[None]:
    """Casts to fp8 (e4m3) round as the hardware does while Triton's interpreter runs a kernel.

    The interpreter's own cast (Triton 3.9) rounds halves away from zero, loses the carry into the exponent and cuts
    off small values; PyTorch's rounds to nearest even, as vLLM's kernels do on a GPU.
    """
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    original = getattr(interpreter, "_convert_float", None)
    if original is None:  # another Triton: its own cast, whatever that is
        yield
        return

    def convert(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source != tl.float32 or target != tl.float8e4nv:
            return original(values, source, target, rounding)
        floats = torch.from_numpy(values.reshape(-1).view("float32").copy())
        return floats.to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(values.shape)

    interpreter._convert_float = convert
    try:
        yield
    finally:
        interpreter._convert_float = original


def imported(module: str) -> Any:
    """A module of vLLM, imported as vLLM itself would; ImportError with the reason whatever stops it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise
    except Exception as error:  # a half-installed vLLM fails in many ways: all of them mean "not available"
        raise ImportError(f"{type(error).__name__}: {error}") from error


def compiled(namespace: str, name: str) -> Any:
    """A compiled op, ``torch.ops.<namespace>.<name>``; vLLM's extension libraries are imported for it."""
    import torch

    for extension in ("vllm._C", "vllm._C_stable_libtorch"):
        try:
            importlib.import_module(extension)
        except Exception:  # either library alone may hold the op; the look-up below decides
            continue
    try:
        return getattr(getattr(torch.ops, namespace), name)
    except (AttributeError, RuntimeError) as error:
        raise ImportError(f"torch.ops.{namespace} has no {name}") from error
