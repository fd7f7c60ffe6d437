"""Runs a release's own quantise-and-insert and dequantise-and-gather kernels on the CPU, in Triton's interpreter.

``python vllm_cache_ops.py CACHE_UTILS_PY CASES.pt ANSWERS.pt``; the kernels are cut out of the release's file, so that
nothing of vLLM is imported. A case has ``keys``, ``slots``, ``states``, ``block_stride``, ``blocks`` and ``fill``.
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

INSERT = ("quantize_and_insert_k_kernel", "quantize_and_insert_k_cache")
GATHER = ("_dequantize_and_gather_k_kernel", "dequantize_and_gather_k_cache", "dequantize_and_gather_k_cache_triton")
GATHER_CLASS = "DequantizeAndGatherKCacheKernel"
"""From 0.28 on: the kernel is a static method of this class."""


def cut_out(path: Path) -> str:
    """The kernels, and the functions that launch them, as a module of their own."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    parts = ["import torch, triton", "import triton.language as tl", "get_fp8_min_max = current_platform = None"]
    parts.append("has_cutedsl = lambda: False")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in INSERT + GATHER:
            parts.append(source(text, node, 0))
        if isinstance(node, ast.ClassDef) and node.name == GATHER_CLASS:
            parts += [source(text, part, 4) for part in node.body if getattr(part, "name", "") == "kernel"]
    return "\n\n".join(parts) + "\n"


def source(text: str, node: Any, indent: int) -> str:
    first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
    lines = [line[indent:] for line in text.splitlines()[first - 1 : node.end_lineno]]
    return "\n".join(line for line in lines if line != "@staticmethod")


def gather(module: Any, cache: Any, states: int, wanted: int) -> Any:
    """The first ``wanted`` states of the cache in order, through the release's kernel."""
    import torch

    out = torch.zeros(1, wanted, 512, dtype=torch.bfloat16)
    lengths = torch.tensor([wanted], dtype=torch.int32)
    blocks = len(cache)
    table = torch.arange(blocks, dtype=torch.int32).unsqueeze(0)
    for name in ("dequantize_and_gather_k_cache_triton", "dequantize_and_gather_k_cache"):
        launch = getattr(module, name, None)
        if launch is not None and not hasattr(module, "kernel"):
            launch(out, cache, lengths, None, table, states, 0)
            return out[0]
    fixed = {"fp8_dim": 448, "bf16_dim": 64, "scale_dim": 8, "quant_block": 64, "token_data_size": 576}
    fixed |= {"output_dim": 512, "fp8_max": 448.0, "n_quant_blocks": 7, "max_blocks_per_seq": blocks}
    strides = (cache.stride(0), out.stride(0), out.stride(1))
    module.kernel[(1, 4)](
        out, strides[1], strides[2], cache, lengths, table, 0, None, cache_block_size=states, block_stride=strides[0],
        **fixed,
    )  # fmt: skip
    return out[0]


def round_as_gpus_do() -> None:
    """The interpreter rounds half-way values away from zero and drops bits of subnormals; the compiled conversion to
    fp8 (RTNE in Triton's own IR) takes the even neighbour. PyTorch's conversion stands in, for this one step."""
    import numpy
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    usual = interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source == tl.float32 and target == tl.float8e4nv:
            exact = torch.from_numpy(numpy.ascontiguousarray(data).view(numpy.float32))
            return exact.to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(data.shape)
        return usual(data, source, target, rounding)

    interpreter._convert_float = convert


def main() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import importlib.util

    import torch

    round_as_gpus_do()
    path, cases, answers = map(Path, sys.argv[1:4])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cut_out.py"
        file.write_text(cut_out(path), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("cut_out", file)
        assert spec is not None
        assert spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        results = []
        for case in torch.load(cases):
            states, blocks, stride = case["states"], case["blocks"], case["block_stride"]
            storage = torch.full((blocks * stride,), case["fill"], dtype=torch.uint8)
            cache = storage.as_strided((blocks, states * 584), (stride, 1))
            module.quantize_and_insert_k_cache(case["keys"], cache, case["slots"], block_size=states)
            results.append({"bytes": storage, "gathered": gather(module, cache, states, len(case["keys"]))})
        torch.save(results, answers)


if __name__ == "__main__":
    main()
