"""Run by an interpreter with PyTorch and Triton: writes keys through every op found, and says what differs.

The reference is written for the tests, state by state, from the layout's description.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from dsv4check.probe import insert_ops, packed

SPREAD = torch.tensor([1e-6, 0.1, 1.0, 30.0, 4000.0])[:, None]


def pack(cache: Any, slots: list[int], keys: Any) -> None:
    """Packed states: 448 fp8, 64 bfloat16; the scales of a block behind all its states."""
    states = cache.shape[1]
    for slot, key in zip(slots, keys.float(), strict=True):
        block = torch.as_strided(cache[slot // states], (states * 584,), (1,))
        place = slot % states
        tiles = key[:448].reshape(7, 64)
        exponent = torch.ceil(torch.log2(tiles.abs().amax(1).clamp(min=1e-4) / 448))
        values = (tiles / torch.exp2(exponent)[:, None]).to(torch.float8_e4m3fn)
        block[place * 576 :][:448] = values.reshape(-1).view(torch.uint8)
        block[place * 576 + 448 :][:128] = key[448:].to(torch.bfloat16).view(torch.uint8)
        block[states * 576 + place * 8 :][:7] = (exponent + 127).to(torch.uint8)
        block[states * 576 + place * 8 + 7] = 0


def fresh(states: int, width: int, page: int) -> tuple[Any, Any]:
    raw = torch.full((3 * page,), 0xA5, dtype=torch.uint8)
    return raw, raw.as_strided((3, states, width), (page, width, 1))


def triton() -> list[dict[str, Any]]:
    ops, missing = insert_ops.find_ops(interpret=True)
    generator = torch.Generator().manual_seed(1)
    said = [{"missing": sorted(missing)}]
    for op in ops:
        for ratio in (4, 128) if op.kind == "compress" else (4,):
            states = 64 // (1 if ratio == 4 else 32)
            head, width = (128, 132) if op.writes == "indexer" else (512, 584)
            page = states * 132 + 60 if op.writes == "indexer" else {64: 37440, 2: 1728}[states]
            found, cache = fresh(states, width, page)
            wanted, other = fresh(states, width, page)
            slots = [0, 1, states, 2 * states + 1, states + 1]
            keys = torch.randn(5, head, generator=generator) * SPREAD
            keys = insert_ops.comparable(keys.to(torch.bfloat16))
            done = insert_ops.insert_with_vllm(op, cache, torch.tensor(slots), keys, ratio=ratio)
            if op.writes == "indexer":
                insert_ops.write_indexer(other, torch.tensor(slots), keys)
            else:
                pack(other, slots, keys)
                third, reference = fresh(states, width, page)
                packed.write_states(reference, torch.tensor(slots), keys, op.least_scale)
                wanted = torch.where(third == wanted, wanted, ~found)  # the two references must agree as well
            record = {"op": op.name, "writes": op.writes, "ratio": ratio, "ok": done.ok, "error": done.error}
            record["differ"] = int((found != wanted).sum())
            record["written"] = int((found != 0xA5).sum())
            if op.kind == "by-name" and done.ok:
                whole = insert_ops.read_with_vllm(cache, [0], 2, interpret=True)
                tiles = keys[:2, :448].float().reshape(2, 7, 64)
                scale = torch.exp2(torch.ceil(torch.log2(tiles.abs().amax(2, keepdim=True).clamp(min=1e-4) / 448)))
                values = (tiles / scale).to(torch.float8_e4m3fn).float() * scale
                exact = torch.cat([values.reshape(2, 448).to(torch.bfloat16), keys[:2, 448:]], dim=1)
                record["read_back"] = bool(torch.equal(whole, exact))
            said.append(record)
    return said


SCHEMAS = {
    "early": "(Tensor! q, Tensor kv, Tensor! k_cache, Tensor slots, Tensor positions, Tensor cos_sin, "
    "float eps, int bs) -> ()",
    "padding": "(Tensor q, Tensor kv, Tensor! k_cache, Tensor slots, Tensor positions, Tensor cos_sin, int heads, "
    "float eps, int bs) -> Tensor",
    "fork": "(Tensor q, Tensor kv, Tensor! k_cache, Tensor slots, Tensor positions, Tensor cos_sin, int heads, "
    "float eps, int bs, bool apply_q_norm=True) -> Tensor",
    "unknown": "(Tensor q, Tensor kv, Tensor! k_cache, Tensor slots, Tensor positions, Tensor cos_sin, int heads, "
    "float eps, int bs, str flavour) -> Tensor",
}


def compiled(form: str) -> list[dict[str, Any]]:
    """A compiled op with a schema as vLLM registers it, its kernel a CPU stand-in that checks what it is given."""
    library = torch.library.Library("_C", "FRAGMENT")
    name = "fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert"
    library.define(name + SCHEMAS[form])
    seen: dict[str, Any] = {}

    def kernel(q: Any, kv: Any, cache: Any, slots: Any, positions: Any, table: Any, *rest: Any) -> Any:
        seen.update(q=list(q.shape), cache=list(cache.shape), rest=list(rest), positions=positions.tolist())
        seen["rotates"] = bool((table[:, :32] != 1).any()) or bool((table[:, 32:] != 0).any())
        pack(
            torch.as_strided(cache, (3, rest[-1] if form == "early" else rest[2], 584), (cache.stride(0), 584, 1)),
            slots.tolist(),
            kv,
        )
        return q if form != "early" else None

    library.impl(name, kernel, "CPU")
    ops = insert_ops.available_ops()
    found, cache = fresh(64, 584, 37440)
    wanted, other = fresh(64, 584, 37440)
    keys = insert_ops.comparable(torch.randn(5, 512).to(torch.bfloat16))
    slots = [0, 63, 64, 130, 191]
    said = []
    for op in ops:
        done = insert_ops.insert_with_vllm(op, cache, torch.tensor(slots), keys, heads=128)
        pack(other, slots, keys)
        said.append({"op": op.name, "ok": done.ok, "error": done.error, "seen": seen,
                     "differ": int((found != wanted).sum())})  # fmt: skip
    return said


if __name__ == "__main__":
    print(json.dumps(triton() if sys.argv[1] == "triton" else compiled(sys.argv[2])))
