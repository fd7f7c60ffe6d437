"""Every rule shows in some example, and no two rules are the same hazard twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest

from dsv4check.data import rules_dir
from dsv4check.engine.rule import FoundIn, read_sources
from tests.launches import all_rules, run_launch


def _launches() -> Iterator[dict[str, Any]]:
    for record, _area, _path in read_sources(rules_dir() / "checks"):
        examples = record["examples"]
        for launch in (*examples["fires"], *examples["silent"]):
            if "log" not in launch:
                yield launch


@pytest.fixture(scope="module")
def fired() -> dict[str, set[int]]:
    """Numbers of the examples, of whatever rule, that each rule fires on."""
    found: dict[str, set[int]] = defaultdict(set)
    for number, launch in enumerate(_launches()):
        for finding in run_launch(launch).findings:
            found[finding.rule].add(number)
    return found


def test_every_rule_is_triggered(fired: dict[str, set[int]]) -> None:
    launch_rules = {rule.id for rule in all_rules() if rule.found_in is FoundIn.LAUNCH}
    assert launch_rules - set(fired) == set()


def test_no_two_rules_always_fire_together(fired: dict[str, set[int]], figures: Callable[[str], None]) -> None:
    together = [(one, other) for one, other in combinations(sorted(fired), 2) if fired[one] == fired[other]]
    figures(f"{len(fired)} rules on {len(list(_launches()))} examples: {len(together)} pairs always fire together")
    assert not together
