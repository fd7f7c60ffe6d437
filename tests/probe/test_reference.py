"""The reference decode: against a loop over single states, and its bounds against a kernel's roundings and faults."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

from dsv4check.probe import packed  # noqa: E402
from dsv4check.probe.reference import agreement, error_bounds, lse_agrees, sparse_decode  # noqa: E402
from tests.probe.test_packed import random_keys  # noqa: E402


@dataclass(frozen=True)
class Decode:
    """Arguments of a decode, filled with real bytes."""

    q: Any
    cache: Any
    indices: Any
    topk_length: Any
    extra_cache: Any
    extra_indices: Any
    extra_topk_length: Any
    attn_sink: Any

    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def filled(blocks: int, states: int, seed: int) -> Any:
    cache = packed.new_cache(blocks, states, fill=0x7F)
    packed.write_states(cache, torch.arange(blocks * states), random_keys(blocks * states, seed, spread=1.0))
    return cache


def decode(tokens: int = 3, heads: int = 4, width: int = 64, seed: int = 0, states: int = 64) -> Decode:
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Any:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32)

    return Decode(
        q=torch.randn(tokens, 1, heads, 512, generator=generator).to(torch.bfloat16),
        cache=filled(2, states, seed),
        indices=integers(-1, 2 * states, tokens, 1, width),
        topk_length=integers(0, width + 1, tokens),
        extra_cache=filled(5, 2, seed + 1),
        extra_indices=integers(-1, 10, tokens, 1, 128),
        extra_topk_length=integers(0, 129, tokens),
        attn_sink=torch.randn(heads, generator=generator),
    )


def one_by_one(call: Decode, scale: float) -> tuple[list[Any], list[Any]]:
    """Output and log-sum-exp per token and head, from whole blocks unpacked in plain Python."""

    def keys(cache: Any, listed: Any, length: Any) -> list[list[float]]:
        states, found = cache.shape[1], []
        for index in listed.tolist()[: int(length)]:
            if index >= 0:
                block = cache.as_strided((states * 584,), (1,), (index // states) * cache.stride(0))
                found.append(packed.unpack_block(block, states)[index % states].double().tolist())
        return found

    outputs, sums = [], []
    for token in range(len(call.q)):
        states = keys(call.cache, call.indices[token, 0], call.topk_length[token])
        states += keys(call.extra_cache, call.extra_indices[token, 0], call.extra_topk_length[token])
        for head in range(call.q.shape[2]):
            row = call.q[token, 0, head].double().tolist()
            scores = [math.fsum(a * b for a, b in zip(row, state, strict=True)) * scale for state in states]
            if not scores:
                outputs.append([0.0] * 512)
                sums.append(math.inf)
                continue
            top = max(scores)
            powers = [math.exp(score - top) for score in scores]
            total = math.fsum(powers)
            sums.append(top + math.log(total))
            whole = total + math.exp(float(call.attn_sink[head]) - top)
            outputs.append(
                [math.fsum(p * s[d] for p, s in zip(powers, states, strict=True)) / whole for d in range(512)]
            )
    return outputs, sums


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), states=st.sampled_from([1, 2, 5]))
def test_the_same_as_one_by_one(seed: int, states: int) -> None:
    call = decode(tokens=2, heads=2, width=4, seed=seed, states=states)
    call = replace(call, extra_topk_length=call.extra_topk_length % 4)
    out, lse = sparse_decode(**call.arguments(), scale=0.03)
    assert (out.shape, lse.shape) == ((2, 1, 2, 512), (2, 2, 1))
    assert out.dtype == lse.dtype == torch.float32
    outputs, sums = one_by_one(call, 0.03)
    assert torch.allclose(
        out.reshape(4, 512).double(), torch.tensor(outputs, dtype=torch.float64), rtol=1e-6, atol=1e-9
    )
    assert torch.allclose(lse.reshape(4).double(), torch.tensor(sums, dtype=torch.float64), rtol=1e-6)


def test_one_state_is_its_own_output() -> None:
    cache = filled(2, 64, 3)
    q = torch.randn(1, 1, 2, 512).to(torch.bfloat16)
    listed = torch.full((1, 1, 64), -1, dtype=torch.int32)
    listed[0, 0, 5] = 100
    out, lse = sparse_decode(q, cache, listed)
    state = packed.read_states(cache, torch.tensor([100]))
    assert torch.equal(out[0, 0], state.float().expand(2, 512))
    # A sink as large as the only score halves the output and leaves the log-sum-exp alone.
    halved, same = sparse_decode(q, cache, listed, attn_sink=lse[0, :, 0])
    assert torch.allclose(halved, out / 2, rtol=1e-5)
    assert torch.equal(same, lse)


def test_sinks_at_the_ends() -> None:
    call = decode(seed=11)
    plain = sparse_decode(**replace(call, attn_sink=None).arguments())
    none = sparse_decode(**replace(call, attn_sink=torch.full((4,), float("-inf"))).arguments())
    assert torch.equal(plain[0], none[0])
    all_ = sparse_decode(**replace(call, attn_sink=torch.full((4,), float("inf"))).arguments())
    assert not all_[0].any()
    assert torch.equal(plain[1], all_[1])


@pytest.mark.parametrize("sink", [None, float("-inf"), 0.0, float("inf")])
def test_a_token_without_states(sink: float | None) -> None:
    call = decode(seed=12)
    lonely = torch.tensor([0, 64, 64], dtype=torch.int32)
    call = replace(
        call,
        topk_length=lonely,
        extra_topk_length=lonely,
        attn_sink=None if sink is None else torch.full((4,), sink),
    )
    out, lse = sparse_decode(**call.arguments())
    assert not out[0].any()
    assert bool((lse[0] == float("inf")).all())
    assert bool(torch.isfinite(out).all())
    assert bool(torch.isfinite(lse[1:]).all())


def test_entries_past_the_length_may_hold_anything() -> None:
    call = decode(seed=13)
    expected = sparse_decode(**call.arguments())
    past = torch.arange(64) >= call.topk_length.reshape(3, 1, 1)
    garbage = replace(call, indices=call.indices.masked_fill(past, 2**31 - 1))
    assert torch.equal(sparse_decode(**garbage.arguments())[0], expected[0])
    with pytest.raises(ValueError, match=r"slots must lie in 0 \.\. 127"):
        sparse_decode(**replace(garbage, topk_length=None).arguments())


def kernel(call: Decode, scale: float = 512**-0.5) -> tuple[Any, Any]:
    """What a kernel does: float32 scores, weights and outputs rounded to bfloat16."""
    parts = []
    for cache, listed, length in (
        (call.cache, call.indices, call.topk_length),
        (call.extra_cache, call.extra_indices, call.extra_topk_length),
    ):
        live = (listed[:, 0] >= 0) & (torch.arange(listed.shape[2]) < length[:, None])
        slots = listed[:, 0].where(live, 0)
        parts.append((packed.read_states(cache, slots.flatten()).reshape(*slots.shape, 512).float(), live))
    states, live = torch.cat([part for part, _ in parts], 1), torch.cat([part for _, part in parts], 1)
    scores = (call.q[:, 0].float() @ states.transpose(1, 2) * scale).masked_fill(~live[:, None], float("-inf"))
    top = scores.amax(2, keepdim=True).nan_to_num(neginf=0.0)
    powers = torch.exp(scores - top)
    total = powers.sum(2, keepdim=True)
    out = powers.to(torch.bfloat16).float() @ states / (total + torch.exp(call.attn_sink[:, None] - top))
    return out.nan_to_num().to(torch.bfloat16).unsqueeze(1), (top + total.log()).masked_fill(total == 0, float("inf"))


@pytest.mark.parametrize("seed", range(20, 26))
def test_a_right_kernel_is_inside_the_bounds(seed: int) -> None:
    call = decode(tokens=4, heads=64, width=128, seed=seed)
    out, lse = kernel(call)
    expected, expected_lse = sparse_decode(**call.arguments())
    found = agreement(out, expected, error_bounds(**call.arguments()))
    assert found.inside
    assert found.worst < 1
    assert 0 < found.mean_error < found.mean_bound / 2, "a fault as large as the roundings would show"
    assert lse_agrees(lse, expected_lse)


def shifted_scales(call: Decode) -> Decode:
    storage = torch.tensor(list(bytes(call.extra_cache.untyped_storage())), dtype=torch.uint8)
    for block in range(5):
        storage[block * 1728 + 1152 : block * 1728 + 1168] += 1
    return replace(call, extra_cache=storage.as_strided((5, 2, 584), (1728, 584, 1)))


FAULTS = {
    "no sink": lambda call: replace(call, attn_sink=torch.full_like(call.attn_sink, float("-inf"))),
    "no extra cache": lambda call: replace(call, extra_topk_length=torch.zeros_like(call.extra_topk_length)),
    "scales one power off": shifted_scales,
    "one entry too few": lambda call: replace(call, topk_length=call.topk_length - 1),
    "neighbours read": lambda call: replace(call, indices=call.indices.where(call.indices < 1, call.indices - 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_outside_the_bounds(fault: str) -> None:
    lengths = torch.tensor([8, 12, 16, 30], dtype=torch.int32)
    call = replace(decode(tokens=4, heads=64, seed=30), topk_length=lengths, extra_topk_length=lengths)
    call = replace(call, indices=call.indices.clamp(min=0), attn_sink=call.attn_sink + 2)
    out, _ = kernel(FAULTS[fault](call))
    expected, _ = sparse_decode(**call.arguments())
    found = agreement(out, expected, error_bounds(**call.arguments()))
    assert not found.inside
    assert found.worst > 1


def test_no_number_is_outside() -> None:
    call = decode(seed=40)
    expected, lse = sparse_decode(**call.arguments())
    bounds = error_bounds(**call.arguments())
    assert agreement(expected, expected, bounds).inside
    broken = expected.clone()
    broken[0, 0, 0, 0] = float("nan")
    assert not agreement(broken, expected, bounds).inside
    assert lse_agrees(lse, lse)
    assert not lse_agrees(lse + 0.01, lse)
    assert not lse_agrees(torch.full_like(lse, float("nan")), lse)
