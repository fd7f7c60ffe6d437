"""What ``dsv4check weights`` says: a checkpoint, what one release makes of its tensors, and what each GPU then holds.

Nothing is read here: the checkpoint was found and the launch was checked before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dsv4check.checkpoint.agreement import Disagreement, disagreements
from dsv4check.checkpoint.content import Content, content_of
from dsv4check.checkpoint.loading import Load, Outcome, load_of, outcomes
from dsv4check.checkpoint.locate import LOCAL, Located
from dsv4check.checkpoint.parts import DSPARK, MTP, Part, draft_part, target_part
from dsv4check.checkpoint.shares import Share, draft_share, target_shares
from dsv4check.checkpoint.tensors import UNLOADABLE, Checkpoint, Defect
from dsv4check.deployment import Model
from dsv4check.engine.rule import Rule, Severity
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts, facts_of
from dsv4check.report.model import Finding, Report, Verdict
from dsv4check.resolution import Parallelism
from dsv4check.resolve.expert_format import other_layers
from dsv4check.resolve.mega_moe import uses_mega_moe
from dsv4check.resolve.parallelism import pipeline_layers
from dsv4check.resolve.placement import AS_STORED, Placement, placement_of

AUTO: Final = "auto"
NONE: Final = "none"
AREAS: Final = frozenset({"weights", "quantization", "model-config"})
"""Areas of the rules whose findings belong to this report."""
_METHODS: Final[Mapping[str, str]] = {MTP: MTP, "deepseek_mtp": MTP, DSPARK: DSPARK}


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """Which draft is looked at, and on whose word."""

    method: str
    """``mtp``, ``dspark`` or ``none``."""
    why: str
    """Who says so, or why there is none."""
    started: bool
    """False where only the checkpoint says so: this launch does not start it."""
    model: Model | None = None
    """The model that describes the draft; None for one that is not known."""
    located: Located | None = None
    """Its checkpoint; None where that is not known."""
    own: bool = False
    """The draft is a model of its own, not part of the target's checkpoint."""


@dataclass(frozen=True, slots=True)
class PartLoad:
    """The target or the draft, and what the release's loader does with the tensors."""

    part: Part
    outcomes: tuple[Outcome, ...]
    load: Load
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class StageShare:
    """Bytes of the checkpoint that one GPU of a pipeline stage holds."""

    layers: int
    target: Share
    draft: Share | None
    """On the last stage only, and only where the draft's share is known."""
    total: float
    """The draft counts where the launch starts it."""


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """Everything that is said."""

    report: Report
    located: Located
    content: Content
    disagreements: tuple[Disagreement, ...]
    target: PartLoad | None
    no_target: str
    """Why there is none; empty where there is one."""
    choice: DraftChoice
    draft: PartLoad | None
    no_draft: str
    shares: tuple[StageShare, ...]
    no_shares: str
    """Why there are none."""
    findings: tuple[Finding, ...]
    """Of the launch's findings those about weights, quantisation and config.json."""

    @property
    def fatal_defects(self) -> tuple[Defect, ...]:
        """Defects of the files that vLLM stops at, or because of which tensors are not there."""
        places = [self.located]
        if self.choice.own and self.choice.started and self.choice.located is not None:
            places.append(self.choice.located)
        return tuple(defect for place in places for defect in _fatal(place))

    @property
    def loaded(self) -> tuple[PartLoad, ...]:
        """What this launch loads: the target, and the draft where it starts one."""
        draft = self.draft if self.choice.started else None
        return tuple(item for item in (self.target, draft) if item is not None)

    @property
    def refused(self) -> int:
        """Tensors at which vLLM stops."""
        return sum(row.count for item in self.loaded for row in item.load.refused)

    @property
    def empty(self) -> int:
        """Parameters that nothing fills, or only in part."""
        return sum(gap.count for item in self.loaded for gap in item.load.gaps)

    @property
    def fails(self) -> bool:
        """True when files, names or parameters do not fit, whatever the findings are."""
        return bool(self.fatal_defects or self.refused or self.empty)

    @property
    def verdict(self) -> Verdict:
        """The answer in one word."""
        severities = {finding.severity for finding in self.findings}
        if self.fails or Severity.ERROR in severities:
            return Verdict.FAIL
        return Verdict.WARN if Severity.WARNING in severities else Verdict.PASS


OwnDraft = tuple[Model, Located]
"""A draft model with a checkpoint of its own, where ``--speculative-config`` names one."""


def _fatal(place: Located) -> Iterator[Defect]:
    found = place.checkpoint
    # Of an index alone the names are looked at; and what the Hub's cache lacks is fetched by vLLM.
    complete = place.place == LOCAL and found.partly_there
    for defect in found.defects:
        if defect.kind in UNLOADABLE or (defect.kind == "shard-missing" and complete):
            yield defect


def choose_draft(
    report: Report, located: Located, kind: str | None, asked: str = AUTO, own: OwnDraft | None = None
) -> DraftChoice:
    """The draft to look at: the one that was asked for, the launch's, else the one in the checkpoint (``kind``)."""
    deployment, draft = report.deployment, report.resolution.draft
    if asked == NONE:
        return DraftChoice(NONE, "--draft none", started=False)
    config = draft.config if draft is not None else {}
    said = (draft.method or draft.requested_method or config.get("method")) if draft is not None else None
    method = asked if asked != AUTO else _METHODS.get(str(said)) if said else None
    if asked == AUTO and said and method is None:
        return DraftChoice(NONE, f"method {said} loads no mtp.* tensors", started=False)
    if method is None:
        if kind in (MTP, DSPARK):
            return DraftChoice(kind, "the checkpoint holds it", False, deployment.model, located)
        why = "the checkpoint holds none" if kind == NONE else "the checkpoint does not tell which one it holds"
        return DraftChoice(NONE, f"this launch starts none, and {why}", started=False)
    why = f"--draft {asked}" if asked != AUTO else "the launch's speculative config"
    named = config.get("model")
    if isinstance(named, str) and named != deployment.model.name:
        model, place = own if own is not None else (None, None)
        return DraftChoice(method, f"{why}: {named}", True, model, place, own=True)
    return DraftChoice(method, why, True, deployment.model, located)


def build_weights_report(
    report: Report,
    located: Located,
    facts: ReleaseFacts,
    rules: Iterable[Rule],
    draft: str = AUTO,
    own_draft: OwnDraft | None = None,
) -> WeightsReport:
    """Put the report together.

    ``report`` is the checked launch, ``located`` the target's checkpoint, ``facts`` those of the release that
    ``report`` is about, ``rules`` the ones it was checked with; ``draft`` is ``auto``, ``mtp``, ``dspark`` or ``none``;
    ``own_draft`` the draft model that the launch names, where it is known.
    """
    deployment, resolution = report.deployment, report.resolution
    content = content_of(located.checkpoint)
    vendor = deployment.hardware.vendor
    mega = uses_mega_moe(resolution.moe, resolution.parallel)
    choice = choose_draft(report, located, content.draft_kind, draft, own_draft)
    other = other_layers(deployment.flags, facts)
    part = target_part(deployment.model, facts, vendor, mega_moe=mega, other=other)
    target = None if part is None else _load(part, located.checkpoint)
    found: PartLoad | None = None
    no_draft = choice.why
    if choice.method != NONE:
        no_draft = ""
        if choice.model is None or choice.located is None:
            no_draft = f"the checkpoint of {choice.why.rpartition(': ')[2]} is not known"
        else:
            part = draft_part(
                choice.method, choice.model, facts, vendor, mega_moe=mega, other=other, target=deployment.model
            )
            if part is None:
                no_draft = _no_class(facts.version, f"a {choice.method} draft of {choice.model.family}", vendor)
            else:
                found = _load(part, choice.located.checkpoint)
    shares, no_shares = _shares(report, target, found, choice)
    areas = {rule.id: rule.area for rule in rules}
    return WeightsReport(
        report=report,
        located=located,
        content=content,
        disagreements=disagreements(content, deployment.model),
        target=target,
        no_target="" if target is not None else _no_class(facts.version, deployment.model.family, vendor),
        choice=choice,
        draft=found,
        no_draft=no_draft,
        shares=shares,
        no_shares=no_shares,
        findings=tuple(item for item in report.findings if areas.get(item.rule) in AREAS),
    )


def _no_class(version: str, what: str, vendor: str | None) -> str:
    gpus = f" for {vendor} GPUs" if vendor not in (None, "nvidia") else ""
    return f"vLLM {version} has no class for {what}{gpus}, or config.json lacks its number of layers or experts"


def _load(part: Part, checkpoint: Checkpoint) -> PartLoad:
    found = tuple(outcomes(checkpoint.tensors, part.rules, part.model, part.experts))
    return PartLoad(part, found, load_of(found, part.rules, part.model, part.experts), checkpoint)


def _placement(report: Report, parallel: Parallelism) -> Placement:
    """Where this launch puts weights, as ``dsv4check memory`` has it; as stored where that cannot be told."""
    resolution, moe = report.resolution, report.resolution.moe
    if resolution.draft is None:
        return AS_STORED
    found = placement_of(
        report.deployment,
        facts_of(report.deployment.vllm),
        parallel,
        resolution.draft,
        mega_moe=uses_mega_moe(moe, parallel),
        kernel=moe.backend if moe is not None else None,
    )
    return found or AS_STORED


def _shares(
    report: Report, target: PartLoad | None, draft: PartLoad | None, choice: DraftChoice
) -> tuple[tuple[StageShare, ...], str]:
    """Bytes by pipeline stage, or why they are not known."""
    parallel = report.resolution.parallel
    if target is None or parallel is None:
        return (), "the target's parameters are not known"
    if target.part.unknown:
        return (), target.part.unknown
    unknown = target.checkpoint.without_shape
    if unknown:
        return (), f"of {unknown:,} tensors only the names are known; give the checkpoint's files"
    layers = pipeline_layers(report.deployment, parallel)
    if layers is None:
        return (), "the layers of each pipeline stage are not known"
    placement = _placement(report, parallel)
    shares = target_shares(target.outcomes, target.checkpoint.tensors, target.part, parallel, layers, placement)
    if shares is None:
        return (), "a tensor has a dtype whose size is not known"
    extra = None
    if draft is not None and not draft.part.unknown:
        extra = draft_share(draft.outcomes, draft.checkpoint.tensors, draft.part, parallel, placement)
    stages = []
    for stage, (count, share) in enumerate(zip(layers, shares, strict=True)):
        own = extra if stage == len(layers) - 1 else None
        counted = own.total if own is not None and choice.started else 0.0
        stages.append(StageShare(count, share, own, share.total + counted))
    return tuple(stages), ""
