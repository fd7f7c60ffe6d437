"""Which GPUs, how many of them and on how many nodes a report's own words say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Final

from dsv4check.inputs.gpu import GpuSpec, find_gpu, gpu_catalogue
from dsv4check.records import dataclass
from dsv4check.triage.capabilities import CAPABILITY_HINT, capabilities_in
from dsv4check.triage.prose_lines import prose_lines
from dsv4check.triage.records import Fact, LogLine, LogReading
from dsv4check.triage.version_banner import place

_WORDS: Final = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"),
    *("fourteen", "fifteen", "sixteen"),
)
_COUNTS: Final = {
    **{word: number for number, word in enumerate(_WORDS, 1)},
    "single": 1,
    "dual": 2,
    "a pair of": 2,
    "单": 1,
    "双": 2,
    "两": 2,
    "四": 4,
    "八": 8,
    "十六": 16,
}
_NUMBER: Final = r"(?:\d{1,3}|十六|[单双两四八]|\b(?:" + "|".join(_WORDS) + r"|single|dual|a pair of)\b)"
_OTHER_NUMBER: Final = re.compile(
    r"(?:cuda|tp|dp|pp|ep|python|driver|version|node|rank|gpu|rocm)[ =:]*\Z", re.IGNORECASE
)
_BEFORE: Final = re.compile(
    rf"(?<![A-Za-z0-9_.=/+-])(?P<count>{_NUMBER})"
    r"(?P<times>\s?(?:[xX×*]|卡|张|块|个|颗)\s?(?:的\s?)?|\s?(?:GPUs? of|-way|-GPU)\s?| (?![xX×*]))"
    r"(?:\d{2,3}\s?GB?\s)?(?:(?:NVIDIA|AMD|HUAWEI)[ _-]?)?(?:GeForce |Tesla |Instinct )?\Z",
    re.IGNORECASE,
)
_AFTER: Final = re.compile(
    r"(?:[ -]?[(（]?\d{2,3}\s?G(?:i?B)?[)）]?)?(?:"
    rf"\s?[x×*]\s?(?P<times>{_NUMBER})(?!\s?G(?:i?B)?\b)(?![\w.])"
    rf"|\s?[(（]\s?(?P<sized>{_NUMBER})\s?[xX×*]\s?\d{{2,3}}\s?G"
    rf"|\s?[,，(（]?\s?(?P<count>{_NUMBER})\s?(?:卡|张|块|GPUs?\b|cards?\b))",
    re.IGNORECASE,
)
_AMOUNT: Final = re.compile(r"[\s(（,-]{0,3}(?P<gib>\d{2,3})\s?G(?:i?B)?(?![\w/])")
_NODES: Final = re.compile(
    rf"(?<![A-Za-z0-9_.=/+-])(?P<count>{_NUMBER})[ -]?(?:nodes?\b|machines?\b|hosts?\b|servers?\b|台|机|节点|个节点)",
    re.IGNORECASE,
)
_NODES_TIMES: Final = re.compile(rf"(?<![A-Za-z0-9_.=/+-])(?P<count>{_NUMBER})\s?[x×*]\s?\Z", re.IGNORECASE)
_PER_NODE: Final = re.compile(
    rf"(?<![A-Za-z0-9_.=/+-])(?P<count>{_NUMBER}) GPUs?(?: per | on each | each | a |/)(?:node|machine|host)",
    re.IGNORECASE,
)
_TOO_SHORT: Final = frozenset({"Thor", "T5000", "B60", "SM121", "T4", "L4"})
_SPARK: Final = "Spark"
_MOST_IN_LINE: Final = 12
_MOST_SINGLE: Final = 16
"""More machines of one GPU are no cluster, but a number of something else."""
_CAPABILITY_WORDS: Final = ("capability", "sm_", "sm7", "sm8", "sm9", "sm1", "compute_")


@cache
def _names() -> tuple[re.Pattern[str], tuple[str, ...]]:
    """What GPUs are called, and a piece of each name that every text with it has."""
    names = {name for spec in gpu_catalogue() for name in (spec.name, *spec.smi_names, *spec.aliases)} - _TOO_SHORT
    spelled = sorted((_spelling(name) for name in names - {_SPARK}), key=len, reverse=True)
    pattern = re.compile(
        rf"(?:(?<![A-Za-z0-9_/.=-])|(?<=\d[xX]))(?P<name>{'|'.join(spelled)}|Spark)"
        r"(?=s?(?![A-Za-z0-9_]|-[A-Za-z0-9]))",
        re.IGNORECASE,
    )
    pieces = {
        max(re.findall(r"[a-z]*\d+|[a-z]+", name.lower()), key=lambda part: (part[-1].isdigit(), len(part)))
        for name in names
    }
    return pattern, tuple(sorted(pieces))


def _spelling(name: str) -> str:
    return r"[ _-]?".join(re.escape(part) for part in re.split(r"[ _-]+", name))


@dataclass(frozen=True, slots=True)
class _Mention:
    count: int | None
    nodes: int | None
    line: LogLine


def _weight(mention: _Mention) -> tuple[bool, int]:
    return mention.nodes is not None and mention.count is not None, mention.count or 0


def prose_gpus(reading: LogReading) -> Iterator[Fact]:
    """Names in a report's own words, where all of them are of one GPU."""
    found: dict[str, _Mention] = {}
    capabilities: dict[str, LogLine] = {}
    pattern, pieces = _names()
    for start, text in prose_lines(reading.head, (*pieces, *_CAPABILITY_WORDS)):
        for match in islice(pattern.finditer(text), _MOST_IN_LINE):
            spec = _spec_of(match, text)
            if spec is None:
                continue
            amount = _AMOUNT.match(text, match.end())
            if amount is not None:
                yield Fact("gpu_memory_gib", amount["gib"], "prose", place(reading, start))
            mention = _mention(spec, text, match, place(reading, start))
            known = found.get(spec.name)
            # "4 GPUs work, 8 do not": the machine has the larger number.
            if known is None or _weight(mention) > _weight(known):
                found[spec.name] = mention
        for capability in capabilities_in(text) if CAPABILITY_HINT.search(text) else ():
            capabilities.setdefault(capability, place(reading, start))
    yield from _weighed(found, capabilities)


def _spec_of(match: re.Match[str], text: str) -> GpuSpec | None:
    name = match["name"]
    if name.lower().startswith("spark"):
        # Alone it is a word of its own; with a count in front it is the machine.
        return (
            find_gpu(_SPARK) if _counted_before(text[max(0, match.start() - 100) : match.start()]) is not None else None
        )
    if (
        name.isdecimal()
        and _counted_before(text[max(0, match.start() - 100) : match.start()]) is None
        and _AFTER.match(text, match.end()) is None
    ):
        return None
    return find_gpu(name)


def _weighed(found: dict[str, _Mention], capabilities: dict[str, LogLine]) -> Iterator[Fact]:
    names = {name for name in found if not any(other != name and other.startswith(f"{name}-") for other in found)}
    if len(names) == 1:
        name = names.pop()
        mention = found[name]
        yield Fact("gpu", name, "prose", mention.line)
        count = mention.count or next((item.count for item in found.values() if item.count is not None), None)
        if count is not None:
            yield Fact("gpus", str(count), "prose", mention.line)
        nodes = mention.nodes or next((item.nodes for item in found.values() if item.nodes is not None), None)
        if nodes is not None:
            yield Fact("nodes", str(nodes), "prose", mention.line)
    elif not names and len(capabilities) == 1:
        capability, line = capabilities.popitem()
        yield Fact("gpu", capability, "prose", line)
    elif len(names) > 1:
        first = next(iter(found.values())).line
        yield Fact("other gpus", ", ".join(sorted(names)), "prose", first)


def _mention(spec: GpuSpec, text: str, match: re.Match[str], line: LogLine) -> _Mention:
    before = text[max(0, match.start() - 100) : match.start()]
    count = _counted_before(before)
    nodes = None
    counted = _BEFORE.search(before)
    if count is not None and counted is not None:
        times = _NODES_TIMES.search(before[: counted.start()])
        nodes = _number(times["count"]) if times is not None else None
    else:
        after = _AFTER.match(text, match.end())
        count = _number(after["times"] or after["sized"] or after["count"]) if after is not None else None
    said = _NODES.search(text)
    nodes = nodes or (_number(said["count"]) if said is not None else None)
    if spec.per_node == 1 and spec.unified_memory:
        # The GPU is the machine: two of them are two nodes.
        machines = max(count or 0, nodes or 0)
        return _Mention(1, machines, line) if 0 < machines <= _MOST_SINGLE else _Mention(None, None, line)
    each = _PER_NODE.search(text)
    if each is not None:
        own = _number(each["count"])
        if own is not None and count is not None and nodes is None and count % own == 0:
            nodes = count // own
        count = own or count
    return _Mention(count, nodes, line)


def _counted_before(before: str) -> int | None:
    match = _BEFORE.search(before[-60:])
    if match is None:
        return None
    number = _number(match["count"])
    bare = not match["times"].strip() and match["count"].isdecimal()
    # A bare number in front of a name: a count only where it is a small one and no version or size of something.
    other = bare and (number is None or number > 16 or _OTHER_NUMBER.search(before[-60:][: match.start()]))
    return None if other else number


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    number = _COUNTS.get(text.lower()) or (int(text) if text.isdecimal() else 0)
    return number if 0 < number <= 512 else None
