"""The GPUs of a machine together: which the server sees, whether they are alike, what connects them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dsv4check.host.nvml import ask
from dsv4check.host.records import Observation, State
from dsv4check.releases.facts import known_releases

if TYPE_CHECKING:
    from dsv4check.host.gpus import GpuSeen

_NVLINK: Final = 2
"""NVML_P2P_CAPS_INDEX_NVLINK; a status of 0 is a connection."""
_MOST_LINKED: Final = 32
"""GPUs whose pairs are asked for: no machine has more, and the pairs grow with the square."""


def visible_indexes(value: str | None, uuids: Sequence[str | None]) -> frozenset[int] | None:
    """Which GPUs ``CUDA_VISIBLE_DEVICES`` leaves, as CUDA reads it; None where the value cannot be read here.

    Entries count up to the first that is no device of the machine; one that stands twice leaves no GPU.
    """
    if value is None:
        return frozenset(range(len(uuids)))
    if any(char in value for char in "${.") or value.strip() == "all":
        return None
    found: list[int] = []
    for word in (word.strip() for word in value.split(",")):
        if word.upper().startswith("MIG-"):
            return None
        if word.upper().startswith("GPU-"):
            matching = [index for index, uuid in enumerate(uuids) if (uuid or "").lower().startswith(word.lower())]
            if len(matching) != 1:
                break
            found.append(matching[0])
            continue
        number = re.match(r"\+?0*(\d{1,9})", word, re.ASCII)
        if number is None or int(number[1]) >= len(uuids):
            break
        found.append(int(number[1]))
    return frozenset() if len(set(found)) != len(found) else frozenset(found)


def visibility(env: Mapping[str, str], gpus: Sequence[GpuSeen], release: str | None) -> list[Observation]:
    """What ``CUDA_VISIBLE_DEVICES`` leaves, and whether this release reads its entries."""
    value = env.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return []
    left = [gpu.index for gpu in gpus if gpu.visible]
    unknown = any(gpu.visible is None for gpu in gpus)
    found: list[Observation] = [
        _seen(
            "gpu-visible",
            State.UNKNOWN if unknown else State.NOTE if left else State.ERROR,
            "CUDA_VISIBLE_DEVICES",
            found=_shown(value),
            why="Which GPUs this leaves cannot be read here."
            if unknown
            else f"The server sees {len(left)} of {len(gpus)} GPUs: {', '.join(map(str, left))}."
            if left
            else "It leaves no GPU to the server: an entry that is no device ends the list, a repeated one empties it.",
            advice="" if left or unknown else "Unset it, or name GPUs that are there.",
            source="environment",
            data={"visible": None if unknown else left} | ({} if left or unknown else {"rule": "HO004"}),
        )
    ]
    words = [word.strip() for word in value.split(",") if word.strip().upper().startswith(("GPU-", "MIG-"))]
    if words and (trouble := _uuid_trouble(words, {gpu.uuid for gpu in gpus}, release)) is not None:
        found.append(trouble)
    return found


def _uuid_trouble(words: Sequence[str], uuids: set[str | None], release: str | None) -> Observation | None:
    """What vLLM makes of UUIDs: numbers only up to 0.23, then looked up through NVML, which wants all of it."""
    if release in known_releases() and _minor(release) < (0, 24):
        return _seen(
            "gpu-visible-uuid",
            State.ERROR,
            "UUIDs in CUDA_VISIBLE_DEVICES",
            found=_shown(",".join(words)),
            wanted="numbers",
            why=f'vLLM {release} reads every entry as a number and stops with "ValueError: invalid literal for int()"; '
            "0.24.0 is the first release that takes UUIDs.",
            advice="Name the GPUs by number (with CUDA_DEVICE_ORDER=PCI_BUS_ID), or use vLLM 0.24.0 or newer.",
            source="vllm/platforms/interface.py: device_id_to_physical_device_id",
        )
    if any(word.upper().startswith("MIG-") for word in words):
        return _seen(
            "gpu-visible-uuid",
            State.WARNING,
            "MIG UUIDs in CUDA_VISIBLE_DEVICES",
            found=_shown(",".join(words)),
            why="vLLM looks the instance up through NVML and takes its index for the number of a GPU. That index "
            "counts the instances of one GPU, so name, memory and compute capability may be read from another GPU.",
            advice="Give one instance only, on a machine whose GPUs are alike.",
            source="vllm/platforms/cuda.py: device_control_id_to_physical_device_id",
        )
    if any(word not in uuids for word in words):
        return _seen(
            "gpu-visible-uuid",
            State.WARNING,
            "UUIDs in CUDA_VISIBLE_DEVICES",
            found=_shown(",".join(words)),
            wanted="complete UUIDs of this machine",
            why="CUDA takes the beginning of a UUID, but vLLM hands the entry to NVML, which finds complete ones only.",
            advice="Write the UUIDs out as `nvidia-smi -L` shows them, or use numbers.",
            source="vllm/platforms/cuda.py: device_control_id_to_physical_device_id",
        )
    return None


def mixed(gpus: Sequence[GpuSeen], env: Mapping[str, str]) -> Observation | None:
    """GPUs of different kinds among those that the server sees."""
    used = [gpu for gpu in gpus if gpu.visible is not False and gpu.name is not None]
    kinds: dict[tuple[object, ...], list[GpuSeen]] = {}
    for gpu in used:
        # Boards of one kind may differ by some MiB.
        size = None if gpu.memory_mib is None else round(gpu.memory_mib / 1024)
        kinds.setdefault((gpu.name, gpu.capability, size), []).append(gpu)
    if len(kinds) < 2:
        return None
    sms = {capability for _, capability, _ in kinds}
    why = "The launch is sized for one kind of GPU: "
    if len(sms) > 1:
        why += (
            "every rank asks for the compute capability of the first visible GPU and takes its kernels, "
            "which do not run on the others. "
        )
    elif len({memory for _, _, memory in kinds}) > 1:
        why += "the GPU with the least memory decides how many KV cache blocks all ranks get. "
    else:
        why += "the slowest decides the speed. "
    if len({name for name, _, _ in kinds}) > 1 and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        why += "vLLM warns unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set, as CUDA otherwise numbers the fastest first."
    return _seen(
        "gpu-mixed",
        State.WARNING,
        "kinds of GPU",
        found=", ".join(
            f"{len(same)}x {same[0].name}" + (f" ({same[0].memory_mib:,} MiB)" if same[0].memory_mib else "")
            for same in kinds.values()
        ),
        wanted="GPUs of one kind",
        why=why.strip(),
        advice="Set CUDA_DEVICE_ORDER=PCI_BUS_ID and leave one kind in CUDA_VISIBLE_DEVICES.",
        source="NVML; vllm/platforms/cuda.py: log_warnings, get_device_capability",
        data={"names": sorted({str(name) for name, _, _ in kinds})},
    )


def links(nvml: Any, gpus: Sequence[GpuSeen], handles: Sequence[Any]) -> Observation | None:
    """Which pairs NVLink connects, asked as vLLM asks before it uses its own all-reduce."""
    used = [gpu.index for gpu in gpus if gpu.visible is not False and handles[gpu.index] is not None and not gpu.mig]
    if not 2 <= len(used) <= _MOST_LINKED:
        return None
    pairs = [(left, right) for place, left in enumerate(used) for right in used[place + 1 :]]
    status = {pair: ask(nvml, "nvmlDeviceGetP2PStatus", handles[pair[0]], handles[pair[1]], _NVLINK) for pair in pairs}
    if all(answer is None for answer in status.values()):
        return None
    linked = [pair for pair in pairs if status[pair] == 0]
    full = len(linked) == len(pairs)
    without = len(used) > 2 and not full
    return _seen(
        "gpu-links",
        State.OK if full else State.NOTE,
        "NVLink between the GPUs",
        found=f"{len(linked)} of {len(pairs)} pairs connected",
        why="Every GPU reaches every other one."
        if full
        else "vLLM's custom all-reduce is off for more than two GPUs that NVLink does not connect fully; NCCL is used."
        if without
        else "The two GPUs are connected through PCIe.",
        source="NVML: nvmlDeviceGetP2PStatus; vllm/platforms/cuda.py: is_fully_connected",
        data={"linked_pairs": [list(pair) for pair in linked], "pairs": len(pairs)},
    )


def _shown(value: str) -> str:
    """A value of the environment on one line, without the whole of a UUID."""
    short = re.sub(r"(?i)\b((?:GPU|MIG)-[0-9a-f]{4})[0-9a-f-]+", r"\1...", " ".join(value.split()))
    return "(empty)" if not short else short if len(short) <= 120 else f"{short[:117]}..."


def _minor(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:2])


def _seen(id_: str, state: State, what: str, **rest: Any) -> Observation:
    return Observation(id=id_, area="gpu", state=state, what=what, **rest)
