"""The packed layout, byte by byte, and its two implementations against each other."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

from dsv4check.probe import packed  # noqa: E402

UNTOUCHED = 0xA5


def random_keys(tokens: int, seed: int, spread: float = 4.0) -> Any:
    """Keys whose tiles differ in magnitude by orders, as a model's do."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = torch.exp2(torch.randn(tokens, 8, 1, generator=generator) * spread)
    keys = torch.randn(tokens, 8, 64, generator=generator) * magnitude
    return keys.reshape(tokens, 512).to(torch.bfloat16)


def edge_keys() -> Any:
    """Zeros, tiny, huge (bfloat16's largest), powers of two, tiles that fill fp8's range exactly or exceed it just."""
    values = [0.0, -0.0, 1e-30, 1e-5, 1e-4, 0.0447, 0.0449, 1.0, 2.0, 448.0, 450.0, 447.0, -448.0, 3e37, 3.3895e38]
    values += [2.0**power for power in (-126, -22, -13, -1, 3, 60, 119)]
    steps = torch.linspace(-1, 1, 512, dtype=torch.float64)
    rows = [torch.full((512,), value, dtype=torch.float64) for value in values]
    rows += [steps * value for value in values]
    return torch.stack(rows).to(torch.bfloat16)


def raw(cache: Any) -> list[int]:
    return list(bytes(cache.untyped_storage()))


@pytest.mark.parametrize(("states", "bytes_", "padded"), [(64, 37376, 37440), (2, 1168, 1728), (256, 149504, 149760)])
def test_page_sizes(states: int, bytes_: int, padded: int) -> None:
    assert packed.page_bytes(states) == bytes_
    assert packed.padded_page_bytes(states) == padded


def test_absolute_byte_offsets() -> None:
    # Two states a block, blocks 1,728 bytes apart: an array of 584-byte records would put everything elsewhere.
    cache = packed.new_cache(2, 2, fill=UNTOUCHED)
    keys = torch.zeros(1, 512)
    keys[0, 0], keys[0, 447], keys[0, 448], keys[0, 511] = 448.0, 896.0, 1.5, -2.0
    packed.write_states(cache, torch.tensor([3]), keys)
    found = raw(cache)
    assert len(found) == 3456
    assert found[:1728] == [UNTOUCHED] * 1728, "block 0 is left alone"
    block = found[1728:]
    assert block[:576] == [UNTOUCHED] * 576, "state 0 of block 1 is left alone"
    assert block[576] == 0x7E, "448 at scale 1 is the largest fp8"
    assert block[577 : 576 + 447] == [0] * 446
    assert block[576 + 447] == 0x7E, "896 at scale 2"
    assert bytes(block[1024:1026]) == struct.pack("<f", 1.5)[2:]
    assert block[1026:1150] == [0] * 124
    assert bytes(block[1150:1152]) == struct.pack("<f", -2.0)[2:]
    assert block[1152:1160] == [UNTOUCHED] * 8, "scales of state 0"
    assert block[1160:1168] == [127, 105, 105, 105, 105, 105, 128, 0], "scales of state 1, then the unused byte"
    assert block[1168:] == [UNTOUCHED] * 560, "padding"


def test_scale_bytes_of_a_block_of_64_follow_all_data() -> None:
    cache = packed.new_cache(1, 64)
    packed.write_states(cache, torch.arange(64), torch.full((64, 512), 448.0 * 8))
    found = raw(cache)
    assert found[36864:37376] == ([130] * 7 + [0]) * 64
    assert found[37376:] == [0] * 64
    assert set(found[:448]) == {0x7E}
    assert set(found[36288:36736]) == {0x7E}, "the last state's fp8 values"


@pytest.mark.parametrize(
    ("amax", "byte"),
    [
        (448.0, 127),
        (450.0, 128),
        (224.0, 126),
        (226.0, 127),
        (1.0, 119),
        (0.0, 105),
        (1e-6, 105),
        (2.0**-13, 106),
        (2.0**127, 246),
    ],
)
def test_scale_is_the_next_power_of_two(amax: float, byte: int) -> None:
    keys = torch.zeros(1, 512)
    keys[0, 63] = -amax
    _, scales = packed.quantise(keys)
    assert scales.tolist() == [[byte] + [105] * 6]


def test_the_compressor_raises_small_scales_further() -> None:
    keys = torch.full((1, 512), 0.01)
    assert packed.quantise(keys)[1].tolist() == [[112] * 7]
    assert packed.quantise(keys, packed.COMPRESSOR_LEAST_SCALE)[1].tolist() == [[114] * 7]
    keys = torch.full((1, 512), 0.05)
    assert packed.quantise(keys)[1].tolist() == packed.quantise(keys, packed.COMPRESSOR_LEAST_SCALE)[1].tolist()


def test_fp8_bytes_are_torch_s() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    values = packed._fp8_values()
    for byte, value in enumerate(every.tolist()):
        if byte & 127 == 127:
            assert value != value
            continue
        assert abs(value) == values[byte & 127]
        assert packed._fp8_byte(value) == byte
    fine = torch.linspace(-460, 460, 40001)
    expected = fine.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).tolist()
    assert [packed._fp8_byte(value) for value in fine.tolist()] == expected


@settings(max_examples=60, deadline=None)
@given(
    states=st.integers(1, 128),
    blocks=st.integers(1, 8),
    extra=st.integers(0, 5),
    loose=st.integers(0, 63),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_written_states_are_packed_blocks(
    states: int, blocks: int, extra: int, loose: int, seed: int, data: st.DataObject
) -> None:
    stride = packed.padded_page_bytes(states) + extra * 576 + loose
    cache = packed.new_cache(blocks, states, stride, fill=UNTOUCHED)
    block = data.draw(st.integers(0, blocks - 1))
    keys = random_keys(states, seed)
    slots = torch.randperm(states, generator=torch.Generator().manual_seed(seed))
    packed.write_states(cache, block * states + slots, keys[slots])
    expected = [UNTOUCHED] * (blocks * stride)
    expected[block * stride : block * stride + states * 584] = packed.pack_block(keys).tolist()[: states * 584]
    assert raw(cache) == expected
    back = packed.read_states(cache, block * states + torch.arange(states))
    assert torch.equal(back, packed.unpack_block(packed.pack_block(keys), states))
    assert torch.equal(back[:, 448:], keys[:, 448:])


@pytest.mark.parametrize("least", [packed.INSERT_LEAST_SCALE, packed.COMPRESSOR_LEAST_SCALE])
def test_edges_agree_between_the_implementations(least: float) -> None:
    keys = edge_keys()
    cache = packed.new_cache(1, len(keys))
    packed.write_states(cache, torch.arange(len(keys)), keys, least)
    block = packed.pack_block(keys, least)
    assert raw(cache) == block.tolist()
    assert len(block) == packed.padded_page_bytes(len(keys))
    assert torch.equal(packed.read_states(cache, torch.arange(len(keys))), packed.unpack_block(block, len(keys)))


def test_skipped_slots_and_a_fourth_dimension() -> None:
    cache = packed.new_cache(3, 4, fill=UNTOUCHED)
    keys = random_keys(3, 1)
    packed.write_states(cache.unsqueeze(2), torch.tensor([-1, 7, -1]), keys)
    assert torch.equal(packed.read_states(cache, torch.tensor([7]))[:, 448:], keys[1:2, 448:])
    untouched = packed.new_cache(3, 4, fill=UNTOUCHED)
    packed.write_states(untouched, torch.tensor([7]), keys[1:2])
    assert raw(cache) == raw(untouched)


def test_a_cache_inside_a_larger_allocation() -> None:
    storage = torch.full((20 * 1728,), UNTOUCHED, dtype=torch.uint8)
    cache = storage.as_strided((4, 2, 584), (4 * 1728, 584, 1), 1728)
    keys = random_keys(1, 2)
    packed.write_states(cache, torch.tensor([5]), keys)
    at = 1728 + 2 * 4 * 1728 + 576
    assert storage[at : at + 576].tolist() == packed.pack_block(keys).tolist()[:576]
    changed = (storage != UNTOUCHED).nonzero().flatten()
    assert at <= int(changed.min())
    assert int(changed.max()) < 1728 + 2 * 4 * 1728 + 1168


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        (torch.zeros(2, 4, 512, dtype=torch.uint8), r"\(2, 4, 512\) of uint8"),
        (torch.zeros(2, 4, 584, dtype=torch.bfloat16), "of bfloat16"),
        (torch.zeros(2, 4, 600, dtype=torch.uint8)[:, :, :584], "must lie together"),
        (torch.zeros(2, 4, 2, 584, dtype=torch.uint8), r"\(2, 4, 2, 584\)"),
    ],
)
def test_caches_of_another_layout_are_refused(cache: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        packed.write_states(cache, torch.tensor([0]), torch.zeros(1, 512))
    with pytest.raises(ValueError, match=said):
        packed.read_states(cache, torch.tensor([0]))


def test_wrong_arguments_are_refused() -> None:
    cache = packed.new_cache(2, 4)
    with pytest.raises(ValueError, match=r"0 .. 7, got 8 .. 8"):
        packed.write_states(cache, torch.tensor([8]), torch.zeros(1, 512))
    with pytest.raises(ValueError, match=r"got -1 .. 3"):
        packed.read_states(cache, torch.tensor([3, -1]))
    with pytest.raises(ValueError, match="2 slots for 1 keys"):
        packed.write_states(cache, torch.tensor([0, 1]), torch.zeros(1, 512))
    with pytest.raises(ValueError, match=r"\(1, 448\) of float32"):
        packed.quantise(torch.zeros(1, 448))
    with pytest.raises(ValueError, match="finite"):
        packed.quantise(torch.full((1, 512), 3.4e38))


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0, 20.0])
def test_round_trip_stays_within_the_bounds(spread: float) -> None:
    error = packed.round_trip_error(random_keys(200, 7, spread))
    assert error["inside"]
    assert error["rope_max_abs"] == 0
    assert error["mean_relative"] > 0.01
    assert 0 < error["max_of_tile"] <= 1 / 17


def test_the_relative_bound_is_met_exactly_and_no_tighter_one_holds() -> None:
    keys = torch.zeros(1, 512)
    keys[0, 0], keys[0, 1] = 256.0, 17.0
    error = packed.round_trip_error(keys)
    assert error["max_relative"] == pytest.approx(1 / 17, rel=1e-12)
    assert error["inside"]
    # Below 2^-6 of the scale the step no longer shrinks.
    keys[0, 1] = 2.0**-10
    error = packed.round_trip_error(keys)
    assert (error["max_relative"], error["max_abs"], error["inside"]) == (1.0, 2.0**-10, True)


def test_a_fault_in_the_bytes_is_outside_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, right = random_keys(8, 3), packed.dequantise
    monkeypatch.setattr(packed, "dequantise", lambda values, scales: right(values, scales.roll(1, 1)))
    assert packed.round_trip_error(keys)["inside"] is False


def test_the_largest_keys_come_back_as_infinity() -> None:
    cache = packed.new_cache(1, 1)
    for value, back in ((packed.LARGEST_KEY, float("inf")), (247 * 2.0**120, 240 * 2.0**120)):
        packed.write_states(cache, torch.tensor([0]), torch.full((1, 512), value))
        assert set(packed.read_states(cache, torch.tensor([0]))[0, :448].tolist()) == {back}
