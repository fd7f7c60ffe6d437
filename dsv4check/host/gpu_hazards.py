"""What stands in the way of a launch on one GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsv4check.host.nvml import ask
from dsv4check.host.records import Observation, State

if TYPE_CHECKING:
    from dsv4check.host.gpus import GpuSeen

_EXCLUSIVE: Final = 3
_PROHIBITED: Final = 2
_USEFUL: Final = 0.5
"""A smaller share of a GPU leaves a model of this size nothing for its cache."""


def hazards(nvml: Any, gpu: GpuSeen, handle: Any, utilization: float) -> list[Observation]:
    """What stands in the way of one GPU: MIG, memory in use, compute mode, rows that wait for a reset."""
    found: list[Observation] = []
    if gpu.mig:
        found.append(
            _seen(
                f"gpu-{gpu.index}-mig",
                State.WARNING,
                f"MIG on GPU {gpu.index}",
                found="MIG is on",
                why="A process sees one MIG instance at most, so tensor parallelism cannot span instances; vLLM reads "
                "name and memory of the whole GPU from NVML, not of the instance.",
                advice="Switch MIG off for this model (`nvidia-smi -mig 0`), or name one instance by its UUID in "
                "CUDA_VISIBLE_DEVICES with vLLM 0.24.0 or newer.",
                source="NVML: nvmlDeviceGetMigMode; vllm/platforms/cuda.py: device_control_id_to_physical_device_id",
            )
        )
    elif gpu.memory_mib and gpu.free_mib is not None and gpu.free_mib < gpu.memory_mib * utilization:
        processes = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
        count = len(processes) if processes is not None else None
        holders = f", {count} process{'es' if count != 1 else ''}" if count else ""
        fits = int(gpu.free_mib / gpu.memory_mib * 100) / 100
        found.append(
            _seen(
                f"gpu-{gpu.index}-memory",
                State.WARNING,
                f"free memory of GPU {gpu.index}",
                found=f"{gpu.free_mib:,} of {gpu.memory_mib:,} MiB free{holders}",
                wanted=f"{int(gpu.memory_mib * utilization):,} MiB (--gpu-memory-utilization {utilization:g})",
                why="Something else holds memory of it. If that is so at the launch, vLLM stops with "
                '"Free memory on device ... is less than desired GPU memory utilization".',
                advice="End what holds the memory"
                + (f", or start with --gpu-memory-utilization {fits:g} or less." if fits >= _USEFUL else "."),
                source="NVML: nvmlDeviceGetMemoryInfo; vllm/v1/worker/utils.py: request_memory",
                data={"free_mib": gpu.free_mib, "memory_mib": gpu.memory_mib, "processes": count},
            )
        )
    mode = ask(nvml, "nvmlDeviceGetComputeMode", handle)
    if mode in (_EXCLUSIVE, _PROHIBITED):
        found.append(_compute_mode(gpu.index, mode == _PROHIBITED))
    rows = ask(nvml, "nvmlDeviceGetRemappedRows", handle)
    if rows is not None and (rows[2] or rows[3]):
        found.append(
            _seen(
                f"gpu-{gpu.index}-rows",
                State.WARNING,
                f"memory rows of GPU {gpu.index}",
                found="a row remapping has failed" if rows[3] else "a row remapping is pending",
                why="Memory of this GPU had an uncorrectable error; until it is repaired a server on it can stop at "
                "any time with an ECC error.",
                advice="Have the GPU replaced." if rows[3] else "Reset the GPU or reboot the machine.",
                source="NVML: nvmlDeviceGetRemappedRows",
                data={"rule": "HO015"},
            )
        )
    return found


def _compute_mode(index: int, prohibited: bool) -> Observation:
    return _seen(
        f"gpu-{index}-compute-mode",
        State.ERROR if prohibited else State.WARNING,
        f"compute mode of GPU {index}",
        found="Prohibited" if prohibited else "Exclusive_Process",
        wanted="Default",
        why="No process may use this GPU for CUDA."
        if prohibited
        else "One process at a time may use this GPU. A worker holds its own; every other process, such as vLLM's test "
        'of peer access, a second server or a probe, is refused: "all CUDA-capable devices are busy or unavailable".',
        advice=f"nvidia-smi -i {index} -c DEFAULT",
        source="NVML: nvmlDeviceGetComputeMode",
    )


def _seen(id_: str, state: State, what: str, **rest: Any) -> Observation:
    return Observation(id=id_, area="gpu", state=state, what=what, **rest)
