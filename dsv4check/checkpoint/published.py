"""The tensors of published checkpoints, from the catalogue, and what can be done with tensors known by heart."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from dsv4check.checkpoint.tensors import Checkpoint, Tensor
from dsv4check.data import rules_dir
from dsv4check.inputs.checkpoint import find_published

CATALOGUE_FILE: Final = "tensors.tsv"
_BRACES: Final = re.compile(r"\{([\d,\-]+)\}")
_EXPERT: Final = re.compile(r"^(.*\.experts\.)(\d+)(\..+)$")


def published_tensors(name: str) -> Checkpoint | None:
    """The tensors of a published checkpoint, from the catalogue; None when they are not known."""
    entry = find_published(name)
    if entry is None or entry.tensors is None:
        return None
    return _published(entry.tensors)


@cache
def _published(model_id: str) -> Checkpoint:
    """One record for each: what is worked out about it is kept by identity."""
    return Checkpoint(f"the published tensors of {model_id}", _catalogue(model_id))


def _catalogue(model_id: str) -> Mapping[str, Tensor]:
    text = (rules_dir() / "models" / model_id / CATALOGUE_FILE).read_text(encoding="utf-8")
    tensors = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pattern, dtype, shape = line.split("\t")
            tensor = Tensor(dtype, tuple(int(size) for size in shape.split("x")))
            tensors.update(dict.fromkeys(_expand(pattern), tensor))
    return tensors


def _expand(pattern: str) -> Iterator[str]:
    """``layers.{0-2,5}.x`` as its four names."""
    parts = _BRACES.split(pattern)
    numbers = [list(numbers_of_span(text)) for text in parts[1::2]]
    for chosen in itertools.product(*numbers):
        yield parts[0] + "".join(f"{number}{fixed}" for number, fixed in zip(chosen, parts[2::2], strict=True))


def numbers_of_span(text: str) -> Iterator[int]:
    """0, 1, 2, 5 for ``0-2,5``."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def fill_shapes(checkpoint: Checkpoint, reference: Checkpoint) -> Checkpoint:
    """The checkpoint with dtypes and shapes of ``reference`` where only a name is known."""
    known = reference.tensors
    tensors = {
        name: known.get(name, tensor) if tensor.shape is None else tensor for name, tensor in checkpoint.tensors.items()
    }
    return Checkpoint(
        source=f"{checkpoint.source}, shapes from {reference.source}",
        tensors=tensors,
        absent=checkpoint.absent,
        files=checkpoint.files,
        total_size=checkpoint.total_size,
        defects=checkpoint.defects,
    )


def few_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without most routed experts: the first two and the last of each layer stand for those like them.

    An expert whose tensors differ from the first one's (names, dtypes or shapes) is kept.
    """
    layers: dict[str, dict[int, dict[str, Tensor]]] = {}
    kept = {}
    for name, tensor in tensors.items():
        found = _EXPERT.match(name)
        if found is None:
            kept[name] = tensor
        else:
            layers.setdefault(found[1], {}).setdefault(int(found[2]), {})[found[3]] = tensor
    for prefix, experts in layers.items():
        first = experts[min(experts)]
        wanted = {*sorted(experts)[:2], max(experts)}
        for number, parts in experts.items():
            if number in wanted or parts != first:
                kept.update({f"{prefix}{number}{suffix}": tensor for suffix, tensor in parts.items()})
    return kept
