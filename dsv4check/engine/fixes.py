"""The search for fixes: a candidate counts only after the edited launch was checked again.

A candidate of one finding is verified when its finding is gone and no error is left in the edited launch.
Where a launch has several errors, the candidate is completed with the cheapest edits of the others
(``also``), so that the printed command works as a whole. A candidate that removes its finding but whose
launch keeps an error that nothing here can remove is offered as unverified only if no other one is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from dsv4check.engine.edits import COST, apply_edit, kind_of
from dsv4check.engine.evaluate import Checked, Match, fill
from dsv4check.engine.rule import Severity
from dsv4check.errors import InputError
from dsv4check.inputs.command import format_command
from dsv4check.report.masking import masked_command
from dsv4check.report.model import Edit, Finding, Fix
from dsv4check.request import Request, build_deployment

_MAX_CHECKS: Final = 160
_MAX_STEPS: Final = 8
_MAX_FIXES: Final = 4


Check = Callable[[Request], Checked]


class FixSearch:
    """Fixes for the findings of one launch; ``check`` resolves and evaluates a request without fixes.

    ``most``: verified fixes of one finding after which the search for it ends; ``least``: rank of the lowest severity
    for which fixes are looked for; ``wanted``: says of a finding whether they are.
    """

    def __init__(
        self,
        start: Checked,
        check: Check,
        most: int = _MAX_FIXES,
        least: int = 0,
        wanted: Callable[[Finding], bool] | None = None,
    ) -> None:
        self._start = start
        self._check = check
        self._most = most
        self._least = least
        self._wanted = wanted
        self._budget = _MAX_CHECKS

    def complete(self) -> tuple[Finding, ...]:
        """All findings, each with its fixes."""
        return tuple(
            self._with_fixes(match) if self._is_wanted(match.finding) else match.finding
            for match in self._start.matches
        )

    def _is_wanted(self, finding: Finding) -> bool:
        return finding.severity.rank >= self._least and (self._wanted is None or self._wanted(finding))

    def _with_fixes(self, match: Match) -> Finding:
        fixes: list[Fix] = []
        partial: list[Fix] = []
        for candidate in _by_cost(match.rule.fixes):
            if len(fixes) >= self._most or self._budget <= 0:
                break
            fix = self._try(match, candidate)
            if fix is not None:
                (fixes if fix.verified else partial).append(fix)
        chosen = tuple(fixes or partial[:1])
        no_fix = "" if chosen else match.rule.no_fix
        if not chosen and not no_fix and match.finding.severity is Severity.ERROR:
            no_fix = "no edit that was tried (flags, environment, packages, releases, GPUs) removes this error"
        return replace(match.finding, fixes=chosen, no_fix=fill(no_fix, match.problem, match.fields))

    def _try(self, match: Match, candidate: Mapping[str, Any]) -> Fix | None:
        applied = self._apply(candidate, self._start, match)
        if applied is None:
            return None
        checked, edits = applied
        if match.key in {other.key for other in checked.matches}:
            return None
        before = {other.rule.id for other in self._start.errors}
        if any(other.rule.id not in before for other in checked.errors):
            # The edit brings in another error; it may still work together with that one's own fix.
            checked, also = self._repair(checked)
            if checked.errors:
                return None
        else:
            checked, also = self._repair(checked)
        return Fix(
            edits=edits,
            command=format_command(masked_command(checked.request.command)),
            verified=not checked.errors,
            also=also,
            note=str(candidate.get("note") or ""),
            edited=checked.request.command,
        )

    def _repair(self, checked: Checked) -> tuple[Checked, tuple[Edit, ...]]:
        """Remove the remaining errors, one cheapest edit after the other."""
        also: list[Edit] = []
        for _ in range(_MAX_STEPS):
            if not checked.errors:
                break
            step = self._step(checked)
            if step is None:
                break
            checked, edits = step
            also += edits
        return checked, tuple(also)

    def _step(self, checked: Checked) -> tuple[Checked, tuple[Edit, ...]] | None:
        """One candidate that removes an error and brings in none."""
        present = {match.key for match in checked.errors}
        for match in checked.errors:
            for candidate in _by_cost(match.rule.fixes):
                if self._budget <= 0:
                    return None
                applied = self._apply(candidate, checked, match)
                if applied is None:
                    continue
                left = {other.key for other in applied[0].errors}
                if match.key not in left and left <= present:
                    return applied
        return None

    def _apply(
        self, candidate: Mapping[str, Any], checked: Checked, match: Match
    ) -> tuple[Checked, tuple[Edit, ...]] | None:
        request, deployment = checked.request, checked.deployment
        edits: list[Edit] = []
        for position, spec in enumerate(candidate["edits"]):
            if position:
                # Token spans move with every edit, so each edit works on a fresh parse.
                try:
                    deployment = build_deployment(request)
                except InputError:
                    return None
            try:
                applied = apply_edit(spec, request, deployment, lambda text: fill(text, match.problem, match.fields))
            except InputError:
                return None
            if applied is None:
                return None
            request, edit = applied
            edits.append(edit)
        self._budget -= 1
        try:
            return self._check(request), tuple(edits)
        except InputError:
            return None


def _by_cost(fixes: tuple[Mapping[str, Any], ...]) -> list[Mapping[str, Any]]:
    """Smallest change first; equal costs keep the rule's order."""
    return sorted(fixes, key=lambda fix: sum(COST[kind_of(edit)] for edit in fix["edits"]))
