"""Memory of CUDA graphs: how many are captured, and whether the release sets it aside before the KV cache."""

from __future__ import annotations

from typing import Any, Final

from dsv4check.memory.records import Cost, Span
from dsv4check.memory.shapes import KIB, MIB, Launch, Shapes, gib

GRAPHS: Final = "CUDA graphs"
ESTIMATE: Final = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
_BREAKABLE: Final = "VLLM_USE_BREAKABLE_CUDAGRAPH"
_POOL: Final = (32 * MIB, 600 * MIB)
"""The pool of the first capture: 0.5 - 0.6 GiB where only four small graphs are captured."""
_TOKEN_LAYER: Final = (2.2 * KIB, 7.0 * KIB)
"""What a graph of pieces keeps for each of its tokens and layers at hidden size 4096, all sizes of it added up.

5.5 KiB (V4-Flash, 0.25.0: 6855 tokens, 1.58 GiB), 5.8 KiB (10503 tokens, 2.44 GiB), 5.7 KiB (V4.1-Flash, 35335
tokens, 9.61 GiB), and about 4 KiB for the 15 GiB of V4-Pro on four B200."""
_LARGE: Final = (256, 512)
"""Tokens from which on a larger graph keeps no more. V4-Pro starts on eight B200 with graphs of up to 2048 tokens and
at most 28 GiB beside its weights, which is a quarter of what the sizes up to 512 would lead one to expect."""
_WHOLE: Final = (0, 8 * MIB)
"""A whole graph of a decode batch: launch parameters, its tensors are in the pool."""
_HIDDEN: Final = 4096
_MODES: Final = {
    "FULL_AND_PIECEWISE": (True, True),
    "FULL": (False, True),
    "FULL_DECODE_ONLY": (False, True),
    "PIECEWISE": (True, False),
    "NONE": (False, False),
}
"""cudagraph_mode -> graphs of pieces for mixed batches, whole graphs for decode."""
_NO_OPTIMISATION: Final = ("0", "O0")
_SM10: Final = 10
_LARGEST: Final = 1 << 20


def captured(launch: Launch, shape: Shapes) -> Cost | None:
    """Graphs of the launch; None where it captures none (``enforce_eager``, ``cudagraph_mode: NONE``)."""
    flags = launch.deployment.flags
    pieces, whole = modes(launch)
    if flags.get("enforce_eager") or not (pieces or whole):
        return None
    sizes = capture_sizes(launch)
    layers = shape.layers + (launch.draft.layers if launch.drafting and launch.draft is not None else 0)
    if sizes is None:
        most = _default_sizes(launch.facts["capture_limit"]["sm10"])
        decode, tokens, largest = (0, len(most)), (0, _kept(most, _LARGE[1])), most[-1]
        number = f"up to {len(most) * (pieces + whole)}"
    else:
        batches = [size for size in sizes if launch.seqs is None or size <= launch.seqs * query_length(launch)]
        decode, largest = (len(batches), len(batches)), sizes[-1]
        tokens = (_kept(sizes, _LARGE[0]), _kept(sizes, _LARGE[1]))
        number = str(len(sizes) * pieces + len(batches) * whole)
    low, high = (
        pool + count * each * whole + int(total * layers * kept * pieces) * shape.hidden // _HIDDEN
        for pool, count, each, total, kept in zip(_POOL, decode, _WHOLE, tokens, _TOKEN_LAYER, strict=True)
    )
    size = Span(low, high)
    counted = estimated(launch)
    why = f"{number} graphs of {layers} layers, for batches of up to {largest} tokens, take {gib(size)}; " + (
        "an estimate is taken off before the KV cache is sized." if counted else _uncounted(launch)
    )
    runner = "gpu/cudagraph_utils.py" if launch.runner and launch.runner.name == "v2" else "gpu_model_runner.py"
    return Cost(GRAPHS, size, counted, why, f"v1/worker/{runner}:profile_cudagraph_memory; public logs")


def _kept(sizes: list[int], large: int) -> int:
    return sum(min(size, large) for size in sizes)


def _uncounted(launch: Launch) -> str:
    if _off(launch.deployment.env.get(ESTIMATE)):
        return f"{ESTIMATE}=0 leaves them out of the budget."
    return (
        f"the {launch.runner.name if launch.runner else 'V2'} runner of {launch.release} sets nothing aside for them."
    )


def estimated(launch: Launch) -> bool:
    """Whether graphs are in the budget: the variable, and a runner that estimates (V2 from 0.29.0 on)."""
    known = launch.facts["graph_estimate"]
    setting = launch.deployment.env.get(ESTIMATE)
    if _off(setting) or (setting is None and not known["default"]):
        return False
    name = launch.runner.name if launch.runner is not None else None
    return bool(known[name]) if name in ("v1", "v2") else bool(known["v1"] and known["v2"])


def _off(setting: str | None) -> bool:
    return setting is not None and setting.strip() == "0"


def modes(launch: Launch) -> tuple[bool, bool]:
    """Graphs of pieces, whole graphs. Pieces of this model are breakable graphs, which a variable turns off."""
    flags = launch.deployment.flags
    mode = flags.section("compilation_config").get("cudagraph_mode")
    if mode is None and str(flags.get("optimization_level")) in _NO_OPTIMISATION:
        mode = "NONE"
    pieces, whole = _MODES.get(str(mode or "FULL_AND_PIECEWISE").upper(), (True, True))
    return pieces and not _off(launch.deployment.env.get(_BREAKABLE)), whole


def query_length(launch: Launch) -> int:
    """Tokens of one request in a decode step: one, and the draft's."""
    return 1 + (launch.draft.num_speculative_tokens or 0 if launch.draft is not None else 0)


def capture_sizes(launch: Launch) -> list[int] | None:
    """``VllmConfig._set_cudagraph_sizes``; None when the number of requests is needed and not known."""
    flags = launch.deployment.flags
    compilation = flags.section("compilation_config")
    listed = flags.values.get("cudagraph_capture_sizes", compilation.get("cudagraph_capture_sizes"))
    if isinstance(listed, list):
        sizes = sorted({size for size in listed if _size(size)})
        return [size for size in sizes if launch.tokens is None or size <= launch.tokens] or None
    largest = flags.values.get("max_cudagraph_capture_size", compilation.get("max_cudagraph_capture_size"))
    if not _size(largest):
        if launch.seqs is None:
            return None
        capability = launch.deployment.hardware.capability
        kind = "sm10" if capability is not None and capability[0] == _SM10 else "other"
        largest = min(launch.seqs * query_length(launch) * 2, launch.facts["capture_limit"][kind])
    return _default_sizes(largest if launch.tokens is None else min(largest, launch.tokens))


def _size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST


def _default_sizes(largest: int) -> list[int]:
    """1, 2, 4, then every 8th up to 256 and every 16th beyond."""
    small = [size for size in (1, 2, 4) if size <= largest]
    return [*small, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]
