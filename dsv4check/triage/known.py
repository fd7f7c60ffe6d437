"""What is known about the launch behind a log, asked rule by rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from dsv4check.deployment import Hardware, VllmBuild
from dsv4check.engine.conditions import evaluate
from dsv4check.engine.evaluate import applies_to_build
from dsv4check.engine.fields import Unknown
from dsv4check.engine.rule import Rule
from dsv4check.records import dataclass
from dsv4check.report.model import Finding, Report
from dsv4check.request import Request
from dsv4check.resolution import NotEvaluated

_RULE_ID: Final = re.compile(r"\b[A-Z]{2}\d{3}\b")


@dataclass(frozen=True, slots=True)
class KnownLaunch:
    """The launch that a log states, as far as it goes."""

    rules: Mapping[str, Rule]
    """All rules by id."""
    request: Request | None
    """None when the log does not state enough to put one together."""
    build: VllmBuild | None
    """None when no version is stated."""
    hardware: Hardware
    packages: Mapping[str, str]
    report: Report | None
    """What the checker says about it; None when the log does not state enough for a check."""
    recheck: Callable[[str], Report | None] | None
    """The same launch on another release (None: it cannot be put together there); None without a launch."""
    flags_known: bool
    """True when the log states the flags."""
    complete: bool
    """True when version, GPU, model and flags are all known: then what the checker does not find is not there."""

    def finding(self, rule: Rule) -> Finding | None:
        """The checker's finding by this rule, the most severe one where it fired several times."""
        if self.report is None:
            return None
        return next((item for item in self.report.findings if item.rule == rule.id), None)

    def question(self, rule: Rule) -> NotEvaluated | None:
        """Why the checker could not say whether the rule holds; None when it could."""
        for item in self.report.not_evaluated if self.report is not None else ():
            if rule.id in _RULE_ID.findall(item.what):
                return item
        return None

    def release_admits(self, rule: Rule) -> bool | None:
        """Whether the rule is about the version that the log states; None when it states none."""
        return None if self.build is None else applies_to_build(rule, self.build)

    def refuted_by(self, rule: Rule) -> str | None:
        """The name of a condition of the rule that the log's GPU or packages say no to; None without one."""
        stated = _Stated(self.hardware, self.packages)
        return next((name for name in rule.when if evaluate({name: rule.when[name]}, stated) is False), None)


_OF_HARDWARE: Final = frozenset({"vendor", "name", "sm", "sm_major"})


class _Stated:
    """The values of conditions that need no resolution of the launch; all others are unknown."""

    def __init__(self, hardware: Hardware, packages: Mapping[str, str]) -> None:
        self._hardware = hardware
        self._packages = packages

    def get(self, name: str) -> Any:
        area, _dot, rest = name.partition(".")
        value = None
        if area == "package":
            value = self._packages.get(rest)
        elif area == "gpu" and rest in _OF_HARDWARE:
            value = getattr(self._hardware, rest)
        return Unknown(name, "the log does not say it", "") if value is None else value

    def given(self, name: str) -> bool | Unknown:
        value = self.get(name)
        return value if isinstance(value, Unknown) else True
