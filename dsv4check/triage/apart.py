"""Where several hazards show the same text: what tells them apart."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4check.triage.answer import Candidate, Evidence


def ruled_out(item: Candidate) -> Evidence | None:
    """Why the launch speaks against a candidate; None where it does not, or is not known well enough."""
    if not item.standing.contradicts:
        return None
    return next((evidence for evidence in item.evidence if not evidence.supports), None)


def told_apart(candidates: Sequence[Candidate]) -> str:
    """One sentence; empty where the first candidate has no rival.

    Why the launch speaks against a rival is said by the rival's own evidence.
    """
    if len(candidates) < 2:
        return ""
    first, *others = candidates
    rivals = [item for item in others if ruled_out(item) is None]
    if not rivals:
        what = "is the other cause" if len(others) == 1 else "are other causes"
        return f"{listed(others)} {what} of the same text; the launch speaks against {_them(others)}."
    if first.finding is not None:
        show = "shows" if len(rivals) == 1 else "show"
        return f"{listed(rivals)} {show} the same text; the checker finds {first.rule.id} in the launch."
    if ruled_out(first) is not None:
        return f"The launch speaks against {first.rule.id}."
    return f"{listed([first, *rivals])} show the same text, and the log states too little of the launch to choose."


def listed(candidates: Sequence[Candidate]) -> str:
    """Ids as a list in a sentence."""
    *names, last = [item.rule.id for item in candidates]
    return f"{', '.join(names)} and {last}" if names else last


def _them(others: Sequence[Candidate]) -> str:
    return "it" if len(others) == 1 else "them"
