"""What vLLM will decide for a deployment: the answer the report shows first, even when nothing is wrong.

Every record is filled by the module of the same name in ``resolve/``. A decision that the inputs do not
settle is None in its field and an entry of :class:`NotEvaluated` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from dsv4check.problems import Problem
from dsv4check.records import dataclass, field

if TYPE_CHECKING:
    from dsv4check.memory.records import Memory


@dataclass(frozen=True, slots=True)
class NotEvaluated:
    """An answer that was not given, and how to get it."""

    what: str
    why: str
    how: str


HIDDEN_STATES: Final = "hidden_states"
"""Kind of the cache that method ``extract_hidden_states`` adds (``models/extract_hidden_states.py``)."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """One kind of KV cache layer and the size of its page."""

    kind: str
    """``main_c4``, ``main_c128``, ``swa``, ``indexer_k``, ``state_c4``, ``state_c128``, ``state_indexer`` or
    ``hidden_states``."""
    count: int
    """Layers of this kind in the target model (draft layers are counted in ``draft_count``)."""
    block_size: int
    """Tokens a block of this kind covers."""
    tokens_per_state: int
    """Tokens that one stored state stands for (the compress ratio; 1 for SWA and compressor states)."""
    states_per_block: int
    bytes_per_state: int
    page_bytes: int
    """``states_per_block * bytes_per_state``."""
    padded_page_bytes: int
    """``page_bytes`` rounded up to the alignment of this layout."""
    dtype: str
    """torch dtype of the cache as vLLM allocates it, e.g. ``uint8``."""
    draft_count: int = 0
    """Layers of this kind that the draft model adds."""
    sliding_window: int | None = None
    """Tokens the cache keeps; None where it grows with the context."""


@dataclass(frozen=True, slots=True)
class KvCache:
    """KV-cache dtype, layout and page sizes."""

    requested_dtype: str
    resolved_dtype: str | None
    """The string the attention layer ends up with; None when vLLM refuses or the GPU is not known."""
    torch_dtype: str | None
    layout: str | None
    """``fp8_ds_mla`` (packed, 584 bytes a state) or ``plain`` (512 elements a row)."""
    block_size: int | None
    """Tokens a block of the main cache covers."""
    bytes_per_state: int | None
    """Bytes of one state of the main cache: 584 packed, 512 or 1024 plain."""
    rewrites: tuple[str, ...] = ()
    """Who changes the dtype on the way, in order: ``auto -> fp8 (resolve_dsv4_kv_cache_dtype)``."""
    layers: tuple[LayerKind, ...] = ()
    bytes_per_token: float | None = None
    """Padded bytes a token of context occupies in the caches that grow with it (main and indexer)."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention class of the target's layers."""

    requested: str | None
    """``--attention-backend`` or ``--attention-config.backend``, upper-cased as vLLM does; None when unset."""
    backend: str | None
    """Name of the backend class that the layers report, e.g. ``FLASHMLA_SPARSE_DSV4``."""
    cls: str | None
    """vLLM's class, e.g. ``DeepseekV4FlashMLAAttention``."""
    layout: str | None
    """``fp8_ds_mla`` or ``plain``."""
    padded_q_heads: int | None
    """Query heads of a rank after padding."""
    local_q_heads: int | None
    indexer_dtype: str | None = None
    """Stored form of the indexer keys: ``fp8`` or ``mxfp4``."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Model runner V1 or V2."""

    name: str | None
    """``v1`` or ``v2``; None when it cannot be told."""
    why: str


@dataclass(frozen=True, slots=True)
class Draft:
    """Speculative decoding."""

    method: str | None
    """As vLLM resolves it (``mtp``, ``dspark``, ``ngram``, ...); None without speculative decoding."""
    requested_method: str | None = None
    num_speculative_tokens: int | None = None
    source: str | None = None
    """Where the draft weights come from: ``target checkpoint`` or the draft model's name."""
    layers: int = 0
    """Draft layers that vLLM builds."""
    mapping: str | None = None
    """Checkpoint name -> registered name, as a pattern: ``mtp.{i}.* -> model.layers.{43+i}.*``."""
    hidden_state_layers: int = 0
    """Layers whose hidden states method ``extract_hidden_states`` keeps for a connector, in one cache layer."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The merged speculative config (``--speculative-config``, ``--spec-*``)."""


@dataclass(frozen=True, slots=True)
class Moe:
    """MoE backend of the routed experts."""

    requested: str
    expert_format: str | None
    """``mxfp4``, ``fp8`` or ``nvfp4``; None when the config does not tell."""
    backend: str | None
    """vLLM's enum name of the kernel chosen, when it can be told."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of the parallel groups."""

    tensor: int
    pipeline: int
    data: int
    decode_context: int
    prefill_context: int
    expert_parallel: bool
    expert_parallel_size: int
    """Ranks the experts are spread over; 1 without ``--enable-expert-parallel``."""
    world_size: int
    """GPUs one engine uses: TP x PP x PCP."""
    total: int
    """GPUs all data-parallel engines use."""
    local_heads: int | None
    local_o_groups: int | None


@dataclass(frozen=True, slots=True)
class Resolution:
    """All decisions, and the problems met while taking them."""

    release: str
    """The release whose facts were used."""
    kv_cache: KvCache | None = None
    attention: Attention | None = None
    runner: Runner | None = None
    draft: Draft | None = None
    moe: Moe | None = None
    parallel: Parallelism | None = None
    problems: tuple[Problem, ...] = ()
    not_evaluated: tuple[NotEvaluated, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further named values for rule conditions (see docs/rules.md)."""
    memory: Memory | None = None
    """What a GPU's memory goes to and what the KV cache holds; None when it cannot be told."""
