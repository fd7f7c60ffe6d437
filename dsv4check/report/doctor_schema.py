"""The published shape of ``dsv4check doctor --format json``; ``docs/doctor.schema.json`` is made from it.

Only tools that validate reports import this module.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dsv4check.report.schema import ReportRecord
from dsv4check.report.schema_base import Record


class DoctorToolRecord(Record):
    """Who wrote the document."""

    name: Literal["dsv4check"]
    version: str


class FactDifferenceRecord(Record):
    """One fact that the build decides in another way than the release."""

    path: str
    here: str
    release: str


class UnreadRecord(Record):
    """A part of the code that could not be read as facts."""

    part: str
    why: str


class BuildRecord(Record):
    """Which vLLM this is."""

    found: bool
    why: str = Field(description="Why nothing was found")
    package: str = Field(description="The folder of the package; the home folder as ~")
    found_by: str
    python: str | None
    version: str | None
    version_from: str
    commit: str | None
    commit_from: str
    nearest: str | None = Field(description="The release whose facts are compared")
    is_release: bool | None = Field(description="All that was read equals that release; null: nothing was read")
    learned: list[str] = Field(description="Sections of facts that were read from this code")
    differs: list[FactDifferenceRecord]
    unread: list[UnreadRecord]


class QuoteRecord(Record):
    """A line of the build's code."""

    file: str
    line: int
    text: str


class FingerprintRecord(Record):
    """One question about the build's code."""

    id: str
    question: str
    value: str | None = Field(description="null: it could not be read, `why` says what was met")
    says: str
    quotes: list[QuoteRecord]
    why: str
    fault: bool | None = Field(description="The answer is known to fail; null: it depends, or there is no answer")
    release: str | None
    release_value: str | None
    as_release: bool | None
    rules: list[str]
    references: list[str]


class GpuRecord(Record):
    """One GPU, as the driver shows it."""

    name: str | None
    sm: str | None
    memory_mib: int | None


class MachineRecord(Record):
    """What machines are compared by."""

    gpus: list[GpuRecord]
    python: str | None
    packages: dict[str, str]
    variables: dict[str, str] = Field(description="Secrets and addresses are masked")


class ObservationRecord(Record):
    """One thing that was looked at."""

    id: str
    area: str
    state: Literal["ok", "note", "warning", "error", "unknown"]
    what: str
    found: str
    wanted: str
    why: str
    advice: str
    source: str
    data: dict[str, Any]


class DoctorRecord(Record):
    """A report of ``dsv4check doctor``, version 1."""

    schema_version: Literal[1]
    tool: DoctorToolRecord
    verdict: Literal["pass", "warn", "fail"]
    build: BuildRecord
    fingerprints: list[FingerprintRecord]
    machine: MachineRecord
    observations: list[ObservationRecord]
    launch: ReportRecord | None = Field(description="As `serve-args` reports it; null without a launch")
    notes: list[str]


def doctor_json_schema() -> dict[str, Any]:
    """The JSON schema of a report."""
    schema = DoctorRecord.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
