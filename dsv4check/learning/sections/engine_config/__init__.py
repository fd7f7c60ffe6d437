"""``engine_config``: what the config classes and the API server refuse beside parallelism, attention and drafts."""

from __future__ import annotations

from typing import Any

from ...release import Release
from .bounds import bounds
from .checks import (
    batch_sharded_sampling,
    lora,
    replay_with_drafts,
    routed_experts,
    sliding_window_crash,
    spec_metrics,
)
from .json_flags import json_classes, json_types, loader_extra
from .lengths import batch, long_prefill, max_len, partial_prefills
from .names import (
    empty_reasoning_parser,
    kv_layouts,
    load_formats,
    mamba_backends,
    parsers,
    retention,
)


def learn(release: Release) -> dict[str, Any]:
    """The section of one release, from its text alone; a key that a release has no code for is left out."""
    source = release.source
    section = {
        "batch": batch(source),
        "batch_sharded_sampling": batch_sharded_sampling(source),
        "bounds": bounds(source),
        "disable_sliding_window_crashes": sliding_window_crash(source),
        "empty_reasoning_parser": empty_reasoning_parser(source),
        "json_classes": json_classes(source),
        "json_types": json_types(source),
        "loader_extra": loader_extra(source),
        "load_formats": load_formats(source),
        "long_prefill": long_prefill(source),
        "lora": lora(source),
        "mamba_backends": mamba_backends(source),
        "max_len": max_len(source),
        "parsers": parsers(source),
        "partial_prefills": partial_prefills(source),
        "retention": retention(source),
        "routed_experts": routed_experts(source),
        "sampling_replay_with_drafts": replay_with_drafts(source),
        "spec_metrics_need_spec": spec_metrics(source),
    }
    layouts = kv_layouts(source)
    return section if layouts is None else section | {"kv_layouts": layouts}
