"""Kernel packages: index widths, FlashInfer's SM12x shapes, drift from the pins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dsv4check.deployment import Command, Deployment, Hardware, Model, ServeFlags, VllmBuild
from dsv4check.problems import Origin
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Attention, Draft
from dsv4check.resolve.kernel_support import kernel_facts

_ORIGIN = Origin("option")


def _facts(**kernels: Any) -> ReleaseFacts:
    packages = {
        "flashinfer-python": "==0.6.14",
        "nvidia-cutlass-dsl": "==4.6.0",
        "flashinfer-cubin": "==0.6.14",
    }
    section = {"deep_gemm_sm12x": True, "dspark_index_multiple": 64, "pins_flashinfer_cubin": True, **kernels}
    return ReleaseFacts("9.9.9", {"kernels": section, "pins": {"packages": packages}})


def _resolve(
    facts: ReleaseFacts,
    *,
    heads: int | None = 32,
    draft: Draft | None = None,
    packages: Mapping[str, str] | None = None,
    text: Mapping[str, Any] | None = None,
) -> Mapping[str, Any]:
    config = {"sliding_window": 128, **(text or {})}
    deployment = Deployment(
        command=Command((), ()),
        flags=ServeFlags(None),
        env={},
        hardware=Hardware("nvidia", "RTX-PRO-6000", (12, 0)),
        vllm=VllmBuild("9.9.9", "release", "9.9.9", _ORIGIN),
        model=Model("m", "deepseek_v4", "original", "test", config, config),
        packages=packages or {},
    )
    attention = Attention(None, None, None, "fp8_ds_mla", heads, heads)
    return kernel_facts(deployment, facts, attention, draft or Draft(None))


@pytest.mark.parametrize(
    ("version", "heads", "width_kernel", "prefill_kernel"),
    [
        ("0.6.13", 32, False, False),
        ("0.6.14", 32, True, True),
        ("0.6.16.post3", 8, True, False),
        ("0.6.18", 8, True, True),
        ("0.7.2.post1", 64, True, True),
    ],
)
def test_shapes_without_a_draft(version: str, heads: int, width_kernel: bool, prefill_kernel: bool) -> None:
    found = _resolve(_facts(), heads=heads, packages={"flashinfer-python": version})
    assert (found["sm12x_decode_kernel"], found["sm12x_prefill_kernel"]) == (width_kernel, prefill_kernel)


@pytest.mark.parametrize(("multiple", "tokens", "width"), [(128, 5, 256), (64, 5, 192), (64, 64, 192), (64, 65, 256)])
def test_dspark_widens_the_index_list(multiple: int, tokens: int, width: int) -> None:
    draft = Draft("dspark", num_speculative_tokens=tokens)
    found = _resolve(_facts(dspark_index_multiple=multiple), draft=draft)
    assert found["sm12x_index_width"] == width
    assert found["sm12x_decode_kernel"] is False
    newer = _resolve(_facts(dspark_index_multiple=multiple), draft=draft, packages={"flashinfer-python": "0.6.18"})
    assert newer["sm12x_decode_kernel"] is True
    assert newer["sm12x_draft_kernel"] is True


def test_mtp_keeps_the_window() -> None:
    assert _resolve(_facts(), draft=Draft("mtp", num_speculative_tokens=3))["sm12x_index_width"] == 128


def test_vision_widens_prefill_only_where_the_release_does() -> None:
    vision = {"vision_n_layers": 32, "vision_max_n_token": 384}
    assert _resolve(_facts(image_tokens_widen_prefill=True), text=vision)["sm12x_prefill_width"] == 512
    assert _resolve(_facts(), text=vision)["sm12x_prefill_width"] == 128
    old = _resolve(_facts(image_tokens_widen_prefill=True), text=vision, packages={"flashinfer-python": "0.6.18.post1"})
    new = _resolve(_facts(image_tokens_widen_prefill=True), text=vision, packages={"flashinfer-python": "0.7.0.post1"})
    assert (old["sm12x_prefill_kernel"], new["sm12x_prefill_kernel"]) == (False, True)


def test_unknown_heads_leave_the_question_open() -> None:
    found = _resolve(_facts(), heads=None)
    assert found["sm12x_decode_kernel"] is None
    assert found["sm12x_prefill_kernel"] is None


@pytest.mark.parametrize(
    ("stated", "drift"),
    [(None, "same"), ("0.6.14+cu130", "same"), ("0.6.13", "older"), ("0.7.0", "newer"), ("main", None)],
)
def test_drift_from_the_pin(stated: str | None, drift: str | None) -> None:
    packages = {} if stated is None else {"flashinfer-python": stated}
    assert _resolve(_facts(), packages=packages)["flashinfer_drift"] == drift


def test_open_pins_never_drift() -> None:
    facts = ReleaseFacts("9.9.9", {"kernels": {}, "pins": {"packages": {"nvidia-cutlass-dsl": ">=4.4.2"}}})
    found = _resolve(facts, packages={"nvidia-cutlass-dsl": "4.6.0"})
    assert (found["cutlass_dsl"], found["cutlass_dsl_pin"], found["cutlass_dsl_drift"]) == (
        "4.6.0",
        None,
        None,
    )


def test_cubin_follows_flashinfer_only_when_stated() -> None:
    assert _resolve(_facts())["flashinfer_cubin_mismatch"] is False
    assert _resolve(_facts(), packages={"flashinfer-python": "0.6.15"})["flashinfer_cubin_mismatch"] is True
    both = {"flashinfer-python": "0.6.15", "flashinfer-cubin": "0.6.15"}
    assert _resolve(_facts(), packages=both)["flashinfer_cubin_mismatch"] is False
    unpinned = _facts(pins_flashinfer_cubin=False)
    assert _resolve(unpinned, packages={"flashinfer-python": "0.6.15"})["flashinfer_cubin_mismatch"] is False


def test_storage_offsets_become_mandatory_with_flashinfer_0_7() -> None:
    assert _resolve(_facts())["flashinfer_storage_offsets"] == "unknown keyword"
    newer = _resolve(_facts(), packages={"flashinfer-python": "0.7.0"})
    assert newer["flashinfer_storage_offsets"] == "required"


def test_without_an_attention_record_the_packages_are_still_judged() -> None:
    deployment = Deployment(
        command=Command((), ()),
        flags=ServeFlags(None, {"attention_config": {"backend": "flashmla_sparse", "indexer_kv_dtype": "mxfp4"}}),
        env={},
        hardware=Hardware("amd", "MI355X"),
        vllm=VllmBuild("9.9.9", "release", "9.9.9", _ORIGIN),
        model=Model("m", "deepseek_v4", "original", "test", {}, {}),
        packages={},
    )
    facts = ReleaseFacts("9.9.9", {"kv_cache": {"indexer": {"option": "indexer_kv_dtype"}}})
    found = kernel_facts(deployment, facts, None, Draft(None))
    assert found["indexer_dtype"] == "mxfp4"
    assert found["backend_requested"] == "FLASHMLA_SPARSE"
    assert found["sm12x_decode_kernel"] is None
