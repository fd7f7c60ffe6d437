"""The rules against live rehearsals of random launches, others than the recorded ones, on this machine's vLLM."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from dsv4check.engine.rule import load_rules
from dsv4check.rehearsal.compare import compare
from dsv4check.rehearsal.parent import RehearsalSession
from dsv4check.releases.facts import known_releases
from scripts.recordings import differences, not_compared, rehearse
from scripts.samples import samples
from tests.rehearsal.known import known_differences
from tests.rehearsal.live import live_environment, needs_vllm

SEED = 2
LAUNCHES = int(os.environ.get("DSV4CHECK_LIVE_SAMPLES", "360"))
RELEASES = ("0.33.0", "0.24.0")
"""The newest and an old one."""
SMS = ("9.0", "10.0")


@needs_vllm
def test_rules_and_live_rehearsals_agree(figures: Callable[[str], None]) -> None:
    environments = {name: found for name in RELEASES if (found := live_environment(name)) is not None}
    assert environments, f"none of {', '.join(RELEASES)} can be rehearsed here"
    assert set(environments) <= set(known_releases())
    rules = load_rules()
    allowed = known_differences()
    counts: Counter[str] = Counter()
    unexpected = []
    for release, environment in environments.items():
        lines = sorted(samples(SEED, release, SMS, LAUNCHES // len(environments)), key=lambda line: line["gpu"])
        with RehearsalSession(environment) as session:
            for line in lines:
                report, rehearsal = rehearse(line, session, rules)
                if rehearsal.unavailable is not None:
                    counts["unavailable"] += 1
                    continue
                comparison = compare(report, rehearsal, rules)
                found = differences(comparison)
                known = line["id"] in allowed
                if not found and not_compared(comparison):
                    counts["memory"] += 1
                    continue
                counts["agree" if not found else "known" if known else "differ"] += 1
                if found and not known:
                    unexpected.append(f"{line['id']} {line['args']} {line['env']}: {'; '.join(found)}")
    compared = counts["agree"] + counts["known"] + counts["differ"]
    figures(
        f"live rehearsals of {', '.join(environments)}: {counts['agree']} of {compared} agree, "
        f"{counts['known']} known to differ; not compared: {counts['memory']} that stop for want of KV-cache memory or "
        f"at V4.1's caches, {counts['unavailable']} that could not be rehearsed"
    )
    assert not unexpected, "\n".join(unexpected)
