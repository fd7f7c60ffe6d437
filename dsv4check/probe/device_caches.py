"""The caches of a launch on a device: real bytes, viewed as vLLM views them, written and read back.

Standard library and torch only: a child of the probe runs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from . import packed, storage

MOST_BYTES: Final = 256 << 20
"""Of all caches together. A few MiB are usual; without the hybrid manager one block of a release may take over 100."""
_NARROW: Final = 512
"""Bytes of a state in the views that vLLM made where it took a packed cache for plain rows."""


@dataclass
class Cache:
    """One layer's cache as a tensor."""

    kind: str
    layout: dict[str, Any]
    view: Any
    """As the layer holds it."""
    slots: Any
    """The states this kind may use: those of blocks that no other group writes to."""
    written: dict[int, Any] = field(default_factory=dict)
    """Block -> the bytes that were left in it."""

    @property
    def packed(self) -> bool:
        """Whether it holds states of 584 bytes."""
        view = self.view
        return bool(view.element_size() == 1 and view.dim() == 3 and view.shape[-1] == packed.STATE_BYTES)


def arithmetic(layouts: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """What torch would refuse of the views, and for each kind the bytes it needs of those allocated."""
    refused, figures = [], {}
    for layout in layouts["caches"]:
        size = _itemsize(layout["dtype"])
        allocated = layouts["storages"][layout["storage"]]
        shape, stride, offset = layout["shape"], layout["stride"], layout["offset"] // size
        said = storage.view_refusal(shape, stride, offset, size, allocated)
        if said:
            refused.append(f"{layout['kind']}: {said}")
        needed = storage.needed_bytes(shape, stride, offset, size)
        figures[layout["kind"]] = {"needed_bytes": needed, "allocated_bytes": allocated}
    return refused, figures


def allocate(layouts: dict[str, Any], device: str) -> tuple[list[Any], dict[str, Cache]]:
    """The storages, zeroed, and the caches by kind. Raises ValueError for more than may be taken."""
    import torch

    total = sum(layouts["storages"])
    if total > MOST_BYTES:
        raise ValueError(f"the caches would take {total:,} bytes; the probe takes at most {MOST_BYTES:,}")
    storages = [torch.zeros(size, dtype=torch.uint8, device=device) for size in layouts["storages"]]
    caches = {}
    for layout in layouts["caches"]:
        size = _itemsize(layout["dtype"])
        raw = storages[layout["storage"]]
        # torch lets a tensor of bytes be seen as wider ones only where its length is a multiple.
        whole = raw[: len(raw) // size * size].view(getattr(torch, layout["dtype"]))
        view = whole.as_strided(layout["shape"], layout["stride"], layout["offset"] // size)
        slots = torch.tensor(_slots(layout, layouts), dtype=torch.long, device=device)
        caches[layout["kind"]] = Cache(layout["kind"], layout, view, slots)
    return storages, caches


def _slots(layout: dict[str, Any], layouts: dict[str, Any]) -> list[int]:
    """Slots of this layer's blocks: groups overlay each other, so every group gets blocks of its own.

    Block 0 is vLLM's null block.
    """
    same = [item for item in layouts["caches"] if item["storage"] == layout["storage"]]
    groups = sorted({item["group"] for item in same})
    blocks = layouts["blocks"]
    share = (blocks - 1) // len(groups)
    if share < 1:
        raise ValueError(f"{blocks} blocks do not do for {len(groups)} groups beside the null block")
    first = 1 + groups.index(layout["group"]) * share
    # A release may view one planned block as several.
    times = max(1, layout["shape"][0] // blocks)
    states = layout["shape"][1]
    return list(range(first * times * states, (first + share) * times * states))


def narrow(cache: Cache) -> Any:
    """The same storage viewed with 512 bytes a state: what went to the kernel before the fix."""
    view = cache.view
    shape = (*view.shape[:2], 1, _NARROW)
    return view.as_strided(shape, (view.stride(0), _NARROW, _NARROW, 1), view.storage_offset())


def keys(count: int, seed: int, device: str, *, extremes: bool = False) -> Any:
    """Keys as a model writes them; with ``extremes`` some states are tiny, large or zero, so that scales differ."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(count, packed.HEAD, generator=generator)
    if extremes:
        factors = torch.tensor([1.0, 1e-3, 300.0, 0.0, 1e-6, 1e4])
        made = made * factors[torch.arange(count) % len(factors)].unsqueeze(1)
    return made.to(torch.bfloat16).to(device)


def round_trip(cache: Cache, raw: Any, seed: int) -> dict[str, Any]:
    """Quantise, pack, unpack and dequantise through the view; compare the bytes with a second implementation's.

    Raises ValueError that says what differs.
    """
    import torch

    states = cache.view.shape[1]
    used = cache.slots[: min(len(cache.slots), 2 * states)]
    made = keys(len(used), seed, str(cache.view.device), extremes=True)
    packed.write_states(cache.view, used, made)
    keep(cache, used)
    error = packed.round_trip_error(made)
    if not error["inside"]:
        raise ValueError(f"the round trip is off by more than it may: {error}")
    offset, stride = cache.layout["offset"], cache.layout["stride"][0]
    block = int(used[0]) // states
    found = raw[offset + block * stride :][: packed.page_bytes(states)].cpu()
    wanted = packed.pack_block(made[:states].cpu())[: packed.page_bytes(states)]
    differ = (found != wanted).nonzero().flatten()
    if len(differ):
        at = int(differ[0])
        raise ValueError(
            f"block {block} differs in {len(differ)} of {len(wanted)} bytes, first at byte {at}: "
            f"{int(found[at])} instead of {int(wanted[at])}"
        )
    back = packed.unpack_block(raw[offset + block * stride :][: packed.padded_page_bytes(states)].cpu(), states)
    if not torch.equal(back, packed.read_states(cache.view, used[:states]).cpu()):
        raise ValueError("the two implementations read different values from the same bytes")
    return {**error, "states": len(used), "bytes_compared": len(wanted)}


def plain_bytes(cache: Cache, seed: int) -> dict[str, Any]:
    """A cache of another layout: every byte of a block is written through the view and read back."""
    import torch

    states = cache.view.shape[1]
    used = cache.slots[:states]
    block = int(used[0]) // states
    size = cache.view.element_size()
    generator = torch.Generator().manual_seed(seed)
    row = cache.view.shape[-1] * size
    # Bytes 1 .. 100: never a NaN in any of the dtypes, and never zero.
    made = torch.randint(1, 100, (states, row), dtype=torch.uint8, generator=generator).to(cache.view.device)
    cache.view[block] = made.view(cache.view.dtype)
    keep(cache, used)
    if not torch.equal(cache.view[block].contiguous().view(torch.uint8).reshape(states, row), made):
        raise ValueError("what was read is not what was written")
    return {"states": states, "bytes_compared": states * row}


def keep(cache: Cache, used: Any) -> None:
    """Remember what the blocks of these slots hold now."""
    states = cache.view.shape[1]
    for block in {int(slot) // states for slot in used}:
        cache.written[block] = cache.view[block].clone()


def overwritten(caches: dict[str, Cache]) -> str:
    """A block that no longer holds what was left in it: another layer's write reached it. Empty when there is none."""
    import torch

    for cache in caches.values():
        for block, left in cache.written.items():
            if not torch.equal(cache.view[block].view(torch.uint8), left.view(torch.uint8)):
                return f"block {block} of {cache.kind} was overwritten by another layer's states"
    return ""


def strangers(storages: list[Any], caches: dict[str, Cache]) -> str:
    """Bytes that changed though no write was meant for them; empty when there are none.

    Padding, unused blocks and the layers beside these must still be zero.
    """
    for number, raw in enumerate(storages):
        own = [cache for cache in caches.values() if cache.layout["storage"] == number]
        end = 0
        # What lies between the blocks written, without a second copy of the storage.
        for first, after in [*sorted(place for cache in own for place in _written(cache)), (len(raw), len(raw))]:
            if first > end and bool(raw[end:first].any()):
                changed = raw[end:first].nonzero().flatten()
                at = end + int(changed[0])
                return f"{len(changed)} bytes outside the blocks written were changed, first at byte {at}"
            end = max(end, after)
    return ""


def _written(cache: Cache) -> list[tuple[int, int]]:
    """Where the blocks that were written begin and end in their storage."""
    size = cache.view.element_size()
    length = cache.view.shape[1] * cache.view.shape[-1] * size
    offset, stride = cache.layout["offset"], cache.layout["stride"][0] * size
    return [(offset + block * stride, offset + block * stride + length) for block in cache.written]


def _itemsize(dtype: str) -> int:
    return {"uint8": 1, "int8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "float16": 2, "float32": 4}[dtype]
