"""The published shape of ``dsv4check probe --ray --format json``; ``docs/cluster.schema.json`` is made from it.

Only tools that validate reports import this module.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dsv4check.report.schema_base import Record

_Verdict = Literal["pass", "fail", "no-gpu", "unavailable"]


class NodeRecord(Record):
    """One node of the cluster."""

    name: str = Field(description="Host name, with the start of the node's id where two nodes share it")
    gpus: int = Field(description="GPUs that the node gives to Ray")
    worker: bool = Field(description="vLLM would place ranks here, so the node counts for verdict and differences")
    verdict: _Verdict
    unavailable: str | None = Field(description="Why the node gave no whole answer")
    doctor: dict[str, Any] | None = Field(description="As docs/doctor.schema.json")
    probe: dict[str, Any] | None = Field(description="As docs/probe.schema.json")


class DifferenceRecord(Record):
    """Something that is not the same on all nodes."""

    id: str
    area: str
    state: Literal["ok", "note", "warning", "error", "unknown"]
    what: str
    values: dict[str, str] = Field(description="Node -> what it has")
    why: str


class ClusterDocument(Record):
    """All nodes of a Ray cluster beside each other."""

    schema_version: Literal[1]
    verdict: _Verdict
    unavailable: str | None = Field(description="Why no node could be asked: no Ray, no cluster")
    nodes: list[NodeRecord]
    differences: list[DifferenceRecord]
    seconds: float


def cluster_json_schema() -> dict[str, Any]:
    """The JSON schema of a cluster's answer."""
    schema = ClusterDocument.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
