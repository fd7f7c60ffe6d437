"""The published shape of ``dsv4check memory --format json``; ``docs/memory.schema.json`` is made from it.

Only tools that validate reports import this module.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dsv4check.report.memory_schema import MemoryRecord
from dsv4check.report.schema import FindingRecord, KvCacheRecord, OpenQuestionRecord
from dsv4check.report.schema_base import Record


class MemoryReportRecord(Record):
    """A report of ``dsv4check memory``, version 1."""

    schema_version: Literal[1]
    verdict: Literal["pass", "warn", "fail"] | None = Field(description="null: whether it fits could not be told")
    release: str
    deployment: dict[str, Any]
    kv_cache: KvCacheRecord | None
    memory: MemoryRecord | None
    not_evaluated: OpenQuestionRecord | None = Field(description="What is missing where the answer is open")
    findings: list[FindingRecord] = Field(description="About memory, or stopping the launch before its cache is there")
    other_findings: int = Field(description="Findings that `serve-args` reports beside these")
    notes: list[str]


def memory_json_schema() -> dict[str, Any]:
    """The JSON schema of a report."""
    schema = MemoryReportRecord.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
