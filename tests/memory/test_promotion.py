"""Pages of windows that are planned as full attention, with the hybrid manager off."""

from __future__ import annotations

import pytest

from dsv4check.memory.cache_plan import UnplannedError
from dsv4check.memory.promotion import promoted
from dsv4check.resolution import LayerKind

MAIN = LayerKind("main_c4", 21, 256, 4, 64, 584, 37376, 37440, "uint8")
WINDOW = LayerKind("swa", 43, 64, 1, 64, 584, 37376, 37440, "uint8", 1, 128)
STATE = LayerKind("state_c4", 21, 4, 1, 4, 8192, 32768, 32832, "float32", 0, 8)


def test_a_window_gets_a_state_for_every_token_of_a_block() -> None:
    main, window, state = promoted((MAIN, WINDOW, STATE), "full-blocks", 576)
    assert main == MAIN
    assert (window.block_size, window.sliding_window, window.draft_count) == (256, None, 1)
    assert (window.page_bytes, window.padded_page_bytes) == (256 * 584, 149_760)
    assert (state.page_bytes, state.padded_page_bytes) == (256 * 8192, 2_097_216)


def test_without_alignment_pages_are_as_large_as_their_states() -> None:
    assert promoted((MAIN, STATE), "full-blocks", None)[1].padded_page_bytes == 256 * 8192


@pytest.mark.parametrize("style", ["none", "something new"])
def test_a_release_that_cannot_promote(style: str) -> None:
    with pytest.raises(UnplannedError, match="cannot turn sliding windows"):
        promoted((MAIN, WINDOW), style, 576)


def test_no_full_attention_layer_to_take_the_block_size_from() -> None:
    with pytest.raises(UnplannedError, match="no block size"):
        promoted((WINDOW,), "full-blocks", 576)
