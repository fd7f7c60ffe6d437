"""Where several hazards show the same text: what tells them apart."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4check.triage.answer import Candidate, Sureness


def told_apart(candidates: Sequence[Candidate]) -> str:
    """One or two sentences; empty where the first candidate has no rival."""
    if len(candidates) < 2:
        return ""
    first, *others = candidates
    names = ", ".join(item.rule.id for item in others)
    if first.sureness is Sureness.CERTAIN:
        return f"{names} {_show(others)} the same text; the launch speaks for {first.rule.id}{_against(others)}"
    needed = list(dict.fromkeys(text for item in candidates for text in item.needed))
    what = f" To tell them apart: {'; '.join(needed)}." if needed else ""
    return f"{names} {_show(others)} the same text as {first.rule.id}.{what}"


def _show(others: Sequence[Candidate]) -> str:
    return "shows" if len(others) == 1 else "show"


def _against(others: Sequence[Candidate]) -> str:
    reasons = [
        f"{item.rule.id}: {evidence.text}" for item in others for evidence in item.evidence if not evidence.supports
    ]
    return f" ({'; '.join(reasons)})." if reasons else "."
