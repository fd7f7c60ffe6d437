"""The published shape of ``dsv4check plan --format json``; ``docs/plan.schema.json`` is made from it.

Only tools that validate reports import this module.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dsv4check.report.memory_schema import MemoryRecord
from dsv4check.report.schema import FindingRecord
from dsv4check.report.schema_base import Record


class WantedRecord(Record):
    """What the deployment must serve."""

    context: int = Field(description="Tokens of a request, prompt and answer together")
    concurrency: int = Field(description="Requests of that length at once")
    max_nodes: int
    draft: Literal["none", "mtp", "dspark"]
    draft_tokens: int | None = Field(description="null: as many as the checkpoint was made for")


class LayoutRecord(Record):
    """Sizes of the parallel groups."""

    label: str
    gpus: int = Field(description="Of all nodes together")
    nodes: int
    tensor: int
    pipeline: int
    data: int
    expert_parallel: bool


class CapacityRecord(Record):
    """Requests of the whole context at once: in each engine one is prefilled, the others decode."""

    requests: int = Field(description="In all engines together")
    engines: int = Field(description="Data-parallel engines, each with a pool of its own")
    requests_of_an_engine: int
    blocks: int = Field(description="Of an engine's pool, at the high bound of every cost")
    prefill_blocks: int = Field(description="Of a request that is prefilled with all tokens in flight")
    decode_blocks: int = Field(description="Of a request that decodes")


class TrialRecord(Record):
    """A deployment that serves what was asked, checked."""

    layout: LayoutRecord
    commands: list[str] = Field(description="One for each node, the first node's first")
    verdict: Literal["pass", "warn", "fail"]
    warnings: list[FindingRecord]
    max_num_batched_tokens: int = Field(description="Given or default")
    max_num_seqs: int = Field(description="Of each engine, given or default")
    capacity: CapacityRecord | None
    memory: MemoryRecord | None


class ShortfallRecord(Record):
    """Why a number of GPUs does not do."""

    gpus: int
    layout: str | None = Field(description="The one that gets furthest; null: none agrees with the flags given")
    holds: int | None = Field(description="Requests it holds; null where it does not start")
    reason: str


class PlanRecord(Record):
    """A document of ``dsv4check plan``, version 1."""

    schema_version: Literal[1]
    verdict: Literal["pass", "warn", "fail"] = Field(description="Of the best command; fail: nothing serves")
    release: str
    deployment: dict[str, Any] = Field(
        description="Of the best command; where nothing serves, of the one nearest to it"
    )
    wanted: WantedRecord
    gpus_per_node: int
    best: TrialRecord | None
    alternatives: list[TrialRecord] = Field(description="Other layouts on as many GPUs, the next best first")
    shortfalls: list[ShortfallRecord] = Field(description="Smaller numbers of GPUs, or all where nothing serves")
    checks: int = Field(description="Launches that were checked on the way")
    notes: list[str]


def plan_json_schema() -> dict[str, Any]:
    """The JSON schema of a plan."""
    schema = PlanRecord.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
