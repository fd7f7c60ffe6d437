"""The published shape of the JSON report, as pydantic models: ``docs/report.schema.json`` is made from them.

Only tools that validate reports import this module; a check builds plain dictionaries.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dsv4check.report.memory_schema import MemoryRecord
from dsv4check.report.schema_base import Record

StageName = Literal[
    "argparse",
    "engine-config",
    "model-init",
    "weight-load",
    "kv-cache-init",
    "warmup",
    "cudagraph",
    "runtime",
    "accuracy",
]


class LocationRecord(Record):
    """Where an offending value was said."""

    kind: str
    text: str
    line: int | None
    column: int | None


class EditRecord(Record):
    """One change to the launch."""

    kind: str
    target: str
    value: str | None
    text: str = Field(description="As a person reads it, e.g. --kv-cache-dtype fp8")


class FixRecord(Record):
    """Edits after which the launch was checked again."""

    edits: list[EditRecord]
    also: list[EditRecord] = Field(description="Edits of the launch's other findings that `command` contains too")
    command: str
    verified: bool = Field(description="No error was left when the edited launch was checked")
    note: str


class FindingRecord(Record):
    """One rule that fired."""

    rule: str
    name: str
    severity: Literal["error", "warning", "note"]
    certainty: Literal["proven", "declared", "reported"]
    stage: StageName
    message: str
    error: str
    location: LocationRecord | None
    fixes: list[FixRecord]
    no_fix: str
    fixed_in: str | None
    references: list[str]
    evidence: list[str] = Field(
        default=[], description="Where the build's own code shows the fault; only with its tree at hand"
    )


class LayerRecord(Record):
    """One kind of KV cache layer."""

    kind: str
    count: int
    block_size: int
    tokens_per_state: int
    states_per_block: int
    bytes_per_state: int
    page_bytes: int
    padded_page_bytes: int
    dtype: str
    draft_count: int


class KvCacheRecord(Record):
    """KV-cache dtype, layout and pages."""

    requested_dtype: str
    resolved_dtype: str | None
    torch_dtype: str | None
    layout: Literal["fp8_ds_mla", "plain"] | None
    block_size: int | None
    bytes_per_state: int | None
    rewrites: list[str]
    layers: list[LayerRecord]
    bytes_per_token: float | None


class AttentionRecord(Record):
    """Attention class of the target's layers."""

    requested: str | None
    backend: str | None
    cls: str | None = Field(alias="class")
    layout: Literal["fp8_ds_mla", "plain"] | None
    padded_q_heads: int | None
    local_q_heads: int | None
    indexer_dtype: str | None


class DraftRecord(Record):
    """Speculative decoding."""

    method: str | None
    requested_method: str | None
    num_speculative_tokens: int | None
    source: str | None
    layers: int
    mapping: str | None
    config: dict[str, Any]


class MoeRecord(Record):
    """MoE backend."""

    requested: str
    expert_format: str | None
    backend: str | None


class ParallelRecord(Record):
    """Sizes of the parallel groups."""

    tensor: int
    pipeline: int
    data: int
    decode_context: int
    prefill_context: int
    expert_parallel: bool
    expert_parallel_size: int
    world_size: int
    total: int
    local_heads: int | None
    local_o_groups: int | None


class ResolutionRecord(Record):
    """What vLLM will decide."""

    release: str
    kv_cache: KvCacheRecord | None
    attention: AttentionRecord | None
    runner: Literal["v1", "v2"] | None
    runner_why: str | None
    draft: DraftRecord | None
    moe: MoeRecord | None
    parallel: ParallelRecord | None
    facts: dict[str, Any]
    # Reports of before it was there are still valid.
    memory: MemoryRecord | None = Field(default=None, description="One GPU of the fullest pipeline stage")


class OpenQuestionRecord(Record):
    """An answer that was not given."""

    what: str
    why: str
    how: str


class EvidenceRecord(Record):
    """What the statements rest on."""

    level: Literal["rules", "install", "rehearsal", "probe"]
    release: str
    how: str


class ReportRecord(Record):
    """A report of ``dsv4check``, version 1."""

    schema_version: Literal[1]
    verdict: Literal["pass", "warn", "fail"]
    deployment: dict[str, Any]
    resolution: ResolutionRecord
    findings: list[FindingRecord]
    not_evaluated: list[OpenQuestionRecord]
    evidence: list[EvidenceRecord]
    notes: list[str]


def json_schema() -> dict[str, Any]:
    """The JSON schema of a report."""
    schema = ReportRecord.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
