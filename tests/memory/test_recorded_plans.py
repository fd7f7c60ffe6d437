"""Static cache plans against what every release planned, as recorded by ``scripts/record_plans.py``.

Each launch is resolved once; its trials (memory, lengths, batches, fixed block counts) are arithmetic. Compared are
blocks, ``Maximum concurrency`` to the last bit, the length that ``auto`` finds, whether one request is refused and
with which estimate, and the groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from dsv4check.api import check
from dsv4check.data import load_yaml
from dsv4check.learning.plan_launches import MEMORY_MIB, TRIALS, launches_of, memory_of
from dsv4check.learning.static_plans import answer, groups_of, static_plan
from dsv4check.memory.cache_plan import UnplannedError
from dsv4check.releases.facts import known_releases, load_facts
from dsv4check.report.model import Report
from dsv4check.resolve.speculative_limits import batch_limits
from scripts.plan_records import CORPUS, read

_LEAST = 500
"""Compared (launch, trial) pairs of every release."""


@cache
def _records(release: str) -> dict[str, dict[str, Any]]:
    return read(CORPUS / f"{release}.jsonl")


def report_of(row: dict[str, Any], release: str) -> Report:
    """The launch of a record, checked."""
    return check(
        ["vllm", "serve", row["model"], *row["args"]],
        gpu=row["gpu"],
        gpus=row["gpus"],
        gpu_memory_gib=MEMORY_MIB / 1024,
        vllm=release,
        env=row.get("env"),
        config_overrides=row.get("config"),
        fixes=False,
    )


def differences(row: dict[str, Any], release: str, report: Report, counts: Counter[str]) -> list[str]:
    """What the static plan of a recorded launch says otherwise, counting what was compared."""
    try:
        plan = static_plan(report)
    except UnplannedError as error:
        return [] if "stops" in row else [f"planned by vLLM, not by the rules: {error}"]
    if "stops" in row:
        # Not refused by the arithmetic: then a finding must say why the launch does not get there.
        counts["stopped"] += 1
        stage = row["stops"].partition(":")[0]
        told = any(finding.stage.value == stage for finding in report.errors)
        return [] if told else [f"vLLM stops and no rule says so: {row['stops']}"]
    counts["launches"] += 1
    basis, stages = row["basis"], len(plan.strides)
    batches = basis["in_flight_tokens"] // basis["max_num_batched_tokens"]
    override = load_facts(release).section("cache_planning")["override"]
    differ = []
    for trial, seen in zip(TRIALS, row["trials"], strict=True):
        counts["trials"] += 1
        said = answer(plan, trial, memory_of(trial, stages), trial["max_num_batched_tokens"] * batches, override)
        if said != seen:
            differ.append(f"{trial}: vLLM {seen}, rules {said}")
    groups = sorted(
        (sum(layers) if isinstance(layers, list) else layers * stages, size) for layers, size in row["groups"]
    )
    if groups != groups_of(plan):
        differ.append(f"groups: vLLM {groups}, rules {groups_of(plan)}")
    return differ + _limits(report, release, basis)


def _limits(report: Report, release: str, basis: dict[str, Any]) -> list[str]:
    """Tokens and requests of a step, and tokens in flight, as vLLM resolves them for the launch."""
    resolution, facts = report.resolution, load_facts(release)
    assert resolution.parallel is not None
    found = batch_limits(report.deployment, facts.section("spec_decode"), resolution.parallel)
    seen = (basis["max_num_batched_tokens"], basis["max_num_seqs"])
    differ = [] if found == seen else [f"(max_num_batched_tokens, max_num_seqs): vLLM {seen}, rules {found}"]
    memory = resolution.memory
    assert memory is not None
    # Before 0.26 the engine core counts one step, whatever is in flight.
    expected = basis["in_flight_tokens"]
    if memory.in_flight_tokens != expected:
        differ.append(f"tokens in flight: vLLM {expected}, rules {memory.in_flight_tokens}")
    return differ


def explained() -> dict[tuple[str, str], str]:
    """(release, launch) -> why the static plan may differ."""
    entries = load_yaml((CORPUS / "explained.yaml").read_text(encoding="utf-8"))
    return {(release, one["launch"]): one["why"] for one in entries for release in one["releases"]}


def test_every_release_is_recorded_with_the_launches_as_they_are() -> None:
    for release in known_releases():
        launches, records = launches_of(release), _records(release)
        assert list(records) == [name for name in launches if name in records], release
        for name, row in records.items():
            assert (row["model"], tuple(row["args"])) == (launches[name].model, launches[name].argv), (release, name)


def test_plans_are_as_recorded(figures: Callable[[str], None]) -> None:
    known = explained()
    counts: Counter[str] = Counter()
    differ, used = [], set()
    for release in known_releases():
        before = counts["trials"]
        for name, row in _records(release).items():
            found = differences(row, release, report_of(row, release), counts)
            if found and (release, name) in known:
                used.add((release, name))
                continue
            differ += [f"{release} {name}: {line}" for line in found]
        assert counts["trials"] - before >= _LEAST, release
    figures(
        f"cache plans against vLLM's engine core: {len(known_releases())} releases, {counts['launches']} launches, "
        f"{counts['trials']:,} configurations compared, {len(differ)} mismatches; {len(used)} launches differ for a "
        f"stated reason, {counts['stopped']} are stopped before or after planning"
    )
    assert not differ, differ[:20]
    assert used == set(known), set(known) - used
