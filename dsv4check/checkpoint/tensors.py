"""The records of a checkpoint: its tensors, and what is wrong with its files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from dsv4check.records import dataclass, field

DTYPE_BITS: Final[Mapping[str, int]] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}
"""Bits of one element, of every dtype that safetensors 0.8 knows. Sizes below a byte are packed, so bits."""

DEFECT_KINDS: Final[Mapping[str, str]] = {
    "shard-missing": "the index names a file that is not there",
    "unreadable": "the file cannot be opened or read",
    "lfs-pointer": "a git-lfs pointer lies where the file should be",
    "header-truncated": "the file ends inside its header",
    "header-invalid": "the header is not what safetensors accepts",
    "dtype-unknown": "a tensor has a dtype that safetensors 0.8 does not know",
    "shape-mismatch": "a tensor's bytes are not those of its shape and dtype",
    "offsets-invalid": "the tensors leave holes or overlap",
    "data-truncated": "the file ends before its last tensor does",
    "data-trailing": "the file goes on after its last tensor",
    "duplicate-name": "one tensor's name appears twice",
    "not-in-index": "a file holds a tensor that the index does not list; vLLM loads it all the same",
    "not-in-shard": "the index says that a file holds a tensor, and it does not",
    "extra-file": "a safetensors file that the index does not name; vLLM leaves it out",
    "size-mismatch": "the index states another total size than the files have",
}
"""Every kind of defect, with what it means."""
NO_HEADER: Final = frozenset({"shard-missing", "unreadable", "lfs-pointer", "header-truncated", "header-invalid"})
"""Kinds of defect after which nothing is known of a file's tensors but the names in the index."""
UNLOADABLE: Final = NO_HEADER - {"shard-missing"} | {
    *("dtype-unknown", "shape-mismatch", "offsets-invalid", "data-truncated", "data-trailing"),
}
"""Kinds of defect that the safetensors library refuses a file for."""
_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint."""

    dtype: str
    """As safetensors spells it: ``F8_E4M3``, ``BF16``, ``I8``; empty when only the name is known."""
    shape: tuple[int, ...] | None
    """Sizes; None when only the name is known."""

    @property
    def size(self) -> int | None:
        """Bytes of its data; None when shape or dtype is not known."""
        bits = DTYPE_BITS.get(self.dtype)
        return None if bits is None or self.shape is None else -(-math.prod(self.shape) * bits // 8)

    @property
    def whole_bytes(self) -> bool:
        """False when the last byte would not be full (three F4 values), which safetensors refuses."""
        return self.shape is None or math.prod(self.shape) * DTYPE_BITS.get(self.dtype, 8) % 8 == 0


UNKNOWN: Final = Tensor("", None)
"""Stands where only the name is known."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One thing that is wrong with a checkpoint's files."""

    kind: str
    """One of ``DEFECT_KINDS``."""
    file: str
    """The file's name inside the checkpoint's folder."""
    detail: str
    """What was found and what was expected there, for people."""
    count: int = 0
    """Tensors affected; 0 where it is not known or not about tensors."""
    examples: tuple[str, ...] = ()
    """The first names of these."""

    @staticmethod
    def of(kind: str, file: str, detail: str, names: Iterable[str] = ()) -> Defect:
        """A defect that affects the tensors ``names``."""
        affected = list(names)
        return Defect(kind, file, detail, len(affected), tuple(islice(affected, _EXAMPLES)))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything known about a checkpoint's tensors."""

    source: str
    """Where it was read, for people."""
    tensors: Mapping[str, Tensor]
    """What vLLM's loader would be handed: name -> tensor."""
    absent: tuple[str, ...] = ()
    """Files that the index names and that are not there."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Tensor name -> name of the file it is (or should be) in; empty when no files are known."""
    total_size: int | None = None
    """Bytes of all tensors as the index's ``metadata.total_size`` states them; None without that."""
    defects: tuple[Defect, ...] = ()
    """What is wrong with the files; a checkpoint with defects is read as far as it can be."""

    @property
    def partly_there(self) -> bool:
        """False when there is nothing but an index: then somebody checks names, not a folder to serve from."""
        missing = {defect.file for defect in self.defects if defect.kind == "shard-missing"}
        return not set(self.files.values()) <= missing

    @property
    def without_shape(self) -> int:
        """Tensors of which only the name is known."""
        return sum(tensor.shape is None for tensor in self.tensors.values())
