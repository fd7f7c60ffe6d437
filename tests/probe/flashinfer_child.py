"""Run by an interpreter with PyTorch: FlashInfer's own Python of one version, on CPU tensors, its kernels stood in for.

The text of ``flashinfer/mla/_core.py`` is executed as it is: every check it makes of its arguments is real. Only what
asks the device or loads a compiled kernel is replaced; the stand-ins compute what the kernels are described to compute.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import json
import math
import os
import sys
import types
import typing
from pathlib import Path
from typing import Any

import torch

from dsv4check.probe import flashinfer, flashinfer_checks, packed, plain

ATTENTION = {"local_heads": 48, "padded_heads": 64, "topk": 128}

MODELS = ("DSV3_2", "DSV4", "GLM_NSA", "GLM53_NOPE", "DOTS3_SWA", "DSV4_1")
TABLE = (
    *(f"_MODEL_TYPE_{model}" for model in MODELS),
    "_DECODE_DSV4_DISPATCH",
    "_DECODE_MAX_HEADS",
    "_DecodeDispatchEnvelope",
    "_StaticFamilyEnvelope",
    "_STATIC_DECODE_ENVELOPE",
)
CONSTANTS = ("_DSV4_KV_CACHE_FORMATS",)


class Names(dict[str, Any]):
    """Globals in which builtins are found, and anything unknown is an error."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name)


def execute(path: Path, wanted: tuple[str, ...] | None, names: Names) -> ast.Module:
    """Run a file's functions and data classes, or the ``wanted`` definitions and assignments, without decorators."""
    tree = ast.parse(path.read_text())
    kept: list[ast.stmt] = list(ast.parse("from __future__ import annotations").body)
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            node.decorator_list = [item for item in node.decorator_list if "dataclass" in ast.unparse(item)]
            whole = isinstance(node, ast.FunctionDef) or node.decorator_list
            if whole if wanted is None else node.name in wanted:
                kept.append(node)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in (wanted or CONSTANTS):
            kept.append(node)
    exec(compile(ast.Module(kept, []), str(path), "exec"), names)
    return tree


def install(folder: Path, capability: tuple[int, int]) -> None:
    """``flashinfer.decode`` and the table of SM 12.x kernels, from the version's text."""
    sys.modules["core"] = types.ModuleType("core")
    names = Names(torch=torch, functools=functools, os=os, math=math, dataclass=dataclasses.dataclass, __name__="core")
    names |= {name: getattr(typing, name) for name in typing.__all__}
    tree = execute(folder / "flashinfer/mla/_core.py", None, names)
    utils = Names(torch=torch)
    execute(folder / "flashinfer/utils.py", ("check_shape_dtype_device",), utils)
    names["check_shape_dtype_device"] = utils["check_shape_dtype_device"]
    names |= {"device_support_pdl": lambda _device: False, "get_device_sm_count": lambda _device: 132}
    names |= {"get_compute_capability": lambda _device: capability, "log2e": 1.4426950408889634}
    # The values are looked at too, not the shapes alone.
    names["_validate_dsv4_sync_checks"] = lambda *_: True
    names["_is_sm120_family"] = lambda _device: capability[0] == 12
    for verb in ("resolve", "get"):
        names[f"_{verb}_trtllm_gen_multi_ctas_kv_counter_buffer"] = lambda *_: torch.zeros(1)
    calls = [
        [ast.unparse(item) for item in node.args]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "run_func" and len(node.args) > 12
        and any("swa_kv_cache" in ast.unparse(item) for item in node.args)
    ]  # fmt: skip
    names["get_trtllm_gen_fmha_module"] = lambda: types.SimpleNamespace(
        trtllm_paged_attention_decode_sparse_mla_dsv4=lambda *values: rows_kernel(
            dict(zip(calls[0], values, strict=True))
        )
    )
    if "_trtllm_batch_decode_sparse_mla_sm120" in names:
        normalise = names["_normalize_sparse_mla_segments"]
        names["_trtllm_batch_decode_sparse_mla_sm120"] = lambda **given: packed_kernel(normalise, given)
    for name in ("flashinfer", "flashinfer.mla"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    decode = types.ModuleType("flashinfer.decode")
    if flashinfer.NAME in names:
        setattr(decode, flashinfer.NAME, names[flashinfer.NAME])
    sys.modules["flashinfer.decode"] = decode
    for path in sorted((folder / "flashinfer/mla").rglob("*.py")):
        if path.read_text().count("\n_DECODE_DSV4_DISPATCH = "):
            table = Names(dataclass=dataclasses.dataclass, __name__="core")
            execute(path, TABLE, table)
            module = types.ModuleType("flashinfer.mla._sparse_mla_sm120")
            module._DECODE_DSV4_DISPATCH = table["_DECODE_DSV4_DISPATCH"]  # type: ignore[attr-defined]
            sys.modules[module.__name__] = module


def attend(q: Any, states: Any, sink: Any, scale: float) -> Any:
    scores = q.double() @ states.double().T * scale
    total = torch.logaddexp(scores.logsumexp(1), sink.double())
    return (torch.exp(scores - total[:, None]) @ states.double()).to(torch.bfloat16)


def rows_kernel(given: dict[str, Any]) -> None:
    """SM 10.x: rows of the storage by their offset; the window's part from the sequence length."""

    def find(part: str) -> Any:
        return next(value for name, value in given.items() if name.startswith(part))

    indices, lengths, sequences = find("sparse_indices"), find("sparse_topk_lens"), find("seq_lens")
    for token in range(lengths.shape[0]):
        states = []
        for cache, columns in (
            (find("swa_kv_cache"), indices[token, : min(int(sequences[token]), 128)]),
            (find("primary_kv_cache"), indices[token, 128 : int(lengths[token])]),
        ):
            first, step = cache.storage_offset(), cache.stride(-2)
            whole = torch.as_strided(cache, (cache.untyped_storage().nbytes() // cache.element_size() // step, 512),
                                     (step, 1), first)  # fmt: skip
            states.append(whole[columns[columns >= 0].long()].float())
        query = find("query")[token].float()
        find("out")[token] = attend(query, torch.cat(states), find("sinks"), find("bmm1_scale"))


def packed_kernel(normalise: Any, given: dict[str, Any]) -> Any:
    """SM 12.x: packed states by slot, each segment with its own length."""
    query, cache = given["query"], given["kv_cache"]
    segments = normalise(
        sparse_mla_segments=given["sparse_mla_segments"], batch_size=query.shape[0], q_len_per_request=1,
        device=query.device,
    )  # fmt: skip
    for token in range(query.shape[0]):
        states = []
        for segment in segments:
            listed = segment.indices[token, : int(segment.lengths[token])]
            where = cache if segment.kv_cache is None else segment.kv_cache
            states.append(packed.read_states(where, listed[listed >= 0]))
        given["out"][token, 0] = attend(query[token, 0], torch.cat(states), given["sinks"], given["sm_scale"])
    return given["out"]


def cache(kind: str, blocks: int, states: int, dtype: str) -> Any:
    """A cache with a gap between its blocks, as where layers share a page."""
    if dtype == "uint8":
        view = packed.new_cache(blocks, states)
    else:
        raw = torch.zeros(blocks * (states + 3) * 512, dtype=getattr(torch, dtype))
        view = raw.as_strided((blocks, states, 512), ((states + 3) * 512, 512, 1))
    return types.SimpleNamespace(kind=kind, view=view, slots=torch.arange(states, blocks * states))


def main(folder: Path) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    said = []
    for capability, dtype in (((10, 0), "bfloat16"), ((10, 0), "float8_e4m3fn"), ((12, 0), "uint8")):
        install(folder, capability)
        swa = cache("swa", 4, 64, dtype)
        extras = [None, cache("main_c4", 3, 64, dtype), cache("main_c128", 30, 2, dtype)]
        for extra in extras:
            inputs = flashinfer_checks.build(swa, extra, ATTENTION, 7)
            planned = flashinfer.plan(inputs, 64, capability)
            record: dict[str, Any] = {"sm": capability[0], "dtype": dtype, "extra": getattr(extra, "kind", "")}
            if isinstance(planned, str):
                said.append(record | {"why": planned})
                continue
            done = flashinfer.run(planned)
            wanted = flashinfer_checks.expected(inputs, 64)
            said.append(
                record
                | {"status": done.status, "message": done.message, "passed": sorted(planned.arguments)}
                | {"error": flashinfer_checks.relative_error(done.out, wanted), "size": float(wanted.abs().max())}
            )
    odd = flashinfer_checks.build(cache("swa", 4, 64, "bfloat16"), None, ATTENTION, 7)
    said.append({"sm": 10, "wrong": True, **wrong(odd)})
    return said


def wrong(inputs: Any) -> dict[str, Any]:
    """A call FlashInfer has to refuse: lengths that list more than there is."""
    install(Path(sys.argv[1]), (10, 0))
    planned = flashinfer.plan(inputs, 64, (10, 0))
    if isinstance(planned, str):
        return {"why": planned}
    planned.arguments["sparse_topk_lens"] = planned.arguments["sparse_topk_lens"] + 4
    done = flashinfer.run(planned)
    return {"status": done.status, "message": done.message}


if __name__ == "__main__":
    assert plain.HEAD == 512
    print(json.dumps(main(Path(sys.argv[1]))))
