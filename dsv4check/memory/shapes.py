"""The sizes that costs are worked out from: config fields as one rank sees them, and what the resolver decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsv4check.deployment import Deployment
from dsv4check.memory.records import Span
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Attention, Draft, KvCache, Moe, Parallelism, Runner

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
BF16: Final = 2
FP32: Final = 4


@dataclass(frozen=True, slots=True)
class Launch:
    """What the resolver and the flags say; None where it is not known."""

    deployment: Deployment
    facts: Mapping[str, Any]
    """Section ``memory`` of the release."""
    release: str
    parallel: Parallelism
    attention: Attention | None
    kv_cache: KvCache | None
    draft: Draft | None
    runner: Runner | None
    moe: Moe | None
    tokens: int | None
    """max_num_batched_tokens."""
    seqs: int | None
    """max_num_seqs."""
    length: int | None
    """max_model_len, tokens."""

    @property
    def consumed(self) -> bool:
        """Whether the release takes the drop of free memory: everything held at that moment is in the budget."""
        return bool(self.facts["measure"] == "consumed")

    @property
    def drafting(self) -> bool:
        """Whether a draft model runs on the GPU."""
        return self.draft is not None and self.draft.method is not None and self.draft.layers > 0

    @property
    def several_gpus(self) -> bool:
        """Whether ranks exchange tensors."""
        return self.parallel.total > 1


@dataclass(frozen=True, slots=True)
class Shapes:
    """Elements of the tensors of one rank."""

    hidden: int
    streams: int
    """``hc_mult``: residual streams of the hyper-connections."""
    heads: int
    """Query heads of this rank."""
    padded_heads: int
    head_dim: int
    q_rank: int
    index_heads: int
    index_dim: int
    index_topk: int
    window: int
    vocab: int
    top_k: int
    """Experts of one token."""
    inner: int
    """Columns of one routed expert on this rank."""
    layers: int
    """Of the longest pipeline stage."""
    gathered: tuple[int, int]
    """Ranks whose tokens one rank's experts may see at once, low and high."""


def launch(
    deployment: Deployment,
    facts: ReleaseFacts,
    *,
    parallel: Parallelism,
    attention: Attention | None,
    kv_cache: KvCache | None,
    draft: Draft | None,
    runner: Runner | None,
    moe: Moe | None,
    tokens: int | None,
    seqs: int | None,
    length: int | None,
) -> Launch:
    """The launch with the release's section ``memory``. Sizes below one count as unknown."""
    sizes = [value if value is not None and value > 0 else None for value in (tokens, seqs, length)]
    return Launch(
        deployment, facts.section("memory"), facts.version, parallel, attention, kv_cache, draft, runner, moe, *sizes
    )


def shapes(launch: Launch) -> Shapes | None:
    """The launch's shapes; None when config.json lacks a size that matters."""
    hidden, head_dim = _field(launch, "hidden_size"), _field(launch, "head_dim")
    vocab, layers = _field(launch, "vocab_size"), _field(launch, "num_hidden_layers")
    heads = launch.parallel.local_heads or 0
    if min(hidden, head_dim, vocab, layers, heads) < 1:
        return None
    padded = launch.attention.padded_q_heads if launch.attention is not None else None
    inner = _field(launch, "moe_intermediate_size")
    if not launch.parallel.expert_parallel:
        inner = _share(inner, launch.parallel.tensor * launch.parallel.data)
    return Shapes(
        hidden=hidden,
        streams=_field(launch, "hc_mult") or 1,
        heads=heads,
        padded_heads=max(padded or heads, heads),
        head_dim=head_dim,
        q_rank=_field(launch, "q_lora_rank"),
        index_heads=_field(launch, "index_n_heads"),
        index_dim=_field(launch, "index_head_dim"),
        index_topk=_field(launch, "index_topk"),
        window=_field(launch, "sliding_window"),
        vocab=vocab,
        top_k=_field(launch, "num_experts_per_tok"),
        inner=inner,
        layers=_share(layers, launch.parallel.pipeline),
        gathered=_gathered(launch),
    )


def _field(launch: Launch, name: str) -> int:
    """A size of config.json; 0 where it has none, or an impossible one."""
    return max(launch.deployment.model.integer(name) or 0, 0)


def _gathered(launch: Launch) -> tuple[int, int]:
    """``AgRsAll2AllManager`` gathers the tokens of all data-parallel ranks; others send to an expert what it needs."""
    ranks = launch.parallel.data
    backend = launch.deployment.flags.get("all2all_backend")
    plain = backend in (None, "naive", "allgather_reducescatter")
    return (ranks if plain else 1, ranks)


def _share(whole: int, parts: int) -> int:
    return -(-whole // max(parts, 1))


def gib(span: Span) -> str:
    """A span as people read it: ``1.2 GiB``, ``0.3 - 1.6 GiB``."""
    low, high = span.low / GIB, span.high / GIB
    return f"{low:.2f} GiB" if span.exact else f"{low:.2f} - {high:.2f} GiB"
