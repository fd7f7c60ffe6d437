"""``runner``: which model runner a release takes for DeepSeek-V4, and what each of the two refuses."""

from __future__ import annotations

from typing import Any

from ...release import Release
from ...source import LearningError, Source
from .asynchronous import asynchronous
from .choice import choice, environment
from .drafts import capture_check, mask_token_fields, v1_dspark
from .features import v1_features, v2_features
from .place import CONVERTOR, REGISTRY, V2_RUNNER


def learn(release: Release) -> dict[str, Any]:
    """The section of one release, from its text alone."""
    source = release.source
    rules = asynchronous(source)
    v1 = v1_features(source, asynchronous_pipeline=rules["pipeline_error"] is None)
    return {
        "async": rules,
        "capture_check": capture_check(source),
        "env": environment(source),
        "v1_dspark": v1_dspark(source, v1),
        "v1_mask_token_fields": mask_token_fields(source),
        "v1_unsupported": v1,
        "v2_weight_offload": "create_offloader(" in source.text(V2_RUNNER),
        "vision_architecture": _vision_architecture(source),
        **choice(source),
        **v2_features(source),
    }


def _vision_architecture(source: Source) -> bool:
    """``transformers_utils/model_arch_config_convertor.py`` renames the architecture of V4 with a vision tower."""
    name = "DeepseekV4ForConditionalGeneration"
    renamed = f'architectures = ["{name}"]' in source.text(CONVERTOR)
    if not renamed and f'"{name}"' in source.text(REGISTRY):
        raise LearningError(f"{CONVERTOR}: {name} is registered, but nothing renames V4 with a vision tower")
    return renamed
