"""The machine a log ran on: what several texts say about its GPUs, weighed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from dsv4check.inputs.gpu import find_gpu, gpu_catalogue
from dsv4check.records import dataclass
from dsv4check.triage.commands import ShownLaunch
from dsv4check.triage.gpu_lines import gpu_facts, named_gpu
from dsv4check.triage.records import Fact, LogLine, LogReading, Run

_STRENGTH: Final = ("log line", "collect_env", "nvidia-smi", "command", "prose")
_DEVICES: Final = re.compile(r"[\"']?device=(?P<list>[^\"']+)[\"']?")


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs and nodes, as far as stated."""

    gpu: str | None = None
    gpus: int | None = None
    memory_gib: float | None = None
    nodes: int | None = None
    facts: tuple[Fact, ...] = ()


def machine_of(reading: LogReading, run: Run, launch: ShownLaunch | None, sizes: Mapping[str, int]) -> Machine:
    """The machine of a run; ``launch`` is the command it comes from, ``sizes`` its parallel sizes."""
    said = [*gpu_facts(reading, run)]
    if launch is not None:
        said += _of_command(launch)
    said.sort(key=lambda fact: _STRENGTH.index(fact.how))
    gpu, facts = _named(said)
    counted = [fact for fact in said if fact.name == "gpus"]
    if not counted and _is_single(gpu):
        # The GPU is the machine.
        shown = next((fact for fact in facts if "contradicts" not in fact.how), facts[0])
        counted = [Fact("gpus", "1", shown.how, shown.line)]
    replica = _replica(said)
    spread = _nodes(said, sizes, replica)
    nodes = int(spread.value) if spread is not None else None
    gpus = int(counted[0].value) if counted else _of_ranks(said, sizes, nodes or 1, replica)
    facts += counted
    if not counted and gpus is not None:
        facts.append(Fact("gpus", str(gpus), "log line", _first(said, "world size") or _first(said, "replica")))
    memory = [fact for fact in said if fact.name == "gpu_memory_gib"]
    facts += memory[:1]
    if spread is None and counted and gpus is not None:
        spread = _by_ranks(said, sizes, gpus, single=_is_single(gpu))
        nodes = int(spread.value) if spread is not None else None
    facts += [spread] if spread is not None else []
    facts += [fact for fact in said if fact.name == "other gpus"]
    return Machine(gpu, gpus, float(memory[0].value) if memory else None, nodes, tuple(facts))


def _nodes(said: list[Fact], sizes: Mapping[str, int], replica: tuple[int, int] | None) -> Fact | None:
    """How many nodes the launch states: its flags, the manifest, the log, then a report's own words."""
    stated = [fact for fact in said if fact.name == "nodes"]
    if "nnodes" in sizes:
        return Fact("nodes", str(sizes["nnodes"]), "non-default args")
    if stated and stated[0].how == "command":
        return stated[0]
    if replica is not None and replica[0] > replica[1]:
        return Fact("nodes", str(replica[0] // replica[1]), "log line", _first(said, "replica"))
    return stated[0] if stated else None


def _by_ranks(said: list[Fact], sizes: Mapping[str, int], gpus: int, *, single: bool) -> Fact | None:
    """Nodes that the ranks take where one has not GPUs enough; None where all ranks are on one node all the same."""
    world = next((int(fact.value) for fact in said if fact.name == "world size"), 0)
    if not world and single:
        world = sizes.get("tensor_parallel_size", 1) * sizes.get("pipeline_parallel_size", 1)
    if world <= gpus or world % gpus or _first(said, "one node") is not None:
        return None
    return Fact("nodes", str(world // gpus), "log line", _first(said, "world size"))


def _is_single(name: str | None) -> bool:
    """True for a GPU that is one with its machine, which never has two of them."""
    spec = find_gpu(name) if name is not None else None
    return spec is not None and spec.per_node == 1 and spec.unified_memory


def _of_command(launch: ShownLaunch) -> Iterable[Fact]:
    if launch.gpu is not None and (spec := named_gpu(launch.gpu)) is not None:
        yield Fact("gpu", spec.name, "command", launch.line)
    count = _count(launch.gpus)
    if count is not None:
        yield Fact("gpus", str(count), "command", launch.line)
    nodes = _count(launch.nodes)
    if nodes is not None:
        yield Fact("nodes", str(nodes), "command", launch.line)


def _count(text: str | None) -> int | None:
    """How many GPUs ``8`` or ``"device=0,1"`` are; None for ``all``."""
    bare = (text or "").strip().strip("\"'")
    match = _DEVICES.fullmatch(bare)
    if match is not None:
        return len(match["list"].split(","))
    return int(bare) if bare.isdecimal() and 0 < int(bare[:6]) <= 4096 and len(bare) < 6 else None


def _named(said: list[Fact]) -> tuple[str | None, list[Fact]]:
    """The GPU: by its name, which a stated compute capability must not contradict, else by the capability."""
    facts = [fact for fact in said if fact.name == "gpu"]
    capability = next((fact for fact in facts if fact.value.startswith("sm") and fact.how != "prose"), None)
    names = [fact for fact in facts if not fact.value.startswith("sm")]
    chosen = names[0] if names else next(iter(facts), None)
    if chosen is not None and capability is not None and chosen.how == "prose" and not _agree(chosen, capability):
        chosen = capability
    if chosen is None:
        return None, []
    shown = []
    for fact in facts:
        other = fact.value != chosen.value and not (_agree(fact, chosen) and "sm" in (fact.value[:2], chosen.value[:2]))
        if other and fact.how == "prose":
            continue
        how = f"{fact.how} (contradicts {chosen.value})" if other else fact.how
        shown.append(Fact("gpu", fact.value, how, fact.line))
    return _only_with(chosen.value) or chosen.value, shown


def _only_with(capability: str) -> str | None:
    """The GPU that a compute capability means where only one has it."""
    if not capability.startswith("sm"):
        return None
    names = [spec.name for spec in gpu_catalogue() if _capability(spec.name) == capability[2:]]
    return names[0] if len(names) == 1 else None


def _agree(one: Fact, other: Fact) -> bool:
    return _capability(one.value) == _capability(other.value)


def _capability(text: str) -> str | None:
    if text.startswith("sm") and text[2:].isdecimal():
        return text[2:]
    spec = find_gpu(text)
    return f"{spec.capability[0]}{spec.capability[1]}" if spec is not None and spec.capability else None


def _replica(said: list[Fact]) -> tuple[int, int] | None:
    """Ranks of one replica of the engine, and how many of them one node has."""
    text = next((fact.value for fact in said if fact.name == "replica"), None)
    if text is None:
        return None
    world, local = (int(part) for part in text.split())
    return (world, local) if 0 < local <= world else None


def _of_ranks(said: list[Fact], sizes: Mapping[str, int], nodes: int, replica: tuple[int, int] | None) -> int | None:
    """GPUs of a node, where only the number of ranks tells: what a launch uses, the machine may have more."""
    world = next((int(fact.value) for fact in said if fact.name == "world size"), 0)
    local = max((int(fact.value) for fact in said if fact.name == "local ranks"), default=0)
    copies = sizes.get("data_parallel_size_local") or sizes.get("data_parallel_size", 1)
    found = world // nodes if nodes > 1 and world and world % nodes == 0 else max(local, world)
    if replica is not None:
        # Each data-parallel replica has its own.
        found = max(found, replica[1] * copies if nodes == 1 or "data_parallel_size_local" in sizes else replica[1])
    return found or None


def _first(said: list[Fact], name: str) -> LogLine | None:
    return next((fact.line for fact in said if fact.name == name), None)
