"""Layouts and what belongs to them, for tests."""

from __future__ import annotations

from dsv4check.probe.records import Attention, CacheLayout, Layouts

ATTENTION = Attention("DeepseekV4FlashMLAAttention", padded_heads=64, local_heads=8, topk=512, capability=(9, 0))

BLOCK = 76_032
"""Bytes of a planned block: two packed pages beside each other, and a rest that belongs to other layers."""


def packed_layouts(blocks: int = 12, block: int = BLOCK, c128: int = 37_440) -> Layouts:
    """Window, C4, C128 and compressor states in one storage, as 0.24 and later pack them."""
    return Layouts(
        caches=(
            CacheLayout("swa", "l.0.swa_cache", 3, (blocks, 64, 584), (block, 584, 1), "uint8", 0, 0, 0),
            CacheLayout("main_c4", "l.2.attn", 2, (blocks, 64, 584), (block, 584, 1), "uint8", 0, 0, 1, 4),
            CacheLayout("main_c128", "l.3.attn", 1, (blocks, 2, 584), (block, 584, 1), "uint8", c128, 0, 1),
            CacheLayout(
                "state_c4", "l.2.state_cache", 2, (blocks, 4, 2048), (block // 4, 2048, 1), "float32", 576, 0, 2
            ),
        ),
        storages=(blocks * block,),
        blocks=blocks,
        origin="made up",
        by_vllm=False,
    )
