"""What is known about the memory of one launch. All sizes are bytes of one GPU unless a field says otherwise."""

from __future__ import annotations

from dsv4check.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """A figure between two bounds; both the same where it is exact."""

    low: int
    high: int

    def __add__(self, other: Span) -> Span:
        """Bounds of the sum."""
        return Span(self.low + other.low, self.high + other.high)

    def __rsub__(self, whole: int) -> Span:
        """``whole`` less this: the larger cost leaves the smaller rest."""
        return Span(whole - self.high, whole - self.low)

    @property
    def exact(self) -> bool:
        """Whether both bounds are one figure."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class StageWeights:
    """Bytes of weights on one GPU of a pipeline stage."""

    experts: int
    """Routed experts, divided over TP x DP (or whole ones, over EP)."""
    cut: int
    """Other parameters that tensor parallelism divides."""
    whole: int
    """Parameters that every rank holds in full."""
    draft: int = 0
    """The draft's, of all three kinds; it runs on the last stage."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.experts + self.cut + self.whole + self.draft


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the launch, target and draft."""

    source: str
    """``checkpoint`` (headers of the files on this machine), ``published`` (a known checkpoint's tensors) or ``config``
    (shapes and dtypes that config.json implies)."""
    checkpoint_bytes: int
    """All tensors of the target's checkpoint that this release loads, whole (not of one GPU), with tables that stay in
    host memory."""
    draft_bytes: int | None
    """All tensors of the draft, whole; 0 without one. None: it has weights whose size is not known, and the stages
    leave them out."""
    stages: tuple[StageWeights, ...]
    """One for each pipeline stage."""
    padding: float = 1.0
    """Bytes of the routed experts as allocated, against those stored."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Memory that a start takes beside weights and KV cache."""

    name: str
    """Short, as people read it: ``CUDA context and libraries``, ``peak activations``, ``CUDA graphs``."""
    size: Span
    budgeted: bool
    """True: vLLM measures it before it sizes the KV cache, so it makes the cache smaller. False: it comes afterwards,
    out of what --gpu-memory-utilization leaves."""
    why: str
    """What it consists of in this launch, with its figures, one sentence."""
    source: str
    """Where the figure is from: a place in vLLM's code, or a public measurement."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """One KV cache group: layers that share a block table."""

    kinds: tuple[tuple[str, int], ...]
    """Layer kinds (as in :class:`~dsv4check.resolution.LayerKind`) and how many layers of each, all stages together."""
    block_size: int
    """Tokens one block covers."""
    sliding_window: int | None
    """Tokens that are kept; None where the whole context is."""
    stage_bytes: tuple[int, ...]
    """Bytes of one block of all layers of this group, for each pipeline stage (those vLLM reckons with: a stage that
    has no layer of the group is given all of them)."""

    stage_layers: tuple[int, ...]
    """Layers of this group that each pipeline stage has itself."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block on the stage where they are largest, before the shared stride."""
        return max(self.stage_bytes)


@dataclass(frozen=True, slots=True)
class CachePlan:
    """How the engine core of that release cuts the KV cache."""

    groups: tuple[CacheGroup, ...]
    strides: tuple[int, ...]
    """Bytes that one block id takes on a GPU of each pipeline stage, all groups sharing the pool."""
    checked_strides: tuple[int, ...]
    """Bytes of a block in the check whether one request fits: up to 0.28 another figure than the one allocated."""
    reserved_blocks: int
    """Blocks that this check leaves aside (1 from 0.29.0 on: the null block)."""
    weighted_concurrency: bool
    """Up to 0.26 ``Maximum concurrency`` weighs each group's blocks with their bytes against the first group's."""
    tokens_by_group: bool
    """0.20.0 prints ``GPU KV cache size`` as blocks / groups x smallest block size."""
    retained_tokens: int = 0
    """Tokens that a window keeps beyond its size (multi-module MTP from 0.28.0 on)."""
    context_ranks: int = 1
    """Ranks that share the context of full-attention groups (DCP; up to 0.25 also PCP)."""


@dataclass(frozen=True, slots=True)
class ContextRow:
    """One line of the trade-off between context and concurrency."""

    context: int
    """Tokens of each request."""
    blocks: int
    """Blocks that one such request needs at most (while it is prefilled)."""
    request_bytes: int
    """Those blocks in bytes of the fullest stage."""
    concurrency: tuple[float, float]
    """Requests of this length that fit at once, low and high, with each of them being prefilled: as vLLM reckons."""
    decode_blocks: int
    """Blocks it keeps once it only decodes: windows are then filled by one step's tokens."""
    decode_bytes: int
    """Those blocks in bytes of the fullest stage."""
    decode_concurrency: tuple[float, float]
    """Requests of this length that fit at once while all of them decode."""


@dataclass(frozen=True, slots=True)
class InFlightRow:
    """What tokens in flight take of the cache, whatever the context they belong to."""

    tokens: int
    """Tokens of one request that are scheduled and not yet done."""
    blocks: int
    """Blocks of windows and compressor states that they need at most, beyond those of a request that decodes."""
    request_bytes: int
    """Those blocks in bytes of the fullest stage."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one GPU of the fullest pipeline stage, and what the KV cache holds."""

    gpu_bytes: int
    """Memory that torch reports for the GPU."""
    utilization: float
    budget_bytes: int
    """What vLLM may use: ``gpu_bytes * utilization``, or what --kv-cache-memory-bytes makes of it."""
    weights: Weights | None
    costs: tuple[Cost, ...]
    plan: CachePlan | None
    stage: int
    """Pipeline stage with the fewest blocks: all stages get its number."""
    cache_bytes: Span | None
    """For the KV cache on that stage; may be negative: the weights alone exceed the budget."""
    blocks: Span | None
    max_model_len: int | None
    in_flight_tokens: int | None
    """Tokens that can be scheduled at once: max_num_batched_tokens, times the batches in flight from 0.26.0 on."""
    request_blocks: int | None
    """Blocks that one request of max_model_len needs at most."""
    concurrency: tuple[float, float] | None
    """``Maximum concurrency`` in vLLM's log: requests of max_model_len that fit at once."""
    log_tokens: Span | None
    """``GPU KV cache size`` in vLLM's log: concurrency x max_model_len (0.20.0: another formula)."""
    longest_context: Span | None
    """Tokens of the longest single request; 0: none fits."""
    trade_off: tuple[ContextRow, ...] = ()
    in_flight: tuple[InFlightRow, ...] = ()
    fits: bool | None = None
    """True: even the low bound serves one request of max_model_len; False: not even the high bound; None: between."""
    notes: tuple[str, ...] = field(default_factory=tuple)
    """What a reader must know about these figures (unified memory, offloading, ...)."""
