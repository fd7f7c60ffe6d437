"""``doctor`` and ``probe`` on every node of a Ray cluster, and what is not the same on all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dsv4check.doctor.compare import Difference, compare_nodes
from dsv4check.host.records import State
from dsv4check.probe.nodes import CommandAnswer, NodeAnswer, ask_nodes
from dsv4check.probe.records import Verdict, combined
from dsv4check.records import dataclass

CLUSTER_SCHEMA_VERSION: Final = 1
"""Version of the document; additions keep it."""
_DOCTOR: Final = "doctor"
_PROBE: Final = "probe"
_NOT_ASKED: Final = CommandAnswer(None, None, "it was not asked")
_STATES: Final = {"error": State.ERROR, "warning": State.WARNING}


@dataclass(frozen=True, slots=True)
class Node:
    """One node and what was found on it."""

    name: str
    node_id: str
    gpus: int
    """GPUs that the node gives to Ray."""
    doctor: CommandAnswer
    probe: CommandAnswer

    @property
    def unavailable(self) -> str:
        """Why there is no whole answer of the node; empty where there is one."""
        missing = [
            (name, item.why) for name, item in ((_DOCTOR, self.doctor), (_PROBE, self.probe)) if not item.content
        ]
        return "; ".join(f"{name}: {why}" for name, why in missing)

    @property
    def troubles(self) -> tuple[Mapping[str, Any], ...]:
        """What doctor found of the machine itself, errors first."""
        seen = (self.doctor.content or {}).get("observations", ())
        found = [item for item in seen if item.get("state") in _STATES]
        return tuple(sorted(found, key=lambda item: item["state"] != "error"))

    @property
    def verdict(self) -> Verdict:
        """The probe's, and a machine on which the launch fails is none that passes."""
        if self.unavailable:
            return Verdict.UNAVAILABLE
        if any(item["state"] == "error" for item in self.troubles):
            return Verdict.FAIL
        return Verdict((self.probe.content or {})["verdict"])


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """All nodes beside each other."""

    nodes: tuple[Node, ...]
    differences: tuple[Difference, ...]
    seconds: float = 0.0
    unavailable: str = ""
    """Why no node could be asked; empty where one was."""

    @property
    def workers(self) -> tuple[Node, ...]:
        """The nodes that vLLM would place ranks on: those with GPUs, all where none has any."""
        return tuple(node for node in self.nodes if node.gpus) or self.nodes

    @property
    def verdict(self) -> Verdict:
        """The worst node counts, and nodes that cannot serve one model together fail."""
        if any(item.state is State.ERROR for item in self.differences):
            return Verdict.FAIL
        return combined([node.verdict for node in self.workers])

    def to_dict(self) -> dict[str, Any]:
        """As plain data, in the schema ``docs/cluster.schema.json``."""
        return {
            "schema_version": CLUSTER_SCHEMA_VERSION,
            "verdict": self.verdict.value,
            "unavailable": self.unavailable or None,
            "nodes": [
                {
                    "name": node.name,
                    "gpus": node.gpus,
                    "worker": node in self.workers,
                    "verdict": node.verdict.value,
                    "unavailable": node.unavailable or None,
                    "doctor": node.doctor.content,
                    "probe": node.probe.content,
                }
                for node in self.nodes
            ],
            "differences": [
                {
                    "id": item.id,
                    "area": item.area,
                    "state": item.state.value,
                    "what": item.what,
                    "values": dict(item.values),
                    "why": item.why,
                }
                for item in self.differences
            ],
            "seconds": self.seconds,
        }


def probe_cluster(
    doctor_words: Sequence[str],
    probe_words: Sequence[str],
    *,
    address: str = "auto",
    report: Callable[[str], None] = lambda _text: None,
) -> ClusterResult:
    """Look at every node and probe it; the words are options and launch of the two commands.

    Raises RayUnavailable without Ray or without a cluster.
    """
    began = time.monotonic()
    commands = {
        _DOCTOR: [_DOCTOR, "--format", "json", "--fail-on", "never", *doctor_words],
        _PROBE: [_PROBE, "--format", "json", "--allow-no-gpu", "--all-gpus", *probe_words],
    }
    nodes = tuple(map(_node, ask_nodes(commands, address=address, report=report)))
    return result_of(nodes, round(time.monotonic() - began, 3))


def result_of(nodes: tuple[Node, ...], seconds: float = 0.0) -> ClusterResult:
    """The nodes compared: those that vLLM would place ranks on."""
    workers = ClusterResult(nodes, ()).workers
    reports = {node.name: node.doctor.content for node in workers if node.doctor.content}
    return ClusterResult(nodes, tuple(compare_nodes(reports)), seconds)


def _node(answer: NodeAnswer) -> Node:
    said = answer.answers
    return Node(answer.name, answer.node_id, answer.gpus, said.get(_DOCTOR, _NOT_ASKED), said.get(_PROBE, _NOT_ASKED))
