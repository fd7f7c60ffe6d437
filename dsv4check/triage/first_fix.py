"""The first release in which a hazard is gone."""

from __future__ import annotations

from packaging.version import Version

from dsv4check.engine.evaluate import applies_to_build
from dsv4check.engine.rule import FoundIn, Rule
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.releases.facts import known_releases
from dsv4check.triage.known import KnownLaunch


def first_release_with_fix(rule: Rule, launch: KnownLaunch | None) -> str | None:
    """The release that the rule names as fixed, else the first one behind the launch's that it is not about.

    None where the rule holds in every later release, or is not about releases. With a launch that was checked, a
    release counts only when the checker finds neither this hazard nor a new error in it there.
    """
    if rule.found_in is FoundIn.LOG:
        return None
    if launch is not None and launch.finding(rule) is not None and launch.recheck is not None:
        return _checked(rule, launch)
    if rule.fixed_in is not None:
        return rule.fixed_in
    if rule.vllm is None:
        return None
    held = [name for name in known_releases() if applies_to_build(rule, resolve_vllm(name))]
    if not held:
        return None
    later = [name for name in known_releases() if Version(name) > Version(held[-1])]
    return later[0] if later else None


def _checked(rule: Rule, launch: KnownLaunch) -> str | None:
    if launch.build is None or launch.recheck is None or launch.report is None:
        return None
    present = {item.rule for item in launch.report.errors}
    start = Version(
        launch.build.release if rule.fixed_in is None else max(launch.build.release, rule.fixed_in, key=Version)
    )
    for name in known_releases():
        if Version(name) < start or name == launch.build.release:
            continue
        report = launch.recheck(name)
        if report is None or any(item.rule == rule.id for item in report.findings):
            continue
        if {item.rule for item in report.errors} <= present:
            return name
    return None
