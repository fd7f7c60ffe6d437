"""Which GPUs a log speaks of: driver tables, device names in messages, sizes in out-of-memory errors, prose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Final

from dsv4check.inputs.gpu import GpuSpec, find_gpu, gpu_catalogue
from dsv4check.records import dataclass
from dsv4check.triage.records import Fact, LogLine, LogReading, Run
from dsv4check.triage.version_banner import place

_DEVICE: Final = re.compile(r"\bGPU (?P<index>\d{1,3}): (?P<name>[A-Z][\w .+/-]{1,80}?)(?= *(?:\(UUID|\n|$|\(|\|))")
_TABLE: Final = re.compile(
    r"^[\s>]*\| +(?P<index>\d{1,3}) +(?P<name>(?:NVIDIA|Tesla|GeForce|Quadro)[\w .+-]{1,40}?) +(?:On|Off|N/A) *\|", re.M
)
_TABLE_MEMORY: Final = re.compile(r"\d{1,7}MiB */ *(?P<mib>\d{3,7})MiB")
_TOTAL: Final = re.compile(r"has a total capacity of (?P<gib>\d{1,4}(?:\.\d{1,4})?) GiB")
_FREE: Final = re.compile(r"Free memory on device \S{0,20} ?\(\d{1,4}(?:\.\d+)?/(?P<gib>\d{1,4}(?:\.\d{1,4})?) GiB\)")
_CONFIG_FILE: Final = re.compile(r"device_name=(?P<name>[A-Z][A-Za-z0-9_.-]{2,60}?)(?=,|\.json|\s|'|$)")
_QUOTED: Final = re.compile(r"'(?P<name>NVIDIA [\w .+-]{2,60})'")
_SMI_NAME: Final = re.compile(r"\bNVIDIA (?P<name>(?:GeForce |RTX |Tesla )?[A-Z0-9][\w.+-]*+(?: [\w.+-]++){0,5})")
_CAPABILITY: Final = re.compile(
    r"(?:compute capability|cuda capability|capability)[ :=(]{1,3}(?:of |is )?(?:sm_?)?(?P<dotted>1?\d\.\d)\b"
    r"|\b(?:sm|SM|compute)_?(?P<digits>(?:7|8|9|10|11|12)[0-9])a?f?\b"
)
_CURRENT: Final = re.compile(r"Current capability: (?P<digits>\d{2,3})\b")
_REQUIRING: Final = re.compile(
    r"\b(?:requires?|needs?|supports?|supported|such as|minimum|at least|only|unavailable)\b|e\.g\.", re.IGNORECASE
)
"""A text about which GPUs something is for: the ones it names are not those of the launch."""
_WORLD: Final = re.compile(r"\bworld_size=(?P<size>\d{1,5}) rank=\d{1,5} local_rank=(?P<local>\d{1,4})\b")
_AMOUNT: Final = re.compile(r"[\s(（,-]{0,3}(?P<gib>\d{2,3})\s?G(?:i?B)?(?![\w/])")
_LEADER: Final = re.compile(r"\bworld_size=(?P<size>\d{1,5}), local_world_size=(?P<local>\d{1,4})\b")
_CAPABILITY_HINT: Final = re.compile(r"capability|sm_?\d\d|compute_\d\d", re.IGNORECASE)
_LOG_LINE: Final = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d|^\s*File \"|^[\s>]*\|")
_MOST: Final = 4000
_PROSE: Final = 60_000
"""Characters of prose that are looked through: a report's text, not its log."""


@dataclass(frozen=True, slots=True)
class _Device:
    index: int
    name: str
    line: LogLine


def gpu_facts(reading: LogReading, run: Run) -> Iterator[Fact]:
    """What is said about the GPUs of a start, the surest first."""
    yield from _of_lines([*run.lines, *_said_by(run)])
    yield from _of_driver(reading)
    for other in reading.runs:
        if other is not run:
            yield from _of_lines(other.lines)
    yield from _of_prose(reading)


def _said_by(run: Run) -> Iterator[LogLine]:
    """The errors' own texts: PyTorch states sizes and devices in them."""
    for event in run.events[:100]:
        yield replace(event.line, text=event.said)


def _of_driver(reading: LogReading) -> Iterator[Fact]:
    """``collect_env``, ``nvidia-smi -L`` and the table of ``nvidia-smi``, as they stand in the text's beginning."""
    for how, pattern in (("collect_env", _DEVICE), ("nvidia-smi", _TABLE)):
        devices = []
        for match in pattern.finditer(reading.head):
            devices.append(_Device(int(match["index"]), match["name"].strip(), place(reading, match.start())))
            if len(devices) >= 200:
                break
        yield from _of_devices(devices, how)
    for match in _TABLE_MEMORY.finditer(reading.head):
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
        yield Fact("gpus", str(len({device.index for device in devices})), how, first.line)


def _of_lines(lines: Iterable[LogLine]) -> Iterator[Fact]:
    devices: list[_Device] = []
    capabilities: dict[str, LogLine] = {}
    local = world = 0
    world_line: LogLine | None = None
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
        if _CAPABILITY_HINT.search(text) and not _REQUIRING.search(text):
            for found in capabilities_in(text):
                capabilities.setdefault(found, line)
    yield from _of_devices(devices[:200], "nvidia-smi")
    if len(capabilities) == 1:
        found, line = capabilities.popitem()
        yield Fact("gpu", found, "log line", line)
    if world_line is not None:
        yield Fact("world size", str(world), "log line", world_line)
        yield Fact("local ranks", str(local), "log line", world_line)


def capabilities_in(text: str) -> list[str]:
    """Compute capabilities that a line states, as ``sm90``."""
    current = _CURRENT.search(text)
    if current is not None:
        return [f"sm{current['digits']}"] if current["digits"] in _CAPABILITIES else []
    found = []
    for match in _CAPABILITY.finditer(text):
        digits = match["digits"] or match["dotted"].replace(".", "")
        if digits in _CAPABILITIES:
            found.append(f"sm{digits}")
    return list(dict.fromkeys(found))


_CAPABILITIES: Final = frozenset(("70", "75", "80", "86", "87", "89", "90", "100", "101", "103", "110", "120", "121"))


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


# -- prose ---------------------------------------------------------------------------------------------------

_COUNTS: Final = {"单": 1, "双": 2, "两": 2, "四": 4, "八": 8, "十六": 16}
_NUMBER: Final = r"\d{1,3}|十六|[单双两四八]"
_TOO_SHORT: Final = frozenset({"Spark", "Thor", "T5000", "B60", "SM121", "T4", "L4"})


@cache
def _prose_pattern() -> re.Pattern[str]:
    names = {name for spec in gpu_catalogue() for name in (spec.name, *spec.smi_names, *spec.aliases)}
    spelled = sorted((_spelling(name) for name in names - _TOO_SHORT if not name.isdecimal()), key=len, reverse=True)
    digits = "|".join(name for name in sorted(names) if name.isdecimal())
    counted = rf"(?:(?P<before>{_NUMBER})\s?(?:[xX×*]|卡|张|块|个|GPUs? of|-way)\s?(?:的\s?)?)"
    vendor = r"(?:(?:NVIDIA|AMD|HUAWEI)[ _-]?)?(?:GeForce |Tesla |Instinct )?"
    after = rf"(?:\s?(?:[x×*]|[,，(（]\s?)\s?(?P<after>{_NUMBER})(?:\s?(?:卡|张|GPUs?|cards?))?(?![\w.]))?"
    return re.compile(
        rf"(?<![A-Za-z0-9_/.=-])(?:{counted}?{vendor}(?P<name>{'|'.join(spelled)})|{counted.replace('before', 'many')}"
        rf"(?P<digits>{digits}))(?![A-Za-z0-9_]|-[A-Za-z0-9]){after}",
        re.IGNORECASE,
    )


def _spelling(name: str) -> str:
    return r"[ _-]?".join(re.escape(part) for part in re.split(r"[ _-]+", name))


def _of_prose(reading: LogReading) -> Iterator[Fact]:
    """Names in a report's own words, where all of them are of one GPU."""
    found: dict[str, tuple[int | None, LogLine]] = {}
    capabilities: dict[str, LogLine] = {}
    at = size = 0
    for text in reading.head.splitlines():
        start, at = at, at + len(text) + 1
        size += len(text)
        if size > _PROSE:
            break
        if len(text) > 2000 or _LOG_LINE.search(text):
            continue
        for match in _prose_pattern().finditer(text):
            spec = find_gpu(match["name"] or match["digits"])
            if spec is not None:
                amount = _AMOUNT.match(text, match.end())
                if amount is not None:
                    yield Fact("gpu_memory_gib", amount["gib"], "prose", place(reading, start))
                count = _count(match["before"] or match["many"] or match["after"])
                known = found.get(spec.name)
                if known is None or (known[0] is None and count is not None):
                    found[spec.name] = (count, place(reading, start))
        for capability in capabilities_in(text) if _CAPABILITY_HINT.search(text) else ():
            capabilities.setdefault(capability, place(reading, start))
    names = {name for name in found if not any(other != name and other.startswith(f"{name}-") for other in found)}
    if len(names) == 1:
        name = names.pop()
        count, line = found[name]
        yield Fact("gpu", name, "prose", line)
        if count is None:
            count = next((number for number, _ in found.values() if number is not None), None)
        if count is not None:
            yield Fact("gpus", str(count), "prose", line)
    elif not names and len(capabilities) == 1:
        capability, line = capabilities.popitem()
        yield Fact("gpu", capability, "prose", line)
    elif len(names) > 1:
        first = next(iter(found.values()))[1]
        yield Fact("other gpus", ", ".join(sorted(names)), "prose", first)


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    number = _COUNTS.get(text) or (int(text) if text.isdecimal() else 0)
    return number if 0 < number <= 512 else None
