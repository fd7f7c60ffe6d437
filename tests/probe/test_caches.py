"""Layouts from a rehearsal's answer and from the rules' facts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dsv4check.api import check_request, read_request
from dsv4check.engine.rule import load_rules
from dsv4check.probe import caches
from dsv4check.probe.records import CheckStatus, layouts_from
from dsv4check.rehearsal.protocol import RehearsedStage, StageResult, Status, complete
from dsv4check.rehearsal.worker import sample
from dsv4check.report.model import Report
from tests.probe.layouts import packed_layouts

FLASH = "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8"


def report(flags: str = "--kv-cache-dtype fp8", gpu: str | None = "H200", vllm: str = "0.28.0") -> Report:
    return check_request(read_request(f"{FLASH} {flags}", gpu=gpu, gpus=8, vllm=vllm), load_rules(), fixes=False)


def answered(**last: Any) -> Any:
    results = [StageResult(stage, Status.OK) for stage in RehearsedStage if stage is not RehearsedStage.FLASHMLA]
    results[-1] = StageResult(RehearsedStage.KV_CACHE_INIT, **last)
    return complete(results, vllm="0.28.0", seconds=3.0)


def test_layouts_survive_the_way_to_a_child() -> None:
    layouts = packed_layouts()
    assert layouts_from(layouts.to_dict()) == layouts


def test_what_vllm_made() -> None:
    plain = packed_layouts().to_dict()
    made = {name: plain[name] for name in ("blocks", "storages", "caches")}
    rehearsal = answered(status=Status.OK, detail={"num_blocks": 117785, "runner": "v2", "sample": made})
    layouts, check = caches.read_rehearsal(rehearsal, "vLLM 0.28.0 (/x)")
    assert layouts is not None
    assert layouts.by_vllm
    assert layouts.caches == packed_layouts().caches
    assert check.status is CheckStatus.OK
    assert check.message == (
        "vLLM 0.28.0 planned 117,785 blocks, and allocated and reshaped 12 of them itself, on a simulated GPU"
    )


def test_where_vllm_stops_is_a_failure_in_its_own_words() -> None:
    failed = {"status": Status.FAILED, "exception": "RuntimeError", "message": "setStorage: no", "where": "a.py:1:f"}
    layouts, check = caches.read_rehearsal(answered(**failed), "")
    assert layouts is None
    assert (check.status, check.message) == (
        CheckStatus.FAILED,
        "vLLM 0.28.0 stops at kv-cache-init: RuntimeError: setStorage: no (at a.py:1:f)",
    )


def test_a_view_that_flashmla_refuses_is_a_failure() -> None:
    plain = packed_layouts().to_dict()
    made = {name: plain[name] for name in ("blocks", "storages", "caches")}
    results = [StageResult(stage, Status.OK) for stage in RehearsedStage]
    at = list(RehearsedStage).index(RehearsedStage.KV_CACHE_INIT)
    results[at] = StageResult(RehearsedStage.KV_CACHE_INIT, Status.OK, detail={"num_blocks": 9, "sample": made})
    results[-1] = StageResult(RehearsedStage.FLASHMLA, Status.FAILED, message="kv must have shape")
    layouts, check = caches.read_rehearsal(complete(results, vllm="0.30.0"), "")
    assert layouts is not None
    assert check.status is CheckStatus.FAILED


def test_a_rehearsal_that_could_not_tell_is_no_failure() -> None:
    rehearsal = complete([], reason="the child was killed by SIGKILL")
    layouts, check = caches.read_rehearsal(rehearsal, "")
    assert layouts is None
    assert check.status is CheckStatus.SKIPPED
    assert check.message == "vLLM's own allocation was not run: the child was killed by SIGKILL"


@pytest.mark.parametrize("broken", [{"caches": [{"kind": "swa"}]}, {"caches": 3}, {"storages": ["x"], "caches": []}])
def test_an_answer_that_is_none(broken: dict[str, Any]) -> None:
    made = {"blocks": 1, "storages": [1], **broken}
    layouts, check = caches.read_rehearsal(answered(status=Status.OK, detail={"num_blocks": 1, "sample": made}), "")
    assert layouts is None
    assert check.status is CheckStatus.SKIPPED


def test_layouts_from_facts() -> None:
    layouts = caches.from_facts(report())
    assert layouts is not None
    assert not layouts.by_vllm
    assert layouts.origin.endswith("vLLM's own allocation was not run")
    found = {cache.kind: (cache.shape[1:], cache.stride[0], cache.dtype) for cache in layouts.caches}
    assert found == {
        "main_c4": ((64, 584), 37_440, "uint8"),
        "main_c128": ((2, 584), 1_728, "uint8"),
        "swa": ((64, 584), 37_440, "uint8"),
        "indexer_k": ((64, 132), 8_640, "uint8"),
        "state_c4": ((4, 2048), 8_208, "float32"),
        "state_c128": ((8, 1024), 8_208, "float32"),
        "state_indexer": ((4, 512), 2_160, "float32"),
    }
    assert sum(layouts.storages) < 8 << 20
    for cache in layouts.caches:
        size = 4 if cache.dtype == "float32" else 1
        assert cache.shape[0] * cache.stride[0] * size == layouts.storages[cache.storage]


def test_plain_rows_from_facts() -> None:
    flags = "--kv-cache-dtype bfloat16 --attention-backend FLASHINFER_MLA_SPARSE_DSV4"
    layouts = caches.from_facts(report(flags, gpu="B200"))
    assert layouts is not None
    swa = next(cache for cache in layouts.caches if cache.kind == "swa")
    assert (swa.shape[1:], swa.dtype) == ((64, 512), "bfloat16")


def test_a_launch_without_layouts() -> None:
    assert caches.from_facts(report("--kv-cache-dtype bfloat16")) is None


def test_views_without_the_hybrid_manager_are_not_guessed() -> None:
    assert caches.from_facts(report("--disable-hybrid-kv-cache-manager")) is None


def test_what_the_kernel_is_asked_for() -> None:
    asked = caches.attention_of(report())
    assert (asked.cls, asked.padded_heads, asked.local_heads, asked.topk, asked.capability) == (
        "DeepseekV4FlashMLAAttention",
        64,
        8,
        512,
        (9, 0),
    )


def test_the_static_check_in_brief() -> None:
    summary = caches.static_summary(report("--kv-cache-dtype bfloat16"))
    assert (summary["verdict"], summary["stage"]) == ("fail", "model-init")
    assert len(summary["findings"]) == 1


# The worker's part: which blocks vLLM allocates, and what it says of them.


def test_a_plan_of_a_tensor_for_each_layer_is_cut() -> None:
    tensors = [SimpleNamespace(size=1000 * 37_440), SimpleNamespace(size=1000 * 1_728)]
    plan = SimpleNamespace(num_blocks=1000, kv_cache_tensors=tensors)
    assert sample.shrink(plan) == plan.num_blocks == 24
    assert [tensor.size for tensor in tensors] == [24 * 37_440, 24 * 1_728]


def test_a_packed_plan_keeps_its_places_in_a_block() -> None:
    tensor = SimpleNamespace(size=1000 * 4_000_000, layer_stride=37_440, block_stride=4_000_000, offset=8_640)
    plan = SimpleNamespace(num_blocks=1000, kv_cache_tensors=[tensor, tensor.__class__(**vars(tensor))])
    assert sample.shrink(plan) == 12
    assert vars(tensor) == {"size": 48_000_000, "layer_stride": 37_440, "block_stride": 4_000_000, "offset": 8_640}


def test_a_plan_of_layer_after_layer_moves_the_layers() -> None:
    tensor = SimpleNamespace(size=1000 * 74_880, layer_stride=37_440_000, block_stride=37_440, offset=37_440_000)
    plan = SimpleNamespace(num_blocks=1000, kv_cache_tensors=[tensor])
    assert sample.shrink(plan) == 24
    assert vars(tensor) == {
        "size": 24 * 74_880,
        "layer_stride": 24 * 37_440,
        "block_stride": 37_440,
        "offset": 24 * 37_440,
    }


@pytest.mark.parametrize(
    ("name", "spec", "kind"),
    [
        ("model.layers.2.attn", {"tokens_per_state": 4}, "main_c4"),
        ("model.layers.3.attn", {"compress_ratio": 128}, "main_c128"),
        ("model.layers.0.attn.swa_cache", {}, "swa"),
        ("model.layers.43.attn.swa_cache", {}, "draft_swa"),
        ("model.layers.2.attn.indexer.k_cache", {}, "indexer_k"),
        ("model.layers.2.attn.indexer.compressor.state_cache", {"sliding_window": 8}, "state_indexer"),
        ("model.layers.2.attn.compressor.state_cache", {"sliding_window": 8}, "state_c4"),
        ("model.layers.3.attn.compressor.state_cache", {"sliding_window": 128}, "state_c128"),
    ],
)
def test_kinds_of_layers(name: str, spec: dict[str, int], kind: str) -> None:
    assert sample.kind_of(name, SimpleNamespace(**spec), 43, [0, 0, 4, 128, *[4] * 39, 0]) == kind


def test_states_without_a_window_are_told_apart_all_the_same() -> None:
    """Without the hybrid manager they are full caches."""
    names = ["model.layers.2.attn.compressor.state_cache", "model.layers.3.attn.compressor.state_cache"]
    kinds = [sample.kind_of(name, SimpleNamespace(), 43, [0, 0, 4, 128]) for name in names]
    assert kinds == ["state_c4", "state_c128"]


def test_many_layers_with_tensors_of_their_own_leave_blocks_to_probe_with() -> None:
    """Only one layer of each kind is taken along: the others do not count against what the probe may take."""
    pages = [149_760] * 43 + [8_640, 524_736] * 21 + [37_440, 2_097_216] * 21 + [1_728, 1_049_760] * 20
    plan = SimpleNamespace(num_blocks=1000, kv_cache_tensors=[SimpleNamespace(size=1000 * page) for page in pages])
    assert sample.shrink(plan) >= 4
    assert plan.num_blocks * sum(set(pages)) <= 48 << 20
