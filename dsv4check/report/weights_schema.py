"""The published shape of ``dsv4check weights --format json``; ``docs/weights.schema.json`` is made from it.

Only tools that validate reports import this module.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dsv4check.report.schema import FindingRecord
from dsv4check.report.schema_base import Record


class DefectRecord(Record):
    """One thing that is wrong with a checkpoint's files."""

    kind: str
    file: str
    detail: str
    tensors: int = Field(description="Tensors affected; 0 where it is not known or not about tensors")
    examples: list[str]


class CheckpointRecord(Record):
    """The files of a checkpoint."""

    place: str
    source: str
    files: int | None
    absent_files: list[str]
    tensors: int
    without_shape: int = Field(description="Tensors of which only the name is known")
    stated_size: int | None = Field(description="metadata.total_size of the index, in bytes")
    defects: list[DefectRecord]


class TargetCheckpointRecord(CheckpointRecord):
    """The target's checkpoint."""

    size: int | None = Field(description="Bytes of all tensors")


class StorageRecord(Record):
    """How matrices of one sort are stored."""

    format: str | None
    formats: dict[str, int]
    scale_dtype: str | None
    scale_suffix: str | None
    block: list[int] | None
    example: str


class StoredRecord(Record):
    """The matrices of target or draft."""

    experts_by_layer: dict[str, int]
    experts: StorageRecord
    attention: StorageRecord
    shared_experts: StorageRecord


class SizeRecord(Record):
    """One part of a checkpoint."""

    tensors: int
    size: int | None


class ContentRecord(Record):
    """What the checkpoint holds."""

    family: str | None
    naming: str
    layers: list[int]
    missing_layers: list[int]
    draft_kind: Literal["mtp", "dspark", "none"] | None
    stages: list[int]
    target: StoredRecord
    draft: StoredRecord
    complete: bool = Field(description="False when what is absent may be in a file that could not be read")
    parts: dict[str, SizeRecord]


class DisagreementRecord(Record):
    """Where config.json and checkpoint say different things."""

    what: str
    config: str
    checkpoint: str
    example: str


class RowRecord(Record):
    """Tensors of one name pattern and what becomes of them."""

    pattern: str
    count: int
    first: str
    targets: list[str] = Field(description="Parameter patterns; [part] of a fused parameter")
    skipped: str | None
    exception: str | None
    message: str | None


class GapRecord(Record):
    """Parameters of one name pattern that are not filled."""

    pattern: str
    count: int
    first: str
    lacking: str | None = Field(description="The part that is not there; null when nothing of it is")


class PartRecord(Record):
    """What the release's loader does with the tensors for one model."""

    part: str | None
    not_evaluated: str | None
    parameters: int | None
    filled: int | None
    rows: list[RowRecord]
    gaps: list[GapRecord]


class DraftPartRecord(PartRecord):
    """The draft."""

    method: Literal["mtp", "dspark", "none"]
    why: str
    started: bool = Field(description="False where the launch does not start it: it then does not count")
    own_checkpoint: CheckpointRecord | None


class ShareRecord(Record):
    """Bytes on one GPU."""

    experts: float
    cut: float
    whole: float
    total: float


class StageRecord(Record):
    """One pipeline stage; all its GPUs hold as much."""

    layers: int
    target: ShareRecord
    draft: ShareRecord | None
    total: float


class SharesRecord(Record):
    """The checkpoint's own bytes by pipeline stage."""

    not_evaluated: str | None
    stages: list[StageRecord]


class WeightsRecord(Record):
    """A report of ``dsv4check weights``, version 1."""

    schema_version: Literal[1]
    verdict: Literal["pass", "warn", "fail"]
    release: str
    fatal_defects: int
    refused_tensors: int
    unfilled_parameters: int
    deployment: dict[str, Any]
    checkpoint: TargetCheckpointRecord
    content: ContentRecord
    disagreements: list[DisagreementRecord]
    target: PartRecord
    draft: DraftPartRecord
    shares: SharesRecord
    findings: list[FindingRecord]
    notes: list[str]


def weights_json_schema() -> dict[str, Any]:
    """The JSON schema of a report."""
    schema = WeightsRecord.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
