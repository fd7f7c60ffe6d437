"""A GPU that is none: what PyTorch would say of an H200, tensors on the CPU, FlashMLA computed in plain PyTorch.

A child of the probe imports it before anything else; the child's own code then runs unchanged, ``"cuda"`` and all.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[2]
GIB = 1 << 30


def install(mode: str) -> None:
    """``mode``: what the kernel does; see ``kernel``."""
    import torch

    install_gpu(mode)
    _flashmla(torch, mode)


def install_gpu(mode: str = "right") -> None:
    """The GPU alone, without FlashMLA."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnTheCpu(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            moved = {name: _cpu(value) for name, value in (named or {}).items()}
            return function(*(_cpu(value) for value in given), **moved)

    allowed: list[float] = []
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.get_device_properties = lambda _device: SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    cuda.mem_get_info = lambda _device: (_free(torch, mode), 140 * GIB)
    cuda.set_per_process_memory_fraction = lambda fraction, _device: allowed.append(fraction)
    cuda.synchronize = lambda *_: None
    cuda.empty_cache = lambda: None
    OnTheCpu().__enter__()


def _cpu(value: Any) -> Any:
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


def _free(torch: Any, mode: str) -> int:
    if mode == "no_context":
        raise RuntimeError("CUDA error: out of memory")
    return 100 * GIB


def _flashmla(torch: Any, mode: str) -> None:
    """The modules by which it is found, with nothing else of vLLM."""
    for name in ("vllm", "vllm.third_party", "vllm.third_party.flashmla"):
        module = types.ModuleType(name)
        module.__path__ = []
        sys.modules[name] = module
    interface: Any = types.ModuleType("vllm.third_party.flashmla.flash_mla_interface")
    interface.get_mla_metadata = lambda: (object(), None)
    interface.flash_mla_with_kvcache = kernel(torch, mode)
    sys.modules[interface.__name__] = interface


def kernel(torch: Any, mode: str) -> Any:
    """``flash_mla_with_kvcache`` as ``mode`` says: right, wrong (on GPU 1 alone: one_wrong), ..."""
    stand = importlib.import_module("tests.probe.stand")
    wrong = mode == "wrong" or (mode == "one_wrong" and os.environ.get("CUDA_VISIBLE_DEVICES") == "1")
    right = stand.Stand((lambda output: output * 1.05) if wrong else (lambda output: output)).decode

    def decode(**given: Any) -> Any:
        narrow = given["k_cache"].shape[-1] == 512
        if mode == "lenient" and narrow:
            return given["out"].zero_(), None
        if mode == "no_numbers" and not narrow:
            return given["out"].fill_(float("nan")), torch.zeros(*given["q"].shape[:1], given["q"].shape[2], 1)
        if mode == "illegal_access":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if mode == "out_of_memory" or (mode == "out_of_memory_when_narrow" and narrow):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
        if mode == "dies":
            print("CUDA error (a.cu:1): unspecified launch failure", file=sys.stderr, flush=True)
            os._exit(1)
        return right(**given)

    return decode


def child(folder: Path, mode: str) -> Path:
    """A file that is the probe's child, on such a GPU."""
    file = folder / f"gpu_{mode}.py"
    file.write_text(
        f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.probe import fake_gpu
from dsv4check.probe import child
fake_gpu.install({mode!r})
code = child.main()
sys.stderr.flush()
child.os._exit(code)
"""
    )
    return file
