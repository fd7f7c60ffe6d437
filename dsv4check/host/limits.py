"""What the machine or its container allows the processes of a launch: shared memory, RAM, CPUs, ulimits, folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from dsv4check.records import dataclass

from .cache_folders import GIB, DiskOf, disk_of, look_at_folders
from .cgroups import Cgroup, read_cgroup, read_text
from .container import look_at_container
from .records import Observation, State
from .ulimits import LimitOf, limit_of, look_at_ulimits

_SHM_DEFAULT: Final = 64 << 20
_SHM_WANTED: Final = GIB
_QUEUE: Final = 160 << 20
"""The ring buffer between engine and workers: 10 chunks of VLLM_MQ_MAX_CHUNK_BYTES_MB (16) since 0.20.0."""
_SHM_ADVICE: Final = (
    "Start the container with `--ipc=host` or `--shm-size 16g` "
    "(Kubernetes: an emptyDir with medium Memory at /dev/shm)."
)
_RAM_EACH: Final = 3 * GIB
"""Host memory of a process that has loaded PyTorch and its libraries, as a rule of thumb."""
_CPUS_SOURCE: Final = "vLLM's documentation, Optimization and Tuning: 2 + N physical cores for N GPUs"
_ELSEWHERE: Final = "The GPUs of this launch were not seen here: that counts if this machine serves it. "


@dataclass(frozen=True, slots=True)
class Launch:
    """What is known of the launch; None where nothing is."""

    gpus: int | None = None
    """GPUs it uses on this machine; None asks for nothing that grows with them."""
    checkpoint_bytes: int | None = None
    here: bool = True
    """Whether the GPUs are those of this machine: one that builds an image needs none of what serving needs."""

    @property
    def processes(self) -> int | None:
        """API server, engine, and a worker for each GPU."""
        return None if self.gpus is None else self.gpus + 2

    def hazard(self, why: str) -> tuple[State, str]:
        """A shortage and what follows from it: a note where another machine may serve."""
        return (State.WARNING, why) if self.here else (State.NOTE, _ELSEWHERE + why)


def look_at_limits(
    root: Path = Path("/"),
    *,
    launch: Launch | None = None,
    env: Mapping[str, str] | None = None,
    disk: DiskOf = disk_of,
    limit: LimitOf = limit_of,
    can_write: Callable[[Path], bool] | None = None,
    cpus: int | None = None,
    platform: str = sys.platform,
) -> list[Observation]:
    """The limits of this machine, container and process. Nothing is written or changed.

    Every file is read below ``root``; ``disk``, ``limit``, ``can_write``, ``cpus`` (CPUs this process may use) and
    ``platform`` stand for the system's answers and are given by tests.
    """
    launch = launch if launch is not None else Launch()
    if not platform.startswith("linux"):
        return [_elsewhere(platform)]
    cgroup = read_cgroup(root)
    memory = _meminfo(root)
    return [
        look_at_container(root, cgroup),
        _shared_memory(root, launch, disk),
        *_memory(memory, cgroup, launch),
        _cpus(cgroup, launch, _own_cpus() if cpus is None else cpus),
        *look_at_ulimits(limit, cgroup),
        *look_at_folders(
            root,
            os.environ if env is None else env,
            disk,
            _can_write if can_write is None else can_write,
            launch.checkpoint_bytes,
        ),
    ]


def _elsewhere(platform: str) -> Observation:
    return Observation(
        id="limits",
        area="limits",
        state=State.UNKNOWN,
        what="limits of the machine",
        found=platform,
        why="Shared memory, cgroups and ulimits are looked at on Linux alone, which vLLM needs for NVIDIA GPUs.",
        source="sys.platform",
    )


def _shared_memory(root: Path, launch: Launch, disk: DiskOf) -> Observation:
    folder = root / "dev/shm"
    what, source = "shared memory", "statvfs of /dev/shm"
    try:
        found = disk(folder)
    except OSError as error:
        why = f"/dev/shm cannot be looked at: {error.strerror or error}."
        return Observation("limit-shm", "limits", State.UNKNOWN, what, why=why, source=source)
    text = f"{_amount(found.total)}, {_amount(found.free)} free"
    state, why, advice = State.OK, "", ""
    if found.free < _SHM_WANTED and launch.gpus != 1:
        advice = _SHM_ADVICE
        why = "Engine and workers of several GPUs talk through it (a queue of 160 MiB for each executor), "
        why += 'and so does NCCL: it ends with "unable to allocate shared memory", "Bus error" or an NCCL error.'
        if found.total == _SHM_DEFAULT:
            why = f"This is the default of a Docker container. {why}"
        elif found.total >= _SHM_WANTED:
            why = f"Most of it is taken: files of other or ended processes. {why}"
            advice = f"Look for left-over files in /dev/shm. {advice}"
        state, why = launch.hazard(why) if launch.gpus is not None else (State.NOTE, why)
    elif found.free < _QUEUE // 10:
        state, advice = State.WARNING, _SHM_ADVICE
        why = "Almost nothing is free: semaphores and shared buffers cannot be made."
    return Observation(
        id="limit-shm",
        area="limits",
        state=state,
        what=what,
        found=text,
        wanted="1 GiB free or more for several GPUs" if launch.gpus != 1 else "",
        why=why,
        advice=advice,
        source=source,
        data={"total_bytes": found.total, "free_bytes": found.free},
    )


def _memory(memory: Mapping[str, int], cgroup: Cgroup, launch: Launch) -> Iterator[Observation]:
    total, free = memory.get("MemTotal"), memory.get("MemAvailable")
    if total is None or free is None:
        why = "/proc/meminfo does not say how much memory the machine has."
        yield Observation("limit-memory", "limits", State.UNKNOWN, "host memory", why=why, source="/proc/meminfo")
    else:
        swap = memory.get("SwapTotal", 0)
        data: dict[str, object] = {"total_bytes": total, "available_bytes": free, "swap_bytes": swap}
        found = f"{_amount(total)}, {_amount(free)} available, swap {_amount(swap)}"
        yield _ram("limit-memory", "host memory", found, free, launch, "/proc/meminfo", data)
    if cgroup.memory is None:
        return
    limit = int(cgroup.memory.value)
    found = f"{_amount(limit)}" + (f" of the machine's {_amount(total)}" if total is not None else "")
    data = {"limit_bytes": limit, "used_bytes": cgroup.memory_used, "cgroup_version": cgroup.version}
    if total is not None and limit >= total:
        yield Observation(
            "limit-cgroup-memory",
            "limits",
            State.OK,
            "memory limit of the container",
            found,
            why="It is no smaller than the machine's memory.",
            source=cgroup.memory.source,
            data=data,
        )
        return
    # Page cache counts as used but is given back; the limit itself is what the launch can have.
    yield _ram("limit-cgroup-memory", "memory limit of the container", found, limit, launch, cgroup.memory.source, data)


def _ram(
    name: str, what: str, found: str, usable: int, launch: Launch, source: str, data: Mapping[str, object]
) -> Observation:
    state, why, advice = State.OK, "", ""
    size = launch.checkpoint_bytes
    processes = launch.processes
    wanted = processes * _RAM_EACH if processes is not None else None
    if wanted is not None and usable < wanted:
        state, why = launch.hazard(
            f"{processes} processes (API server, engine, a worker for each GPU) take some GiB each, loading and "
            'kernels compiled at start take more: the system may kill one ("exit code: -9").'
        )
        advice = "Give the container or machine more memory; MAX_JOBS=4 bounds the kernels compiled at the same time."
    elif size is not None and usable < size:
        state = State.NOTE
        why = (
            f"The checkpoint has {size / GIB:.0f} GiB: the page cache cannot hold it, so that every start reads it "
            "from disk, and loading that keeps whole shards in memory may be killed."
        )
    needs = f"{_amount(wanted)} or more (rule of thumb)" if wanted is not None else ""
    return Observation(name, "limits", state, what, found, needs, why, advice, source, data)


def _cpus(cgroup: Cgroup, launch: Launch, own: int) -> Observation:
    quota = cgroup.cpus.value if cgroup.cpus is not None else None
    usable = own if quota is None else min(float(own), quota)
    wanted = launch.processes
    state, why, advice = State.OK, "", ""
    source = cgroup.cpus.source if cgroup.cpus is not None else "sched_getaffinity"
    if wanted is not None and usable < wanted:
        state, why = launch.hazard(
            "API server, engine and one worker for each GPU each keep a core busy: with fewer cores they wait for each "
            f"other, and tokens come slowly ({_CPUS_SOURCE})."
        )
        advice = "Give the container more CPUs (`--cpus`, Kubernetes: limits.cpu)."
    found = f"{own} CPUs" + (f", quota {quota:g}" if quota is not None else "")
    return Observation(
        id="limit-cpus",
        area="limits",
        state=state,
        what="CPUs",
        found=found,
        wanted=f"{wanted} or more" if wanted is not None else "",
        why=why,
        advice=advice,
        source=source,
        data={"cpus": own, "quota_cpus": quota},
    )


def _meminfo(root: Path) -> dict[str, int]:
    """``/proc/meminfo`` in bytes."""
    found: dict[str, int] = {}
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal() and len(words[0]) < 18:
            found[name] = int(words[0]) * 1024
    return found


def _own_cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def _can_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _amount(size: int) -> str:
    """Bytes as people say them."""
    if size >= GIB:
        return f"{size / GIB:.1f} GiB"
    return f"{size / (1 << 20):.0f} MiB" if size else "0"
