"""Which GPUs a log speaks of: driver tables, device names in messages, sizes in out-of-memory errors, prose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Final

from dsv4check.inputs.gpu import GpuSpec, find_gpu, gpu_catalogue
from dsv4check.records import dataclass
from dsv4check.triage.capabilities import CAPABILITY_HINT, capabilities_in
from dsv4check.triage.prose_gpus import prose_gpus
from dsv4check.triage.records import Fact, LogLine, LogReading, Run
from dsv4check.triage.version_banner import place

_DEVICE: Final = re.compile(r"\bGPU (?P<index>\d{1,3}): (?P<name>[A-Z][\w .+/-]{1,80}?)(?= *(?:\(UUID|\n|$|\(|\|))")
_TABLE: Final = re.compile(
    r"^[\s>]*\| +(?P<index>\d{1,3}) +(?P<name>(?:NVIDIA|Tesla|GeForce|Quadro)[\w .+-]{1,40}?) +(?:On|Off|N/A) *\|", re.M
)
_TABLE_MEMORY: Final = re.compile(r"\d{1,7}MiB */ *(?P<mib>\d{3,7})MiB")
_TOPOLOGY: Final = re.compile(
    r"^[\s>]*(?:\x1b\[\d*m)?(?P<columns>GPU0[ \t]+(?:GPU\d{1,2}[ \t]+){0,40})(?=NIC\d|mlx|CPU Affinity)", re.MULTILINE
)
"""The head of the table that ``nvidia-smi topo -m`` prints: a column for each GPU."""
_MARKS: Final = {"collect_env": "GPU ", "nvidia-smi": " |"}
_TOTAL: Final = re.compile(r"has a total capacity of (?P<gib>\d{1,4}(?:\.\d{1,4})?) GiB")
_FREE: Final = re.compile(r"Free memory on device \S{0,20} ?\(\d{1,4}(?:\.\d+)?/(?P<gib>\d{1,4}(?:\.\d{1,4})?) GiB\)")
_CONFIG_FILE: Final = re.compile(r"device_name=(?P<name>[A-Z][A-Za-z0-9_.-]{2,60}?)(?=,|\.json|\s|'|$)")
_QUOTED: Final = re.compile(r"'(?P<name>NVIDIA [\w .+-]{2,60})'")
_SMI_NAME: Final = re.compile(r"\bNVIDIA (?P<name>(?:GeForce |RTX |Tesla )?[A-Z0-9][\w.+-]*+(?: [\w.+-]++){0,5})")
_REQUIRING: Final = re.compile(
    r"\b(?:requires?|needs?|supports?|supported|such as|minimum|at least|only|unavailable)\b|e\.g\.", re.IGNORECASE
)
"""A text about which GPUs something is for: the ones it names are not those of the launch."""
_WORLD: Final = re.compile(
    r"\bworld_size=(?P<size>\d{1,5}) rank=\d{1,5} local_rank=(?P<local>\d{1,4})\b"
    r"(?: distributed_init_method=(?:\w{1,10}://)?(?P<here>127\.|localhost|\[::1\]|file:))?"
)
_LEADER: Final = re.compile(r"\bworld_size=(?P<size>\d{1,5}), local_world_size=(?P<local>\d{1,4})\b")
_MOST: Final = 4000


@dataclass(frozen=True, slots=True)
class _Device:
    index: int
    name: str
    line: LogLine


def gpu_facts(reading: LogReading, run: Run) -> Iterator[Fact]:
    """What is said about the GPUs of a start, the surest first."""
    # The table first: equal rows of it are one kept line.
    yield from _of_driver(reading)
    yield from _of_lines([*run.lines, *_said_by(run)])
    for other in reading.runs:
        if other is not run:
            yield from _of_lines(other.lines)
    yield from prose_gpus(reading)


def _said_by(run: Run) -> Iterator[LogLine]:
    """The errors' own texts: PyTorch states sizes and devices in them."""
    for event in run.events[:100]:
        yield replace(event.line, text=event.said)


def _of_driver(reading: LogReading) -> Iterator[Fact]:
    """``collect_env``, ``nvidia-smi -L`` and the table of ``nvidia-smi``, as they stand in the text's beginning."""
    for how, pattern in (("collect_env", _DEVICE), ("nvidia-smi", _TABLE)):
        devices = []
        for match in pattern.finditer(reading.head) if _MARKS[how] in reading.head else ():
            devices.append(_Device(int(match["index"]), match["name"].strip(), place(reading, match.start())))
            if len(devices) >= 200:
                break
        yield from _of_devices(devices, how)
    columns = _TOPOLOGY.search(reading.head) if "GPU0" in reading.head else None
    if columns is not None:
        count = len(set(columns["columns"].split()))
        yield Fact("gpus", str(count), "collect_env", place(reading, columns.start("columns")))
    for match in _TABLE_MEMORY.finditer(reading.head) if "MiB" in reading.head else ():
        yield Fact("gpu_memory_gib", f"{int(match['mib']) / 1024:.2f}", "nvidia-smi", place(reading, match.start()))
        break


def _of_devices(devices: list[_Device], how: str) -> Iterator[Fact]:
    if not devices:
        return
    names = {device.name for device in devices}
    found = {spec.name for name in names if (spec := named_gpu(name)) is not None}
    first = devices[0]
    if len(found) == 1 or len(names) == 1:
        yield Fact("gpu", found.pop() if found else first.name, how, first.line)
        if all(device.line.count == 1 for device in devices):
            # A line that stands for several equal ones does not tell how many rows the table had.
            yield Fact("gpus", str(len({device.index for device in devices})), how, first.line)


def _of_lines(lines: Iterable[LogLine]) -> Iterator[Fact]:
    devices: list[_Device] = []
    capabilities: dict[str, LogLine] = {}
    local = world = 0
    world_line: LogLine | None = None
    here = True
    for count, line in enumerate(lines):
        if count >= _MOST:
            break
        text = line.text if len(line.text) < 20_000 else line.text[:20_000]
        for pattern in (_DEVICE, _TABLE):
            devices += [_Device(int(item["index"]), item["name"].strip(), line) for item in pattern.finditer(text)]
        for pattern in (_CONFIG_FILE, _QUOTED, _SMI_NAME):
            for match in pattern.finditer(text):
                spec = named_gpu(match["name"].replace("_", " "))
                if spec is not None:
                    yield Fact("gpu", spec.name, "log line", line)
        for pattern in (_TOTAL, _FREE):
            size = pattern.search(text)
            if size is not None and float(size["gib"]) >= 4:
                yield Fact("gpu_memory_gib", size["gib"], "log line", line)
        leader = _LEADER.search(text)
        if leader is not None:
            yield Fact("replica", f"{leader['size']} {leader['local']}", "log line", line)
        rank = _WORLD.search(text)
        if rank is not None:
            world, local = max(world, int(rank["size"])), max(local, int(rank["local"]) + 1)
            world_line = world_line or line
            here = here and rank["here"] is not None
        if CAPABILITY_HINT.search(text) and not _REQUIRING.search(text):
            for found in capabilities_in(text):
                capabilities.setdefault(found, line)
    yield from _of_devices(devices[:200], "nvidia-smi")
    if len(capabilities) == 1:
        found, line = capabilities.popitem()
        yield Fact("gpu", found, "log line", line)
    if world_line is not None:
        yield Fact("world size", str(world), "log line", world_line)
        yield Fact("local ranks", str(local), "log line", world_line)
        if here:
            # Ranks of another node could not reach this address.
            yield Fact("one node", "1", "log line", world_line)


@cache
def _truncated() -> tuple[tuple[str, GpuSpec], ...]:
    return tuple((_squeezed(name), spec) for spec in gpu_catalogue() for name in (spec.name, *spec.smi_names))


def named_gpu(name: str) -> GpuSpec | None:
    """The GPU that a device name stands for, also one that a table cut short; None for one that is not known."""
    bare = name.strip().rstrip(".").strip()
    found = find_gpu(bare)
    words = bare.split()
    while found is None and len(words) > 1:
        # A sentence may go on behind the name.
        words.pop()
        found = find_gpu(" ".join(words)) if len(" ".join(words)) > 1 else None
    if found is not None and len(words) == len(bare.split()):
        return found
    squeezed = _squeezed(bare)
    starting = {spec.name: spec for full, spec in _truncated() if len(squeezed) >= 10 and full.startswith(squeezed)}
    return next(iter(starting.values())) if len(starting) == 1 else found


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia")
