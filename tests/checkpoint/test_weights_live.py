"""Loads of every kind of checkpoint by vLLM's own code, now: they give what the records say.

What the records say is compared with the static mapping in ``test_recorded_weights.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from dsv4check.rehearsal.parent import RehearsalSession
from scripts.record_weights import CORPUS, KINDS, TABLES, launch_of, record_of
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
