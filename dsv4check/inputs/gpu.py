"""The GPUs of a launch: as named, as an SM version, or as the driver reports them."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from dsv4check.data import load_data
from dsv4check.deployment import Hardware
from dsv4check.errors import InputError
from dsv4check.problems import Origin
from dsv4check.records import dataclass

_SM = re.compile(r"^(?:sm|compute|cc)?(?:(?P<major>\d{1,2})\.(?P<minor>\d)|(?P<digits>\d{2,3}))[af]?$", re.ASCII)
_COUNTED = re.compile(r"^(?:(?P<before>\d{1,3})\s*[x*×]\s*)?(?P<name>.*?)(?:\s*[:*×]\s*(?P<after>\d{1,3}))?$", re.I)
_PREFIXES = ("nvidia", "amd", "geforce", "tesla", "instinct", "huawei", "intel")
# fmt: off
_CAPABILITIES = frozenset((
    "5.0", "5.2", "5.3", "6.0", "6.1", "6.2", "7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0",
    "10.0", "10.1", "10.3", "11.0", "12.0", "12.1",
))
# fmt: on
_MAX_GPUS = 65536


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One entry of ``rules/gpus.yaml``."""

    name: str
    vendor: str
    capability: tuple[int, int] | None
    memory_mib: int | None
    """One GPU, MiB."""
    torch_mib: int | None
    """What torch reports as the total, MiB; None where no public log shows it."""
    trust: str
    """``measured``, ``nominal`` or ``derived``."""
    nvlink: str
    """``all``, ``rack``, ``pairs`` or ``none``."""
    per_node: int
    """GPUs of the usual machine."""
    unified_memory: bool
    smi_names: tuple[str, ...]
    aliases: tuple[str, ...]


@cache
def gpu_catalogue() -> tuple[GpuSpec, ...]:
    """Every GPU of ``rules/gpus.yaml``, in the file's order."""
    content = load_data("gpus")
    return tuple(
        GpuSpec(
            name=entry["name"],
            vendor=entry["vendor"],
            capability=_pair(entry["sm"]) if entry.get("sm") else None,
            memory_mib=entry.get("memory_mib"),
            torch_mib=entry.get("torch_mib"),
            trust=entry["trust"],
            nvlink=entry["nvlink"],
            per_node=entry["per_node"],
            unified_memory=bool(entry.get("unified_memory", False)),
            smi_names=tuple(entry.get("nvidia_smi", ())),
            aliases=tuple(str(alias) for alias in entry.get("aliases", ())),
        )
        for entry in content["gpus"]
    )


@cache
def _by_name() -> Mapping[str, GpuSpec]:
    table: dict[str, GpuSpec] = {}
    for spec in gpu_catalogue():
        for name in (spec.name, *spec.smi_names, *spec.aliases):
            table.setdefault(_normalise(name), spec)
    return table


def find_gpu(name: str) -> GpuSpec | None:
    """The catalogue entry a name stands for; case, spaces, dashes and the vendor's name do not matter."""
    return _by_name().get(_normalise(name))


def resolve_gpu(
    text: str | None,
    *,
    gpus: int | None = None,
    nodes: int | None = None,
    memory_gib: float | None = None,
) -> Hardware:
    """Read ``--gpu`` and the counts that go with it.

    ``text`` is a name (``H200``, ``NVIDIA H100 80GB HBM3``, ``8xB200``) or a compute capability (``sm90``,
    ``9.0``, ``sm100a``); None asks the driver, and without a driver the GPU stays unknown. ``gpus`` is per
    node and wins over a count in ``text``. ``memory_gib`` (GiB of one GPU) picks the variant of a name that
    has as much, else replaces the catalogue's figure. Raises InputError for an unknown name or an impossible
    number.
    """
    _check_counts(gpus, nodes, memory_gib)
    if text is None or not text.strip():
        found = _from_driver()
    else:
        found = _from_text(text.strip())
    if gpus is not None:
        found = replace(found, gpus_per_node=gpus)
    if nodes is not None:
        found = replace(found, nodes=nodes)
    return found if memory_gib is None else _with_memory(found, memory_gib)


def apply_visible_devices(hardware: Hardware, env: Mapping[str, str]) -> Hardware:
    """Count the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, as vLLM counts them.

    vLLM asks torch, which reads the list up to the first entry that is no device: ``0,1,-1,2`` leaves two, a
    repeated entry none, an empty value no GPU. A stated count may be that of the machine or of the visible
    GPUs, so the smaller of it and the list's length is taken. Other vendors use their own variable
    (``HIP_VISIBLE_DEVICES`` or ``CUDA_VISIBLE_DEVICES`` for AMD, where an empty value counts as unset;
    ``ASCEND_RT_VISIBLE_DEVICES``; ``ZE_AFFINITY_MASK``).
    """
    for name in _visibility_variables(hardware.vendor):
        if name in env and not (hardware.vendor == "amd" and not env[name].strip()):
            count = _count_visible(env[name], hardware.gpus_per_node)
            return hardware if count is None else replace(hardware, gpus_per_node=count)
    return hardware


def _visibility_variables(vendor: str | None) -> tuple[str, ...]:
    if vendor == "amd":
        return ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    if vendor == "huawei":
        return ("ASCEND_RT_VISIBLE_DEVICES",)
    if vendor == "intel":
        return ("ZE_AFFINITY_MASK",)
    return ("CUDA_VISIBLE_DEVICES",)


def _count_visible(value: str, present: int | None) -> int | None:
    """Devices a visibility list leaves; None when it holds something that cannot be read here.

    That is a shell variable, or one of Intel's tiles (``0.1``), several of which make one GPU.
    """
    words = [word.strip() for word in value.split(",")]
    if any(char in word for word in words for char in "${."):
        return None
    if value.strip() in ("all", "void", "none", "NoDevFiles"):
        return None if value.strip() == "all" else 0
    seen: list[str] = []
    for word in words:
        if word.upper().startswith(("GPU-", "MIG-")):
            seen.append(word)
            continue
        number = re.match(r"\+?0*(\d+)", word, re.ASCII)
        if number is None:
            break
        seen.append(number[1])
    if len(set(seen)) != len(seen):
        return 0
    return len(seen) if present is None else min(len(seen), present)


def _from_text(text: str) -> Hardware:
    """A capability or a catalogue name, with an optional count (``8xH200``, ``H200:8``)."""
    if len(text) > 200:
        raise InputError(f"--gpu: {len(text)} characters are too long for a GPU name")
    capability = _capability(text)
    if capability is not None:
        return Hardware(vendor="nvidia", capability=capability, origin=Origin("option", text))
    spec = find_gpu(text)
    count: int | None = None
    if spec is None:
        counted = _COUNTED.match(text)
        if counted is not None and (counted["before"] or counted["after"]):
            count = int(counted["before"] or counted["after"])
            if count < 1:
                raise InputError(f"--gpu {text!r}: expected a positive number of GPUs")
            spec = find_gpu(counted["name"])
            capability = _capability(counted["name"])
            if spec is None and capability is not None:
                return Hardware(
                    vendor="nvidia", capability=capability, gpus_per_node=count, origin=Origin("option", text)
                )
    if spec is None:
        raise InputError(f"--gpu {text!r}: unknown GPU; {_suggestion(text)}")
    return replace(_hardware(spec, Origin("option", text)), gpus_per_node=count)


def _hardware(spec: GpuSpec, origin: Origin) -> Hardware:
    return Hardware(
        vendor=spec.vendor,
        name=spec.name,
        capability=spec.capability,
        memory_mib=spec.memory_mib,
        unified_memory=spec.unified_memory,
        origin=origin,
    )


def _capability(text: str) -> tuple[int, int] | None:
    """Compute capability of ``sm90``, ``sm_120a``, ``9.0``, ``90``; None for other text.

    Raises InputError for a capability that no NVIDIA GPU has.
    """
    match = _SM.match(re.sub(r"[\s_-]", "", text.lower()))
    if match is None:
        return None
    if match["digits"]:
        pair = (int(match["digits"][:-1]), int(match["digits"][-1]))
    else:
        pair = (int(match["major"]), int(match["minor"]))
    if f"{pair[0]}.{pair[1]}" not in _CAPABILITIES:
        raise InputError(
            f"--gpu {text!r}: no GPU has compute capability {pair[0]}.{pair[1]}; expected e.g. sm90 or 9.0"
        )
    return pair


def _with_memory(hardware: Hardware, memory_gib: float) -> Hardware:
    """Take the variant of the same GPU that has this much memory, else state the amount itself."""
    wanted = round(memory_gib * 1024)
    if hardware.name is not None:
        for spec in gpu_catalogue():
            same = spec.name == hardware.name or spec.name.startswith(f"{hardware.name}-")
            if same and spec.memory_mib and abs(spec.memory_mib - wanted) <= 0.03 * wanted:
                return replace(hardware, name=spec.name, memory_mib=spec.memory_mib)
    return replace(hardware, memory_mib=wanted)


def _from_driver() -> Hardware:
    """Ask NVML through ``pynvml`` when that is installed; an unknown GPU otherwise."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return Hardware()
    try:
        pynvml.nvmlInit()
    except Exception:
        # No driver or no permission: the same as no GPU, and never a reason to stop.
        return Hardware()
    try:
        return _read_driver(pynvml)
    except Exception:
        return Hardware()
    finally:
        pynvml.nvmlShutdown()


def _read_driver(nvml: Any) -> Hardware:
    count = nvml.nvmlDeviceGetCount()
    if count < 1:
        return Hardware()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    name = nvml.nvmlDeviceGetName(handle)
    name = name.decode() if isinstance(name, bytes) else str(name)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    spec = find_gpu(name)
    memory = spec.memory_mib if spec is not None else None
    try:
        memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // 2**20
    except Exception:
        # Boards with unified memory do not answer; the catalogue's figure stays.
        memory = memory or None
    return Hardware(
        vendor="nvidia",
        name=spec.name if spec is not None else name,
        capability=(int(major), int(minor)),
        memory_mib=memory,
        unified_memory=spec.unified_memory if spec is not None else False,
        gpus_per_node=int(count),
        origin=Origin("nvml", name),
    )


def _check_counts(gpus: int | None, nodes: int | None, memory_gib: float | None) -> None:
    for what, value in (("--gpus", gpus), ("--nodes", nodes)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_GPUS:
            raise InputError(f"{what} {value!r}: expected a positive integer")
    if memory_gib is None:
        return
    if isinstance(memory_gib, bool) or not isinstance(memory_gib, int | float) or not 0 < memory_gib <= 65536:
        raise InputError(f"--gpu-memory-gib {memory_gib!r}: expected a positive number of GiB")


def _suggestion(text: str) -> str:
    """The closest names, or the forms that are understood."""
    close = difflib.get_close_matches(_normalise(text), _by_name(), n=6, cutoff=0.5)
    names = list(dict.fromkeys(_by_name()[key].name for key in close))[:3]
    if names:
        return f"did you mean {', '.join(names)}?"
    return "expected a name such as H200 or a compute capability such as sm90"


def _normalise(name: str) -> str:
    """Lower case letters and digits only, without the vendor's name in front."""
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    for prefix in _PREFIXES:
        if bare.startswith(prefix) and len(bare) > len(prefix):
            bare = bare.removeprefix(prefix)
    return bare


def _pair(text: object) -> tuple[int, int]:
    major, _, minor = str(text).partition(".")
    return int(major), int(minor or 0)
