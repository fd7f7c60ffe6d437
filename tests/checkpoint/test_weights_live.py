"""Loads by vLLM's own code, now: every kind of checkpoint gives what its record says (``test_recorded_weights.py`` has
compared that with the static mapping), and checkpoints with names changed at random agree with the static mapping.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from dsv4check.rehearsal.parent import RehearsalSession
from scripts.record_weights import CORPUS, KINDS, TABLES, launch_of, record_of, tensors_of
from scripts.weight_records import read_table
from tests.checkpoint.mutations import mutated
from tests.checkpoint.test_recorded_weights import compare
from tests.rehearsal.live import live_environment, needs_vllm

pytestmark = needs_vllm
RELEASES = ("0.24.0", "0.33.0")


@pytest.fixture(scope="module", params=RELEASES)
def session(request: pytest.FixtureRequest) -> Iterator[RehearsalSession]:
    environment = live_environment(request.param)
    if environment is None:
        pytest.skip(f"vLLM {request.param} is not there")
    with RehearsalSession(environment) as opened:
        yield opened


def test_loads_are_as_recorded(session: RehearsalSession, figures: Callable[[str], None]) -> None:
    release = session.environment.vllm
    recorded = json.loads((CORPUS / f"{release}.json").read_text(encoding="utf-8"))
    # All experts of a layer take half a minute; what is recorded of them is compared without vLLM.
    kinds = [name for name in recorded if not KINDS[name].all_experts and "not_loaded" not in recorded[name]]
    differ = {}
    for name in kinds:
        record, tables = record_of(session.rehearse(launch_of(KINDS[name])))
        same_tables = all((TABLES / f"{key}.tsv").read_text(encoding="utf-8") == text for key, text in tables.items())
        if record != recorded[name] or not same_tables:
            differ[name] = record
    figures(f"loads by vLLM {release}: {len(kinds)} kinds of checkpoint, {len(differ)} differ from the records")
    assert kinds
    assert not differ, differ


MUTATED = ("flash", "flash-0731", "v4.1-flash", "vision-exp")
SEEDS = range(8)


def test_changed_names_go_the_same_way(session: RehearsalSession, figures: Callable[[str], None]) -> None:
    release = session.environment.vllm
    recorded = json.loads((CORPUS / f"{release}.json").read_text(encoding="utf-8"))
    compared: Counter[str] = Counter()
    differ = []
    loads = 0
    for name in MUTATED:
        if name not in recorded:
            continue
        kind = dataclasses.replace(KINDS[name], all_experts=False)
        original = tensors_of(kind)
        for seed in SEEDS:
            tensors = mutated(original, seed)
            records = tuple((key, tensor.dtype, tensor.shape) for key, tensor in tensors.items())
            answer = session.rehearse(dataclasses.replace(launch_of(kind), weights=(records,)))
            record, tables = record_of(answer)
            loads += 1
            if "not_loaded" not in record:
                found = compare(release, kind, tensors, record, lambda key: read_table(tables[key]), compared)  # noqa: B023
                differ += [f"{name} {seed} {line}" for line in found]
    figures(
        f"checkpoints with changed names, vLLM {release}: {loads} loads, {compared['names']:,} names compared, "
        f"{len(differ)} mismatches"
    )
    assert not differ, differ[:20]
