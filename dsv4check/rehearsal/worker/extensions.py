"""Compiled extensions that are not there: modules without content, and operators that refuse to be called."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

from .failures import HarnessLimit
from .simulated_device import STATE, Inert, nvml_module

NVML = "vllm.third_party.pynvml"
EXTENSIONS = frozenset(
    {
        "vllm._C",
        "vllm._C_stable_libtorch",
        "vllm._moe_C",
        "vllm._moe_C_stable_libtorch",
        "vllm._qutlass_C",
        "vllm._flashmla_C",
        "vllm._flashmla_extension_C",
        "vllm.cumem_allocator",
        "vllm.vllm_flash_attn._vllm_fa2_C",
        "vllm.vllm_flash_attn._vllm_fa3_C",
        "vllm.vllm_flash_attn._vllm_fa4_C",
    }
)
INERT_MODULES = frozenset({"flashinfer.comm.cuda_ipc"})
"""Python modules that open a CUDA library while they are imported (FlashInfer up to 0.6.14)."""
_NAMESPACES = frozenset(
    {
        "_C",
        "_moe_C",
        "_qutlass_C",
        "_C_cache_ops",
        "vllm",
        "_flashmla_C",
        "_C_stable_libtorch",
        "_moe_C_stable_libtorch",
    }
)
_USERS = ("compilation", "layers", "models", "kernels", "vllm/ir", "v1/")
"""Parts of vLLM that take operators by name while they are imported. Modules that *register* operators must not
find a stub: they would register a fake kernel for something that does not exist."""

CALLED: list[str] = []
"""Stubs that were called in this process, whether or not vLLM caught the refusal."""

_CAPABILITY_QUERIES = {
    "cutlass_scaled_mm_supports_fp8": 89,
    "cutlass_scaled_mm_supports_block_fp8": 90,
    "cutlass_group_gemm_supported": 90,
    "cutlass_scaled_mm_supports_fp4": 100,
}
"""Operators that only say whether a compute capability (as an integer) has kernels, with the first that has."""


class OperatorStub:
    """A compiled operator: it can be named and passed around, not called."""

    stand_in = True

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        """Raise HarnessLimit, and remember the name."""
        CALLED.append(self._name)
        raise HarnessLimit(f"the compiled operator {self._name} was called")

    def __getattr__(self, name: str) -> OperatorStub:
        if name.startswith("__"):
            raise AttributeError(name)
        return OperatorStub(f"{self._name}.{name}")


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return nvml_module(spec.name) if spec.name == NVML else types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ in INERT_MODULES:
            module.__getattr__ = _inert_member  # type: ignore[method-assign]
        if module.__name__ == "vllm.cumem_allocator":
            for name in ("init_module", "python_create_and_map", "python_unmap_and_release"):
                setattr(module, name, lambda *_args, **_kwargs: None)
        if module.__name__ in ("vllm._C", "vllm._C_stable_libtorch"):
            _stub_operators()


def _inert_member(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Inert()


class ExtensionFinder(importlib.abc.MetaPathFinder):
    """Answers for the compiled extensions and for vLLM's own copy of NVML, before the file system does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for the modules that are simulated, None for all others."""
        if fullname in EXTENSIONS or fullname in INERT_MODULES or fullname == NVML:
            return importlib.machinery.ModuleSpec(fullname, _Loader(), origin="simulated")
        return None


def install() -> None:
    """Put the finder first. Call it before vLLM is imported."""
    if not any(isinstance(finder, ExtensionFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, ExtensionFinder())


def present(*names: str) -> dict[str, bool]:
    """Which packages can be imported here."""
    return {name: importlib.util.find_spec(name) is not None for name in names}


def _stub_operators() -> None:
    """torch.ops of vLLM's namespaces answer with stubs to the modules that only name them."""
    import torch

    namespace: Any = torch._ops._OpNamespace
    original = namespace.__getattr__
    if getattr(original, "stand_in", False):
        return

    def lookup(self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except AttributeError:
            if name in _CAPABILITY_QUERIES:
                first = _CAPABILITY_QUERIES[name]
                return lambda capability=None: (
                    (STATE.capability[0] * 10 + STATE.capability[1] if capability is None else capability) >= first
                )
            caller = sys._getframe(1).f_code.co_filename
            if name.startswith("__") or self.name not in _NAMESPACES or not any(part in caller for part in _USERS):
                raise
            return OperatorStub(f"{self.name}.{name}")

    lookup.stand_in = True  # type: ignore[attr-defined]
    namespace.__getattr__ = lookup
