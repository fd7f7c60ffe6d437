"""Machines of one launch beside each other: in what they differ, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from dsv4check.host.records import State
from dsv4check.records import dataclass

NOT_KNOWN: Final = "not known"
_SHORT: Final = 7
"""Characters of a commit that every build says."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not the same on all machines."""

    id: str
    """Kebab-case and stable: ``vllm-version``, ``package-torch``, ``variable-VLLM_USE_DEEP_GEMM``."""
    area: str
    """``build``, ``fingerprints``, ``gpu``, ``driver``, ``packages``, ``environment`` or ``limits``."""
    state: State
    """ERROR where the machines cannot serve one model together, WARNING or NOTE else."""
    what: str
    values: Mapping[str, str]
    """Machine -> what it has; ``not known`` where its report does not say."""
    why: str

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Value -> the machines that have it, the most common one first."""
        found: dict[str, list[str]] = {}
        for machine, value in self.values.items():
            found.setdefault(value, []).append(machine)
        return {value: tuple(found[value]) for value in sorted(found, key=lambda value: -len(found[value]))}


def compare_nodes(reports: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    """What differs between machines, what stops a launch first.

    Args:
        reports: Machine -> its report as ``DoctorReport.to_dict`` gives it. What a report does not say is no
            difference of its own.
    """
    differences = [*_plain_questions(reports), *_fingerprints(reports), *_mappings(reports), *_observed(reports)]
    order = {State.ERROR: 0, State.WARNING: 1, State.NOTE: 2}
    return sorted(differences, key=lambda item: order.get(item.state, 3))


def _plain_questions(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[Difference]:
    for id, area, state, what, read, why in _QUESTIONS:
        values = {name: _text(read(report)) for name, report in reports.items()}
        if _differ(values):
            yield Difference(id, area, state, what, values, why)


def _fingerprints(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[Difference]:
    answers = {
        name: {item["id"]: item.get("value") for item in _items(report, "fingerprints")}
        for name, report in reports.items()
    }
    for id in dict.fromkeys(id for found in answers.values() for id in found):
        values = {name: _text(found.get(id)) for name, found in answers.items()}
        if _differ(values):
            why = "the machines run different code: ranks may lay out, name or read the same data in different ways"
            yield Difference(f"fingerprint-{id}", "fingerprints", State.ERROR, f"vLLM's code: {id}", values, why)


def _mappings(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[Difference]:
    for key, prefix, area in (("packages", "package", "packages"), ("variables", "variable", "environment")):
        # None for a machine whose report has no such part: it says nothing.
        found = {name: _part(report, key) for name, report in reports.items()}
        # vLLM itself is compared as a build.
        for word in sorted({word for values in found.values() for word in values or ()} - {"vllm"}):
            # A machine whose packages were read and lacks one differs; one that was not read says nothing.
            values = {
                name: _text(None if have is None else have.get(word, "none" if have or key == "variables" else None))
                for name, have in found.items()
            }
            if not _differ(values):
                continue
            if key == "variables":
                if word in _OWN_TO_A_NODE:
                    continue
                what, (state, why) = word, (State.WARNING, _VARIABLE_WHY)
            else:
                what, (state, why) = word, _PACKAGES.get(word, (State.NOTE, _PACKAGE_WHY))
            yield Difference(f"{prefix}-{word}", area, state, what, values, why)


def _observed(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[Difference]:
    """Driver, CUDA and limits: compared by what the observations found."""
    found = {
        name: {item["id"]: item for item in _items(report, "observations") if item.get("area") in ("driver", "limits")}
        for name, report in reports.items()
    }
    for id in dict.fromkeys(id for items in found.values() for id in items):
        some = next(items[id] for items in found.values() if id in items)
        known = {
            name: items[id]
            for name, items in found.items()
            if id in items and items[id].get("state") not in (None, "unknown")
        }
        values = {name: _text(known[name].get("found") if name in known else None) for name in reports}
        if not _differ(values):
            continue
        if some["area"] == "driver":
            state, why = State.WARNING, "what one driver can run may fail on the other: the oldest one decides"
        elif len({item.get("state") for item in known.values()}) > 1:
            state, why = State.WARNING, "what is enough on one machine is not on another"
        else:
            # Sizes that differ by some MiB and are enough everywhere.
            continue
        yield Difference(id, some["area"], state, some.get("what") or id, values, why)


def _gpu_names(report: Mapping[str, Any]) -> str | None:
    return _of_gpus(report, lambda gpu: gpu.get("name"))


def _sms(report: Mapping[str, Any]) -> str | None:
    return _of_gpus(report, lambda gpu: gpu.get("sm"))


def _memories(report: Mapping[str, Any]) -> str | None:
    # The same boards differ by some MiB between drivers.
    def whole(gpu: Mapping[str, Any]) -> str | None:
        memory = gpu.get("memory_mib")
        return f"{round(memory / 1024)} GiB" if isinstance(memory, int) else None

    return _of_gpus(report, whole)


def _gpu_count(report: Mapping[str, Any]) -> str | None:
    gpus = _gpus(report)
    return str(len(gpus)) if gpus else None


def _gpus(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    gpus = _section(report, "machine").get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, (list, tuple)) else []


def _of_gpus(report: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Any]) -> str | None:
    values = {str(value) for gpu in _gpus(report) if (value := read(gpu)) is not None}
    return ", ".join(sorted(values)) or None


def _of_build(key: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda report: _section(report, "build").get(key)


def _own_facts(report: Mapping[str, Any]) -> str | None:
    """What the build's facts are, whatever it calls itself."""
    build = _section(report, "build")
    if not build.get("nearest"):
        return None
    differs = "; ".join(f"{item.get('path')} = {item.get('here')}" for item in _mappings_of(build, "differs"))
    return f"as {build['nearest']}" + (f" but {differs}" if differs else "")


def _commit(report: Mapping[str, Any]) -> str | None:
    # One tree says all of it, another its beginning.
    commit = _section(report, "build").get("commit")
    return commit[:_SHORT] if isinstance(commit, str) else None


def _part(report: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    value = _section(report, "machine").get(key)
    return value if isinstance(value, Mapping) else None


def _items(report: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [item for item in _mappings_of(report, name) if isinstance(item.get("id"), str)]


def _mappings_of(record: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = record.get(name)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, (list, tuple)) else []


def _section(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = report.get(name)
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return NOT_KNOWN if value is None or value == "" else str(value)


def _differ(values: Mapping[str, str]) -> bool:
    return len({value for value in values.values() if value != NOT_KNOWN}) > 1


_VARIABLE_WHY: Final = (
    "every rank decides by its own environment: ranks may choose other kernels, layouts or ports than each other"
)
_PACKAGE_WHY: Final = "ranks may run different code; install the same versions everywhere"
_TORCH_WHY: Final = (
    "collectives, compiled code and its cache belong to one PyTorch build; ranks of two builds may hang or disagree"
)
_NCCL_WHY: Final = "NCCL refuses or hangs when ranks of one communicator have different versions"
_KERNEL_WHY: Final = "ranks may choose different kernels, or one of them fails where the others go on"
_PACKAGES: Final[Mapping[str, tuple[State, str]]] = {
    "torch": (State.ERROR, _TORCH_WHY),
    "nvidia-nccl-cu12": (State.ERROR, _NCCL_WHY),
    "nvidia-nccl-cu13": (State.ERROR, _NCCL_WHY),
    "ray": (State.ERROR, "Ray refuses to connect nodes of different versions"),
    **dict.fromkeys(
        ("flashinfer-python", "flashinfer-cubin", "flash-mla", "deep-gemm", "triton", "tilelang", "nvidia-cutlass-dsl"),
        (State.WARNING, _KERNEL_WHY),
    ),
    "transformers": (State.WARNING, "config and tokenizer may be read in different ways"),
}
_OWN_TO_A_NODE: Final = frozenset(
    ("VLLM_HOST_IP", "VLLM_DP_RANK", "VLLM_DP_RANK_LOCAL", "VLLM_PORT", "VLLM_NIXL_SIDE_CHANNEL_HOST")
)
"""Meant to differ."""

_Question = tuple[str, str, State, str, Callable[[Mapping[str, Any]], Any], str]
_QUESTIONS: Final[tuple[_Question, ...]] = (
    (
        "vllm-version", "build", State.ERROR, "vLLM", _of_build("version"),
        "different vLLM builds: ranks may disagree on cache layout, weight names and the messages between them",
    ),
    (
        "vllm-commit", "build", State.ERROR, "vLLM commit", _commit,
        "different vLLM builds: ranks may disagree on cache layout, weight names and the messages between them",
    ),
    (
        "vllm-code", "build", State.ERROR, "what vLLM's code decides", _own_facts,
        "the builds decide differently although they may call themselves the same: one of them is patched",
    ),
    (
        "gpu-sm", "gpu", State.ERROR, "compute capability", _sms,
        "a different SM takes a different attention class and KV cache layout, and other kernels",
    ),
    (
        "gpu-name", "gpu", State.WARNING, "GPUs", _gpu_names,
        "the slowest GPU sets the pace, and the smallest memory the size of the KV cache",
    ),
    (
        "gpu-memory", "gpu", State.WARNING, "memory of a GPU", _memories,
        "vLLM takes the smallest KV cache of all ranks: memory of the larger GPUs stays unused",
    ),
    (
        "gpu-count", "gpu", State.WARNING, "number of GPUs", _gpu_count,
        "a launch that takes the same number on every node does not fit the smaller one",
    ),
    (
        "python", "packages", State.WARNING, "Python", lambda report: _section(report, "machine").get("python"),
        "Ray and pickled messages want the same Python on all nodes",
    ),
)  # fmt: skip
