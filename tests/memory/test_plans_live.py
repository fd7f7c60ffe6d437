"""Cache plans by vLLM's own engine core, now: a handful of launches plan as recorded, and as the rules say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from dsv4check.learning.plan_launches import launch_of, launches_of
from dsv4check.rehearsal.parent import RehearsalSession
from scripts.plan_records import CORPUS, read, record_of
from tests.memory.test_recorded_plans import differences, report_of
from tests.rehearsal.live import live_environment, needs_vllm

pytestmark = needs_vllm
RELEASES = ("0.24.0", "0.33.0")
LAUNCHES = ("flash", "flash-mtp-2", "flash-two-mtp-modules", "flash-pp4", "flash-hybrid-off", "flash-odd-pp2", "pro")


@pytest.mark.parametrize("release", RELEASES)
def test_plans_are_as_recorded(release: str, figures: Callable[[str], None]) -> None:
    environment = live_environment(release)
    if environment is None:
        pytest.skip(f"vLLM {release} is not there")
    recorded, launches = read(CORPUS / f"{release}.jsonl"), launches_of(release)
    counts: Counter[str] = Counter()
    differ = []
    with RehearsalSession(environment) as session:
        for name in LAUNCHES:
            row = record_of(name, launches[name], session.rehearse(launch_of(launches[name])))
            differ += [name] if row != recorded[name] else []
            differ += [f"{name}: {line}" for line in differences(row, release, report_of(row, release), counts)]
    figures(
        f"cache plans by vLLM {release}: {counts['launches']} launches, {counts['trials']} configurations, "
        f"{len(differ)} mismatches"
    )
    assert counts["trials"] > 0
    assert not differ, differ[:20]
