"""Rules against one resolved deployment: findings, and what could not be evaluated."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dsv4check.deployment import Deployment, VllmBuild
from dsv4check.engine.conditions import evaluate, version_in
from dsv4check.engine.fields import Fields, Unknown
from dsv4check.engine.rule import FoundIn, Rule, Severity
from dsv4check.problems import Origin, Problem
from dsv4check.records import dataclass
from dsv4check.releases.timeline import before_first_support
from dsv4check.report.model import Finding
from dsv4check.resolution import NotEvaluated, Resolution

if TYPE_CHECKING:
    from dsv4check.installation.code_answers import CodeAnswer
    from dsv4check.request import Request

_PLACEHOLDER = re.compile(r"\{([a-z][\w.\-]*)\}", re.IGNORECASE)


class Match:
    """A rule that fired, with the problem it fired on."""

    __slots__ = ("fields", "finding", "problem", "rule")

    def __init__(self, rule: Rule, problem: Problem | None, fields: Fields, finding: Finding) -> None:
        self.rule = rule
        self.problem = problem
        self.fields = fields
        self.finding = finding

    @property
    def key(self) -> tuple[str, str]:
        """Identity across re-checks: the rule and what it says."""
        return (self.finding.rule, self.finding.message)


@dataclass(frozen=True, slots=True)
class Checked:
    """A launch and what the rules say about it."""

    request: Request
    deployment: Deployment
    matches: tuple[Match, ...]

    @property
    def errors(self) -> tuple[Match, ...]:
        """Matches of severity error."""
        return tuple(match for match in self.matches if match.finding.severity is Severity.ERROR)


def match_rules(
    deployment: Deployment, resolution: Resolution, rules: tuple[Rule, ...], pins: Mapping[str, str]
) -> tuple[list[Match], list[NotEvaluated]]:
    """Evaluate ``rules`` and return the matches, ordered by severity and stage, and the open questions."""
    fields = Fields(deployment, resolution, pins)
    by_code: dict[str, list[Problem]] = {}
    for found in resolution.problems:
        by_code.setdefault(found.code, []).append(found)
    matches: list[Match] = []
    open_questions: list[NotEvaluated] = []
    relevant = _relevant(rules, resolution.release, deployment.vllm.own is not None)
    if before_first_support(deployment.vllm.version):
        # The first release's facts stand in for such a version; only rules about the version itself may speak.
        relevant = tuple(rule for rule in relevant if "vllm.version" in rule.when)
    for rule in relevant:
        instances: Collection[Problem | None] = (None,) if rule.problem is None else by_code.get(rule.problem, ())
        if not instances:
            continue
        shown = _shown_by_code(rule, deployment.vllm)
        if not (applies_to_build(rule, deployment.vllm) if shown is None else shown.verdict):
            continue
        for problem in instances:
            verdict = evaluate(rule.when, fields)
            if isinstance(verdict, Unknown):
                if rule.severity is not Severity.NOTE:
                    open_questions.append(NotEvaluated(f"{rule.id} {rule.name}", verdict.why, verdict.how))
                break
            if verdict:
                evidence = () if shown is None else shown.evidence
                matches.append(Match(rule, problem, fields, _finding(rule, problem, fields, evidence)))
    fired = {match.rule.id for match in matches}
    kept = [match for match in matches if not fired.intersection(match.rule.yields_to)]
    unique = {match.key: match for match in kept}
    ordered = sorted(unique.values(), key=lambda m: (-m.finding.severity.rank, m.finding.stage.order, m.finding.rule))
    return ordered, open_questions


@lru_cache(maxsize=64)
def _relevant(rules: tuple[Rule, ...], release: str, with_tree: bool) -> tuple[Rule, ...]:
    """The rules that may fire on ``release``, on development builds, or (``with_tree``) by a build's own code."""
    return tuple(
        rule
        for rule in rules
        if rule.found_in is FoundIn.LAUNCH
        and (rule.development or (with_tree and rule.code is not None) or _admits(rule, release))
    )


def _admits(rule: Rule, release: str) -> bool:
    """True when the rule's specifier admits the release (a rule without one admits all)."""
    if rule.vllm is None:
        return True
    return release in rule.releases if rule.releases is not None else version_in(release, rule.vllm)


def _shown_by_code(rule: Rule, build: VllmBuild) -> CodeAnswer | None:
    """What the build's own code says about the rule; None where that is not at hand or does not tell."""
    if rule.code is None or build.own is None:
        return None
    answer = build.own.code.answer(rule)
    return None if answer.verdict is None else answer


def applies_to_build(rule: Rule, build: VllmBuild) -> bool:
    """Whether a rule is about a build of this number.

    One about development builds fires on those that it names; one that names no other build never fires on releases.
    """
    if build.kind == "development" and any(
        item.contains(build.dev_base, build.dev_number) for item in rule.development
    ):
        return True
    if rule.vllm is None:
        return not rule.development
    return _admits(rule, build.release)


def _finding(rule: Rule, problem: Problem | None, fields: Fields, evidence: tuple[str, ...]) -> Finding:
    error = problem.error if problem is not None and problem.error else fill(rule.error, problem, fields)
    if problem is not None and problem.exception and problem.error:
        error = f"{problem.exception}: {problem.error}"
    stage = problem.stage if problem is not None else rule.stage
    return Finding(
        rule=rule.id,
        name=rule.name,
        severity=rule.severity,
        certainty=rule.certainty,
        stage=stage,
        message=fill(rule.message, problem, fields),
        error=error,
        location=_location(rule, problem, fields),
        references=rule.references,
        fixed_in=rule.fixed_in,
        evidence=evidence,
    )


def _location(rule: Rule, problem: Problem | None, fields: Fields) -> Origin | None:
    """Where the offending value stands: the problem's origin, else the first flag the rule's conditions name."""
    if problem is not None:
        return problem.origin
    for name in _names(rule.when):
        origin = fields.origin(name)
        if origin is not None:
            return origin
    return None


def _names(when: Mapping[str, Any]) -> Iterable[str]:
    for name, condition in when.items():
        if name in ("any", "all"):
            for branch in condition:
                yield from _names(branch)
        elif name != "not":
            yield name


def fill(text: str, problem: Problem | None, fields: Fields) -> str:
    """Replace ``{name}`` by a value of the problem or a field; braces around anything else stay as they are."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if problem is not None and name in problem.data:
            return plain(problem.data[name])
        try:
            found = fields.get(name)
        except KeyError:
            return match.group(0)
        return "unknown" if isinstance(found, Unknown) else plain(found)

    return _PLACEHOLDER.sub(value, text)


def plain(value: Any) -> str:
    """A value as it reads in a sentence."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(plain(item) for item in value)
    return str(value)
