"""The published shape of ``dsv4check gate --format json``; ``docs/gate.schema.json`` is made from it.

Only tools that validate reports import this module.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dsv4check.report.schema import FixRecord, OpenQuestionRecord, StageName
from dsv4check.report.schema_base import Record


class ToolRecord(Record):
    """What wrote the report."""

    name: Literal["dsv4check"]
    version: str


class SummaryRecord(Record):
    """Counts of what the report holds."""

    files: int = Field(description="Files that were looked at")
    launches: int = Field(description="pass + warn + fail + not_checked + other_models")
    passed: int = Field(alias="pass")
    warn: int
    fail: int
    not_checked: int
    other_models: int
    errors: int = Field(description="Active findings of this severity, as are warnings and notes")
    warnings: int
    notes: int
    ignored: int
    baseline: int = Field(description="Findings that the baseline lists, without the ignored ones")
    problems: int = Field(description="Files, or parts of files, that could not be understood")
    skipped: int = Field(description="Problems with which nothing is wrong: templates to be rendered first")
    stale: int


class RegionRecord(Record):
    """A place in a file; lines and columns count from 1, columns in characters, the end is behind the last."""

    line: int
    column: int
    end_line: int
    end_column: int
    token: str = Field(description="What stands there, masked where it is a secret")


class FactRecord(Record):
    """A fact a launch was checked with."""

    value: str
    source: str = Field(description="file, option, config or assumed")
    line: int = Field(description="Line in the file; 0 where it comes from elsewhere")


class GateFindingRecord(Record):
    """One finding of one launch, or of the gate itself."""

    rule: str
    name: str
    severity: Literal["error", "warning", "note"]
    certainty: Literal["proven", "declared", "reported"]
    stage: StageName | None = Field(description="null: a finding of the gate itself")
    message: str
    error: str = Field(description="What vLLM prints; empty when it says nothing")
    path: str
    region: RegionRecord
    launch: str
    fixes: list[FixRecord]
    no_fix: str
    fixed_in: str | None
    references: list[str]
    fingerprint: str = Field(description="Stays the same when lines move")
    active: bool = Field(description="It counts: neither ignored nor in the baseline")
    ignored: str | None = Field(description="The reason, where an ignore covers it")
    baseline: bool


class LaunchRecord(Record):
    """One launch and the answer."""

    path: str
    name: str
    format: str
    region: RegionRecord
    command: str
    args: list[str] = Field(description="The words behind the program; secrets are masked")
    env: dict[str, str] = Field(description="Environment that the file states; secrets are masked")
    model: str | None
    facts: dict[str, FactRecord]
    verdict: Literal["pass", "warn", "fail"] | None = Field(description="null: the launch was not checked")
    not_checked: str = Field(description="Why it was not checked; empty where it was")
    other_model: bool = Field(description="It is no DeepSeek-V4 launch")
    findings: list[GateFindingRecord]
    not_evaluated: list[OpenQuestionRecord]
    notes: list[str]


class FileProblemRecord(Record):
    """A file, or a part of it, that could not be read or understood."""

    path: str
    line: int = Field(description="0 for the whole file")
    why: str
    skipped: bool = Field(description="Nothing is wrong with it: it does not change the exit code")


class GateRecord(Record):
    """A document of ``dsv4check gate``, version 1."""

    schema_version: Literal[1]
    tool: ToolRecord
    summary: SummaryRecord
    launches: list[LaunchRecord] = Field(description="By path and line")
    own: list[GateFindingRecord] = Field(description="Findings of the gate itself")
    problems: list[FileProblemRecord]
    stale: list[str] = Field(description="Entries of the baseline that nothing matches any more")
    files: int
    seconds: float
    notes: list[str]


def gate_json_schema() -> dict[str, Any]:
    """The JSON schema of the gate's report."""
    schema = GateRecord.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
