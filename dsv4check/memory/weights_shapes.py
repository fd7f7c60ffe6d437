"""The tensors of a DeepSeek-V4 checkpoint that config.json implies: bytes by module of vLLM's model.

Shapes, dtypes and names are those of the published checkpoints (``rules/models/*/*/tensors.tsv``): matrices in FP8 with
a scale for each block, norms and what compresses keys in bfloat16, hyper-connections and routing biases in float32.
Without a ``quantization_config`` all matrices are bfloat16. All sizes are bytes of whole tensors, not of one GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dsv4check.checkpoint.parameters import (
    COMPRESSED,
    HASHED,
    INDEX_SOURCE,
    INDEXED,
    KV_SOURCE,
    UNQUANTISED,
)
from dsv4check.deployment import Model
from dsv4check.records import dataclass

EXPERTS: Final = "ffn.experts"
"""Stands for the routed experts, which are no module that tensor parallelism cuts."""
_BF16: Final = 2
_F32: Final = 4
_I64: Final = 8
_MX_GROUP: Final = 32
"""Values that share a scale of one byte in MXFP4 and in the rows of n-gram tables."""
_NVFP4_GROUP: Final = 16
_COLOURS: Final = 3

Parts = Iterator[tuple[str, int]]
"""Modules, named as in the facts' ``cut``, with their bytes; a module may come more than once."""


class UnknownSizeError(Exception):
    """The config lacks a number that a tensor's shape needs."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of one model's tensors."""

    model: Model
    experts: str
    """Format of the routed experts: ``mxfp4``, ``fp8``, ``nvfp4`` or ``unquantised``."""
    block: tuple[int, int] | None
    """Rows and columns that share a scale in FP8 matrices; None for matrices in bfloat16."""
    scale: int
    """Bytes of one such scale."""

    def number(self, key: str) -> int:
        """A positive number of the config. Raises UnknownSizeError where there is none."""
        value = self.model.integer(key)
        if value is None or value <= 0:
            raise UnknownSizeError(key)
        return value

    def matrix(self, rows: int, columns: int) -> int:
        """Bytes of a linear layer, scales included."""
        if self.block is None:
            return rows * columns * _BF16
        return rows * columns + -(-rows // self.block[0]) * -(-columns // self.block[1]) * self.scale

    def expert_matrix(self, rows: int, columns: int) -> int:
        """Bytes of one of the three matrices of a routed expert, scales included."""
        if self.experts == "mxfp4":
            return rows * columns // 2 + rows * -(-columns // _MX_GROUP)
        if self.experts == "nvfp4":
            # Beside the scales of the groups, one of the matrix and one of its input.
            return rows * columns // 2 + rows * -(-columns // _NVFP4_GROUP) + 2 * _F32
        if self.experts == UNQUANTISED:
            return rows * columns * _BF16
        return self.matrix(rows, columns)

    def layer(self, features: frozenset[str], *, experts: int, ratio: int = 0, image_bias: bool = False) -> Parts:
        """A decoder layer. ``experts``: routed ones; ``ratio``: of its compressor; ``image_bias``: routes images."""
        hidden, heads, head = self.number("hidden_size"), self.number("num_attention_heads"), self.number("head_dim")
        query, output, groups = self.number("q_lora_rank"), self.number("o_lora_rank"), self.number("o_groups")
        yield "attn", heads * _F32 + (head + query) * _BF16
        yield "attn.fused_wqa_wkv", self.matrix(query, hidden) + self.matrix(head, hidden)
        yield "attn.wq_b", self.matrix(heads * head, query)
        yield "attn.wo_a", self.matrix(groups * output, heads * head // groups)
        yield "attn.wo_b", self.matrix(hidden, groups * output)
        yield "norms", 2 * hidden * _BF16
        streams = self.number("hc_mult")
        mixes = streams * (streams + 2)
        yield "hyper_connections", 2 * (mixes + mixes * streams * hidden + 3) * _F32
        yield from self._experts(features, hidden, experts, image_bias)
        if COMPRESSED in features:
            # With ratio 4 neighbouring windows overlap, so each position is projected for two of them.
            width = 2 if ratio == 4 else 1
            yield "attn.compressor", self._compressor(ratio, width * head, head, hidden)
            if INDEXED in features:
                index = self.number("index_head_dim")
                yield "attn.indexer", self._compressor(ratio, width * index, index, hidden) + self._indexer(hidden)
        if KV_SOURCE in features:
            index = self.number("index_head_dim")
            # A compressor that takes one position at a time needs no gate.
            yield "attn.compressor", (head + head * hidden * (2 if ratio > 1 else 1)) * _BF16
            yield "attn.indexer", (index + index * head) * _BF16
        if INDEX_SOURCE in features:
            yield "attn.indexer", self._indexer(hidden)

    def _experts(self, features: frozenset[str], hidden: int, experts: int, image_bias: bool) -> Parts:
        width = self.number("moe_intermediate_size")
        yield "ffn.gate", experts * hidden * _BF16
        biases = image_bias + (HASHED not in features or image_bias)
        yield "ffn.gate", biases * experts * _F32
        if HASHED in features:
            yield "ffn.gate", self.number("vocab_size") * self.number("num_experts_per_tok") * _I64
        yield EXPERTS, experts * (2 * self.expert_matrix(width, hidden) + self.expert_matrix(hidden, width))
        shared = self.number("n_shared_experts") * width
        yield "ffn.shared_experts.gate_up_proj", 2 * self.matrix(shared, hidden)
        yield "ffn.shared_experts.down_proj", self.matrix(hidden, shared)

    def _compressor(self, ratio: int, width: int, head: int, hidden: int) -> int:
        return ratio * width * _F32 + (head + 2 * width * hidden) * _BF16

    def _indexer(self, hidden: int) -> int:
        heads, head = self.number("index_n_heads"), self.number("index_head_dim")
        return heads * hidden * _BF16 + self.matrix(heads * head, self.number("q_lora_rank"))

    def engram(self, layer: int) -> Parts:
        """The n-gram lookup of a layer of V4.1: a table, and what turns its rows into keys and values."""
        layers, rows = self.model.get("engram_layer_ids"), self.model.get("engram_num_embeddings")
        if not _is_list(layers) or not _is_list(rows) or len(layers) != len(rows):
            raise UnknownSizeError("engram_num_embeddings")
        hidden, streams, head = self.number("hidden_size"), self.number("hc_mult"), self.number("engram_head_dim")
        count = rows[layers.index(layer)]
        if not isinstance(count, int):
            raise UnknownSizeError("engram_num_embeddings")
        yield "engram.embed_tokens", count * (head + -(-head // _MX_GROUP))
        yield "engram", 2 * streams * hidden * _BF16
        looked_up = (self.number("engram_max_ngram_size") - 1) * self.number("engram_n_heads") * head
        yield "engram.wkv", self.matrix((streams + 1) * hidden, looked_up)

    def vocabulary(self) -> int:
        """The embedding; the output head is as large."""
        return self.number("vocab_size") * self.number("hidden_size") * _BF16

    def norm(self) -> int:
        """A norm over the hidden size."""
        return self.number("hidden_size") * _BF16

    def stream_head(self) -> int:
        """What merges the hyper-connection's streams behind the last layer (V4 only)."""
        streams = self.number("hc_mult")
        return (streams + streams * streams * self.number("hidden_size") + 1) * _F32

    def vision(self, sizes: Mapping[str, Any], separators: int) -> Parts:
        """The vision tower and what leads to the language model; ``sizes`` as :func:`vision_sizes` gives them."""
        hidden, dim, inner = self.number("hidden_size"), _size(sizes, "dim"), _size(sizes, "inter_dim")
        patch, window = _size(sizes, "patch_size"), _size(sizes, "downsample_ratio")
        layers = _size(sizes, "n_layers")
        yield "vision", (dim * _COLOURS * patch * patch + 2 * dim) * _BF16
        yield "vision.blocks.attn.wqkv", layers * (3 * dim * dim + 3 * dim) * _BF16
        yield "vision.blocks.attn.wo", layers * (dim * dim + dim) * _BF16
        yield "vision.blocks.mlp.w1", layers * 2 * inner * dim * _BF16
        yield "vision.blocks.mlp.w2", layers * inner * dim * _BF16
        yield "vision.blocks", layers * 2 * dim * _BF16
        yield "aligner.w1", (hidden * dim * window * window + hidden) * _BF16
        yield "aligner.w2", (hidden * hidden + hidden) * _BF16
        yield "image", separators * hidden * _BF16

    def mtp_extras(self) -> int:
        """What an MTP stage has beside its decoder layer."""
        hidden = self.number("hidden_size")
        return 2 * self.matrix(hidden, hidden) + 3 * self.norm() + self.stream_head()

    def dspark_extras(self, *, stream_head: bool, confidence: bool) -> Parts:
        """What a DSpark draft has beside the decoder layers of its stages."""
        hidden, rank = self.number("hidden_size"), self.number("dspark_markov_rank")
        sources = self.model.get("dspark_target_layer_ids")
        if not _is_list(sources):
            raise UnknownSizeError("dspark_target_layer_ids")
        yield "model.main_proj", self.matrix(hidden, len(sources) * hidden)
        yield "model", 2 * self.norm() + (self.stream_head() if stream_head else 0)
        for matrix in ("model.markov_head.markov_w1", "model.markov_head.markov_w2"):
            yield matrix, self.number("vocab_size") * rank * _BF16
        if confidence:
            yield "model", (hidden + rank) * _BF16

    def context_copies(self, stages: int) -> int:
        """The stages' key projections once more, side by side (DSpark, in some releases)."""
        return stages * self.matrix(self.number("head_dim"), self.number("hidden_size"))


def vision_sizes(model: Model) -> Mapping[str, Any]:
    """Sizes of the vision tower under V4's names without ``vision_``; empty for a text model."""
    nested = model.raw.get("vision_config")
    if isinstance(nested, Mapping):
        names = {"hidden_size": "dim", "intermediate_size": "inter_dim", "num_hidden_layers": "n_layers"}
        return {names.get(str(key), str(key)): value for key, value in nested.items()}
    if not model.integer("vision_n_layers"):
        return {}
    return {key.removeprefix("vision_"): value for key, value in model.text.items() if key.startswith("vision_")}


def _size(sizes: Mapping[str, Any], key: str) -> int:
    value = sizes.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UnknownSizeError(f"vision {key}")
    return value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
