"""The static report beside the rehearsal: where they agree, and which rules describe what vLLM said."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dsv4check.engine.conditions import version_in
from dsv4check.engine.rule import Rule, Severity
from dsv4check.problems import Stage
from dsv4check.rehearsal.protocol import Rehearsal, RehearsedStage, StageResult, Status
from dsv4check.rehearsal.weight_decisions import filled_parameters
from dsv4check.report.model import Finding, Report

STAGES: Final[dict[RehearsedStage, Stage]] = {
    RehearsedStage.ARGPARSE: Stage.ARGPARSE,
    RehearsedStage.ENGINE_CONFIG: Stage.ENGINE_CONFIG,
    RehearsedStage.MODEL_INIT: Stage.MODEL_INIT,
    RehearsedStage.DRAFT_INIT: Stage.WEIGHT_LOAD,
    RehearsedStage.WEIGHT_LOAD: Stage.WEIGHT_LOAD,
    RehearsedStage.KV_CACHE_INIT: Stage.KV_CACHE_INIT,
    RehearsedStage.FLASHMLA: Stage.WARMUP,
}
"""The stage of a vLLM start that each rehearsed stage belongs to."""
_PARTIAL: Final = frozenset(
    {RehearsedStage.DRAFT_INIT, RehearsedStage.WEIGHT_LOAD, RehearsedStage.KV_CACHE_INIT, RehearsedStage.FLASHMLA}
)
"""Stages of which a part is rehearsed: passing them does not contradict a finding about the rest."""
_REHEARSED_AREAS: Final = {
    RehearsedStage.WEIGHT_LOAD: frozenset({"weights"}),
    RehearsedStage.KV_CACHE_INIT: frozenset({"kv-cache", "attention", "indexer", "runner"}),
}
"""Areas of rules whose findings a passed partial stage does contradict."""
_FLASHMLA_TEXT = re.compile(r"kv must have|whole block must be contiguous|h_kv == 1")


_LAYOUT: Final = "KV cache layout"
"""How the note of a report begins that says its caches were not evaluated (V4.1, other platforms)."""
_MEMORY: Final = "memory"
"""Area of the rules about memory."""
_MEMORY_TEXT = re.compile(
    r"No available memory for the cache blocks|To serve at least one request with|Cannot auto-fit max_model_len"
)
"""The engine core's words for too little memory."""


class Agreement(StrEnum):
    """What the two say about one stage."""

    AGREE = "agree"
    DISAGREE = "disagree"
    OPEN = "open"
    """Not compared: one of them does not speak about this stage."""


@dataclass(frozen=True)
class StageComparison:
    """One stage, both ways."""

    stage: RehearsedStage
    agreement: Agreement
    rules: tuple[str, ...] = ()
    """Rules of severity error that the static check has at this stage."""
    note: str = ""


@dataclass(frozen=True)
class MatchingRule:
    """A rule that describes the failure vLLM showed, or knows its text from another cause."""

    rule: str
    name: str
    fired: bool
    """True when the static check reported it for this launch; else only the text is the same."""


@dataclass(frozen=True)
class Decision:
    """One value that both of them work out."""

    what: str
    rehearsed: str
    rules: str

    @property
    def agrees(self) -> bool:
        """True when both say the same."""
        return self.rehearsed == self.rules


@dataclass(frozen=True)
class Comparison:
    """Static and rehearsed verdict of one launch."""

    stages: tuple[StageComparison, ...]
    matching: tuple[MatchingRule, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """Values that both worked out; empty where the rehearsal did not get that far."""

    @property
    def disagreements(self) -> tuple[StageComparison, ...]:
        """Stages on which they differ."""
        return tuple(item for item in self.stages if item.agreement is Agreement.DISAGREE)


def _checked_later(report: Report, rehearsal: Rehearsal, rules: tuple[Rule, ...]) -> frozenset[str]:
    """Rules of the argparse stage that describe a failure in the engine-config stage.

    That rehearsed stage ends with the parser; what the serve sub-command checks right after it comes in the next one.
    """
    failure = rehearsal.failure
    if failure is None or failure.stage is not RehearsedStage.ENGINE_CONFIG:
        return frozenset()
    early = {finding.rule: finding for finding in report.errors if finding.stage is Stage.ARGPARSE}
    said = f"{failure.exception}: {failure.message}"
    signed = {rule.id for rule in rules if any(signature.matches_text(said) for signature in rule.signatures)}
    return frozenset(
        rule for rule, finding in early.items() if rule in signed or _same_error(finding.error, failure.message)
    )


def compare(report: Report, rehearsal: Rehearsal, rules: tuple[Rule, ...]) -> Comparison:
    """Compare stage by stage; ``rules`` are searched for those that describe the failure."""
    areas = {rule.id: rule.area for rule in rules}
    later = _checked_later(report, rehearsal, rules)
    stages = tuple(_stage(result, report, areas, later) for result in rehearsal.stages)
    failure = rehearsal.failure
    matching = () if failure is None else tuple(matching_rules(failure, report, rules))
    return Comparison(stages, matching, tuple(_decisions(report, rehearsal)))


def remaining_findings(report: Report, comparison: Comparison) -> tuple[Finding, ...]:
    """The static findings that the rehearsal has not overruled."""
    overruled = {rule for item in comparison.disagreements for rule in item.rules if item.note.startswith(_PASSED)}
    return tuple(finding for finding in report.findings if finding.rule not in overruled)


def _decisions(report: Report, rehearsal: Rehearsal) -> Iterator[Decision]:
    """Attention class, filled parameters, model runner, KV dtype, block size and page sizes, where both know them."""
    resolution = report.resolution
    model = rehearsal.result(RehearsedStage.MODEL_INIT).detail
    if model and resolution.attention is not None and resolution.attention.cls is not None:
        classes = model.get("cache_layers", {})
        expected = resolution.attention.cls
        yield Decision("attention class", expected if expected in classes else ", ".join(sorted(classes)), expected)
    for what, rehearsed, static_count in filled_parameters(report, rehearsal):
        yield Decision(what, rehearsed, static_count)
    cache = rehearsal.result(RehearsedStage.KV_CACHE_INIT).detail
    if not cache:
        return
    if resolution.runner is not None and resolution.runner.name is not None:
        yield Decision("model runner", str(cache["runner"]), resolution.runner.name)
    static = resolution.kv_cache
    if static is None:
        return
    if static.resolved_dtype is not None:
        yield Decision("KV dtype", str(cache["cache_dtype"]), static.resolved_dtype)
    if static.block_size is not None:
        yield Decision("block size", str(cache["block_size"]), str(static.block_size))
    if static.layers:
        ours = Counter[int]()
        for layer in static.layers:
            ours[layer.padded_page_bytes] += layer.count + layer.draft_count
        theirs = Counter[int]()
        for spec in cache["specs"]:
            theirs[int(spec["page_bytes"])] += int(spec["layers"])
        yield Decision("pages (layers x bytes)", _pages(theirs), _pages(ours))


def _pages(sizes: Counter[int]) -> str:
    return ", ".join(f"{count} x {size}" for size, count in sorted(sizes.items()))


_PASSED: Final = "vLLM passes this stage"


def _stage(result: StageResult, report: Report, areas: dict[str, str], later: frozenset[str]) -> StageComparison:
    static = [
        finding
        for finding in report.errors
        if (Stage.ENGINE_CONFIG if finding.rule in later else finding.stage) is STAGES[result.stage]
    ]
    rules = tuple(dict.fromkeys(finding.rule for finding in static))
    match result.status:
        case Status.NOT_REACHED | Status.UNAVAILABLE:
            return StageComparison(result.stage, Agreement.OPEN, rules)
        case Status.FAILED:
            if static:
                return StageComparison(result.stage, Agreement.AGREE, rules)
            if _is_about_layout(result) and any(note.what.startswith(_LAYOUT) for note in report.not_evaluated):
                return StageComparison(
                    result.stage, Agreement.OPEN, (), "the rules do not evaluate this model's caches"
                )
            if _MEMORY_TEXT.search(result.message):
                return _about_memory(result, report, areas)
            return StageComparison(result.stage, Agreement.DISAGREE, (), "vLLM stops here; no rule says so")
        case Status.OK:
            contradicted = [finding for finding in static if _contradicts(result.stage, finding, areas)]
            if not static:
                partial = result.stage in _PARTIAL and bool(result.detail.get("applies") is False)
                return StageComparison(result.stage, Agreement.OPEN if partial else Agreement.AGREE)
            if not contradicted:
                return StageComparison(result.stage, Agreement.OPEN, rules, "about a part that is not rehearsed")
            ids = tuple(dict.fromkeys(finding.rule for finding in contradicted))
            return StageComparison(
                result.stage, Agreement.DISAGREE, ids, f"{_PASSED}; {', '.join(ids)} says it does not"
            )
    raise AssertionError(result.status)


def _about_memory(result: StageResult, report: Report, areas: dict[str, str]) -> StageComparison:
    """vLLM had too little memory although the rehearsal takes nothing off for costs: ours must say so, too."""
    found = tuple(finding.rule for finding in report.errors if areas.get(finding.rule) == _MEMORY)
    if found:
        return StageComparison(result.stage, Agreement.AGREE, found)
    memory = report.resolution.memory
    if memory is None or memory.blocks is None:
        return StageComparison(result.stage, Agreement.OPEN, (), "memory for the KV cache: not evaluated")
    return StageComparison(result.stage, Agreement.DISAGREE, (), "vLLM stops here for want of memory; no rule says so")


def _is_about_layout(result: StageResult) -> bool:
    """True for failures of the attention layers and their caches."""
    if result.stage is RehearsedStage.MODEL_INIT:
        return "attention" in result.where
    return result.stage in (RehearsedStage.KV_CACHE_INIT, RehearsedStage.FLASHMLA)


def _contradicts(stage: RehearsedStage, finding: Finding, areas: dict[str, str]) -> bool:
    """True when passing the stage says that the finding is wrong."""
    if areas.get(finding.rule) == _MEMORY:
        # The simulated GPU is empty, and nothing but the cache itself is ever allocated on it.
        return False
    if stage not in _PARTIAL:
        # The API server's tokenizer is loaded beside the model; the rehearsal has a stand-in.
        return areas.get(finding.rule, "") != "tokenizer" or stage is not RehearsedStage.MODEL_INIT
    if stage is RehearsedStage.FLASHMLA:
        return bool(_FLASHMLA_TEXT.search(finding.error))
    return areas.get(finding.rule, "") in _REHEARSED_AREAS.get(stage, frozenset())


def matching_rules(failure: StageResult, report: Report, rules: Iterable[Rule]) -> list[MatchingRule]:
    """Rules that describe a failure, those the static check reported first.

    A rule matches by its ``signatures``, or, where it fired at that stage, by the error text it quotes.
    """
    said = f"{failure.exception}: {failure.message}" if failure.exception else failure.message
    fired = {finding.rule: finding for finding in report.findings}
    release = report.resolution.release
    found = []
    for rule in rules:
        finding = fired.get(rule.id)
        at_stage = (finding.stage if finding is not None else rule.stage) is STAGES[failure.stage]
        by_text = finding is not None and at_stage and _same_error(finding.error, failure.message)
        by_signature = any(signature.matches_text(said) for signature in rule.signatures)
        if by_text or (by_signature and (finding is not None or _admits(rule, release))):
            found.append((finding is None, not at_stage, rule))
    found.sort(key=lambda item: (item[0], item[1], item[2].id))
    # A rule that fired explains the failure; others with the same text would only repeat it.
    chosen = [item for item in found if not item[0]] or [item for item in found if item[2].severity is Severity.ERROR]
    return [MatchingRule(rule.id, rule.name, not silent) for silent, _stage, rule in chosen]


_FRAME: Final = re.compile(r"^\w+: |\d+ validation errors? for \w+|\[type=.*|For further information visit \S+")
_NOISE: Final = re.compile(r"[\s'\"`:]+")


def _admits(rule: Rule, release: str) -> bool:
    if rule.vllm is None:
        return not rule.development
    return release in rule.releases if rule.releases is not None else version_in(release, rule.vllm)


def _same_error(quoted: str, said: str) -> bool:
    """True when one text holds the other; blanks, quotes and pydantic's frame around a message aside."""
    one, other = (_NOISE.sub(" ", _FRAME.sub(" ", text)).strip().lower() for text in (quoted, said))
    return bool(one and other) and (one in other or other in one)
