"""The rules against what the releases did with random launches (scripts/record_rehearsals.py wrote the records).

A launch counts as agreed when no stage and no decision (runner, attention class, KV dtype, block size, pages)
differs. Disagreements that remain are listed, with reasons, in tests/corpus/rehearsals/known.yaml.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from dsv4check.api import check_request
from dsv4check.batch import request_from_record
from dsv4check.engine.rule import load_rules
from dsv4check.rehearsal.compare import Comparison, compare
from scripts.recordings import differences, not_compared, replay
from tests.rehearsal.known import FOLDER, known_differences


def recorded() -> Iterator[dict[str, Any]]:
    for path in sorted(FOLDER.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def comparison_of(row: dict[str, Any]) -> Comparison:
    line = {key: value for key, value in row.items() if key != "seen"}
    report = check_request(request_from_record(line, row["id"], online=False), load_rules(), fixes=False)
    return compare(report, replay(row["seen"], row["vllm"]), load_rules())


def test_rules_and_recorded_rehearsals_agree(figures: Callable[[str], None]) -> None:
    allowed = known_differences()
    counts: Counter[str] = Counter()
    unexpected, listed, seen = [], set(), set()
    for row in recorded():
        seen.add(row["id"])
        if row["seen"]["verdict"] == "unavailable":
            counts["unavailable"] += 1
            continue
        comparison = comparison_of(row)
        found = differences(comparison)
        if found and row["id"] in allowed:
            listed.add(row["id"])
        elif found:
            unexpected.append(f"{row['id']}: {'; '.join(found)}")
        elif not_compared(comparison):
            counts["memory"] += 1
        else:
            counts[row["seen"]["verdict"]] += 1
    agreed = counts["pass"] + counts["fail"]
    compared = agreed + len(listed) + len(unexpected)
    figures(
        f"recorded rehearsals: {agreed} of {compared} agree ({100 * agreed / compared:.1f} %; "
        f"{counts['pass']} pass, {counts['fail']} fail), {len(listed)} known to differ; not compared: "
        f"{counts['memory']} that stop for want of KV-cache memory or at V4.1's caches, which no rule plans, "
        f"{counts['unavailable']} that could not be rehearsed"
    )
    assert not unexpected, "\n".join(unexpected)
    stale = (set(allowed) & seen) - listed
    assert not stale, f"launches in known.yaml that agree now: {sorted(stale)}"
    assert compared >= 2000
