"""The published shape of ``resolution.memory``: what a GPU's memory goes to and what the KV cache holds.

All sizes are bytes of one GPU. Only tools that validate reports import this module.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dsv4check.report.schema_base import Record


class SpanRecord(Record):
    """A figure between two bounds; both the same where it is exact."""

    low: int
    high: int


class RatioRecord(Record):
    """A number of requests between two bounds."""

    low: float
    high: float


class StageWeightsRecord(Record):
    """Bytes of weights on one GPU of a pipeline stage."""

    experts: int = Field(description="Routed experts, divided over TP x DP, or whole ones over EP")
    cut: int = Field(description="Other parameters that tensor parallelism divides")
    whole: int = Field(description="Parameters that every rank holds in full")
    draft: int
    total: int


class MemoryWeightsRecord(Record):
    """Weights of target and draft."""

    source: Literal["checkpoint", "published", "config"]
    checkpoint_bytes: int = Field(description="All tensors of the target that are loaded, not of one GPU")
    draft_bytes: int | None = Field(
        description="All tensors of the draft, not of one GPU; 0 without one; null: unknown"
    )
    padding: float = Field(description="Bytes of the routed experts as allocated, against those stored")
    stages: list[StageWeightsRecord] = Field(description="One for each pipeline stage")


class CostRecord(Record):
    """Memory that a start takes beside weights and KV cache."""

    name: str
    size: SpanRecord
    budgeted: bool = Field(description="Measured before the KV cache is sized, so that it makes the cache smaller")
    why: str
    source: str


class GroupKindRecord(Record):
    """Layers of one kind in a group, all pipeline stages together."""

    kind: str
    layers: int


class CacheGroupRecord(Record):
    """Layers that share a block table."""

    kinds: list[GroupKindRecord]
    block_size: int = Field(description="Tokens a block covers")
    block_bytes: int = Field(description="One block of all its layers, on the stage where they are largest")
    sliding_window: int | None = Field(description="Tokens that are kept; null: the whole context")
    stage_bytes: list[int] = Field(description="One block of all its layers, for each pipeline stage")
    stage_layers: list[int] = Field(description="Its layers on each pipeline stage")


class CachePlanRecord(Record):
    """How the engine core cuts the KV cache."""

    groups: list[CacheGroupRecord]
    strides: list[int] = Field(description="Bytes that one block id takes on a GPU of each pipeline stage")
    checked_strides: list[int] = Field(description="Bytes of a block in the check whether one request fits")
    reserved_blocks: int = Field(description="Blocks that the check for one request leaves aside")
    weighted_concurrency: bool = Field(description="`Maximum concurrency` weighs blocks with their groups' bytes")
    tokens_by_group: bool = Field(description="`GPU KV cache size` is blocks / groups x smallest block")
    retained_tokens: int = Field(description="Tokens that a window keeps beyond its size")
    context_ranks: int = Field(description="Ranks that share the context of full-attention groups")


class ContextRowRecord(Record):
    """One line of the trade-off between context and concurrency."""

    context: int
    blocks: int = Field(description="Blocks that one such request needs at most")
    request_bytes: int
    concurrency: RatioRecord = Field(description="Such requests at once, each of them being prefilled")
    decode_blocks: int = Field(description="Blocks that it keeps once it only decodes")
    decode_bytes: int
    decode_concurrency: RatioRecord = Field(description="Such requests at once while all of them decode")


class InFlightRowRecord(Record):
    """What tokens in flight take of the cache, whatever the context they belong to."""

    tokens: int
    blocks: int = Field(description="Of windows and compressor states, beyond those of a request that decodes")
    request_bytes: int


class MemoryRecord(Record):
    """The memory of one GPU of the fullest pipeline stage."""

    gpu_bytes: int = Field(description="As torch reports it")
    utilization: float
    budget_bytes: int = Field(description="What vLLM may use of it")
    weights: MemoryWeightsRecord | None
    costs: list[CostRecord]
    plan: CachePlanRecord | None
    stage: int = Field(description="Pipeline stage with the fewest blocks")
    cache_bytes: SpanRecord | None = Field(description="Negative: the weights and costs exceed the budget")
    blocks: SpanRecord | None
    max_model_len: int | None
    in_flight_tokens: int | None
    request_blocks: int | None = Field(description="Blocks that one request of max_model_len needs at most")
    concurrency: RatioRecord | None = Field(description="`Maximum concurrency` in vLLM's log")
    log_tokens: SpanRecord | None = Field(description="`GPU KV cache size` in vLLM's log")
    longest_context: SpanRecord | None = Field(description="Tokens of the longest single request; 0: none fits")
    trade_off: list[ContextRowRecord]
    in_flight: list[InFlightRowRecord]
    fits: bool | None = Field(description="One request of max_model_len: at both bounds; at neither; null: between")
    notes: list[str]
