"""How the KV cache is laid out: pages by layer kind, the bytes of a state, the groups that share block ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dsv4check.memory.records import CachePlan
from dsv4check.report.blocks import Block, Heading, Paragraph, Table
from dsv4check.report.figures import plural
from dsv4check.resolution import KvCache, LayerKind

_PACKED: Final = 584
"""Bytes of a packed state: 448 fp8 NoPE, 128 of 64 bf16 RoPE, 8 of scales."""
_BODY: Final = 576
"""Of these, what stands in the first part of a block; the scales of all states follow."""
_ELEMENT_BYTES: Final = {"uint8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "float32": 4}
_MXFP4_KEY: Final = 68
_INDEXER: Final = {
    132: (("128 x fp8 key", 128), ("4 scale", 4)),
    _MXFP4_KEY: (("64 = 128 x fp4 key", 64), ("4 = 4 x UE8M0 scale", 4)),
}


def layout_blocks(cache: KvCache, indexer_dtype: str | None = None) -> Iterator[Block]:
    """The page table and the bytes of one state and one block."""
    yield Heading("Pages of the KV cache")
    yield page_table(cache.layers)
    yield Paragraph(
        "layers: of the target, + the draft's; block: tokens a block covers; ratio: tokens a state stands for; "
        "states: in a block; B/state, page, padded: bytes; B/token: bytes that a token of context takes in all layers "
        "of the kind, fixed: a window's worth a request, however long its context.",
        style="dim",
    )
    rows = [layer for layer in cache.layers if layer.kind.startswith("main_") or layer.kind == "swa"]
    packed = [layer for layer in rows if layer.bytes_per_state == _PACKED and layer.dtype == "uint8"]
    if packed:
        yield from _packed_state(packed)
    elif rows:
        yield from _plain_row(rows)
    yield from _indexer_key(cache.layers, indexer_dtype)


def page_table(layers: Sequence[LayerKind]) -> Table:
    """One line for each layer kind, with what a token of context costs in it."""
    # Short names: it has to fit 80 columns.
    header = (
        "layer kind",
        "layers",
        "block",
        "ratio",
        "states",
        "B/state",
        "page",
        "padded",
        "B/token",
    )
    return Table(header, tuple(_page_row(layer) for layer in layers))


def _page_row(layer: LayerKind) -> tuple[str, ...]:
    grows = layer.kind.startswith("main_") or layer.kind == "indexer_k"
    each = f"{layer.count * layer.padded_page_bytes / layer.block_size:,.1f}" if grows else "fixed"
    return (
        layer.kind,
        f"{layer.count}+{layer.draft_count}" if layer.draft_count else str(layer.count),
        str(layer.block_size),
        str(layer.tokens_per_state),
        str(layer.states_per_block),
        f"{layer.bytes_per_state:,}",
        f"{layer.page_bytes:,}",
        f"{layer.padded_page_bytes:,}",
        each,
    )


def _packed_state(layers: Sequence[LayerKind]) -> Iterator[Block]:
    yield Heading(f"One state of {_names(layers)}: {_PACKED} bytes (fp8_ds_mla)")
    state = (("448 fp8 NoPE", 448), ("128 = 64 x bf16 RoPE", 128), ("8 = 7 UE8M0 scales + 1 pad", 8))
    yield _drawn(state)
    for states in dict.fromkeys(layer.states_per_block for layer in layers):
        alike = [layer for layer in layers if layer.states_per_block == states]
        padded = alike[0].padded_page_bytes
        pad = padded - states * _PACKED
        yield Heading(f"One block of {_names(alike)}: {states} states in {padded:,} bytes")
        block = [(f"{states} x {_BODY}: NoPE and RoPE", states * _BODY), (f"{states} x 8: scales", states * 8)]
        yield _drawn([*block, (f"{pad} pad", pad)] if pad else block)
    yield Paragraph(
        "A block is no array of states: the NoPE and RoPE parts of all states come first, their scales after them. "
        f"The kernel still takes it as rows of {_PACKED}.",
        style="dim",
    )


def _plain_row(layers: Sequence[LayerKind]) -> Iterator[Block]:
    layer = layers[0]
    size, width = layer.bytes_per_state, _ELEMENT_BYTES.get(layer.dtype, 1)
    yield Heading(f"One state of {_names(layers)}: a plain row of {size:,} bytes")
    yield _drawn(((f"{size // width} x {layer.dtype}, no scales in the row", size),))


def _indexer_key(layers: Sequence[LayerKind], dtype: str | None) -> Iterator[Block]:
    for layer in layers:
        size = layer.bytes_per_state
        if layer.kind != "indexer_k" or size not in _INDEXER:
            continue
        yield Heading(f"One key of the indexer: {size} bytes")
        if dtype == "mxfp4" and size != _MXFP4_KEY:
            yield Paragraph(f"Allocated as for fp8; mxfp4 uses {_MXFP4_KEY} of them (the page shrinks from 0.27 on).")
        else:
            yield _drawn(_INDEXER[size])


def _names(layers: Sequence[LayerKind]) -> str:
    return ", ".join(layer.kind for layer in layers)


def _drawn(fields: Sequence[tuple[str, int]]) -> Paragraph:
    """Boxes side by side, the offset of each below its left edge. Their widths follow the text, not the bytes."""
    offsets = [0]
    for _text, size in fields:
        offsets.append(offsets[-1] + size)
    said = [f"{offset:,}" for offset in offsets]
    widths = [max(len(text), len(said[number])) + 2 for number, (text, _size) in enumerate(fields)]
    edge = "+" + "+".join("-" * width for width in widths) + "+"
    middle = "|" + "|".join(f" {text:<{width - 1}}" for (text, _size), width in zip(fields, widths, strict=True)) + "|"
    below = "".join(f"{offset:<{width + 1}}" for offset, width in zip(said, widths, strict=False)) + said[-1]
    return Paragraph("\n".join((edge, middle, edge, below)), verbatim=True)


def group_blocks(plan: CachePlan) -> Iterator[Block]:
    """The groups and how much of a block id's bytes each uses."""
    stride = max(plan.strides, default=0)
    yield Heading("KV cache groups")
    rows = [
        (
            ", ".join(f"{kind} x {count}" for kind, count in group.kinds),
            f"{group.block_size}",
            f"{group.block_bytes:,}",
            "-" if group.sliding_window is None else f"{group.sliding_window:,}",
            f"{100 * group.block_bytes / stride:.0f} %" if stride else "-",
        )
        for group in plan.groups
    ]
    yield Table(("layers", "tokens/block", "bytes/block", "window", "of the stride"), tuple(rows))
    strides = ", ".join(f"{size:,}" for size in dict.fromkeys(plan.strides))
    stages = " (by pipeline stage)" if len(set(plan.strides)) > 1 else ""
    text = (
        f"One block id takes {strides} bytes on a GPU{stages}, the stride, whichever group uses it: "
        "a group with smaller pages wastes the rest."
    )
    if plan.reserved_blocks:
        text += f" The check for one request leaves {plural(plan.reserved_blocks, 'block')} aside (the null block)."
    yield Paragraph(text, style="dim")
