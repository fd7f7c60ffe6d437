"""Limits that a container or service manager sets through cgroups, version 1 and 2, nested ones included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dsv4check.records import dataclass

# Version 1 writes "no limit" as a number near 2^63.
_UNLIMITED: Final = 1 << 60
_DEEPEST: Final = 64
_LARGEST: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit and the file that sets it."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The tightest limits over this process' group and the groups around it; None where there is none."""

    version: int | None
    """1, 2, or None when no cgroup files are to be seen."""
    memory: Limit | None = None
    """Bytes."""
    memory_used: int | None = None
    """Bytes of the group that sets ``memory``, page cache included."""
    cpus: Limit | None = None
    """Quota in CPUs."""
    tasks: Limit | None = None
    """Processes and threads."""
    names: str = ""
    """The groups' paths as ``/proc/self/cgroup`` gives them."""


def read_cgroup(root: Path) -> Cgroup:
    """The limits that hold for this process below ``root`` (``/``, another folder in tests)."""
    said = read_text(root / "proc/self/cgroup") or ""
    groups: dict[str, str] = {}
    for line in said.splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            groups[controller.removeprefix("name=")] = path.strip()
    base = root / "sys/fs/cgroup"
    names = " ".join(sorted(set(groups.values())))
    if (base / "cgroup.controllers").is_file() or list(groups) == [""]:
        return _second(base, groups.get("", "/"), names, root)
    if (base / "memory").is_dir() or (base / "cpu").is_dir() or (base / "cpu,cpuacct").is_dir():
        return _first(base, groups, names, root)
    return Cgroup(None, names=names)


def read_text(path: Path) -> str | None:
    """A small file's text; None when it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(_LARGEST)
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The number a file consists of; None when it holds none (``max``) or cannot be read."""
    text = (read_text(path) or "").strip()
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _second(base: Path, group: str, names: str, root: Path) -> Cgroup:
    memory = cpus = tasks = used = None
    for folder in _upwards(base, group):
        memory, used = _tighter_memory(memory, used, folder, "memory.max", "memory.current", root)
        tasks = _tighter(tasks, read_int(folder / "pids.max"), folder / "pids.max", root)
        words = (read_text(folder / "cpu.max") or "").split()
        cpus = _tighter(cpus, _ratio(*words) if len(words) == 2 else None, folder / "cpu.max", root)
    return Cgroup(2, memory, used, cpus, tasks, names)


def _first(base: Path, groups: dict[str, str], names: str, root: Path) -> Cgroup:
    memory = cpus = tasks = used = None
    for folder in _upwards(base / "memory", groups.get("memory", "/")):
        file = "memory.limit_in_bytes"
        memory, used = _tighter_memory(memory, used, folder, file, "memory.usage_in_bytes", root)
    for controller in ("cpu", "cpu,cpuacct"):
        for folder in _upwards(base / controller, groups.get("cpu", "/")):
            quota = (read_text(folder / "cpu.cfs_quota_us") or "").strip()
            period = (read_text(folder / "cpu.cfs_period_us") or "").strip()
            cpus = _tighter(cpus, _ratio(quota, period), folder / "cpu.cfs_quota_us", root)
    for folder in _upwards(base / "pids", groups.get("pids", "/")):
        tasks = _tighter(tasks, read_int(folder / "pids.max"), folder / "pids.max", root)
    return Cgroup(1, memory, used, cpus, tasks, names)


def _upwards(base: Path, group: str) -> Iterator[Path]:
    """A group's folder and those around it up to ``base``.

    In a container the path may be that of the host and not exist below the mount, which then shows the group itself.
    """
    parts = [part for part in group.split("/") if part not in ("", ".", "..")][:_DEEPEST]
    for count in range(len(parts), -1, -1):
        folder = base.joinpath(*parts[:count])
        if folder.is_dir():
            yield folder


def _ratio(quota: str, period: str) -> float | None:
    if not (quota.isdecimal() and period.isdecimal() and len(quota) < 20 and len(period) < 20 and int(period)):
        return None
    return int(quota) / int(period) or None


def _tighter(known: Limit | None, value: float | None, file: Path, root: Path) -> Limit | None:
    if value is None or (known is not None and known.value <= value):
        return known
    return Limit(value, _shown(file, root))


def _tighter_memory(
    known: Limit | None, used: int | None, folder: Path, limit: str, usage: str, root: Path
) -> tuple[Limit | None, int | None]:
    value = read_int(folder / limit)
    if value is None or value >= _UNLIMITED or (known is not None and known.value <= value):
        return known, used
    return Limit(value, _shown(folder / limit, root)), read_int(folder / usage)


def _shown(file: Path, root: Path) -> str:
    return "/" + file.relative_to(root).as_posix()
