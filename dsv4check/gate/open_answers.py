"""Findings that what is not known of a launch could change: they become open questions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dsv4check.deployment import ServeFlags
from dsv4check.gate.places import Places
from dsv4check.report.model import Finding
from dsv4check.resolution import NotEvaluated


def depends_on_values(findings: Iterable[Finding], tried: str) -> NotEvaluated:
    """Findings that only some of the tried values bring about."""
    what = "; ".join(f"{item.rule} {item.name}" for item in findings)
    why = f"depends on values that are not stated here: {tried}"
    return NotEvaluated(what, why, "state them in the file or by --env")


def depends_on_flags(findings: Iterable[Finding], further: Sequence[str]) -> NotEvaluated:
    """Findings that flags which stand elsewhere may remove."""
    what = "; ".join(f"{item.rule} {item.name}" for item in findings) or "further flags"
    return NotEvaluated(what, f"{', '.join(dict.fromkeys(further))} may hold further flags", "state it by --env")


def may_be_settled(finding: Finding, flags: ServeFlags, places: Places) -> bool:
    """True for a finding that a further flag could remove: about something that is not written."""
    if finding.location is None or finding.location.kind not in ("word", "env", "yaml"):
        return True
    if places.region(finding.location) == places.start:
        return True
    given = {use.flag for use in flags.uses}
    return any(
        edit.kind in ("set_flag", "set_key") and edit.target.partition(".")[0] not in given
        for fix in finding.fixes[:1]
        for edit in fix.edits
    )


def unset_variables(unset: Mapping[str, str]) -> NotEvaluated:
    """Environment variables whose value stands elsewhere."""
    what = ", ".join(f"{name}={value}" for name, value in unset.items())
    return NotEvaluated(what, "the value is not stated here", "state it in the file or by --env")
