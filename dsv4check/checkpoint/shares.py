"""How the bytes of a checkpoint spread over GPUs: what one rank of each pipeline stage holds.

Tensor parallelism cuts the parameters that the facts list under ``cut`` (section ``parameters``); everything else is on
every rank. Routed experts go whole to the ranks of expert parallelism, else each rank has a slice of all. These are
bytes as stored: vLLM keeps nearly all tensors in the checkpoint's own dtype, and pads shards that do not divide evenly.
What a launch places in another way (``resolve/placement.py``) counts where the caller says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from dsv4check.checkpoint.loading import Outcome
from dsv4check.checkpoint.parts import Part
from dsv4check.checkpoint.tensors import Tensor
from dsv4check.records import dataclass
from dsv4check.resolution import Parallelism
from dsv4check.resolve.placement import AS_STORED, Placement, Tower

_LAYER: Final = re.compile(r"\blayers\.(\d+)\.(.+)$")
_VISION: Final = re.compile(r"^(vision\.blocks\.)\d+\.(.+)$")
_MTP_BLOCK: Final = "mtp_block."
"""What MTP's modules have before the names of a decoder layer's."""
_TOWER: Final = ("vision.", "aligner.", "image_")
_LAST_STAGE: Final = ("lm_head.", "norm.")


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes that one GPU of a pipeline stage holds."""

    experts: float
    """Routed experts."""
    cut: float
    """Other parameters that tensor parallelism divides."""
    whole: float
    """Parameters every rank holds in full."""

    @property
    def total(self) -> float:
        """All of them."""
        return self.experts + self.cut + self.whole


def target_shares(
    found: Iterable[Outcome],
    tensors: Mapping[str, Tensor],
    part: Part,
    parallel: Parallelism,
    layers: Sequence[int],
    placement: Placement = AS_STORED,
) -> tuple[Share, ...] | None:
    """One share for each pipeline stage; ``layers``: how many layers each has.

    None when a size or the facts about the model's parameters are missing.
    """
    stage_of = [stage for stage, count in enumerate(layers) for _layer in range(count)]
    last = len(layers) - 1

    def stages(parameter: str) -> Sequence[int]:
        match = _LAYER.search(parameter)
        if match is not None and not parameter.startswith("vision."):
            number = int(match[1])
            return (stage_of[number] if number < len(stage_of) else last,)
        if parameter.startswith(_TOWER):
            return range({Tower.EVERY: last + 1, Tower.FIRST: 1, Tower.NONE: 0}[placement.tower])
        inner = parameter.removeprefix("language_model.").removeprefix("model.")
        if inner.startswith("embed_tokens."):
            return (0, last) if placement.embedding_twice else (0,)
        return (last,) if inner.startswith(_LAST_STAGE) else range(last + 1)

    return _shares(found, tensors, part, parallel, len(layers), stages, placement)


def draft_share(
    found: Iterable[Outcome],
    tensors: Mapping[str, Tensor],
    part: Part,
    parallel: Parallelism,
    placement: Placement = AS_STORED,
) -> Share | None:
    """The draft's share, on the last pipeline stage, which is where it runs. None as for the target."""
    shares = _shares(found, tensors, part, parallel, 1, lambda _parameter: (0,), placement)
    return None if shares is None else shares[0]


def _shares(
    found: Iterable[Outcome],
    tensors: Mapping[str, Tensor],
    part: Part,
    parallel: Parallelism,
    count: int,
    stages: Callable[[str], Sequence[int]],
    placement: Placement,
) -> tuple[Share, ...] | None:
    if part.parameters is None:
        return None
    cut = part.parameters["cut"]
    held, stored = placement.experts_held(part.experts, parallel)
    sums = [[0.0, 0.0, 0.0] for _stage in range(count)]
    for outcome in found:
        size = _size(outcome, tensors)
        if size is None:
            return None
        for target in outcome.targets:
            if ".experts." in outcome.name:
                kind, share = 0, size * held / stored
            elif (module := _module(target.parameter)) in placement.elsewhere:
                continue
            elif module in cut and module.removeprefix(_MTP_BLOCK) not in placement.whole:
                kind, share = 1, size / parallel.tensor
            else:
                kind, share = 2, float(size)
            for stage in stages(target.parameter):
                sums[stage][kind] += share
    return tuple(Share(*parts) for parts in sums)


def _size(outcome: Outcome, tensors: Mapping[str, Tensor]) -> int | None:
    """Bytes of all tensors of an outcome; None when one is not known."""
    sizes = [tensors[name].size for name, _expert in outcome.names()]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _module(parameter: str) -> str:
    """The module as the facts name it: inside its layer, or of the model; blocks of the vision tower without number."""
    block = _VISION.match(parameter)
    if block is not None:
        return f"{block[1]}{block[2]}".rpartition(".")[0]
    match = _LAYER.search(parameter)
    return (match[2] if match else parameter).rpartition(".")[0]
