"""Section ``cache_planning``: the style is found by what a release plans, and nothing is guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsv4check.learning.plan_launches import LAUNCHES, stages_of
from dsv4check.learning.sections import cache_planning
from dsv4check.learning.sections.cache_planning import Observed, context_ranks, fitting, in_flight, learn, log_tokens
from dsv4check.learning.source import LearningError, Source
from dsv4check.learning.static_plans import layers_of
from dsv4check.memory.launch_plan import retained_tokens
from dsv4check.releases.facts import known_releases, load_facts
from scripts.plan_records import CORPUS, read
from tests.learning.fake_plans import FakePlanner, fake_release
from tests.learning.shipped import tree
from tests.memory.test_recorded_plans import report_of

CONCURRENCY = """
def get_capacity(config, plan):
    max_model_len = config.max_model_len
    max_concurrency = work_it_out(config, plan)
    return int(max_concurrency * max_model_len), max_concurrency

def report(config, plan):
    num_tokens, max_concurrency = get_capacity(config, plan)
    logger.info_once("%s KV cache size: %s tokens, ", "GPU", f"{num_tokens:,}")
"""
GROUPS = """
def report(config, plan):
    num_tokens = plan.num_blocks // len(plan.kv_cache_groups) * min_block_size
    logger.info_once("GPU KV cache size: %s tokens", f"{num_tokens:,}")
"""
RANKS = """
class FullAttentionSpec:
    def max_memory_usage_bytes(self, config):
        ranks = config.parallel_config.decode_context_parallel_size{more}
        return ranks
"""
MORE = " * config.parallel_config.prefill_context_parallel_size"


def source(folder: Path, utils: str = CONCURRENCY, more: str = "") -> Source:
    files = {cache_planning.UTILS: utils, cache_planning.INTERFACE: RANKS.format(more=more), "_version.py": ""}
    return tree(folder, files)


def section(release: str) -> dict[str, Any]:
    return dict(load_facts(release).section("cache_planning"))


def text_of(folder: Path, shipped: dict[str, Any]) -> Source:
    utils = GROUPS if shipped["log_tokens"] == "groups" else CONCURRENCY
    return source(folder, utils, MORE if shipped["context_ranks"] == "dcp_pcp" else "")


@pytest.mark.parametrize("release", ["0.20.0", "0.21.0", "0.25.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.33.0"])
def test_a_release_that_plans_in_a_style_is_learned_as_that(release: str, tmp_path: Path) -> None:
    shipped = section(release)
    found = learn(fake_release(text_of(tmp_path, shipped), FakePlanner(release, shipped)))
    assert found == shipped


def test_what_every_release_planned_leads_to_its_section() -> None:
    """The same from records of the releases themselves, with the layers that the rules know."""
    for release in known_releases():
        rows, seen = read(CORPUS / f"{release}.jsonl"), []
        for name in cache_planning.OBSERVED:
            row, planned = rows.get(name), LAUNCHES[name]
            if row is None or "stops" in row:
                continue  # of a later release, or not planned by this one
            modules = dict(planned.changes).get("num_nextn_predict_layers", 1)
            layers = layers_of(report_of(row, release))
            basis = row["basis"]
            batches = basis["in_flight_tokens"] // basis["max_num_batched_tokens"]
            nothing = (None,) * len(layers)
            retained = retained_tokens(modules, planned.draft_tokens)
            seen.append(
                Observed(
                    name=name,
                    layers=layers,
                    unpadded=(0,) * len(layers),
                    alignments=nothing,
                    stages=stages_of(planned),
                    retained=retained,
                    in_flight=batches,
                    async_scheduling=basis["async_scheduling"],
                    runner="v1",
                    results=tuple(row["trials"]),
                )
            )
        found = fitting(seen)
        assert found == {key: section(release)[key] for key in found}, release


def test_a_new_way_of_planning_is_not_guessed(tmp_path: Path) -> None:
    def one_block_less(detail: dict[str, Any]) -> None:
        for trial in detail["trials"]:
            trial |= {"blocks": [blocks - 1 for blocks in trial["blocks"]]} if "blocks" in trial else {}

    planner = FakePlanner("0.33.0", section("0.33.0"), one_block_less)
    with pytest.raises(LearningError, match="flash-mtp-1: planned in no way that is known"):
        learn(fake_release(source(tmp_path), planner))


def test_styles_that_the_launches_do_not_tell_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_planning, "OBSERVED", cache_planning.NEEDED)
    with pytest.raises(LearningError, match=r"do not tell apart: .*retained_tokens"):
        learn(fake_release(source(tmp_path), FakePlanner("0.33.0", section("0.33.0"))))


def test_a_release_that_plans_nothing(tmp_path: Path) -> None:
    def refuse(_detail: dict[str, Any]) -> None:
        raise cache_planning.UnplannedError("nothing is planned")

    with pytest.raises(LearningError, match="does not plan flash-mtp-1, flash-odd"):
        learn(fake_release(source(tmp_path), FakePlanner("0.33.0", section("0.33.0"), refuse)))


def test_promoted_pages_of_another_size(tmp_path: Path) -> None:
    def larger(detail: dict[str, Any]) -> None:
        for layer in detail["layers"][0]:
            layer["unpadded_bytes"] += 8 * layer["block_size"]

    planner = FakePlanner("0.30.0", section("0.30.0"), larger)
    with pytest.raises(LearningError, match="promoted windows are not those that are known"):
        learn(fake_release(source(tmp_path), planner))


def test_batches_in_flight() -> None:
    def seen(batches: int, stages: int = 1, runner: str = "v1", *, ahead: bool = True) -> Observed:
        return Observed("x", (), (), (), stages, 0, batches, ahead, runner, ())

    assert in_flight([seen(1), seen(1, 2)]) == "step"
    assert in_flight([seen(2), seen(2, 2), seen(3, 2, "v2"), seen(1, ahead=False)]) == "batches"
    with pytest.raises(LearningError, match="x: 4 batches in flight"):
        in_flight([seen(2), seen(4, 2)])


def test_tokens_of_the_log(tmp_path: Path) -> None:
    assert log_tokens(source(tmp_path / "a")) == "concurrency"
    assert log_tokens(source(tmp_path / "b", GROUPS)) == "groups"
    with pytest.raises(LearningError, match="expected one function that logs"):
        log_tokens(source(tmp_path / "c", "def other():\n    pass\n"))
    with pytest.raises(LearningError, match="worked out in no way that is known"):
        log_tokens(source(tmp_path / "d", GROUPS.replace("//", "%")))


def test_ranks_that_share_a_context(tmp_path: Path) -> None:
    assert context_ranks(source(tmp_path / "a")) == "dcp"
    assert context_ranks(source(tmp_path / "b", more=MORE)) == "dcp_pcp"
    gone = tree(tmp_path / "c", {cache_planning.INTERFACE: "class FullAttentionSpec:\n    pass\n", "_version.py": ""})
    with pytest.raises(LearningError, match="has no FullAttentionSpec"):
        context_ranks(gone)
