"""What vLLM says it decided while it starts: one table of names and the lines that state them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dsv4check.triage.records import Fact, Run

DECISIONS: Final[tuple[tuple[str, str, str], ...]] = (
    # name of the fact, words that the releases' code has (a part of the line), expression with the value as group 1
    ("platform", "Automatically detected platform", r"Automatically detected platform (\w+)"),
    ("architecture", "Resolved architecture: ", r"Resolved architecture: ([\w.]+)"),
    ("max_model_len", "Using max model len ", r"Using max model len (\d+)"),
    ("max_num_batched_tokens", "with max_num_batched_tokens=", r"with max_num_batched_tokens=(\d+)"),
    ("async_scheduling", "Asynchronous scheduling is ", r"Asynchronous scheduling is (enabled|disabled)"),
    ("kv_cache_dtype", " data type to store kv cache", r"Using (\S+) data type to store kv cache"),
    ("kv_cache_layout", "KV cache format", r"Using DeepSeek's (\w+) KV cache format"),
    ("attention_backend", " attention backend out of potential backends", r"Using (\S+) attention backend out of"),
    ("attention_backend", "Using %s backend.", r"^Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) backend\.$"),
    ("moe_backend", "Mxfp4 MoE backend", r"Using '?([\w ]+?)'? Mxfp4 MoE backend"),
    ("moe_backend", "Fp8 MoE backend", r"Using '?([\w ]+?)'? Fp8 MoE backend"),
    ("moe_backend", "NvFp4 MoE backend", r"Using '?([\w ]+?)'? NvFp4 MoE backend"),
    ("moe_backend", "Unquantized MoE backend", r"Using '?([\w ]+?)'? Unquantized MoE backend"),
    ("runner", "Using V2 Model Runner", r"Using (V2) Model Runner"),
    ("kv_connector", "Creating v1 connector with name: ", r"Creating v1 connector with name: (\w+)"),
    ("weights_gib", "Model loading took ", r"Model loading took ([\d.]+) GiB"),
    ("available_kv_gib", "Available KV cache memory: ", r"Available KV cache memory: (-?[\d.]+) GiB"),
    ("kv_cache_tokens", "KV cache size: ", r"KV cache size: ([\d,]+) tokens"),
    ("concurrency", "Maximum concurrency for ", r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"),
    ("cudagraph_gib", "Graph capturing finished in ", r"Graph capturing finished in \d+ secs, took (-?[\d.]+) GiB"),
    ("draft", " draft model loaded: %d params", r"(MTP|DSpark|DSpark XPU) draft model loaded"),
    ("cudagraph_mode", "verriding cudagraph_mode ", r"[Oo]verriding cudagraph_mode (?:from \S+ )?to (\w+)"),
    ("block_size", "Setting kv cache block size to ", r"Setting kv cache block size to (\d+)"),
    ("indexer_cache", " indexer cache for L", r"Using (\S+) indexer cache for L"),
    ("expert_dtype", "expert_dtype resolved to ", r"expert_dtype resolved to '(\w+)'"),
    (
        "breakable_cudagraph",
        "Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH",
        r"Auto-enabling (VLLM_USE_BREAKABLE_CUDAGRAPH)",
    ),
)
"""The lines of all releases since 0.20.0 that state a decision. Of a name that is stated twice the last one counts."""
OF_TARGET: Final = frozenset({"architecture", "max_model_len"})
"""Decisions that are stated for the target and then again for its draft: here the first one counts."""

_COMPILED: Final = tuple((name, re.compile(expression)) for name, _, expression in DECISIONS)
_ANY: Final = re.compile("|".join(f"(?:{expression.lstrip('^').rstrip('$')})" for _, _, expression in DECISIONS))
_LONGEST: Final = 4000


def decision_facts(run: Run) -> Iterator[Fact]:
    """Every decision that a start's lines state, in order."""
    for line in run.lines:
        if len(line.text) > _LONGEST or _ANY.search(line.text) is None:
            continue
        for name, pattern in _COMPILED:
            match = pattern.search(line.text)
            if match is not None:
                yield Fact(name, match[1].replace(",", ""), "log line", line)
