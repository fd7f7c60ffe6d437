"""What each GPU holds by the tensors of a checkpoint: those that the release loads, with sizes from the headers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from dsv4check.checkpoint.kept import Kept
from dsv4check.checkpoint.loading import Outcome, load_of, outcomes
from dsv4check.checkpoint.parts import Part, draft_part, target_part
from dsv4check.checkpoint.shares import draft_share, target_shares
from dsv4check.checkpoint.tensors import Checkpoint
from dsv4check.deployment import Deployment, Model
from dsv4check.memory.records import StageWeights
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Parallelism
from dsv4check.resolve.placement import Placement

_FOUND: Final[Kept[tuple[Outcome, ...] | None]] = Kept()


def target_weights(
    checkpoint: Checkpoint,
    deployment: Deployment,
    facts: ReleaseFacts,
    parallel: Parallelism,
    layers: Sequence[int],
    placement: Placement,
    *,
    mega_moe: bool,
) -> tuple[int, tuple[StageWeights, ...]] | None:
    """Bytes of the target's tensors that are loaded, and what a GPU of each stage holds of them.

    None where the tensors do not fill the model that is built, so that they do not tell its size.
    """
    part = target_part(deployment.model, facts, deployment.hardware.vendor, mega_moe=mega_moe)
    found = None if part is None else _loaded(checkpoint, part, facts.identity, mega_moe)
    if part is None or found is None:
        return None
    shares = target_shares(found, checkpoint.tensors, part, parallel, layers, placement)
    if shares is None:
        return None
    stages = tuple(
        StageWeights(math.ceil(share.experts), math.ceil(share.cut), math.ceil(share.whole)) for share in shares
    )
    return _bytes(found, checkpoint), stages


def draft_weights(
    checkpoint: Checkpoint,
    method: str,
    model: Model,
    deployment: Deployment,
    facts: ReleaseFacts,
    parallel: Parallelism,
    placement: Placement,
    *,
    mega_moe: bool,
) -> tuple[int, int] | None:
    """Bytes of the draft's tensors, and what a GPU of the last stage holds of them. None as for the target.

    ``checkpoint`` and ``model`` are the target's where the draft is part of it.
    """
    vendor = deployment.hardware.vendor
    part = draft_part(method, model, facts, vendor, mega_moe=mega_moe, target=deployment.model)
    found = None if part is None else _loaded(checkpoint, part, facts.identity, mega_moe)
    if part is None or found is None:
        return None
    share = draft_share(found, checkpoint.tensors, part, parallel, placement)
    return None if share is None else (_bytes(found, checkpoint), math.ceil(share.total))


def _loaded(checkpoint: Checkpoint, part: Part, facts: str, mega_moe: bool) -> tuple[Outcome, ...] | None:
    """What becomes of each tensor; None where some are refused or the model is left with gaps."""

    def look() -> tuple[Outcome, ...] | None:
        if part.model is None:
            return None
        found = tuple(outcomes(checkpoint.tensors, part.rules, part.model, part.experts))
        load = load_of(found, part.rules, part.model, part.experts)
        return None if load.refused or load.gaps else found

    return _FOUND.get(checkpoint, (facts, part.name, part.rules.settings, part.model, mega_moe), look)


def _bytes(found: Iterable[Outcome], checkpoint: Checkpoint) -> int:
    """Tensors that have a place in the model, each once."""
    return sum(
        checkpoint.tensors[name].size or 0 for outcome in found if outcome.targets for name, _expert in outcome.names()
    )
