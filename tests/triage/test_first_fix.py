from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dsv4check.deployment import Hardware
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.releases.facts import known_releases
from dsv4check.report.model import Report
from dsv4check.triage.first_fix import first_release_with_fix
from dsv4check.triage.known import KnownLaunch
from tests.report.triage import report, rule
from tests.triage.own_rules import own_rule

NEWEST = known_releases()[-1]


def known(
    made: Report | None = None, recheck: Callable[[str], Report | None] | None = None, build: str | None = "0.24.0"
) -> KnownLaunch:
    return KnownLaunch(
        rules={},
        request=None,
        build=None if build is None else resolve_vllm(build),
        hardware=Hardware(),
        packages={},
        report=made,
        recheck=recheck,
        flags_known=True,
        complete=True,
    )


@pytest.mark.parametrize(
    ("more", "release"),
    [
        ({"fixed_in": "0.26.0", "vllm": "<0.25.0"}, "0.26.0"),
        ({"vllm": "<0.25.1"}, "0.25.1"),
        ({"vllm": ">=0.24.0,<=0.27.0"}, "0.27.1"),
        ({"vllm": ">=0.24.0"}, None),
        ({"vllm": ">=99.0"}, None),
        ({}, None),
        ({"found_in": "log", "fixed_in": "0.26.0"}, None),
    ],
)
def test_without_a_launch_the_rule_says_it(more: dict[str, Any], release: str | None) -> None:
    assert first_release_with_fix(own_rule("ZZ001", "x", **more), known()) == release


def test_a_launch_is_checked_again_on_later_releases() -> None:
    asked: list[str] = []

    def recheck(release: str) -> Report:
        asked.append(release)
        return report(vllm=release)

    assert first_release_with_fix(rule("KV001"), known(report(), recheck)) == "0.30.0"
    assert asked[-1] == "0.30.0"
    assert "0.23.0" not in asked
    assert "0.24.0" not in asked


def test_a_release_with_another_error_is_no_fix() -> None:
    worse = report("-tp 3", "0.30.0")
    assert worse.errors

    def recheck(release: str) -> Report:
        return worse if release in ("0.30.0", "0.31.0") else report(vllm=release)

    assert first_release_with_fix(rule("KV001"), known(report(), recheck)) == "0.32.0"


def test_a_release_on_which_the_launch_cannot_be_put_together_is_none() -> None:
    assert first_release_with_fix(rule("KV001"), known(report(), lambda _name: None)) is None


def test_a_hazard_that_stays_has_no_release() -> None:
    assert first_release_with_fix(rule("KV001"), known(report(), lambda _name: report())) is None
    assert first_release_with_fix(rule("KV001"), known(report(), lambda name: report(vllm=name), build=None)) is None
