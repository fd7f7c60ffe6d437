"""The sparse decode call, with a stand-in for FlashMLA that computes in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from dsv4check.probe import device_caches, kernel, packed, reference  # noqa: E402
from tests.probe.layouts import ATTENTION, packed_layouts  # noqa: E402
from tests.probe.stand import Stand  # noqa: E402

ATTENDED = ATTENTION.to_dict()


@pytest.fixture
def caches() -> dict[str, device_caches.Cache]:
    _storages, made = device_caches.allocate(packed_layouts().to_dict(), "cpu")
    kernel.fill(made, 3)
    return made


def compared(stand: Stand, caches: dict[str, device_caches.Cache], extra: str | None) -> dict[str, Any]:
    call = kernel.build(caches["swa"], caches[extra] if extra else None, ATTENDED, 5)
    return kernel.compare(call, *kernel.run(stand.interface(), call))


@pytest.mark.parametrize("extra", [None, "main_c4", "main_c128"])
def test_a_right_kernel_is_inside(caches: dict[str, device_caches.Cache], extra: str | None) -> None:
    figures = compared(Stand(), caches, extra)
    assert figures["inside"]
    assert figures["lse_agrees"]
    assert 0 < figures["worst_share_of_bound"] <= 1


def without_extra(caches: dict[str, device_caches.Cache]) -> Callable[[Any], Any]:
    call = kernel.build(caches["swa"], None, ATTENDED, 5)
    arguments = (call.q, call.cache, call.indices, call.lengths)
    return lambda _output: reference.sparse_decode(*arguments, attn_sink=call.sink)[0]


def without_sink(caches: dict[str, device_caches.Cache]) -> Callable[[Any], Any]:
    call = kernel.build(caches["swa"], caches["main_c4"], ATTENDED, 5)
    arguments = (call.q, call.cache, call.indices, call.lengths, call.extra_cache, call.extra_indices)
    return lambda _output: reference.sparse_decode(*arguments, call.extra_lengths)[0]


@pytest.mark.parametrize(
    "fault",
    [
        without_extra,
        without_sink,
        lambda _caches: lambda output: output * 1.05,
        lambda _caches: lambda output: torch.where(torch.arange(512) == 511, float("nan"), output),
        lambda _caches: lambda output: output.roll(1, dims=0),
    ],
)
def test_wrong_kernels_are_outside(
    caches: dict[str, device_caches.Cache], fault: Callable[[Any], Callable[[Any], Any]]
) -> None:
    assert not compared(Stand(fault(caches)), caches, "main_c4")["inside"]


def test_the_call_is_vllms(caches: dict[str, device_caches.Cache]) -> None:
    stand = Stand()
    compared(stand, caches, "main_c4")
    given = stand.given
    assert given["q"].shape == (4, 1, 64, 512)
    assert given["k_cache"].shape == (12, 64, 1, 584)
    assert given["indices"].shape == (4, 1, 128)
    assert given["extra_indices_in_kvcache"].shape == (4, 1, 512)
    assert given["attn_sink"][8:].tolist() == [float("-inf")] * 56
    assert torch.isfinite(given["attn_sink"][:8]).all()
    assert given["softmax_scale"] == 512**-0.5
    assert given["head_dim_v"] == 512
    assert given["block_table"] is None
    assert given["is_fp8_kvcache"] is True
    own = {int(slot) for slot in caches["main_c4"].slots}
    for row, length in zip(given["extra_indices_in_kvcache"][:, 0], given["extra_topk_length"], strict=True):
        assert {int(slot) for slot in row[: int(length)]} <= own
        assert row[int(length) :].tolist() == [-1] * (512 - int(length))


def test_c128_lists_are_padded_to_what_sm100_wants(caches: dict[str, device_caches.Cache]) -> None:
    call = kernel.build(caches["swa"], caches["main_c128"], ATTENDED, 5)
    assert call.extra_indices.shape == (4, 1, 128)
    assert int(call.extra_lengths.max()) == len(caches["main_c128"].slots)


def test_a_narrow_view_is_refused_by_the_call(caches: dict[str, device_caches.Cache]) -> None:
    call = kernel.build(caches["swa"], None, ATTENDED, 5)
    call.cache = device_caches.narrow(caches["swa"])
    with pytest.raises(RuntimeError, match=r"kv must have shape \(num_blocks"):
        kernel.run(Stand().interface(), call)


def test_flashmla_that_is_not_there_says_what_each_place_answered() -> None:
    with pytest.raises(ImportError, match=r"flash_mla_interface: No module named") as raised:
        kernel.load()
    assert "flash_mla: No module named 'flash_mla'" in str(raised.value)


def test_keys_fill_every_slot(caches: dict[str, device_caches.Cache]) -> None:
    for kind in ("swa", "main_c4", "main_c128"):
        assert bool((packed.read_states(caches[kind].view, caches[kind].slots).abs().sum(dim=1) > 0).all())
