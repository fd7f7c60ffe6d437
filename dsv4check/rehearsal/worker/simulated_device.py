"""A GPU that is not there: NVML and torch.cuda answer for a compute capability, a name, a count and a memory size.

Answers are looked up when they are asked for, so one process can change count, name and memory between launches.
The compute capability stays: modules read it while they are imported.
"""

from __future__ import annotations

import importlib
import os
import types
from dataclasses import dataclass, replace
from typing import Any

from ..protocol import SimulatedDevice

_MIB = 1 << 20


@dataclass(frozen=True)
class Silicon:
    """The usual GPU of a compute capability."""

    name: str
    memory_mib: int
    multiprocessors: int
    shared_memory: int
    """Bytes of shared memory a block may opt in to."""


USUAL: dict[str, Silicon] = {
    "7.0": Silicon("Tesla V100-SXM2-32GB", 32768, 80, 98304),
    "7.5": Silicon("Tesla T4", 15360, 40, 65536),
    "8.0": Silicon("NVIDIA A100-SXM4-80GB", 81920, 108, 166912),
    "8.6": Silicon("NVIDIA RTX A6000", 49140, 84, 101376),
    "8.9": Silicon("NVIDIA L40S", 46068, 142, 101376),
    "9.0": Silicon("NVIDIA H200", 143771, 132, 232448),
    "10.0": Silicon("NVIDIA B200", 183359, 148, 232448),
    "10.3": Silicon("NVIDIA B300 SXM6 AC", 275040, 160, 232448),
    "11.0": Silicon("NVIDIA Thor", 125747, 20, 232448),
    "12.0": Silicon("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, 188, 101376),
    "12.1": Silicon("NVIDIA GB10", 124621, 48, 101376),
}
"""Capabilities that can be simulated. Multiprocessors and shared memory are those of NVIDIA's data sheets."""


class DeviceState:
    """The device of the launch at hand."""

    def __init__(self) -> None:
        self.set(SimulatedDevice(sm="9.0"))

    def set(self, device: SimulatedDevice) -> None:
        """Answer for another device from now on. Raises KeyError for an unknown compute capability."""
        usual = USUAL[device.sm]
        self._device = replace(device, name=device.name or usual.name, memory_mib=device.memory_mib or usual.memory_mib)

    @property
    def capability(self) -> tuple[int, int]:
        """(major, minor)."""
        major, _, minor = self._device.sm.partition(".")
        return int(major), int(minor)

    @property
    def silicon(self) -> Silicon:
        """What the usual GPU of the capability has."""
        return USUAL[self._device.sm]

    @property
    def name(self) -> str:
        """As NVML prints it."""
        return self._device.name

    @property
    def memory(self) -> int:
        """Bytes of one GPU."""
        return (self._device.memory_mib or 0) * _MIB

    @property
    def present(self) -> int:
        """GPUs in this node."""
        return self._device.count

    @property
    def visible(self) -> int:
        """GPUs that CUDA_VISIBLE_DEVICES leaves, as torch counts them: up to the first entry that is no device."""
        listed = os.environ.get("CUDA_VISIBLE_DEVICES")
        if listed is None:
            return self.present
        seen: list[str] = []
        for entry in listed.split(","):
            word = entry.strip()
            if word in seen:
                return 0
            if not word or (word.isdigit() and int(word) >= self.present) or word.startswith("-"):
                break
            seen.append(word)
        return len(seen)


STATE = DeviceState()


class Inert:
    """Stands for a stream, an event, a CUDA library: every method does nothing."""

    stand_in = True

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __enter__(self) -> Inert:
        return self

    def __exit__(self, *_args: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: None


def nvml_module(name: str) -> types.ModuleType:
    """A module with the part of NVML that vLLM asks."""
    nvml = types.ModuleType(name)

    class NVMLError(Exception):
        """NVML's base error."""

    class Memory:
        """nvmlMemory_t: nothing is in use."""

        used = 0

        @property
        def total(self) -> int:
            return STATE.memory

        free = total

    errors = {kind: type(kind, (NVMLError,), {}) for kind in _NVML_ERRORS}
    members: dict[str, Any] = {
        "NVMLError": NVMLError,
        **errors,
        "NVML_P2P_CAPS_INDEX_NVLINK": 0,
        "NVML_P2P_STATUS_OK": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: STATE.present,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": lambda uuid: 0,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: STATE.capability,
        "nvmlDeviceGetName": lambda handle: STATE.name,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetMemoryInfo": lambda handle: Memory(),
        "nvmlDeviceGetP2PStatus": lambda one, other, index: 0,
        "nvmlSystemGetDriverVersion": lambda: "580.95.05",
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
    }
    for key, value in members.items():
        setattr(nvml, key, value)
    return nvml


_NVML_ERRORS = (
    "NVMLError_NotSupported",
    "NVMLError_LibraryNotFound",
    "NVMLError_DriverNotLoaded",
    "NVMLError_InvalidArgument",
)


class _Properties:
    """torch.cuda.get_device_properties: computed on access."""

    warp_size = 32
    is_integrated = False
    gcnArchName = ""  # noqa: N815 (torch's own spelling)
    L2_cache_size = 50 * _MIB
    uuid = "GPU-0"
    regs_per_multiprocessor = 65536
    max_threads_per_multi_processor = 2048

    def __getattr__(self, name: str) -> Any:
        match name:
            case "major" | "minor":
                return STATE.capability[name == "minor"]
            case "name":
                return STATE.name
            case "total_memory":
                return STATE.memory
            case "multi_processor_count":
                return STATE.silicon.multiprocessors
            case "shared_memory_per_block_optin" | "shared_memory_per_multiprocessor":
                return STATE.silicon.shared_memory
        raise AttributeError(name)


def install_triton() -> None:
    """Triton finds one active driver, NVIDIA's; otherwise vLLM refuses what needs Triton."""
    from triton.backends import backends

    for name, backend in backends.items():
        backend.driver.is_active = staticmethod(lambda name=name: name == "nvidia")


def install_torch() -> None:
    """torch.cuda answers for the device; streams and events are inert."""
    import torch
    import torch.fx.experimental._config as fx_config

    # Index tensors on the meta device have no values; a module that counts experts must still be built.
    fx_config.meta_nonzero_assume_all_nonzero = True
    cuda: Any = torch.cuda
    properties = _Properties()
    cuda.Stream = cuda.Event = Inert
    cuda.is_available = lambda: True
    cuda.device_count = lambda: STATE.visible
    cuda.current_device = lambda: 0
    cuda.set_device = lambda *_args: None
    cuda.current_stream = lambda *_args, **_kwargs: Inert()
    cuda.synchronize = lambda *_args, **_kwargs: None
    cuda.get_device_capability = lambda *_args, **_kwargs: STATE.capability
    cuda.get_device_name = lambda *_args, **_kwargs: STATE.name
    cuda.get_device_properties = lambda *_args, **_kwargs: properties
    cuda.mem_get_info = lambda *_args, **_kwargs: (STATE.memory, STATE.memory)
    accelerator: Any = torch.accelerator
    accelerator.current_device_index = lambda: 0
    accelerator.set_device_index = lambda *_args: None
    accelerator.device_count = lambda: STATE.visible


def install_vllm() -> None:
    """What has to be told to vLLM's own modules once its platform is chosen."""
    from vllm.platforms import current_platform

    type(current_platform).device_count = classmethod(lambda cls: STATE.visible)
    library: Any = importlib.import_module("vllm.distributed.device_communicators.cuda_wrapper").CudaRTLibrary
    # In place: modules have imported the class by name already.
    for name, member in list(vars(library).items()):
        if callable(member):
            setattr(library, name, lambda *_args, **_kwargs: None)
