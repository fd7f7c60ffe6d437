"""Loads by vLLM's own code, now: every kind of checkpoint gives what its record says (``test_recorded_weights.py`` has
compared that with the static mapping), and checkpoints with names changed at random agree with the static mapping.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from dsv4check.api import check_request, read_request
from dsv4check.checkpoint.loading import outcomes
from dsv4check.checkpoint.parts import target_part
from dsv4check.checkpoint.published import published_tensors
from dsv4check.checkpoint.shares import target_shares
from dsv4check.engine.rule import load_rules
from dsv4check.rehearsal.launch import build_launch
from dsv4check.rehearsal.parent import RehearsalSession
from dsv4check.rehearsal.protocol import RehearsedStage
from dsv4check.releases.facts import load_facts
from dsv4check.resolve.parallelism import pipeline_layers
from scripts.record_weights import CORPUS, KINDS, TABLES, launch_of, record_of, tensors_of
from scripts.weight_records import read_table
from tests.checkpoint.mutations import mutated
from tests.checkpoint.test_recorded_weights import compare
from tests.rehearsal.live import live_environment, needs_vllm

pytestmark = needs_vllm
FLASH = "deepseek-ai/DeepSeek-V4-Flash"
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


@pytest.mark.parametrize("flags", ["-tp 8", "-tp 8 --enable-expert-parallel", "-tp 4 -pp 2"])
def test_a_gpu_holds_its_share(session: RehearsalSession, flags: str) -> None:
    """Bytes of the checkpoint by rank against the parameters that vLLM registers there (token tables are narrower)."""
    release = session.environment.vllm
    request = read_request(f"vllm serve {FLASH} {flags} --kv-cache-dtype fp8", gpu="H200", gpus=8, vllm=release)
    report = check_request(request, load_rules(), fixes=False)
    answer = session.rehearse(build_launch(request, report.deployment, draft=None, stage_timeout=300))
    held = answer.result(RehearsedStage.MODEL_INIT).detail["parameter_bytes"]
    checkpoint, parallel = published_tensors(FLASH), report.resolution.parallel
    part = target_part(report.deployment.model, load_facts(release), "nvidia")
    assert checkpoint is not None
    assert parallel is not None
    assert part is not None
    found = outcomes(checkpoint.tensors, part.rules, part.model, part.experts)
    shares = target_shares(found, checkpoint.tensors, part, parallel, pipeline_layers(report.deployment, parallel))
    assert shares is not None
    assert [share.total for share in shares] == pytest.approx(held, rel=0.001)
