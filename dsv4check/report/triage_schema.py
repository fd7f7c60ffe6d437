"""The published shape of ``dsv4check triage --format json``; ``docs/triage.schema.json`` is made from it.

Only tools that validate reports import this module.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dsv4check.report.schema import FixRecord, ReportRecord, StageName
from dsv4check.report.schema_base import Record


class ToolRecord(Record):
    """Who wrote the document."""

    name: Literal["dsv4check"]
    version: str


class LineRecord(Record):
    """One line of a log."""

    source: str = Field(description="The file; - for standard input")
    number: int = Field(description="1-based; 0 where it is not known")
    text: str = Field(description="Without what containers, loggers and processes put in front")
    process: str
    level: str
    module: str
    count: int = Field(description="How often the same message came")


class FrameRecord(Record):
    """One frame of a traceback."""

    path: str
    line: int
    function: str
    code: str


class ErrorRecord(Record):
    """One error, however many ranks repeat it."""

    kind: str = Field(description="Type of the exception; empty for an error that is only a line")
    message: str
    line: LineRecord
    frames: list[FrameRecord] = Field(description="Outermost first")
    processes: list[str]
    times: int
    consequence: bool
    excerpt: str
    caused_by: ErrorRecord | None


class RuleRecord(Record):
    """A rule, as far as it says what a hazard is."""

    rule: str
    name: str
    summary: str
    severity: Literal["error", "warning", "note"]
    certainty: Literal["proven", "declared", "reported"]
    stage: StageName


class EvidenceForRecord(Record):
    """One reason for or against a candidate."""

    text: str
    supports: bool
    line: LineRecord | None


class CandidateRecord(RuleRecord):
    """A rule that may explain the error; the best one is first."""

    sureness: Literal["certain", "likely", "possible"]
    message: str
    evidence: list[EvidenceForRecord]
    found_by_checker: bool = Field(description="The checker finds the hazard in the launch that the log states")
    fixes: list[FixRecord] = Field(description="Checked on that launch")
    no_fix: str
    remedies: list[str] = Field(description="In words, not checked")
    fixed_in: str | None = Field(description="First release without the hazard")
    references: list[str]
    needed: list[str] = Field(description="What would make it sure or rule it out")


class MilestoneRecord(Record):
    """How far the start got."""

    stage: StageName
    reached: str
    line: LineRecord | None


class FactRecord(Record):
    """One thing the log states."""

    name: str
    value: str
    how: str
    line: LineRecord | None


class StatedRecord(Record):
    """The launch as far as the log states it."""

    vllm: str | None
    model: str | None
    flags: list[str]
    env: dict[str, str]
    gpu: str | None
    gpus: int | None
    gpu_memory_gib: float | None
    nodes: int | None
    packages: dict[str, str]
    observed: dict[str, str] = Field(description="What vLLM said it decided")
    missing: list[str]
    facts: list[FactRecord]


class ReadingRecord(Record):
    """What was read."""

    sources: list[str]
    size: int = Field(description="Bytes, after decompression")
    lines: int
    runs: int = Field(description="Starts of vLLM in the log")
    run_number: int = Field(description="The start that the answer is about, from 1")
    first: LineRecord | None = Field(description="The line it starts with")


class TriageRecord(Record):
    """An answer of ``dsv4check triage``, version 1."""

    schema_version: Literal[1]
    tool: ToolRecord
    outcome: Literal["explained", "unknown", "no-error"]
    headline: str
    error: ErrorRecord | None = Field(description="The first real error")
    candidates: list[CandidateRecord]
    apart: str = Field(description="What tells candidates with the same text apart")
    milestone: MilestoneRecord
    stated: StatedRecord
    command: str = Field(description="The stated launch as a command")
    missing: list[str]
    later: list[ErrorRecord]
    nearest: list[RuleRecord] = Field(description="For an unknown error; they do not explain it")
    report: ReportRecord | None = Field(description="The checker's report on the stated launch")
    reading: ReadingRecord
    notes: list[str]


def triage_json_schema() -> dict[str, Any]:
    """The JSON schema of an answer."""
    schema = TriageRecord.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
