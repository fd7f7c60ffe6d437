"""One installation looked at: the vLLM build as text, the machine, and a launch judged by both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv4check.doctor.examination import examine
    from dsv4check.doctor.records import DoctorReport, DoctorRequest

__all__ = ["DoctorReport", "DoctorRequest", "examine"]


def __getattr__(name: str) -> Any:
    """Import on first use: the command line needs the names before it needs the code."""
    if name == "examine":
        from dsv4check.doctor.examination import examine

        return examine
    if name in ("DoctorReport", "DoctorRequest"):
        from dsv4check.doctor import records

        return getattr(records, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
