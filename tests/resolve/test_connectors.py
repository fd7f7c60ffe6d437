"""KV connectors: names per release, the hybrid KV-cache manager, offloading sizes, HiSparse and NIXL."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4check.problems import Stage
from tests.resolve.engine_launches import RELEASES, connectors_of, deployment

TP8 = {"tensor_parallel_size": 8}


def transfer(name: str, role: str | None = "kv_both", **extra: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"kv_connector": name}
    if role is not None:
        config["kv_role"] = role
    if extra:
        config["kv_connector_extra_config"] = extra
    return {"kv_transfer_config": config}


def codes(vllm: str, flags: dict[str, Any], **more: Any) -> set[str]:
    return set(connectors_of(deployment(vllm, {**TP8, **flags}, **more))[0])


def manager(vllm: str, flags: dict[str, Any]) -> tuple[bool, str]:
    values = connectors_of(deployment(vllm, {**TP8, **flags}))[1]
    return values["hybrid_manager_disabled"], values["hybrid_manager_why"]


@pytest.mark.parametrize("vllm", RELEASES)
def test_without_connector_nothing_happens(vllm: str) -> None:
    problems, values = connectors_of(deployment(vllm, TP8))
    assert not problems
    assert values == {
        "kv_connector": None,
        "kv_connectors": [],
        "hybrid_manager_disabled": False,
        "hybrid_manager_why": "",
    }


@pytest.mark.parametrize(
    ("vllm", "name", "known"),
    [
        ("0.23.0", "P2pNcclConnector", True),
        ("0.24.0", "P2pNcclConnector", False),
        ("0.20.2", "MooncakeStoreConnector", False),
        ("0.21.0", "MooncakeStoreConnector", True),
        ("0.29.0", "HiSparseConnector", False),
        ("0.30.0", "HiSparseConnector", True),
        ("0.23.0", "NixlPushConnector", False),
        ("0.28.0", "SharedStorageConnector", False),
    ],
)
def test_registered_names(vllm: str, name: str, known: bool) -> None:
    assert ("connector-unknown" not in codes(vllm, transfer(name))) is known


def test_a_module_path_leaves_everything_open() -> None:
    flags = transfer("Mine")
    flags["kv_transfer_config"]["kv_connector_module_path"] = "my.module"
    assert codes("0.28.0", flags) == set()


@pytest.mark.parametrize(
    ("vllm", "name", "off"),
    [
        ("0.20.2", "NixlConnector", True),
        ("0.21.0", "NixlConnector", True),
        ("0.22.0", "NixlConnector", False),
        ("0.22.0", "OffloadingConnector", False),
        ("0.25.0", "LMCacheConnectorV1", True),
        ("0.25.0", "LMCacheMPConnector", False),
        ("0.29.0", "MoRIIOConnector", True),
        ("0.30.0", "MoRIIOConnector", False),
    ],
)
def test_hybrid_manager_by_connector(vllm: str, name: str, off: bool) -> None:
    assert manager(vllm, transfer(name)) == (off, "connector" if off else "")


@pytest.mark.parametrize("vllm", RELEASES)
def test_hybrid_manager_by_flag(vllm: str) -> None:
    assert manager(vllm, {"disable_hybrid_kv_cache_manager": True}) == (True, "flag")
    kept = {"disable_hybrid_kv_cache_manager": False, **transfer("NixlConnector")}
    assert manager(vllm, kept) == (False, "")
    assert codes(vllm, kept) == set()


def test_multi_connector_needs_every_child_to_agree() -> None:
    children = [{"kv_connector": "NixlConnector", "kv_role": "kv_both"}]
    assert manager("0.28.0", transfer("MultiConnector", connectors=children)) == (False, "")
    children.append({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"})
    assert manager("0.28.0", transfer("MultiConnector", connectors=children)) == (True, "connector")


def test_children_are_checked() -> None:
    children = [{"kv_connector": "Nixl", "kv_role": "kv_both"}, {"kv_connector": "NixlConnector"}]
    flags = transfer("MultiConnector", connectors=children)
    assert codes("0.28.0", flags) == {"connector-unknown", "connector-child-role"}


def test_full_attention_sizing_does_not_fit_a_million_tokens() -> None:
    problems = connectors_of(deployment("0.20.2", {**TP8, **transfer("NixlConnector")}))[0]
    problem = problems["hybrid-manager-off-by-connector"]
    assert problem.stage is Stage.KV_CACHE_INIT
    assert problem.data["need_gib"] > 200
    assert codes("0.20.2", {**transfer("NixlConnector"), "max_model_len": 32768}) == {"hybrid-manager-off"}
    assert codes("0.20.2", {**transfer("NixlConnector"), "max_model_len": -1}) == set()


def test_connector_without_support_and_the_manager_kept_on() -> None:
    flags = {"disable_hybrid_kv_cache_manager": False, **transfer("LMCacheConnectorV1")}
    problems = connectors_of(deployment("0.28.0", {**TP8, **flags}))[0]
    assert problems["connector-needs-plain-cache"].error.startswith("Connector LMCacheConnectorV1 does not support")


@pytest.mark.parametrize(
    ("vllm", "expected"),
    [
        ("0.20.2", {"connector-needs-plain-cache"}),
        ("0.21.0", {"offload-hash-size"}),
        ("0.22.0", set()),
        ("0.33.0", set()),
    ],
)
def test_offloading_flag(vllm: str, expected: set[str]) -> None:
    assert codes(vllm, {"kv_offloading_size": 100}) == expected


@pytest.mark.parametrize(
    ("vllm", "extra", "expected"),
    [
        ("0.28.0", {"cpu_bytes_to_use": 1 << 34}, set()),
        ("0.28.0", {"cpu_bytes_to_use": 1 << 34, "block_size": 256}, {"offload-block-size"}),
        (
            "0.28.0",
            {"cpu_bytes_to_use": 1 << 34, "block_size": 256, "blocks_per_chunk": 4},
            {"offload-both-sizes"},
        ),
        ("0.28.0", {"cpu_bytes_to_use": 1 << 34, "blocks_per_chunk": 0}, {"offload-chunk"}),
        ("0.28.0", {"blocks_per_chunk": 4}, {"offload-no-bytes"}),
        ("0.25.0", {"cpu_bytes_to_use": 1 << 34, "blocks_per_chunk": 0}, set()),
        ("0.28.0", {"spec_name": "MySpec", "spec_module_path": "m"}, set()),
        ("0.28.0", {"cpu_bytes_to_use": 1 << 34, "eviction_policy": "arc"}, set()),
        ("0.28.0", {"cpu_bytes_to_use": 1 << 34, "eviction_policy": "fifo"}, {"offload-tier-refused"}),
        ("0.28.0", {"cpu_bytes_to_use": 1 << 34, "eviction_policy": "My", "cache_policy_module_path": "m"}, set()),
    ],
)
def test_offloading_sizes(vllm: str, extra: dict[str, Any], expected: set[str]) -> None:
    assert codes(vllm, transfer("OffloadingConnector", **extra)) == expected


@pytest.mark.parametrize("name", ["OffloadingConnector", "SimpleCPUOffloadConnector"])
@pytest.mark.parametrize(
    ("size", "meant"),
    [
        ("100GB", 100 * 10**9),
        ("1.5 GiB", 3 << 29),
        ("64g", 64 * 10**9),
        ("2Ti", 2 << 40),
        ("a lot", 1 << 34),
        ("1e10", 1 << 34),
        ("17179869184", None),
        (1e10, None),
    ],
)
def test_a_size_is_a_number_of_bytes(name: str, size: Any, meant: int | None) -> None:
    found = connectors_of(deployment("0.28.0", {**TP8, **transfer(name, cpu_bytes_to_use=size)}))[0]
    assert [problem.data["bytes"] for problem in found.values()] == ([] if meant is None else [meant])


def test_an_offload_among_several_connectors_is_looked_at() -> None:
    children = [transfer(name)["kv_transfer_config"] for name in ("NixlConnector", "OffloadingConnector")]
    assert codes("0.28.0", transfer("MultiConnector", connectors=children)) == {"offload-no-bytes"}


FS = {"type": "fs", "root_dir": "/kv"}


@pytest.mark.parametrize(
    ("vllm", "tiers", "said"),
    [
        ("0.28.0", [FS], None),
        ("0.28.0", [], None),
        ("0.21.0", [FS], "Unsupported spec type: TieringOffloadingSpec"),
        ("0.22.0", [FS], "Unknown secondary tier type: 'fs'."),
        ("0.22.0", [{"type": "fs_python", "root_dir": "/kv"}], None),
        ("0.28.0", FS, "secondary_tiers must be a list of tier configurations"),
        ("0.28.0", [{"root_dir": "/kv"}], "Secondary tier configuration must include 'type'"),
        ("0.28.0", [{"type": "fs"}], "__init__() missing 1 required positional argument: 'root_dir'"),
        ("0.28.0", [{**FS, "locality": "node"}], None),
        ("0.25.0", [{**FS, "locality": "node"}], "__init__() got an unexpected keyword argument 'locality'"),
        ("0.28.0", [{"type": "Mine", "module_path": "mine"}], None),
        ("0.28.0", [{"type": ["fs"]}], "Unknown secondary tier type: ['fs']."),
        ("0.27.1", [{"type": "p2p", "anything": 1}], "PYTHONHASHSEED must be set"),
        ("0.29.0", [{"type": "p2p"}], None),
        ("0.28.0", ["fs"], None),
    ],
)
def test_offloading_tiers(vllm: str, tiers: Any, said: str | None) -> None:
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 1 << 34, "secondary_tiers": tiers}
    kept = {"disable_hybrid_kv_cache_manager": False, **transfer("OffloadingConnector", **extra)}
    found = connectors_of(deployment(vllm, {**TP8, **kept}))[0]
    assert [problem.error[: len(said or "")] for problem in found.values()] == ([] if said is None else [said])


def test_offloading_tiers_are_in_host_memory_first() -> None:
    assert codes(
        "0.28.0", transfer("OffloadingConnector", spec_name="TieringOffloadingSpec", secondary_tiers=[FS])
    ) == {"offload-no-bytes"}


@pytest.mark.parametrize(
    ("vllm", "flags", "refused"),
    [
        ("0.20.2", {}, False),
        ("0.21.0", {}, True),
        ("0.21.0", {"enable_sleep_mode": True}, False),
        ("0.28.0", {}, True),
        ("0.28.0", {"enable_cumem_allocator": True}, False),
    ],
)
def test_expandable_segments(vllm: str, flags: dict[str, Any], refused: bool) -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    kept = {"disable_hybrid_kv_cache_manager": False, **transfer("NixlConnector"), **flags}
    assert ("connector-expandable-segments" in codes(vllm, kept, env=env)) is refused


@pytest.mark.parametrize(("vllm", "refused"), [("0.26.0", True), ("0.29.0", True), ("0.30.0", False)])
def test_nixl_in_a_single_process(vllm: str, refused: bool) -> None:
    flags = {"tensor_parallel_size": 1, "max_model_len": 131072, **transfer("NixlConnector")}
    assert ("nixl-single-process" in codes(vllm, flags, gpu="B300", gpus=1)) is refused
    assert "nixl-single-process" not in codes(vllm, {**flags, "tensor_parallel_size": 2})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (transfer("HiSparseConnector", host_pool_gib=64), {"hisparse-v4"}),
        (transfer("HiSparseConnector"), {"hisparse-v4", "hisparse-pool"}),
        (transfer("HiSparseConnector", host_pool_gib=0), {"hisparse-v4", "hisparse-pool"}),
        ({"attention_config": {"hisparse_config": {}}}, {"hisparse-v4", "hisparse-pool"}),
        ({"attention_config": {}}, set()),
        (
            {**transfer("HiSparseConnector", host_pool_gib=64), "pipeline_parallel_size": 2},
            {"hisparse-refused"},
        ),
        (
            {
                **transfer("HiSparseConnector", host_pool_gib=64),
                "compilation_config": {"cudagraph_mode": "FULL"},
            },
            {"hisparse-refused"},
        ),
    ],
)
def test_hisparse(flags: dict[str, Any], expected: set[str]) -> None:
    assert codes("0.32.0", flags) == expected


@pytest.mark.parametrize(
    ("vllm", "name", "extra", "refused"),
    [
        ("0.33.0", "NixlConnector", {}, False),
        ("0.33.0", "NixlConnector", {"backends": ["LIBFABRIC"]}, True),
        ("0.33.0", "NixlPushConnector", {}, True),
        ("0.32.0", "NixlPushConnector", {}, False),
    ],
)
def test_sleep_mode(vllm: str, name: str, extra: dict[str, Any], refused: bool) -> None:
    flags = {"enable_sleep_mode": True, **transfer(name, **extra)}
    assert ("connector-sleep-mode" in codes(vllm, flags)) is refused


@pytest.mark.parametrize("junk", [{}, {"kv_connector": 3}, {"kv_connector": None}, {"kv_connector_extra_config": []}])
def test_junk_configs_are_survived(junk: dict[str, Any]) -> None:
    assert "connector-unknown" not in codes("0.28.0", {"kv_transfer_config": junk})
