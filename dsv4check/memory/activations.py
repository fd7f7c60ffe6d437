"""What the profiling run holds at its peak, and the buffers it reserves for later steps.

The run is one forward pass over max_num_batched_tokens dummy tokens (``GPUModelRunner.profile_run``), without attention
metadata: projections, hyper-connections and experts run, FlashMLA, the compressors and the indexer do not. They only
reserve what a step would need from the workspace manager, one buffer that the largest user sizes.
"""

from __future__ import annotations

from typing import Final

from dsv4check.memory.records import Cost, Span
from dsv4check.memory.shapes import BF16, FP32, MIB, Launch, Shapes, gib

MODEL_BUFFERS: Final = "buffers built with the model"
"""These are part of ``Model loading took``, so a figure from a log holds them already."""
WORKSPACE: Final = "workspace buffers"
PEAK: Final = "peak activations"
DRAFT_PEAK: Final = "draft's activations"
_INDEX_ROW: Final = {"mxfp4": 68, "fp8": 132}
"""Bytes of one gathered indexer key with its scales: 128 values."""
_SAMPLER_BYTES: Final = {"v1": (6, 20), "v2": (4, 16)}
"""For each logit: the logits themselves and their float32 copy; at most sorting, probabilities and noise too."""
_RATIO: Final = 4
"""Tokens of context that one indexer key stands for."""
_FLASHINFER_MIB: Final = 128
_GATHER_ROUND: Final = 128


def model_buffers(launch: Launch, shape: Shapes) -> Cost | None:
    """RoPE tables, top-k indices, the draft's view of the residual streams, and the padded query of 0.27 - 0.28."""
    if launch.tokens is None:
        return None
    tables = rope_tables(launch, shape)
    indices = launch.tokens * shape.index_topk * 4
    streams = launch.tokens * shape.streams * shape.hidden * BF16
    pool = 0
    if launch.facts["padded_query"] == "pool":
        pool = launch.tokens * (shape.padded_heads * shape.head_dim * BF16 + shape.head_dim * FP32)
    low = tables + indices + pool + (streams if launch.drafting else 0)
    size = Span(low, tables + indices + pool + streams)
    parts = [f"{shape.index_topk} top-k indices", f"{shape.streams} x {shape.hidden} residual values"]
    parts += [f"a query of {shape.padded_heads} heads"] if pool else []
    why = (
        f"RoPE tables of every position ({gib(Span(tables, tables))}), and {launch.tokens} tokens with "
        f"{', '.join(parts)} each: {gib(size)}."
    )
    return Cost(MODEL_BUFFERS, size, True, why, _model(launch))


def rope_tables(launch: Launch, shape: Shapes) -> int:
    """Bytes of the cos/sin tables: one for compressed layers and one for the others, float32, all positions.

    ``get_rope`` keeps one table for each set of parameters; --max-model-len does not shorten it.
    """
    model = launch.deployment.model
    positions, width = model.integer("max_position_embeddings") or 0, model.integer("qk_rope_head_dim") or 0
    kinds = {ratio > 1 for ratio in model.compress_ratios} | ({False} if launch.drafting else set())
    return len(kinds) * positions * width * FP32 if max(positions, width) < _MOST_POSITIONS else 0


_MOST_POSITIONS: Final = 1 << 40


def workspace(launch: Launch, shape: Shapes) -> Cost | None:
    """The workspace manager's buffer: the largest of the prefill gather, the indexer's gather and the experts'."""
    if launch.tokens is None:
        return None
    uses = {"experts": _experts(launch, shape)}
    if launch.length is not None:
        uses["prefill gather"] = _prefill_gather(launch, shape)
        uses["indexer gather"] = _indexer_gather(launch)
    copies = 2 if launch.deployment.flags.get("enable_dbo") else 1
    lanes = 2 if _two_lanes(launch) else 1
    size = Span(max(use.low for use in uses.values()) * copies, max(use.high for use in uses.values()) * copies * lanes)
    if _flashmla(launch) is not True:
        size = size + Span(0, _FLASHINFER_MIB * MIB)
    listed = ", ".join(f"{name} {gib(use)}" for name, use in uses.items())
    why = f"One buffer as large as its largest user: {listed}."
    return Cost(WORKSPACE, size, True, why, "v1/worker/workspace.py:WorkspaceManager.get_simultaneous")


def _experts(launch: Launch, shape: Shapes) -> Span:
    """``FusedMoEExpertsModular.workspace_shapes``: both intermediate caches in bf16, as Marlin and DeepGEMM ask for."""
    assert launch.tokens is not None
    row = shape.top_k * BF16 * (max(shape.inner, shape.hidden) + max(2 * shape.inner, shape.hidden))
    low, high = (launch.tokens * ranks * row for ranks in shape.gathered)
    exact = launch.moe is not None and launch.moe.backend == "MARLIN"
    # Other kernels keep part of it in buffers of their own, or none.
    return Span(low if exact else 0, high)


def _prefill_gather(launch: Launch, shape: Shapes) -> Span:
    """FlashMLA's prefill reads keys of a few requests from one bf16 buffer: context / 4, window and new tokens."""
    assert launch.tokens is not None
    assert launch.length is not None
    known = _flashmla(launch)
    if known is False:
        return Span(0, 0)
    rows = -(-launch.length // _RATIO) + shape.window + launch.tokens
    gathered = launch.facts["prefill_chunk"] * rows * shape.head_dim * BF16
    width = -(-(shape.index_topk + shape.window) // _GATHER_ROUND) * _GATHER_ROUND
    return Span(gathered if known else 0, gathered + launch.tokens * (width + 1) * 4)


def _flashmla(launch: Launch) -> bool | None:
    """Whether attention is FlashMLA's rather than FlashInfer's, which has a buffer of its own; None: not known."""
    if launch.attention is None or launch.attention.backend is None:
        return None
    return "FLASHMLA" in launch.attention.backend


def _indexer_gather(launch: Launch) -> Span:
    assert launch.length is not None
    factor = next(rows for limit, rows in launch.facts["indexer_rows"] if limit is None or launch.length <= limit)
    rows = launch.length * factor // _RATIO
    known = launch.attention.indexer_dtype if launch.attention is not None else None
    if known in _INDEX_ROW:
        size = rows * _INDEX_ROW[known] + MIB
        return Span(size, size)
    return Span(rows * _INDEX_ROW["mxfp4"], rows * _INDEX_ROW["fp8"] + MIB)


def _two_lanes(launch: Launch) -> bool:
    """DSpark's target and draft keep buffers of their own on the V2 runner."""
    method = launch.draft.method if launch.draft is not None else None
    return bool(launch.facts["workspace_lanes"]) and method == "dspark"


_REUSED: Final = 70
"""Percent of the least peak that is new memory: loading leaves torch blocks that are used again. V4-Flash on two H200
NVL (0.23.0, 8192 tokens, eager) has at most 0.8 GiB left for it and for libraries, of the 0.9 GiB alive at once."""


def peak(launch: Launch, shape: Shapes) -> Cost | None:
    """The larger of the forward pass and the sampler's run after it."""
    if launch.tokens is None:
        return None
    forward = _forward(launch, shape, launch.tokens)
    sampler = _sampler(launch, shape, launch.tokens)
    held = launch.tokens * shape.hidden * BF16
    least = max(forward.low, sampler.low + held if launch.parallel.pipeline == 1 else 0)
    size = Span(
        least * _REUSED // 100,
        max(forward.high, sampler.high + held),
    )
    why = (
        f"Profiling runs {launch.tokens} tokens: residual streams of {shape.streams} x {shape.hidden}, "
        f"{shape.heads} query heads padded to {shape.padded_heads} and the indexer's logits take {gib(forward)}; "
        f"sampling {_rows(launch)} rows of {shape.vocab} logits takes {gib(sampler)}."
    )
    return Cost(PEAK, size, True, why, f"{_runner(launch)}:GPUModelRunner.profile_run")


def _forward(launch: Launch, shape: Shapes, tokens: int) -> Span:
    """Bytes alive inside one layer: at least the streams, the query and the output; at most every tensor of a layer."""
    streams = shape.streams * shape.hidden * BF16
    hidden = shape.hidden * BF16
    query = shape.heads * shape.head_dim * BF16
    output = shape.padded_heads * shape.head_dim * BF16
    # Profiling pads the query too, where it does not return before that.
    padded = output if shape.padded_heads > shape.heads and launch.facts["padded_query"] != "after" else 0
    latent = (shape.q_rank + shape.head_dim) * BF16 + 2 * 2 * shape.head_dim * FP32
    index = shape.index_heads * (shape.index_dim * 3 + 4)
    attention = 3 * streams + hidden + query + padded + output + latent + index
    # Gathered tokens meet their experts as bf16, quantised, and as results.
    routed = [ranks * shape.hidden * 5 for ranks in shape.gathered]
    experts = 2 * streams + 2 * hidden + routed[1] + 4 * shape.inner * BF16
    low = streams + hidden + query + padded + output + latent
    if launch.parallel.data > 1:
        low = max(low, streams + routed[0])
    return Span(tokens * low, tokens * max(attention, experts) + logits_bytes(launch))


def logits_bytes(launch: Launch) -> int:
    """The stand-in for the indexer's logits: VLLM_SPARSE_INDEXER_MAX_LOGITS_MB."""
    text = launch.deployment.env.get("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", "").strip()
    asked = int(text) if text.isdecimal() and len(text) < _LONGEST_NUMBER else int(launch.facts["logits_mib"])
    return asked * MIB


_LONGEST_NUMBER: Final = 10


def _rows(launch: Launch) -> str:
    return "an unknown number of" if launch.seqs is None else str(min(launch.seqs, launch.tokens or launch.seqs))


def _sampler(launch: Launch, shape: Shapes, tokens: int) -> Span:
    """``_dummy_sampler_run``: logits of one row for each request; the rejection sampler sees one more for each."""
    if launch.seqs is None:
        return Span(0, min(tokens, _MOST_SEQS) * shape.vocab * _SAMPLER_BYTES["v1"][1])
    rows = min(launch.seqs, tokens)
    kinds = [launch.runner.name] if launch.runner is not None and launch.runner.name else list(_SAMPLER_BYTES)
    low = min(_SAMPLER_BYTES[kind][0] for kind in kinds)
    high = max(_SAMPLER_BYTES[kind][1] for kind in kinds)
    return Span(rows * shape.vocab * low, rows * (2 if launch.drafting else 1) * shape.vocab * high)


_MOST_SEQS: Final = 1024
"""The largest default of max_num_seqs."""


def draft_peak(launch: Launch, shape: Shapes) -> Cost | None:
    """The draft's dummy run while the target's hidden states are held."""
    if launch.tokens is None or not launch.drafting:
        return None
    size = Span(0, launch.tokens * BF16 * shape.hidden * (shape.streams + 3))
    why = (
        f"The draft runs the same {launch.tokens} tokens while the target's hidden states are held: at most "
        f"{shape.streams} + 3 times {shape.hidden} values a token, {gib(size)}."
    )
    return Cost(DRAFT_PEAK, size, True, why, f"{_runner(launch)}:GPUModelRunner._dummy_run")


def _runner(launch: Launch) -> str:
    second = launch.runner is not None and launch.runner.name == "v2"
    return "v1/worker/gpu/model_runner.py" if second else "v1/worker/gpu_model_runner.py"


def _model(launch: Launch) -> str:
    old = launch.facts["padded_query"] == "after"
    return f"model_executor/models/deepseek_v4.py ({launch.release})" if old else "models/deepseek_v4/nvidia/model.py"
