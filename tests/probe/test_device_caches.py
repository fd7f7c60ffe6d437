"""Real bytes in caches laid out as vLLM lays them out, and faults that must be seen."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from dsv4check.probe import contract, device_caches, packed  # noqa: E402
from tests.probe.layouts import BLOCK, packed_layouts  # noqa: E402


def allocated(**changes: int) -> tuple[list[Any], dict[str, device_caches.Cache]]:
    return device_caches.allocate(packed_layouts(**changes).to_dict(), "cpu")


def filled(**changes: int) -> tuple[list[Any], dict[str, device_caches.Cache]]:
    storages, caches = allocated(**changes)
    for cache in caches.values():
        if cache.packed:
            device_caches.round_trip(cache, storages[0], 1)
        else:
            device_caches.plain_bytes(cache, 1)
    return storages, caches


def test_groups_get_blocks_of_their_own_and_none_gets_the_null_block() -> None:
    _storages, caches = allocated()
    blocks = {kind: {int(slot) // cache.view.shape[1] for slot in cache.slots} for kind, cache in caches.items()}
    assert blocks == {"swa": {1, 2, 3}, "main_c4": {4, 5, 6}, "main_c128": {4, 5, 6}, "state_c4": {7, 8, 9}}


def test_every_kind_is_written_and_read_and_nothing_else_changes() -> None:
    storages, caches = filled()
    assert device_caches.overwritten(caches) == ""
    assert device_caches.strangers(storages, caches) == ""
    assert int((storages[0] != 0).sum()) > 100_000


def test_layers_that_overlap_are_seen() -> None:
    _storages, caches = filled(c128=37_000)
    assert device_caches.overwritten(caches) == "block 4 of main_c4 was overwritten by another layer's states"


def test_a_byte_beside_the_blocks_is_seen() -> None:
    storages, caches = filled()
    storages[0][BLOCK + 37_376] = 1
    assert device_caches.strangers(storages, caches) == (
        f"1 bytes outside the blocks written were changed, first at byte {BLOCK + 37_376}"
    )


def test_a_writer_with_another_layout_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = packed.write_states

    def record_by_record(cache: Any, slots: Any, keys: Any) -> None:
        """What a block is not: states of 584 bytes one after the other."""
        if len(cache) == 1:
            return right(cache, slots, keys)  # the measure of the error, not the cache itself
        block = packed.pack_block(keys[:64])
        values, scales = block[: 64 * 576].reshape(64, 576), block[64 * 576 : 64 * 584].reshape(64, 8)
        cache[int(slots[0]) // 64] = torch.cat([values, scales], dim=1)
        return None

    storages, caches = allocated()
    monkeypatch.setattr(packed, "write_states", record_by_record)
    with pytest.raises(ValueError, match=r"block 1 differs in \d+ of 37376 bytes, first at byte"):
        device_caches.round_trip(caches["swa"], storages[0], 1)


def test_a_view_beyond_its_storage_is_refused_in_torchs_words() -> None:
    layouts = packed_layouts().to_dict()
    layouts["storages"] = [layouts["storages"][0] - BLOCK]
    refused, figures = device_caches.arithmetic(layouts)
    assert refused[0].startswith("swa: setStorage: sizes [12, 64, 584], strides [76032, 584, 1]")
    assert figures["swa"] == {"needed_bytes": 11 * BLOCK + 37_376, "allocated_bytes": 11 * BLOCK}
    with pytest.raises(RuntimeError, match="out of bounds for storage of size"):
        device_caches.allocate(layouts, "cpu")


def test_memory_is_bounded() -> None:
    with pytest.raises(ValueError, match="the probe takes at most 268,435,456"):
        device_caches.allocate(packed_layouts(blocks=4000).to_dict(), "cpu")


def test_the_narrow_view_is_what_flashmla_refuses() -> None:
    _storages, caches = allocated()
    assert contract.cache_refusal(caches["swa"].view) == ""
    narrow = device_caches.narrow(caches["swa"])
    assert narrow.shape == (12, 64, 1, 512)
    assert contract.cache_refusal(narrow) == "kv must have shape (num_blocks, page_block_size, h_kv, bytes_per_token)"


def test_storages_that_are_no_multiple_of_an_element() -> None:
    layouts = packed_layouts().to_dict()
    layouts["storages"] = [layouts["storages"][0] + 3]
    storages, caches = device_caches.allocate(layouts, "cpu")
    assert len(storages[0]) % 4 == 3
    device_caches.plain_bytes(caches["state_c4"], 1)
