"""Goes through a checkpoint's tensors once and notes what ``content.py`` then says about them.

A checkpoint has up to 150,000 tensors, and all but some thousand belong to routed experts that are alike. A name is
therefore taken apart once for all experts of a layer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from dsv4check.checkpoint.storage import Experts, Storage, packed_values, storage_of
from dsv4check.checkpoint.tensor_names import ATTENTION, DRAFT, ENGRAM, PARTS, ROUTED, SHARED, VISION, Place, place_of
from dsv4check.checkpoint.tensors import Tensor
from dsv4check.records import dataclass, field

EXTRAS: Final = ("vision", "aligner", "image_", "engram")
_V41_LEAVES: Final = ("engram.", "attn.indexer.k_norm.", "attn.indexer.wk.", "markov_head.embed.", "markov_head.head.")
"""Only V4.1 has n-gram tables, an indexer with keys of its own, and a Markov head under these names."""
_V4_LEAVES: Final = ("hc_head", "ffn.gate.tid2eid", "mlp.gate.tid2eid", "attn.compressor.ape", "markov_head.markov_w")
"""Only V4 mixes the streams before its head, routes by token id, and has positions in the compressor."""
_V4_TRANSFORMERS: Final = ("self_attn.compressor.", "attn_hc.", "ffn_hc.")
_MARKS: Final = (*_V41_LEAVES, *_V4_LEAVES, *_V4_TRANSFORMERS)
_EXPERT: Final = re.compile(r"^(.*?\.experts\.)([0-9]{1,9})\.(.+)$")
_INNER: Final = frozenset({"compressor", "indexer"})

_Matrix = tuple[str, dict[str, Tensor]]
"""Name of its first tensor, and its tensors by suffix."""


@dataclass(frozen=True, slots=True)
class Stored:
    """How the matrices of target or draft are stored."""

    experts: Experts = field(default_factory=Experts)
    attention: Storage = field(default_factory=Storage)
    """The projections around the attention; compressor and indexer are left out, being BF16 in part everywhere."""
    shared_experts: Storage = field(default_factory=Storage)


@dataclass(frozen=True, slots=True)
class _Group:
    """The routed experts' tensors of one layer, matrix and suffix, as they come by."""

    part: str
    matrices: dict[int | None, _Matrix]
    suffix: str


class Survey:
    """What has been seen of a checkpoint so far."""

    def __init__(self) -> None:
        self.spellings: Counter[str] = Counter()
        self.numbers: dict[str, set[int]] = {
            key: set() for key in ("layer", "stage", "hash", "compressor", "indexer", "engram")
        }
        self.roles: dict[str, Tensor] = {}
        self.examples: dict[str, str] = {}
        self.extras: set[str] = set()
        self.scale_suffixes: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.draft_names: list[str] = []
        self._marks: set[str] = set()
        self._sums: Counter[str] = Counter()
        self._unsized: set[str] = set()
        self._sizes: dict[int, int | None] = {}
        self._groups: dict[tuple[str, str], _Group] = {}
        self._matrices: dict[tuple[str, str], dict[tuple[int, str], dict[int | None, _Matrix]]] = {}

    def add_all(self, tensors: Mapping[str, Tensor]) -> None:
        """Look at every tensor; the mapping must live as long as this object."""
        for name, tensor in tensors.items():
            found = _EXPERT.match(name)
            if found is None:
                self._add(name, tensor)
            else:
                self._add_expert(name, tensor, found[1], int(found[2]), found[3])

    def _add_expert(self, name: str, tensor: Tensor, head: str, expert: int, tail: str) -> None:
        group = self._groups.get((head, tail))
        if group is None:
            group = self._groups[head, tail] = self._note_name(name, place_of(name), tensor)
        self._count(group.part, tensor)
        matrix = group.matrices.get(expert)
        if matrix is None:
            group.matrices[expert] = (name, {group.suffix: tensor})
        else:
            matrix[1][group.suffix] = tensor

    def _add(self, name: str, tensor: Tensor) -> None:
        group = self._note_name(name, place_of(name), tensor)
        self._count(group.part, tensor)
        group.matrices.setdefault(None, (name, {}))[1][group.suffix] = tensor

    def _count(self, part: str, tensor: Tensor) -> None:
        self.counts[part] += 1
        key = id(tensor)
        if key not in self._sizes:
            self._sizes[key] = tensor.size
        size = self._sizes[key]
        if size is None:
            self._unsized.add(part)
        else:
            self._sums[part] += size

    def _note_name(self, name: str, place: Place, tensor: Tensor) -> _Group:
        """Everything that a name says; the result is where the tensor's matrix is collected."""
        part = place.part if place.stage is None else DRAFT
        if place.spelling:
            self.spellings[place.spelling] += 1
        if place.role:
            self.roles[place.role] = tensor
            self.examples[place.role] = name
        if place.part == VISION:
            self.extras.update(extra for extra in EXTRAS if place.leaf.startswith(extra))
            return _Group(part, {}, "")
        self._marks.update(mark for mark in _MARKS if place.leaf.startswith(mark))
        if place.layer is not None:
            self._note_number("layer", place.layer, name)
            self._note_block(place, place.layer, name)
            return self._group(part, "layer", place.layer, place)
        if place.stage is not None:
            self._note_number("stage", place.stage, name)
            self.draft_names.append(f"mtp.{place.stage}.{place.leaf}")
            return self._group(part, "stage", place.stage, place)
        return _Group(part, {}, "")

    def _note_number(self, what: str, number: int, name: str) -> None:
        if number not in self.numbers[what]:
            self.numbers[what].add(number)
            self.examples[f"{what} {number}"] = name

    def _note_block(self, place: Place, layer: int, name: str) -> None:
        if place.part == ENGRAM:
            self.extras.add("engram")
            self._note_number("engram", layer, name)
        elif place.part == ATTENTION:
            inner = place.leaf.split(".")
            # The original has a second compressor inside the indexer, transformers an indexer inside the compressor.
            what = "indexer" if "indexer" in inner else "compressor" if "compressor" in inner else None
            if what is not None:
                self._note_number(what, layer, name)
        elif place.leaf.endswith(".gate.tid2eid"):
            self._note_number("hash", layer, name)

    def _group(self, part: str, section: str, number: int, place: Place) -> _Group:
        first, last = place.matrix.partition(".")[0], place.matrix.rpartition(".")[2]
        # Hyper-connections have a learned scale of their own that quantises nothing.
        if place.matrix and "scale" in place.suffix and not last.endswith("_hc"):
            self.scale_suffixes.add(place.suffix)
        dense = place.part == SHARED or (place.part == ATTENTION and first not in _INNER and "norm" not in last)
        if not place.matrix or not (dense or place.part == ROUTED):
            return _Group(part, {}, place.suffix)
        matrices = self._matrices.setdefault((section, place.part), {}).setdefault((number, place.matrix), {})
        return _Group(part, matrices, place.suffix)

    def family(self) -> str | None:
        """The family that the tell-tale names show; None when there are none."""
        if self._marks & set(_V41_LEAVES):
            return "deepseek_v41"
        return "deepseek_v4" if self._marks else None

    def sizes(self) -> dict[str, int | None]:
        """Bytes by part; None where a size is not known."""
        return {part: None if part in self._unsized else self._sums[part] for part in PARTS}

    def stored(self, section: str) -> Stored:
        """How the target's layers (``layer``) or the draft's stages (``stage``) are stored."""
        return Stored(
            Experts(storage_of(self._each(section, ROUTED)), self._experts_by_layer(section)),
            storage_of(self._each(section, ATTENTION)),
            storage_of(self._each(section, SHARED)),
        )

    def _experts_by_layer(self, section: str) -> dict[int, int]:
        numbers: dict[int, set[int]] = {}
        fused: dict[int, int] = {}
        for (layer, _), matrices in self._matrices.get((section, ROUTED), {}).items():
            numbers.setdefault(layer, set()).update(expert for expert in matrices if expert is not None)
            for tensor in matrices.get(None, ("", {}))[1].values():
                # One tensor holds all experts: [experts, rows, columns].
                if tensor.shape is not None and len(tensor.shape) == 3:
                    fused[layer] = tensor.shape[0]
        return {layer: fused.get(layer) or len(found) for layer, found in sorted(numbers.items())}

    def _each(self, section: str, part: str) -> Iterator[tuple[str, Mapping[str, Tensor], int | None]]:
        group = self._matrices.get((section, part), {})
        nothing: _Matrix = ("", {})
        for (number, _), matrices in group.items():
            first, second = (group.get((number, matrix), {}) for matrix in ("w1", "w2"))
            for expert, (name, parts) in matrices.items():
                packed = None
                if "qweight" in parts or "weight_packed" in parts:
                    packed = packed_values(first.get(expert, nothing)[1], second.get(expert, nothing)[1])
                yield name, parts, packed
