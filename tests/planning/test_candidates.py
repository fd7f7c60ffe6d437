"""Candidates: numbers of GPUs, layouts and tunings."""

from __future__ import annotations

import pytest

from dsv4check.planning.layouts import Layout, gpu_counts, layouts
from dsv4check.planning.tuning import Limits, Tuning, steps

LIMITS = Limits(tokens=8192, seqs=1024, utilization=0.92)


@pytest.mark.parametrize(
    ("per_node", "nodes", "counts"),
    [(8, 2, [1, 2, 4, 8, 16]), (1, 2, [1, 2]), (4, 3, [1, 2, 4, 8, 12]), (6, 1, [1, 2, 4, 6]), (8, 1, [1, 2, 4, 8])],
)
def test_gpu_counts(per_node: int, nodes: int, counts: list[int]) -> None:
    assert gpu_counts(per_node, nodes) == counts


@pytest.mark.parametrize("per_node", [1, 4, 8])
@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("linked", [False, True])
def test_layouts_use_all_gpus_and_are_distinct(per_node: int, nodes: int, linked: bool) -> None:
    for gpus in gpu_counts(per_node, nodes):
        found = layouts(gpus, per_node, linked_nodes=linked)
        assert found
        assert {layout.gpus for layout in found} == {gpus}
        assert len({layout.label for layout in found}) == len(found)
        # A node's GPUs are never left half used by a launch over several.
        assert all(layout.nodes == 1 or gpus == per_node * layout.nodes for layout in found)


def test_tensor_parallelism_crosses_nodes_only_with_nvlink_or_single_gpus() -> None:
    assert max(layout.tensor for layout in layouts(16, 8)) == 8
    assert max(layout.tensor for layout in layouts(8, 4, linked_nodes=True)) == 8
    assert max(layout.tensor for layout in layouts(2, 1)) == 2


def test_labels() -> None:
    assert Layout().label == "one GPU"
    assert Layout(tensor=8, pipeline=2, nodes=2).label == "TP 8 x PP 2 over 2 nodes"
    assert Layout(tensor=2, data=4, experts=True).label == "TP 2 x DP 4 + EP"


def test_further_nodes_get_their_own_rank() -> None:
    pipeline = Layout(tensor=8, pipeline=3, nodes=3)
    assert ("--node-rank", "0") in pipeline.flags()
    assert [flag for flag in pipeline.follower_flags(2) if flag not in pipeline.flags()] == [
        ("--node-rank", "2"),
        ("--headless",),
    ]
    data = Layout(data=16, experts=True, nodes=2)
    assert [flag for flag in data.follower_flags(1) if flag not in data.flags()] == [
        ("--data-parallel-start-rank", "8"),
        ("--headless",),
    ]


def test_steps_start_with_the_defaults_and_end_with_the_most_room() -> None:
    found = steps(LIMITS, 32, ())
    assert found[0] == Tuning()
    assert found[-1] == Tuning(512, 32, 0.95)
    # A higher utilisation comes last, a smaller chunk after a smaller number of requests.
    assert [item.utilization for item in found] == sorted((item.utilization for item in found), key=bool)
    assert found[:4] == [Tuning(), Tuning(seqs=32), Tuning(4096), Tuning(4096, 32)]


def test_every_step_admits_the_requests() -> None:
    for requests in (1, 512, 513, 1024, 1025, 9000):
        for item in steps(LIMITS, requests, ()):
            assert (item.seqs or LIMITS.seqs) >= requests
            assert (item.tokens or LIMITS.tokens) >= requests


def test_stated_flags_are_not_tuned() -> None:
    given = {"max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization"}
    assert steps(LIMITS, 32, given) == [Tuning()]
    assert {item.utilization for item in steps(LIMITS, 32, {"kv_cache_memory_bytes"})} == {None}
