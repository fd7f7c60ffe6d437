"""Texts checked and fixed as the gate does it, for tests."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from dsv4check.gate.directives import parse_directives
from dsv4check.gate.file_check import Checked, FileChecker
from dsv4check.gate.fix import FixOutcome, fix_source
from dsv4check.gate.judge import Judge
from dsv4check.gate.records import LaunchResult
from dsv4check.gate.settings import Facts, Settings
from dsv4check.launchfiles.text import SourceText
from tests.launches import all_rules

MODEL = "deepseek-ai/DeepSeek-V4-Flash"
NOWHERE = Path("/nonexistent/dsv4check")


class Everything:
    """Every fingerprint is wanted."""

    def __contains__(self, fingerprint: object) -> bool:
        return True


@cache
def _names() -> dict[str, str]:
    return {rule.id: rule.name for rule in all_rules()}


def checker(root: Path = NOWHERE, *, fixes: bool = True, configured: Facts | None = None, **facts: Any) -> FileChecker:
    """A checker of 0.24.0 on 8 B300 where nothing else is said; None takes a fact away."""
    stated = {"vllm": "0.24.0", "gpu": "B300", "gpus": 8, **facts}
    options = Facts(**{name: value for name, value in stated.items() if value is not None})
    settings = Settings(root, root, facts=configured or Facts())
    return FileChecker(Judge(all_rules(), options, fixes=fixes), settings, root, _names())


def checked(text: str, name: str = "run.sh", *, fixes: bool = False, path: Path | None = None, **facts: Any) -> Checked:
    source = SourceText(name, text)
    root = NOWHERE if path is None else path.parent
    return checker(root, fixes=fixes, **facts).launches(source, path, parse_directives(source))


def results(text: str, name: str = "run.sh", **facts: Any) -> list[LaunchResult]:
    return [item.result for item in checked(text, name, **facts).judged]


def result(text: str, name: str = "run.sh", **facts: Any) -> LaunchResult:
    (only,) = results(text, name, **facts)
    return only


def rules_of(text: str, name: str = "run.sh", **facts: Any) -> set[str]:
    return {finding.rule for item in results(text, name, **facts) for finding in item.findings}


def fixed(text: str, name: str = "run.sh", *, bom: bool = False, path: Path | None = None, **facts: Any) -> FixOutcome:
    root = NOWHERE if path is None else path.parent
    return fix_source(SourceText(name, text, bom=bom), path, checker(root, **facts), Everything())


_CHANGE = re.compile("⟪(.*?)→(.*?)⟫", re.DOTALL)


def before_and_after(marked: str) -> tuple[str, str]:
    """The two texts of one in which changes are marked: ``a ⟪old→new⟫ b``."""
    return _CHANGE.sub(r"\1", marked), _CHANGE.sub(r"\2", marked)


def assert_fixed(marked: str, name: str = "run.sh", **facts: Any) -> None:
    """One fix makes exactly the marked changes, removes its finding, brings none in, and leaves nothing to do."""
    before, after = before_and_after(marked)
    outcome = fixed(before, name, **facts)
    assert (outcome.refused, len(outcome.applied)) == ([], 1)
    assert outcome.source.text == after
    had, has = rules_of(before, name, **facts), rules_of(after, name, **facts)
    assert has < had
    again = fixed(after, name, **facts)
    assert (again.applied, again.source.text) == ([], after)
