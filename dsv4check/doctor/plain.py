"""The report as plain data and back, fit to be shown to strangers: no home folder, no secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dsv4check.doctor.public import public_data
from dsv4check.doctor.records import (
    DOCTOR_SCHEMA_VERSION,
    BuildAnswer,
    DoctorReport,
    FactDifference,
    FingerprintAnswer,
    Machine,
    Unread,
)
from dsv4check.errors import InputError
from dsv4check.host.records import Observation, State
from dsv4check.installation.fingerprint import Quote
from dsv4check.report.plain_values import plain_record


def render(report: DoctorReport) -> str:
    """The report as indented JSON text."""
    return json.dumps(report_to_dict(report), indent=2, ensure_ascii=False)


def report_to_dict(report: DoctorReport) -> dict[str, Any]:
    """The report as plain data, keys in the order people read them."""
    build = plain_record(report.build)
    build["is_release"] = report.build.is_release
    data = {
        "schema_version": DOCTOR_SCHEMA_VERSION,
        "tool": {"name": "dsv4check", "version": report.tool_version},
        "verdict": report.verdict.value,
        "build": build,
        "fingerprints": [{**plain_record(item), "as_release": item.as_release} for item in report.fingerprints],
        "machine": plain_record(report.machine),
        "observations": [plain_record(item) for item in report.observations],
        "launch": report.launch,
        "notes": list(report.notes),
    }
    shared: dict[str, Any] = public_data(data)
    return shared


def report_from_dict(data: Mapping[str, Any]) -> DoctorReport:
    """The report of its plain data. Raises InputError for data of another shape or version."""
    if not isinstance(data, Mapping) or data.get("schema_version") != DOCTOR_SCHEMA_VERSION:
        raise InputError(f"no report of doctor: expected an object with schema_version {DOCTOR_SCHEMA_VERSION}")
    try:
        return DoctorReport(
            build=_build(data["build"]),
            fingerprints=tuple(_fingerprint(item) for item in data["fingerprints"]),
            machine=Machine(**{**_known(Machine, data["machine"]), "gpus": tuple(data["machine"].get("gpus", ()))}),
            observations=tuple(_observation(item) for item in data["observations"]),
            launch=data.get("launch"),
            notes=tuple(data.get("notes", ())),
            tool_version=str(data.get("tool", {}).get("version", "")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"no report of doctor: {type(error).__name__}: {error}") from None


def _build(data: Mapping[str, Any]) -> BuildAnswer:
    values = _known(BuildAnswer, data)
    values["learned"] = tuple(data.get("learned", ()))
    values["differs"] = tuple(FactDifference(**_known(FactDifference, item)) for item in data.get("differs", ()))
    values["unread"] = tuple(Unread(**_known(Unread, item)) for item in data.get("unread", ()))
    return BuildAnswer(**values)


def _fingerprint(data: Mapping[str, Any]) -> FingerprintAnswer:
    values = _known(FingerprintAnswer, data)
    values["quotes"] = tuple(Quote(**_known(Quote, item)) for item in data.get("quotes", ()))
    for name in ("rules", "references"):
        values[name] = tuple(data.get(name, ()))
    return FingerprintAnswer(**values)


def _observation(data: Mapping[str, Any]) -> Observation:
    return Observation(**{**_known(Observation, data), "state": State(data["state"])})


def _known(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the record has: a newer program's report may hold more."""
    return {item.name: data[item.name] for item in fields(kind) if item.name in data}
