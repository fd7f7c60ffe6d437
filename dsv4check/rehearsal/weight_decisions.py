"""How many parameters a checkpoint fills: as vLLM's own loading by name showed it, and by the rules for names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from dsv4check.checkpoint.kept import Kept
from dsv4check.checkpoint.loading import load
from dsv4check.checkpoint.parts import Part, draft_part, target_part
from dsv4check.checkpoint.published import few_experts, published_tensors
from dsv4check.checkpoint.tensors import Checkpoint, Tensor
from dsv4check.rehearsal.protocol import Rehearsal, RehearsedStage, Status
from dsv4check.releases.facts import facts_of
from dsv4check.report.model import Report
from dsv4check.resolve.expert_format import other_layers
from dsv4check.resolve.mega_moe import uses_mega_moe


def filled_parameters(report: Report, rehearsal: Rehearsal) -> Iterator[tuple[str, str, str]]:
    """(what, as rehearsed, by the rules) for target and draft; nothing where either of them does not tell.

    The rehearsal feeds three experts of a layer, and a parameter counts as filled when one tensor reached it; so it is
    counted here. Several pipeline stages have some parameters twice and are left out.
    """
    result = rehearsal.result(RehearsedStage.WEIGHT_LOAD)
    resolution, deployment = report.resolution, report.deployment
    parallel = resolution.parallel
    if result.status is not Status.OK or parallel is None or parallel.pipeline > 1:
        return
    facts = facts_of(deployment.vllm)
    vendor = deployment.hardware.vendor
    mega = uses_mega_moe(resolution.moe, parallel)
    checkpoint = deployment.checkpoint or published_tensors(deployment.model.name)
    other = other_layers(deployment.flags, facts)
    target = target_part(deployment.model, facts, vendor, mega_moe=mega, other=other)
    yield from _compare("target", target, checkpoint, result.detail.get("target"))
    draft = resolution.draft
    if draft is None or draft.method not in ("mtp", "dspark") or draft.source != "target checkpoint":
        return
    part = draft_part(draft.method, deployment.model, facts, vendor, mega_moe=mega, other=other)
    yield from _compare("draft", part, checkpoint, result.detail.get("draft"))


_THINNED: Final[Kept[Mapping[str, Tensor]]] = Kept()


def _few(checkpoint: Checkpoint) -> Mapping[str, Tensor]:
    """The tensors that the rehearsal is fed; which parameters stay empty is the same with all of them."""
    return _THINNED.get(checkpoint, None, lambda: few_experts(checkpoint.tensors))


def _compare(
    what: str, part: Part | None, checkpoint: Checkpoint | None, rehearsed: dict[str, object] | None
) -> Iterator[tuple[str, str, str]]:
    if part is None or part.model is None or checkpoint is None or rehearsed is None:
        return
    gaps = load(_few(checkpoint), part.rules, part.model, part.experts).gaps
    empty = sum(gap.count for gap in gaps if not gap.lacking) + len(part.model.not_stored)
    count = len(part.model.names)
    yield (
        f"parameters of the {what} that are filled",
        f"{rehearsed['loaded']} of {rehearsed['parameters']}",
        f"{count - empty} of {count}",
    )
