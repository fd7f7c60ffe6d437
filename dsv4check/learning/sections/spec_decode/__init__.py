"""Section ``spec_decode``: speculative decoding, from the keys of its config to how the draft is built."""

from __future__ import annotations

from typing import Any

from ...release import Release
from .config import learn_adaptive, learn_draft_model, learn_merging, learn_method
from .draft import learn_dspark, learn_overrides, learn_pipeline, learn_rocm_top_tokens, learn_weights
from .fields import learn_fields
from .scheduling import learn_batch, learn_budget


def learn(release: Release) -> dict[str, Any]:
    """The section of one release, from its source text alone."""
    source = release.source
    return {
        **learn_fields(source),
        **learn_merging(source),
        **learn_method(source),
        **learn_draft_model(source),
        "adaptive": learn_adaptive(source),
        **learn_batch(source),
        **learn_budget(source),
        **learn_overrides(source),
        **learn_rocm_top_tokens(source),
        **learn_pipeline(source),
        **learn_weights(source),
        **learn_dspark(source),
    }
