"""Flags and variables that a release needs whatever the layout is, taken from the verified fixes of the check itself.

A fix counts here when it adds flags or environment assignments to the command. One that changes what was asked for
(context, draft, flags that were stated), what the plan decides (layout, tuning), or the machine, the release, the
model or its packages does not. Errors about memory are never repaired: more room is what the plan looks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from dsv4check.api import check_request
from dsv4check.deployment import Command, Token
from dsv4check.engine.edits import kind_of
from dsv4check.engine.rule import Rule, Severity
from dsv4check.inputs.command import read_command
from dsv4check.problems import Origin
from dsv4check.records import dataclass
from dsv4check.report.masking import masked_command
from dsv4check.report.model import Finding, Report
from dsv4check.request import Request

_ADDING: Final = frozenset({"set_flag", "set_key", "set_env"})
MEMORY_AREA: Final = "ME"
"""Letters that the ids of rules about memory start with."""


@dataclass(frozen=True, slots=True)
class Additions:
    """Words behind a command, and assignments in front of it."""

    words: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: Additions) -> Additions:
        """Both."""
        return Additions(self.words + other.words, self.env + other.env)

    def applied(self, request: Request) -> Request:
        """The launch with them."""
        command = extended(request.command, self.words)
        added = dict(self.env)
        # What --env says wins over the command, so an assignment that replaces it must do so there, too.
        env = {name: text for name, text in request.env.items() if name not in added}
        return replace(request, command=replace(command, env={**command.env, **added}), env=env)


def extended(command: Command, words: tuple[str, ...]) -> Command:
    """The command with further words behind it."""
    return replace(command, tokens=(*command.tokens, *(Token(word, Origin("flag", word)) for word in words)))


class Repairs:
    """Finds what removes the errors of a launch, and remembers it for the launches that follow."""

    def __init__(self, rules: tuple[Rule, ...], settled: frozenset[str]) -> None:
        """``settled``: dests of flags that no fix may touch."""
        kept = [rule for rule in rules if not rule.id.startswith(MEMORY_AREA)]
        self._rules = tuple(replace(rule, fixes=_admitted(rule, settled)) if rule.fixes else rule for rule in kept)
        self._fixable = frozenset(rule.id for rule in self._rules if rule.fixes)
        self._known: list[Additions] = []

    def repair(self, request: Request, report: Report) -> Additions | None:
        """What removes an error of the launch; None where nothing does. Further errors need further calls."""
        errors = [item for item in report.errors if item.rule in self._fixable]
        if not errors:
            return None
        for known in self._known:
            after = {item.rule for item in check_request(known.applied(request), self._rules, fixes=False).errors}
            if errors[0].rule not in after and after <= {item.rule for item in report.errors}:
                return known
        found = self._search(request)
        if found is not None:
            self._known.append(found)
        return found

    def _search(self, request: Request) -> Additions | None:
        for finding in check_request(request, self._rules).errors:
            for fix in finding.fixes:
                added = _added(request.command, fix.command)
                if added is not None:
                    return added
        return None


def obstacles(report: Report) -> list[Finding]:
    """Errors that more memory would not remove."""
    return [item for item in report.errors if not item.rule.startswith(MEMORY_AREA)]


def _admitted(rule: Rule, settled: frozenset[str]) -> tuple[Mapping[str, Any], ...]:
    if rule.severity is not Severity.ERROR:
        return ()
    return tuple(fix for fix in rule.fixes if all(_adds(edit, settled) for edit in fix["edits"]))


def _adds(edit: Mapping[str, Any], settled: frozenset[str]) -> bool:
    kind = kind_of(edit)
    return kind in _ADDING and str(edit[kind]).partition(".")[0] not in settled


def _added(before: Command, text: str) -> Additions | None:
    """What a fix's command has beyond ``before``; None where it changed something that stood there."""
    after = read_command(text, source="fix")
    # Commands of fixes show no secrets.
    shown = masked_command(before)
    old, new = ([token.text for token in command.tokens] for command in (shown, after))
    if new[: len(old)] != old or any(after.env.get(name) != value for name, value in shown.env.items()):
        return None
    env = tuple((name, value) for name, value in after.env.items() if shown.env.get(name) != value)
    words = tuple(new[len(old) :])
    return Additions(words, env) if words or env else None
