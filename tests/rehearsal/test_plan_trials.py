"""Trials of a rehearsed plan: each sets its own values and leaves the config as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dsv4check.rehearsal.worker import plan_trials


def config() -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=4096, original_max_model_len=4096),
        cache_config=SimpleNamespace(num_gpu_blocks_override=None, gpu_memory_utilization=0.9),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=2048, max_num_seqs=16, async_scheduling=True),
    )


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What planning saw of the config, a trial each."""
    seen = []

    def plan(config: Any, specs: list[Any], memory: list[int]) -> list[Any]:
        seen.append(
            {
                "length": config.model_config.max_model_len,
                "asked": config.model_config.original_max_model_len,
                "batched": config.scheduler_config.max_num_batched_tokens,
                "override": config.cache_config.num_gpu_blocks_override,
                "memory": memory,
            }
        )
        if memory[0] == 0:
            raise ValueError("no memory")
        config.model_config.max_model_len = 77
        group = SimpleNamespace(layer_names=["a", "b"], kv_cache_spec=SimpleNamespace(block_size=256))
        return [SimpleNamespace(num_blocks=5, kv_cache_groups=[group]) for _rank in specs]

    monkeypatch.setattr(plan_trials.kv_cache, "plan", plan)
    monkeypatch.setattr(plan_trials, "_concurrency", lambda _config, _plan: 1.5)
    return seen


def test_every_trial_starts_from_the_launch(planned: list[dict[str, Any]]) -> None:
    given = config()
    trials = (
        {"memory": 8, "max_model_len": -1, "limit": 1_000_000, "max_num_batched_tokens": 512},
        {"memory": [8, 9], "max_model_len": -1},
        {"memory": 8, "max_model_len": 9000, "num_gpu_blocks_override": 3},
        {"memory": 0},
    )
    answers = plan_trials.run(given, [{}, {}], trials)
    assert planned == [
        {"length": 1_000_000, "asked": -1, "batched": 512, "override": None, "memory": [8, 8]},
        {"length": 4096, "asked": -1, "batched": 2048, "override": None, "memory": [8, 9]},
        {"length": 9000, "asked": 9000, "batched": 2048, "override": 3, "memory": [8, 8]},
        {"length": 4096, "asked": 4096, "batched": 2048, "override": None, "memory": [0, 0]},
    ]
    passed = {"blocks": [5, 5], "concurrency": [1.5, 1.5], "max_model_len": 77, "groups": [[[2, 256]], [[2, 256]]]}
    assert answers == [passed, passed, passed, {"error": "ValueError: no memory"}]
    assert given == config()


def test_layers_and_basis() -> None:
    full = SimpleNamespace(page_size_bytes=600, real_page_size_bytes=584, block_size=256, alignment=600)
    window = SimpleNamespace(page_size_bytes=8, real_page_size_bytes=8, block_size=4, sliding_window=128)
    told = plan_trials.describe_layers([{"a": full}, {"b": window}])
    assert told == [
        [{"page_bytes": 600, "unpadded_bytes": 584, "block_size": 256, "sliding_window": None, "alignment": 600}],
        [{"page_bytes": 8, "unpadded_bytes": 8, "block_size": 4, "sliding_window": 128, "alignment": None}],
    ]
    assert plan_trials.describe_basis(config()) == {
        "max_model_len": 4096,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 16,
        "async_scheduling": True,
        "in_flight_tokens": 2048,
        "gpu_memory_utilization": 0.9,
    }
