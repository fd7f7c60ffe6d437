"""The arithmetic behind ``setStorage: ... out of bounds for storage of size ...``.

Standard library only: children import this file without dsv4check's packages.
"""

from __future__ import annotations

from collections.abc import Sequence

from .packed import STATE_BYTES

View = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides, in elements."""


def needed_bytes(shape: Sequence[int], stride: Sequence[int], offset_elements: int, itemsize: int) -> int:
    """Bytes up to and with the last element of a view; 0 for a view without elements."""
    if 0 in shape:
        return 0
    last = offset_elements + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return (last + 1) * itemsize


def view_refusal(
    shape: Sequence[int], stride: Sequence[int], offset_elements: int, itemsize: int, storage_bytes: int
) -> str:
    """What torch says of a view that its storage cannot hold, word for word; empty when it fits."""
    needed = needed_bytes(shape, stride, offset_elements, itemsize)
    if needed <= storage_bytes:
        return ""
    return (
        f"setStorage: sizes {list(shape)}, strides {list(stride)}, storage offset {offset_elements}, and itemsize "
        f"{itemsize} requiring a storage size of {needed} are out of bounds for storage of size {storage_bytes}"
    )


def compressed_spec_bug(num_blocks: int, states: int, page_bytes: int, block_size: int) -> tuple[View, View]:
    """The view of a compressed cache that a faulty V2 runner takes, and the right one.

    The fault (vllm#38831, corrected by vllm#43988): kernel blocks are counted as the spec's ``block_size``, in tokens,
    over the states a block stores, though the shape already has states: ``block_size / states`` times too many blocks.
    """
    stride = (page_bytes, STATE_BYTES, 1)
    faulty = (num_blocks * (block_size // states), states, STATE_BYTES)
    return (faulty, stride), ((num_blocks, states, STATE_BYTES), stride)
