"""Pages of every KV-cache layer kind: states per block, bytes per state, real and padded page bytes.

A packed state is 584 bytes: 448 float8 NoPE + 128 bytes of bfloat16 RoPE + 8 bytes of scales. A plain row
is ``head_dim`` elements. Every page is rounded up to the layout's alignment (576 packed; 512 plain from
0.25, none before). Compressor states are float32 rows whose number of rows is fixed per kind. Source: the
release's ``get_kv_cache_spec`` methods and ``v1/kv_cache_interface.py:_apply_alignment_padding``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import HIDDEN_STATES, Attention, LayerKind

_ELEMENT_BYTES = {"uint8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "float32": 4}
_GROWING = ("indexer_k", HIDDEN_STATES)
# One float32 scale for each group of 128 fp8 indexer keys; one byte for each 32 of mxfp4's two-per-byte keys.
_FP8_SCALE_GROUP = 128
_MXFP4_SCALE_GROUP = 32


def cache_layers(
    deployment: Deployment,
    facts: ReleaseFacts,
    attention: Attention,
    resolved_dtype: str,
    block_size: int,
    draft_layers: int = 0,
    hidden_state_layers: int = 0,
) -> tuple[LayerKind, ...]:
    """All layer kinds of the target model, with the draft's sliding-window layers counted beside them.

    ``hidden_state_layers``: layers whose hidden states are kept, all in one cache layer more.

    Returns () when the config does not tell the sizes (``head_dim``, ``index_head_dim``).
    """
    model = deployment.model
    head_dim, index_dim = model.integer("head_dim"), model.integer("index_head_dim")
    if head_dim is None or index_dim is None or not model.compress_ratios:
        return ()
    section = facts.section("kv_cache")
    # The specs go by the dtype's name: fp8_ds_mla on the plain-row class sizes packed pages too (and fails later).
    packed = attention.layout == "fp8_ds_mla" or resolved_dtype == "fp8_ds_mla"
    ratios = model.compress_ratios
    counts = {ratio: ratios.count(ratio) for ratio in sorted(set(ratios)) if ratio > 1}
    layers: list[LayerKind] = []
    row = _row(section, head_dim, resolved_dtype, packed=packed)
    alignment = _alignment(section, packed=packed)
    side = _side_alignment(section, packed)
    for ratio, count in counts.items():
        layers.append(_page(f"main_c{ratio}", count, block_size, ratio, row, alignment))
    swa_block = int(section["swa_block"])
    window = model.integer("sliding_window")
    layers.append(_page("swa", len(ratios), swa_block, 1, row, alignment, draft_layers, window))
    if 4 in counts:
        indexer = _indexer_row(section, index_dim, attention.indexer_dtype)
        layers.append(_page("indexer_k", counts[4], block_size, 4, indexer, side["indexer"]))
    layers += _states(section, counts, head_dim, index_dim, side["state"])
    hidden_size = model.integer("hidden_size")
    if hidden_state_layers and hidden_size is not None:
        # In the model's own dtype, whatever --kv-cache-dtype says, and not aligned.
        row = (hidden_state_layers * hidden_size * _ELEMENT_BYTES["bfloat16"], "bfloat16")
        layers.append(_page(HIDDEN_STATES, 0, block_size, 1, row, None, 1))
    return tuple(layers)


def bytes_per_token(layers: tuple[LayerKind, ...]) -> float:
    """Padded bytes that one token of context takes in the caches that grow with the context."""
    growing = (layer for layer in layers if layer.kind.startswith("main_") or layer.kind in _GROWING)
    return sum((layer.count or layer.draft_count) * layer.padded_page_bytes / layer.block_size for layer in growing)


def main_bytes_per_state(layers: tuple[LayerKind, ...]) -> int | None:
    """Bytes of one state of the main cache (the sliding window's when no layer is compressed)."""
    for layer in layers:
        if layer.kind.startswith("main_") or layer.kind == "swa":
            return layer.bytes_per_state
    return None


def _states(
    section: Mapping[str, Any],
    counts: Mapping[int, int],
    head_dim: int,
    index_dim: int,
    alignment: int | None,
) -> Iterator[LayerKind]:
    """Compressor states: KV and gate of the tokens of the next state, doubled for C4 whose windows overlap."""
    blocks = section["state_blocks"]
    if 4 in counts:
        row = (4 * 4 * head_dim, "float32")
        yield _page("state_c4", counts[4], int(blocks["c4"]), 1, row, alignment, 0, 2 * 4)
    if 128 in counts:
        row = (4 * 2 * head_dim, "float32")
        yield _page("state_c128", counts[128], int(blocks["c128"]), 1, row, alignment, 0, 128)
    if 4 in counts:
        row = (4 * 4 * index_dim, "float32")
        yield _page("state_indexer", counts[4], int(blocks["indexer"]), 1, row, alignment, 0, 2 * 4)


def _row(section: Mapping[str, Any], head_dim: int, dtype: str, *, packed: bool) -> tuple[int, str]:
    if packed:
        return int(section["packed"]["bytes_per_state"]), "uint8"
    torch_dtype = "float8_e4m3fn" if dtype.startswith("fp8") else "bfloat16"
    return head_dim * _ELEMENT_BYTES[torch_dtype], torch_dtype


def _indexer_row(section: Mapping[str, Any], index_dim: int, dtype: str | None) -> tuple[int, str]:
    """132 bytes for 128 fp8 keys; mxfp4 needs 68 but allocated the fp8 size before 0.27."""
    if dtype == "mxfp4" and section["indexer"]["mxfp4_states_shrink"]:
        return index_dim // 2 + index_dim // _MXFP4_SCALE_GROUP, "uint8"
    return index_dim + 4 * (index_dim // _FP8_SCALE_GROUP), "uint8"


def _alignment(section: Mapping[str, Any], *, packed: bool) -> int | None:
    value = section["packed"]["alignment"] if packed else section["plain"]["alignment"]
    return int(value) if value else None


def _side_alignment(section: Mapping[str, Any], packed: bool) -> dict[str, int | None]:
    """Alignment of the caches whose own dtype does not follow --kv-cache-dtype."""
    if packed:
        value = int(section["packed"]["alignment"])
        return {"indexer": value, "state": value}
    plain = section["plain"]
    return {"indexer": int(plain["indexer_alignment"]), "state": _alignment(section, packed=False)}


def _page(
    kind: str,
    count: int,
    block_size: int,
    ratio: int,
    row: tuple[int, str],
    alignment: int | None,
    draft_count: int = 0,
    window: int | None = None,
) -> LayerKind:
    size, dtype = row
    states = block_size // ratio
    page = states * size
    padded = -(-page // alignment) * alignment if alignment else page
    return LayerKind(kind, count, block_size, ratio, states, size, page, padded, dtype, draft_count, window)
