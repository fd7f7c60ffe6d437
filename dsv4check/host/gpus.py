"""The GPUs of this machine as the driver reports them, and what vLLM does with what it finds there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dsv4check.deployment import Hardware
from dsv4check.host.gpu_hazards import hazards
from dsv4check.host.gpu_set import links, mixed, visibility, visible_indexes
from dsv4check.host.nvml import NoNvmlError, ask, nvml_session, nvml_words
from dsv4check.host.records import Observation, State
from dsv4check.inputs.gpu import find_gpu
from dsv4check.problems import Origin
from dsv4check.records import dataclass

UTILIZATION: Final = 0.92
"""Default of --gpu-memory-utilization in every release from 0.20.0 to 0.33.0."""


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """One GPU, as NVML numbers them."""

    index: int
    name: str | None
    """As the driver says it; None where it does not answer."""
    capability: tuple[int, int] | None
    memory_mib: int | None
    """As NVML says, else the catalogue's figure (boards with unified memory do not say)."""
    free_mib: int | None
    mig: bool
    """MIG is on: CUDA sees instances of the GPU instead of the GPU."""
    visible: bool | None
    """``CUDA_VISIBLE_DEVICES`` leaves it to the server; None where that cannot be read."""
    uuid: str | None = None


def look_at_gpus(
    nvml: Any = None,
    *,
    env: Mapping[str, str] | None = None,
    release: str | None = None,
    utilization: float = UTILIZATION,
) -> tuple[list[Observation], list[GpuSeen]]:
    """Every GPU, and what stands between it and a launch.

    ``env`` is the environment of the server (this process's by default), ``release`` the vLLM release and
    ``utilization`` the launch's ``--gpu-memory-utilization``.
    """
    env = os.environ if env is None else env
    try:
        with nvml_session(nvml) as session:
            return _look(session, env, release, utilization)
    except NoNvmlError as missing:
        why = f"{missing.why[:1].upper()}{missing.why[1:]}, so no GPU was looked at."
        return [_seen("gpus", State.UNKNOWN, "GPUs", why=why, advice=missing.advice, source="NVML: nvmlInit")], []


def hardware_seen(gpus: Sequence[GpuSeen]) -> Hardware:
    """The hardware of a launch on these GPUs: vLLM asks the first visible one, and the smallest decides the memory.

    The number is that of all GPUs, of which a launch counts those that ``CUDA_VISIBLE_DEVICES`` leaves.
    """
    visible = [gpu for gpu in gpus if gpu.visible is not False] or list(gpus)
    if not visible or visible[0].name is None or visible[0].capability is None:
        return Hardware()
    alike = [gpu for gpu in visible if gpu.name is not None and gpu.capability == visible[0].capability]
    first = min(alike, key=lambda gpu: sys.maxsize if gpu.memory_mib is None else gpu.memory_mib)
    name = first.name or ""
    spec = find_gpu(name)
    return Hardware(
        vendor="nvidia",
        name=spec.name if spec is not None else name,
        capability=first.capability,
        memory_mib=first.memory_mib,
        unified_memory=spec.unified_memory if spec is not None else False,
        gpus_per_node=len(gpus),
        origin=Origin("nvml", name),
    )


def _look(
    nvml: Any, env: Mapping[str, str], release: str | None, utilization: float
) -> tuple[list[Observation], list[GpuSeen]]:
    try:
        count = int(nvml.nvmlDeviceGetCount())
    except Exception as error:
        why = f"NVML does not count the GPUs: {nvml_words(error)}."
        return [_seen("gpus", State.UNKNOWN, "GPUs", why=why, source="NVML: nvmlDeviceGetCount")], []
    if count < 1:
        none = _seen(
            "gpus",
            State.ERROR,
            "GPUs",
            found="none",
            wanted="an NVIDIA GPU",
            why="The driver is there and reports no GPU: a container that was given none, or a GPU that dropped out.",
            advice="Start the container with `--gpus all`, or look for Xid messages in `dmesg`.",
            source="NVML: nvmlDeviceGetCount",
            data={"rule": "HO004"},
        )
        return [none], []
    handles = [ask(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(count)]
    uuids = [_words(ask(nvml, "nvmlDeviceGetUUID", handle)) if handle is not None else None for handle in handles]
    visible = visible_indexes(env.get("CUDA_VISIBLE_DEVICES"), uuids)
    gpus: list[GpuSeen] = []
    seen: list[Observation] = []
    for index, handle in enumerate(handles):
        gpu = _read(nvml, index, handle, uuids[index], None if visible is None else index in visible)
        gpus.append(gpu)
        seen.append(_gpu(nvml, gpu, handle))
        if gpu.visible is not False and handle is not None:
            seen += hazards(nvml, gpu, handle, utilization)
    seen += visibility(env, gpus, release)
    if (kinds := mixed(gpus, env)) is not None:
        seen.append(kinds)
    if (linked := links(nvml, gpus, handles)) is not None:
        seen.append(linked)
    return seen, gpus


def _read(nvml: Any, index: int, handle: Any, uuid: str | None, visible: bool | None) -> GpuSeen:
    if handle is None:
        return GpuSeen(index, None, None, None, None, False, visible)
    name = _words(ask(nvml, "nvmlDeviceGetName", handle))
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    spec = find_gpu(name) if name else None
    mode = ask(nvml, "nvmlDeviceGetMigMode", handle)
    return GpuSeen(
        index=index,
        name=name,
        capability=(int(capability[0]), int(capability[1])) if capability is not None else None,
        memory_mib=int(memory.total) // 2**20 if memory is not None else spec.memory_mib if spec is not None else None,
        free_mib=int(memory.free) // 2**20 if memory is not None else None,
        mig=bool(mode is not None and mode[0] == 1),
        visible=visible,
        uuid=uuid,
    )


def _gpu(nvml: Any, gpu: GpuSeen, handle: Any) -> Observation:
    """The GPU itself; UNKNOWN with NVML's words where it does not answer."""
    if gpu.name is None or gpu.capability is None:
        try:
            held = nvml.nvmlDeviceGetHandleByIndex(gpu.index) if handle is None else handle
            nvml.nvmlDeviceGetName(held)
            nvml.nvmlDeviceGetCudaComputeCapability(held)
            words = "it answered only the second time"
        except Exception as error:
            words = nvml_words(error)
        why = f"NVML does not describe this GPU: {words}."
        return _seen(f"gpu-{gpu.index}", State.UNKNOWN, f"GPU {gpu.index}", why=why, data={"index": gpu.index})
    spec = find_gpu(gpu.name)
    sm = f"{gpu.capability[0]}.{gpu.capability[1]}"
    memory = f", {gpu.memory_mib:,} MiB" if gpu.memory_mib is not None else ""
    why = ""
    if spec is None:
        why = "The catalogue has no GPU of this name: what is checked follows from its compute capability."
    elif gpu.free_mib is None:
        why = "NVML says nothing of its memory; the figure is the catalogue's."
    return _seen(
        f"gpu-{gpu.index}",
        State.NOTE if why else State.OK,
        f"GPU {gpu.index}",
        found=f"{gpu.name}, SM {sm}{memory}",
        why=why,
        source="NVML",
        data={
            "index": gpu.index,
            "name": gpu.name,
            "uuid": gpu.uuid,
            "sm": sm,
            "memory_mib": gpu.memory_mib,
            "free_mib": gpu.free_mib,
            "catalogue": None if spec is None else spec.name,
            "mig": gpu.mig,
            "visible": gpu.visible,
        },
    )


def _seen(id_: str, state: State, what: str, **rest: Any) -> Observation:
    return Observation(id=id_, area="gpu", state=state, what=what, **rest)


def _words(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return str(value).replace("\x00", "").strip() or None if value is not None else None
