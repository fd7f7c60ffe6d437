"""The published shape of ``dsv4check probe --format json``; ``docs/probe.schema.json`` is made from it.

Only tools that validate reports import this module.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dsv4check.report.schema_base import Record


class CheckRecord(Record):
    """One check and what came of it."""

    name: str = Field(description="Names that begin with 'kernel: ' are those that compare a kernel's numbers")
    status: Literal["ok", "failed", "refused-as-expected", "skipped", "crashed"]
    message: str
    seconds: float
    data: dict[str, Any] = Field(description="Figures: errors and bounds, bytes, versions")


class CacheRecord(Record):
    """How one layer of a kind sees its cache."""

    kind: str
    layer: str
    layers: int
    shape: list[int] = Field(description="Blocks first")
    stride: list[int] = Field(description="In elements")
    dtype: str
    offset: int = Field(description="Bytes from the start of the storage to block 0")
    storage: int = Field(description="Which of the storages it lies in")
    group: int = Field(description="KV-cache group; groups overlay each other in different blocks")
    tokens_per_state: int


class LayoutsRecord(Record):
    """The caches of the launch, cut to a few blocks."""

    origin: str
    by_vllm: bool = Field(description="Made by vLLM's own code; false: worked out from the rules' facts")
    blocks: int
    storages: list[int] = Field(description="Bytes of each allocation")
    caches: list[CacheRecord]


class DeviceRecord(Record):
    """What the child of one device said."""

    device: str
    verdict: Literal["pass", "fail", "no-gpu", "unavailable"]
    kernel_ran: bool
    seconds: float = Field(description="Of the checks")
    import_seconds: float
    unavailable: str | None
    checks: list[CheckRecord]


class StaticRecord(Record):
    """The static check in brief; ``dsv4check serve-args`` has all of it."""

    verdict: Literal["pass", "warn", "fail"]
    stage: str | None
    subject: str
    release: str
    findings: list[str] = Field(description="Errors only")
    cache: dict[str, Any] | None
    attention: dict[str, Any] | None


class ProbeRecord(Record):
    """A document of ``dsv4check probe``, version 1."""

    schema_version: Literal[1]
    verdict: Literal["pass", "fail", "no-gpu", "unavailable"] = Field(
        description="no-gpu: everything up to the kernel went well, the kernel was not run"
    )
    kernel_ran: bool = Field(description="On every device")
    unavailable: str | None
    static: StaticRecord
    environment: str
    caches: CheckRecord = Field(description="How the layouts were come by")
    layouts: LayoutsRecord | None
    devices: list[DeviceRecord]
    differences: list[str] = Field(description="What is not the same on all GPUs")
    notes: list[str]
    seconds: float


def probe_json_schema() -> dict[str, Any]:
    """The JSON schema of a probe."""
    schema = ProbeRecord.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
