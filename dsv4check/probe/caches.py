"""The caches of a launch: planned, allocated and reshaped by vLLM's own code, or worked out from the rules' facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from dsv4check.probe.records import Attention, CacheLayout, Check, CheckStatus, Layouts, layouts_from

if TYPE_CHECKING:
    from dsv4check.rehearsal.environment import Environment
    from dsv4check.rehearsal.protocol import Rehearsal
    from dsv4check.report.model import Report
    from dsv4check.request import Request
    from dsv4check.resolution import LayerKind

NAME: Final = "caches by vLLM's own code"
NOT_RUN: Final = "vLLM's own allocation was not run"
_BLOCKS: Final = 24
_ELEMENT: Final = {"uint8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "float32": 4}
_DEFAULT_TOPK: Final = 512
_MOST_TOPK: Final = 1 << 14
"""A config may say anything; lists this long are more than a probe's caches can fill."""


def from_vllm(
    request: Request, report: Report, environment: Environment, timeout: float
) -> tuple[Layouts | None, Check]:
    """Let the release itself make a few blocks, on a simulated GPU; None when it does not get that far."""
    from dsv4check.rehearsal.environment import RehearsalUnavailable
    from dsv4check.rehearsal.launch import NO_CHECKPOINT, build_launch, draft_model
    from dsv4check.rehearsal.parent import RehearsalSession

    try:
        launch = build_launch(
            request,
            report.deployment,
            draft=draft_model(report.resolution),
            stage_timeout=timeout,
            # Weights have no part in how a cache is laid out.
            checkpoint=NO_CHECKPOINT,
        )
    except RehearsalUnavailable as unavailable:
        return None, Check(NAME, CheckStatus.SKIPPED, f"{NOT_RUN}: {unavailable}")
    with RehearsalSession(environment) as session:
        rehearsal = session.rehearse(replace(launch, sample=True))
    return read_rehearsal(rehearsal, environment.description)


def read_rehearsal(rehearsal: Rehearsal, description: str) -> tuple[Layouts | None, Check]:
    """The layouts in a rehearsal's answer, and the check that says how it went."""
    from dsv4check.rehearsal.protocol import RehearsedStage

    detail = rehearsal.result(RehearsedStage.KV_CACHE_INIT).detail
    failure, unavailable = rehearsal.failure, rehearsal.unavailable
    seconds = rehearsal.seconds
    layouts = None
    if detail.get("sample"):
        sample = detail["sample"]
        planned = detail.get("num_blocks")
        origin = (
            f"vLLM {rehearsal.vllm} planned {planned:,} blocks, and allocated and reshaped {sample['blocks']} of them "
            "itself, on a simulated GPU"
        )
        try:
            layouts = layouts_from({**sample, "origin": origin, "by_vllm": True})
        except (KeyError, TypeError, ValueError) as error:
            return None, Check(NAME, CheckStatus.SKIPPED, f"the child's answer cannot be used ({error!r})", seconds)
    if failure is not None:
        said = f"{failure.exception}: {failure.message}" if failure.exception else failure.message
        where = f" (at {failure.where})" if failure.where else ""
        message = f"vLLM {rehearsal.vllm} stops at {failure.stage.value}: {said}{where}"
        return layouts, Check(NAME, CheckStatus.FAILED, message, seconds)
    if layouts is None:
        why = unavailable.message if unavailable is not None else "the rehearsal gave no caches"
        return None, Check(NAME, CheckStatus.SKIPPED, f"{NOT_RUN}: {why}", seconds)
    data = {"environment": description, "planned_blocks": detail.get("num_blocks"), "runner": detail.get("runner")}
    return layouts, Check(NAME, CheckStatus.OK, layouts.origin, seconds, data)


def from_facts(report: Report) -> Layouts | None:
    """Layouts of one layer of each kind, from the resolved page sizes; None when the launch's are not known.

    Each kind gets an allocation of its own: how a release packs layers together is not part of it. Without the hybrid
    manager windows and states become full caches, whose views are the release's own affair.
    """
    cache = report.resolution.kv_cache
    if cache is None or not cache.layers or report.resolution.facts.get("hybrid_manager_disabled"):
        return None
    made = [_layout(layer, number) for number, layer in enumerate(cache.layers)]
    return Layouts(
        caches=tuple(layout for layout, _size in made),
        storages=tuple(size for _layout, size in made),
        blocks=_BLOCKS,
        origin=f"from the rules' facts about vLLM {report.resolution.release}; {NOT_RUN}",
        by_vllm=False,
    )


def _layout(layer: LayerKind, number: int) -> tuple[CacheLayout, int]:
    element = _ELEMENT[layer.dtype]
    row, page = layer.bytes_per_state // element, layer.padded_page_bytes // element
    layout = CacheLayout(
        kind=layer.kind,
        layer=layer.kind,
        layers=layer.count,
        shape=(_BLOCKS, layer.states_per_block, row),
        stride=(page, row, 1),
        dtype=layer.dtype,
        offset=0,
        storage=number,
        group=number,
        tokens_per_state=layer.tokens_per_state,
    )
    return layout, _BLOCKS * layer.padded_page_bytes


def attention_of(report: Report) -> Attention:
    """What the launch's attention class asks its kernel for."""
    resolved = report.resolution.attention
    topk = report.deployment.model.integer("index_topk")
    local = (resolved.local_q_heads if resolved is not None else None) or 64
    padded = (resolved.padded_q_heads if resolved is not None else None) or (64 if local <= 64 else 128)
    hardware = report.deployment.hardware
    return Attention(
        cls=(resolved.cls if resolved is not None else None) or "",
        padded_heads=padded,
        local_heads=min(local, padded),
        topk=min(topk or _DEFAULT_TOPK, _MOST_TOPK),
        capability=hardware.capability,
    )


def static_summary(report: Report) -> dict[str, Any]:
    """The static check in brief: what stands first in the report."""
    from dsv4check.report.blocks import subject

    cache, attention = report.resolution.kv_cache, report.resolution.attention
    return {
        "verdict": report.verdict.value,
        "stage": report.stage.value if report.stage else None,
        "subject": subject(report.deployment),
        "release": report.resolution.release,
        "findings": [f"{item.rule} {item.name}: {item.message}" for item in report.errors],
        "cache": None
        if cache is None
        else {
            "requested_dtype": cache.requested_dtype,
            "resolved_dtype": cache.resolved_dtype,
            "layout": cache.layout,
            "block_size": cache.block_size,
            "bytes_per_state": cache.bytes_per_state,
        },
        "attention": None
        if attention is None
        else {
            "backend": attention.backend,
            "class": attention.cls,
            "local_q_heads": attention.local_q_heads,
            "padded_q_heads": attention.padded_q_heads,
        },
    }
