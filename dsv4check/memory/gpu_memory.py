"""What torch reports as the memory of one GPU: the figure that vLLM multiplies by --gpu-memory-utilization.

nvidia-smi counts memory that the driver keeps for itself (page tables, ECC, firmware); cudaMemGetInfo, which torch
asks, does not. ``rules/gpus.yaml`` has both: ``memory_mib`` is nvidia-smi's, ``torch_mib`` the lowest total that a
public log of that GPU shows. GPUs without such a log lose the usual share of nvidia-smi's figure.
"""

from __future__ import annotations

from typing import Final

from dsv4check.deployment import Deployment, Hardware
from dsv4check.inputs.gpu import find_gpu

MIB: Final = 1024 * 1024
_LOST: Final = 0.006
"""The usual share: B300 loses 0.34 % of nvidia-smi's figure, GB200 0.39 %, B200 0.40 %, H200 0.43 %, H20 0.53 %,
RTX PRO 6000 0.65 %, H100 0.67 %, A100 with 40 GB 0.82 %, GH200 1.1 %, RTX 4090 with 48 GB 1.2 %."""
_SAME: Final = 0.005
"""A stated size this close to the catalogue's is the catalogue's GPU."""


def gpu_memory(deployment: Deployment) -> int | None:
    """Bytes that torch reports for one GPU of the launch; None when neither the GPU nor its memory is known.

    A size that was stated (``--gpu-memory-gib``) or that NVML reports is nvidia-smi's figure and is reduced like the
    catalogue's; with unified memory (GB10) it is what the operating system has, and so is torch's total.
    """
    hardware = deployment.hardware
    if hardware.memory_mib is None:
        return None
    if hardware.unified_memory:
        return hardware.memory_mib * MIB
    measured = _measured(hardware)
    if measured is not None:
        return measured * MIB
    return int(hardware.memory_mib * (1 - _LOST)) * MIB


def _measured(hardware: Hardware) -> int | None:
    """The catalogue's torch figure, where the launch's GPU has the catalogue's memory."""
    spec = find_gpu(hardware.name) if hardware.name else None
    if spec is None or spec.torch_mib is None or spec.memory_mib is None or hardware.memory_mib is None:
        return None
    same = abs(spec.memory_mib - hardware.memory_mib) <= _SAME * spec.memory_mib
    return spec.torch_mib if same else None
