"""Parallel sizes, the geometry of a launch, expert balancing and the model's limits, per release."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4check.problems import Stage
from tests.resolve.engine_launches import PRO, RELEASES, deployment, parallel_of


def codes(vllm: str, flags: dict[str, Any], **more: Any) -> set[str]:
    return set(parallel_of(deployment(vllm, flags, **more))[1])


def test_sizes_multiply() -> None:
    flags = {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "data_parallel_size": 2,
        "enable_expert_parallel": True,
    }
    parallel, problems = parallel_of(deployment("0.28.0", flags))
    assert not problems
    assert (parallel.world_size, parallel.total, parallel.expert_parallel_size) == (4, 8, 4)
    assert (parallel.local_heads, parallel.local_o_groups) == (32, 4)


@pytest.mark.parametrize("vllm", RELEASES)
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_powers_of_two_up_to_the_groups_are_fine(vllm: str, size: int) -> None:
    assert codes(vllm, {"tensor_parallel_size": size}) == set()


@pytest.mark.parametrize("vllm", RELEASES)
def test_heads_must_divide(vllm: str) -> None:
    problem = parallel_of(deployment(vllm, {"tensor_parallel_size": 3}))[1]["heads-not-divisible"]
    assert problem.stage is Stage.ENGINE_CONFIG
    assert problem.error == ("Total number of attention heads (64) must be divisible by tensor parallel size (3).")
    assert (problem.data["lower"], problem.data["higher"]) == (2, 4)
    assert problem.origin is not None
    assert problem.origin.text == "--tensor_parallel_size"


def test_suggested_size_never_exceeds_the_groups() -> None:
    problem = parallel_of(deployment("0.28.0", {"tensor_parallel_size": 12}, gpus=16))[1]["heads-not-divisible"]
    assert (problem.data["lower"], problem.data["higher"]) == (8, 8)


@pytest.mark.parametrize("vllm", RELEASES)
def test_flash_at_tp16_divides_by_zero_after_loading(vllm: str) -> None:
    flags = {"tensor_parallel_size": 16, "nnodes": 2, "node_rank": 0}
    problems = parallel_of(deployment(vllm, flags, nodes=2))[1]
    assert set(problems) == {"o-groups-below-tp"}
    assert problems["o-groups-below-tp"].stage is Stage.WEIGHT_LOAD
    assert problems["o-groups-below-tp"].exception == "ZeroDivisionError"


def test_pro_has_a_group_for_each_of_16_ranks() -> None:
    flags = {"tensor_parallel_size": 16, "nnodes": 2, "node_rank": 0}
    assert codes("0.24.0", flags, nodes=2, config=PRO) == set()


@pytest.mark.parametrize(("vllm", "refused"), [("0.20.2", True), ("0.21.0", False), ("0.33.0", False)])
def test_pipeline_parallelism_arrives_in_0_21(vllm: str, refused: bool) -> None:
    flags = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    assert ("pp-unsupported" in codes(vllm, flags)) is refused


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("22,21", None),
        ("22,22", "sum(partitions)=44 does not match num_hidden_layers=43."),
        ("43", "len(partitions)=1 does not match pp_size=2."),
        ("a,b", "Invalid partition string: a,b"),
    ],
)
def test_layer_partition(value: str, error: str | None) -> None:
    flags = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    launch = deployment("0.28.0", flags, env={"VLLM_PP_LAYER_PARTITION": value})
    problem = parallel_of(launch)[1].get("pp-layer-partition")
    assert (problem.error if problem else None) == error
    if problem is not None:
        assert problem.data["even"] == "21,22"


@pytest.mark.parametrize("vllm", RELEASES)
def test_no_release_has_decode_context_parallelism(vllm: str) -> None:
    problems = parallel_of(deployment(vllm, {"tensor_parallel_size": 8, "decode_context_parallel_size": 2}))[1]
    assert set(problems) == {"dcp-unsupported"}
    assert problems["dcp-unsupported"].stage is Stage.KV_CACHE_INIT


def test_context_sizes_in_the_words_of_the_release() -> None:
    flags = {"tensor_parallel_size": 8, "decode_context_parallel_size": 3}
    old = parallel_of(deployment("0.25.1", flags))[1]["dcp-not-divisible"].error
    new = parallel_of(deployment("0.26.0", flags))[1]["dcp-not-divisible"].error
    assert old == "tp_size=8 must be divisible bydcp_size=3."
    assert new == "tp_size=8 must be divisible by dcp_size=3."


@pytest.mark.parametrize(
    ("vllm", "code"),
    [("0.25.1", "pcp-unsupported"), ("0.28.0", "pcp-with-dp"), ("0.30.0", "pcp-unsupported")],
)
def test_prefill_context_with_data_parallelism(vllm: str, code: str) -> None:
    flags = {"tensor_parallel_size": 2, "prefill_context_parallel_size": 2, "data_parallel_size": 2}
    assert codes(vllm, flags) == {code}


def test_more_ranks_than_gpus() -> None:
    problem = parallel_of(deployment("0.28.0", {"tensor_parallel_size": 8}, gpus=4))[1]["world-exceeds-gpus"]
    assert problem.error.startswith("World size (8) is larger than the number of available GPUs (4) in this node.")


@pytest.mark.parametrize(
    ("flags", "more"),
    [
        ({"tensor_parallel_size": 8}, {"gpus": None}),
        ({"tensor_parallel_size": 8, "distributed_executor_backend": "ray"}, {"gpus": 4}),
        ({"tensor_parallel_size": 8, "distributed_executor_backend": "external_launcher"}, {"gpus": 4}),
        ({"tensor_parallel_size": 8, "nnodes": 2, "node_rank": 1}, {"gpus": 4, "nodes": 2}),
        ({"data_parallel_size": 16, "data_parallel_size_local": 8}, {"nodes": 2}),
        ({"data_parallel_size": 16, "data_parallel_backend": "ray"}, {"nodes": 2}),
        ({"data_parallel_size": 8, "data_parallel_rank": 5}, {"gpus": 1}),
    ],
)
@pytest.mark.parametrize("vllm", RELEASES)
def test_undecided_placements_are_left_alone(vllm: str, flags: dict[str, Any], more: dict[str, Any]) -> None:
    assert codes(vllm, flags, **more) == set()


def test_ranks_beyond_the_last_gpu() -> None:
    flags = {"tensor_parallel_size": 4, "data_parallel_size": 4}
    problem = parallel_of(deployment("0.28.0", flags))[1]["ranks-exceed-gpus"]
    assert problem.stage is Stage.MODEL_INIT
    assert problem.data["ranks"] == 16


def test_ranks_an_orchestrator_would_place_are_only_a_warning() -> None:
    problems = parallel_of(deployment("0.26.0", {"data_parallel_size": 8}, gpus=4, nodes=2))[1]
    assert set(problems) == {"dp-ranks-not-placed"}
    assert problems["dp-ranks-not-placed"].exception == ""


@pytest.mark.parametrize(("vllm", "exception"), [("0.26.0", "AssertionError"), ("0.27.0", "ValueError")])
@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"tensor_parallel_size": 8, "nnodes": 3}, "nnodes-not-divisible"),
        ({"tensor_parallel_size": 8, "nnodes": 2, "node_rank": 2}, "node-rank-out-of-range"),
        ({"data_parallel_size": 8, "nnodes": 2, "data_parallel_backend": "ray"}, "nnodes-needs-mp"),
        ({"data_parallel_size": 8, "data_parallel_external_lb": True}, "external-lb-rank"),
        (
            {"data_parallel_size": 8, "data_parallel_rank": 1, "data_parallel_size_local": 2},
            "external-lb-local-size",
        ),
        ({"data_parallel_size": 8, "data_parallel_hybrid_lb": True}, "hybrid-lb-local-size"),
    ],
)
def test_geometry_becomes_value_errors_in_0_27(vllm: str, exception: str, flags: dict[str, Any], code: str) -> None:
    problems = parallel_of(deployment(vllm, flags, gpus=None))[1]
    assert {name: problem.exception for name, problem in problems.items()} == {code: exception}


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"data_parallel_size": 4, "data_parallel_size_local": 8}, "dp-local-above-dp"),
        ({"data_parallel_size": 8, "data_parallel_rank": 8}, "dp-rank-out-of-range"),
        ({"data_parallel_rank": 0}, "external-lb-without-dp"),
        ({"headless": True, "api_server_count": 1}, "headless-conflict"),
        (
            {"data_parallel_size": 8, "data_parallel_start_rank": 4, "data_parallel_rank": 4},
            "lb-modes-conflict",
        ),
    ],
)
def test_launch_conflicts(flags: dict[str, Any], code: str) -> None:
    assert codes("0.28.0", flags, gpus=None) == {code}


def test_start_rank_of_a_second_node_is_fine() -> None:
    flags = {
        "data_parallel_size": 16,
        "data_parallel_size_local": 8,
        "data_parallel_start_rank": 8,
        "headless": True,
    }
    assert codes("0.28.0", flags, nodes=2) == set()


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"enable_eplb": True, "tensor_parallel_size": 8}, "eplb-needs-ep"),
        ({"enable_eplb": True, "enable_expert_parallel": True}, "eplb-single-rank"),
        ({"eplb_config": {"num_redundant_experts": 8}}, "eplb-redundant-without-eplb"),
        (
            {
                "enable_eplb": True,
                "enable_expert_parallel": True,
                "tensor_parallel_size": 8,
                "eplb_config": {"num_redundant_experts": 12},
            },
            "eplb-experts-uneven",
        ),
    ],
)
@pytest.mark.parametrize("vllm", RELEASES)
def test_expert_balancing(vllm: str, flags: dict[str, Any], code: str) -> None:
    if code == "eplb-experts-uneven" and vllm in RELEASES[: RELEASES.index("0.23.0")]:
        code = "eplb-not-implemented"  # the model makes no room for redundant experts, so nothing is divided
    assert codes(vllm, flags) == {code}


@pytest.mark.parametrize(("vllm", "works"), [("0.20.0", False), ("0.22.1", False), ("0.23.0", True), ("0.33.0", True)])
def test_v4_joins_the_balancer_in_0_23(vllm: str, works: bool) -> None:
    flags = {"enable_eplb": True, "enable_expert_parallel": True, "tensor_parallel_size": 8}
    problems = parallel_of(deployment(vllm, flags))[1]
    assert ("eplb-not-implemented" not in problems) is works
    if not works:
        assert problems["eplb-not-implemented"].stage is Stage.WARMUP


@pytest.mark.parametrize(
    ("vllm", "backend", "refused"),
    [
        ("0.23.0", "nixl_ep", True),
        ("0.24.0", "nixl_ep", False),
        ("0.24.0", "naive", True),
        ("0.24.0", "deepep_low_latency", False),
    ],
)
def test_microbatches(vllm: str, backend: str, refused: bool) -> None:
    flags = {"enable_dbo": True, "data_parallel_size": 8, "all2all_backend": backend}
    assert ("dbo-all2all" in codes(vllm, flags)) is refused


@pytest.mark.parametrize(("vllm", "refused"), [("0.31.0", False), ("0.32.0", True)])
def test_hyper_connection_sequence_parallelism(vllm: str, refused: bool) -> None:
    assert ("hc-sp-unsupported" in codes(vllm, {"enable_hc_sp": True, "tensor_parallel_size": 8})) is refused


def test_junk_sizes_do_not_crash() -> None:
    for junk in (0, -1, "8", None, True, 1.5):
        parallel, _ = parallel_of(deployment("0.28.0", {"tensor_parallel_size": junk}))
        assert parallel.tensor == 1


@pytest.mark.parametrize(("nodes", "offered"), [(1, False), (2, True)])
def test_ray_is_only_offered_for_gpus_that_are_there(nodes: int, offered: bool) -> None:
    problems = parallel_of(deployment("0.33.0", {"tensor_parallel_size": 8}, gpus=4, nodes=nodes))[1]
    data = problems["world-exceeds-gpus"].data
    assert data["ray_executor"] == ("distributed_executor_backend" if offered else "")


def test_ranks_that_fit_the_node() -> None:
    flags = {"tensor_parallel_size": 2, "data_parallel_size": 8}
    problems = parallel_of(deployment("0.33.0", flags, gpus=8))[1]
    assert problems["ranks-exceed-gpus"].data["fitting_ranks"] == 4
