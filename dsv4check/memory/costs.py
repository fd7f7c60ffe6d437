"""Memory that a start takes beside weights and KV cache, as ranges with their arithmetic.

vLLM sizes the KV cache as ``ceil(total * utilisation)`` less what its profiling run measured
(``v1/worker/gpu_worker.py:Worker.determine_available_memory``). A cost with ``budgeted`` was measured by then; the
others come out of what the utilisation leaves, and end a start or a long prompt when it leaves too little.

Up to 0.26 the measure is weights + torch's peak above them + what others than torch hold, so tensors made between
the first snapshot and the weights count nowhere; from 0.27.0 on it is the whole drop of free memory + the peak's
rest. The first snapshot stands after NCCL's start in every release: the context and NCCL are never in the budget.
"""

from __future__ import annotations

from typing import Final

from dsv4check.deployment import Deployment
from dsv4check.memory import activations, graphs
from dsv4check.memory.records import Cost, Span
from dsv4check.memory.shapes import BF16, GIB, MIB, Launch, Shapes, gib, launch, shapes
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Attention, Draft, KvCache, Moe, Parallelism, Runner

CONTEXT: Final = "CUDA context and NCCL"
LIBRARIES: Final = "kernels, libraries and communication buffers"
RUNNER_BUFFERS: Final = "runner's input buffers"
BLOCK_TABLES: Final = "block tables"
UNPROFILED: Final = "attention that profiling skips"
WARM_UP: Final = "kernel autotuning"
DECODING: Final = "media decoding of the API server"
_WORKER: Final = "v1/worker/gpu_worker.py"
_ONE_GPU: Final = (Span(350 * MIB, 1100 * MIB), Span(100 * MIB, 1200 * MIB))
_SEVERAL: Final = (Span(400 * MIB, 2300 * MIB), Span(100 * MIB, 2500 * MIB))
"""Before the first snapshot, and from there to the end of profiling."""
_AUTOTUNE_TOKEN: Final = 400 * 1024
"""Bytes a token of FlashInfer's FP4 autotuning at hidden size 5120: 49 GiB were not enough for 131072 tokens."""
_AUTOTUNE_HIDDEN: Final = 5120
_SM10: Final = 10


def costs_of(
    deployment: Deployment,
    facts: ReleaseFacts,
    *,
    parallel: Parallelism,
    attention: Attention | None = None,
    kv_cache: KvCache | None = None,
    draft: Draft | None = None,
    runner: Runner | None = None,
    moe: Moe | None = None,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    max_model_len: int | None = None,
) -> tuple[Cost, ...]:
    """Costs of one GPU of the launch, all pipeline stages alike; empty where vLLM does not take its CUDA path.

    A cost whose sizes are not known is left out, or has 0 as its low bound. Nothing here raises for odd values.
    """
    if deployment.hardware.vendor not in (None, "nvidia"):
        return ()
    start = launch(
        deployment,
        facts,
        parallel=parallel,
        attention=attention,
        kv_cache=kv_cache,
        draft=draft,
        runner=runner,
        moe=moe,
        tokens=max_num_batched_tokens,
        seqs=max_num_seqs,
        length=max_model_len,
    )
    found: list[Cost | None] = [_context(start), _libraries(start)]
    shape = shapes(start)
    if shape is not None:
        found += [
            activations.model_buffers(start, shape),
            activations.workspace(start, shape),
            activations.peak(start, shape),
            activations.draft_peak(start, shape),
            graphs.captured(start, shape),
            _runner_buffers(start, shape),
            _unprofiled(start, shape),
            _autotuning(start, shape),
        ]
    found += [_block_tables(start), _decoding(start)]
    return tuple(cost for cost in found if cost is not None)


def budgeted(costs: tuple[Cost, ...]) -> Span:
    """Bounds of what vLLM takes off before it sizes the KV cache."""
    total = Span(0, 0)
    for cost in costs:
        total = total + cost.size if cost.budgeted else total
    return total


def _context(launch: Launch) -> Cost:
    size = (_SEVERAL if launch.several_gpus else _ONE_GPU)[0]
    held = {"context": "the CUDA context", "nccl": "NCCL's first buffers", "cublas": "cuBLAS's handles"}
    parts = [text for part, text in held.items() if part in launch.facts["baseline"]]
    why = (
        f"Held before vLLM's first look at the memory: {', '.join(parts)}, {gib(size)}. Free memory must be "
        "ceil(total x utilisation) at that point."
    )
    source = f"{_WORKER}:Worker.init_device; 0.4 - 2.2 GiB in public `Free memory on device` lines"
    return Cost(CONTEXT, size, False, why, source)


def _libraries(launch: Launch) -> Cost:
    size = (_SEVERAL if launch.several_gpus else _ONE_GPU)[1]
    more = ", all-reduce and all-to-all buffers" if launch.several_gpus else ""
    why = f"Kernels that load when they first run, cuBLAS{more}: {gib(size)}, measured on other launches."
    source = "public logs: 0.14 GiB (V4-Flash, 2 x H200 NVL, 0.23.0) to 2.5 GiB (8 GPUs)"
    return Cost(LIBRARIES, size, True, why, source)


def _runner_buffers(launch: Launch, shape: Shapes) -> Cost | None:
    """Persistent inputs made before the weights: only ``consumed`` sees them."""
    if launch.tokens is None:
        return None
    inputs = launch.tokens * _INPUT_BYTES
    residual = launch.tokens * shape.streams * shape.hidden * BF16
    # Stages after the first keep the streams that the one before sends.
    sent = residual if launch.parallel.pipeline > 1 else 0
    size = Span(inputs, 4 * inputs + sent + (residual if launch.drafting else 0))
    counted = "counted" if launch.consumed else "not counted: made before the weights, and torch's"
    why = f"Token ids, positions and slots of {launch.tokens} tokens, hidden states of a draft or stage: {counted}."
    return Cost(RUNNER_BUFFERS, size, launch.consumed, why, "utils/mem_utils.py:memory_profiling")


_INPUT_BYTES: Final = 32


def _block_tables(launch: Launch) -> Cost | None:
    """``BlockTables``/``MultiGroupBlockTable``: int32, a row for each request, as wide as the longest context."""
    if launch.kv_cache is None or not launch.kv_cache.layers or launch.seqs is None or launch.length is None:
        return None
    sizes = [layer.block_size for layer in launch.kv_cache.layers if layer.block_size > 0]
    if not sizes:
        return None
    copies = {"v1": (1, 1), "v2": (2, 2)}.get(launch.runner.name or "" if launch.runner else "", (1, 2))
    row = 4 * launch.seqs
    # At least one group for each block size, at most one for each kind of layer.
    low = sum(-(-launch.length // size) for size in set(sizes)) * row * copies[0]
    high = sum(-(-launch.length // size) for size in sizes) * row * copies[1]
    size = Span(low, high)
    why = (
        f"{launch.seqs} requests x {launch.length} tokens in blocks of {_listed(sizes)} tokens, 4 bytes a block, "
        f"{'two tables' if copies[0] > 1 else 'one table'} for each cache group: {gib(size)}, made with the KV cache."
    )
    second = copies == (2, 2)
    source = "v1/worker/gpu/block_table.py:BlockTables" if second else "v1/worker/block_table.py:MultiGroupBlockTable"
    return Cost(BLOCK_TABLES, size, False, why, source)


def _listed(sizes: list[int]) -> str:
    return ", ".join(str(size) for size in sorted(set(sizes)))


def _unprofiled(launch: Launch, shape: Shapes) -> Cost | None:
    """What a prefill step allocates in attention, which profiling does not run."""
    if launch.tokens is None:
        return None
    indices = launch.tokens * (shape.index_topk + shape.window) * 8
    padded = launch.tokens * shape.padded_heads * shape.head_dim * BF16 if shape.padded_heads > shape.heads else 0
    where = launch.facts["padded_query"]
    size = Span(padded if where == "after" else 0, indices + (0 if where == "pool" else padded))
    why = f"Indices of {launch.tokens} tokens"
    if padded and where != "pool":
        why += f" and a query padded from {shape.heads} to {shape.padded_heads} heads"
        why += ", made after profiling has returned" if where == "after" else ", made anew by each step's kernel"
    source = "vllm#51743; models/deepseek_v4/attention.py" if where == "step" else "the attention layer's forward"
    return Cost(UNPROFILED, size, False, f"{why}: {gib(size)}.", source)


def _autotuning(launch: Launch, shape: Shapes) -> Cost | None:
    """FlashInfer tries its FP4 expert kernels after the KV cache is there (``kernel_warmup``)."""
    capability = launch.deployment.hardware.capability
    if launch.tokens is None or capability is None or capability[0] != _SM10:
        return None
    flags = launch.deployment.flags
    wanted = flags.section("kernel_config").get("enable_flashinfer_autotune", flags.get("enable_flashinfer_autotune"))
    backend = launch.moe.backend if launch.moe is not None else None
    if wanted is False or flags.get("enforce_eager") or (backend is not None and "FLASHINFER" not in backend):
        return None
    tokens = launch.tokens * shape.gathered[1]
    size = Span(0, tokens * _AUTOTUNE_TOKEN * shape.hidden // _AUTOTUNE_HIDDEN)
    why = f"Workspaces of FlashInfer's expert kernels while they are tried on {tokens} tokens: {gib(size)}."
    source = "v1/worker/gpu_worker.py:Worker.compile_or_warm_up_model; V4.1-Flash on 8 x B300 ran out of 49 GiB"
    return Cost(WARM_UP, size, False, why, source)


def _decoding(launch: Launch) -> Cost | None:
    """``_reserve_mm_ipc_gpu_memory``: taken off the KV cache for decoding of images and video on the GPU."""
    asked = launch.deployment.flags.get("mm_ipc_gpu_memory_gb", launch.facts["mm_ipc_gib"])
    if isinstance(asked, bool) or not isinstance(asked, (int, float)) or not 0 < asked < _MOST_GIB:
        return None
    size = int(asked * GIB)
    why = f"--mm-ipc-gpu-memory-gb {asked:g} is taken off the KV cache."
    return Cost(DECODING, Span(size, size), True, why, f"{_WORKER}:reserve_mm_ipc_gpu_memory")


_MOST_GIB: Final = 65536
