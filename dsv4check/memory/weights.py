"""What each GPU of a launch holds of the model's weights, and of the draft's.

From the headers of the checkpoint on this machine where it is whole (``weights_checkpoint.py``), else from config.json
(``weights_config.py``, with the shapes of ``weights_shapes.py``). Which parameters tensor parallelism cuts is a fact of
the release (section ``parameters``). Sizes are those of the tensors as stored, which vLLM keeps but for little: token
tables of hash routing are half as wide, and V4.1's scales of FP8 matrices are widened to one for each row. Together
that is 0.1 % of a GPU's weights with TP 8, and 0.5 % where only experts are spread. Offloading weights to host memory
is not looked at.
"""

from __future__ import annotations

import re
from typing import Final

from dsv4check.deployment import Deployment, Model, ServeFlags
from dsv4check.errors import InputError
from dsv4check.memory import weights_config
from dsv4check.memory.records import StageWeights, Weights
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Draft, Parallelism
from dsv4check.resolve.expert_format import other_layers
from dsv4check.resolve.parallelism import pipeline_layers
from dsv4check.resolve.placement import Placement, placement_of

_METHODS: Final = ("mtp", "dspark")
"""Drafts whose tensors stand beside the target's, as ``mtp.*``."""
_WITHOUT_WEIGHTS: Final = ("ngram", "ngram_gpu", "suffix", "extract_hidden_states")
_TARGET: Final = "target checkpoint"
_SHRUNK: Final = re.compile(
    r"[-_.](rea[mp]\w*|prun\w*|\d+b|\d+e|int[123]|w[123]a\d+|[123][-_]?bits?|spark)(?=[-_.]|$)",
    re.IGNORECASE,
)
"""A repack's name that says it has fewer experts, or fewer bits, than the checkpoint whose config stands in for its."""


def weights_of(
    deployment: Deployment,
    facts: ReleaseFacts,
    parallel: Parallelism,
    draft: Draft,
    *,
    mega_moe: bool,
    kernel: str | None = None,
) -> Weights | None:
    """Weights of a launch on NVIDIA or AMD GPUs, by pipeline stage.

    ``kernel``: vLLM's name of the experts' kernel (``Moe.backend``), which decides how their slices are padded; None:
    they count as stored. Answers None where neither checkpoint nor config.json tells: another quantisation method, a
    model that the release has no class for, a number that is missing, GPUs of another vendor. A draft of which nothing
    is known (another architecture, a model that is neither on this machine nor published) leaves the rest as it is.
    """
    layers = pipeline_layers(deployment, parallel)
    placement = placement_of(deployment, facts, parallel, draft, mega_moe=mega_moe, kernel=kernel)
    if (
        not layers
        or placement is None
        or deployment.hardware.vendor not in (None, "nvidia", "amd")
        or other_layers(deployment.flags, facts)
    ):
        return None
    source, found = "checkpoint", None
    checkpoint = deployment.checkpoint
    if checkpoint is not None and not checkpoint.without_shape:
        # Most launches name a checkpoint that is not on this machine, and need not import this.
        from dsv4check.memory.weights_checkpoint import target_weights

        found = target_weights(checkpoint, deployment, facts, parallel, layers, placement, mega_moe=mega_moe)
    if found is None and _shrunk(deployment.model):
        return None
    if found is None:
        source = "config"
        found = weights_config.target_weights(deployment, facts, parallel, layers, placement, mega_moe=mega_moe)
    if found is None:
        return None
    size, stages = found
    draft_size, share = _draft_weights(deployment, facts, parallel, draft, placement, mega_moe=mega_moe)
    last = stages[-1]
    held = (*stages[:-1], StageWeights(last.experts, last.cut, last.whole, share))
    return Weights(source, size, draft_size, held, placement.padding[0] / placement.padding[1])


def _shrunk(model: Model) -> bool:
    """True for a repack that is smaller than the config that was assumed for it says."""
    last = model.name.rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1]
    return any(problem.code == "config-assumed" for problem in model.problems) and _SHRUNK.search(last) is not None


def _draft_weights(
    deployment: Deployment,
    facts: ReleaseFacts,
    parallel: Parallelism,
    draft: Draft,
    placement: Placement,
    *,
    mega_moe: bool,
) -> tuple[int | None, int]:
    """Bytes of the draft (None: not known), and what a GPU of the last stage holds of them."""
    if draft.method is None or draft.method in _WITHOUT_WEIGHTS:
        return 0, 0
    own = draft.source != _TARGET
    model = _draft_model(deployment, draft.source) if own else deployment.model
    if draft.method not in _METHODS or model is None:
        return None, 0
    found = None
    checkpoint = deployment.draft_checkpoint if own else deployment.checkpoint
    if checkpoint is not None and not checkpoint.without_shape:
        from dsv4check.memory.weights_checkpoint import draft_weights

        found = draft_weights(
            checkpoint, draft.method, model, deployment, facts, parallel, placement, mega_moe=mega_moe
        )
    if found is None:
        found = weights_config.draft_weights(draft, model, deployment, facts, parallel, placement, mega_moe=mega_moe)
    return found or (None, 0)


def _draft_model(deployment: Deployment, name: str | None) -> Model | None:
    """The model a draft of its own is: found on this machine, or published."""
    if deployment.draft is not None and deployment.draft.name == name:
        return deployment.draft
    # Rare: a launch that names a draft model that is not on this machine.
    from dsv4check.inputs.checkpoint import find_published
    from dsv4check.inputs.model import load_model

    entry = find_published(name or "")
    if entry is None or entry.trust == "assumed":
        return None
    try:
        return load_model(entry.id, flags=ServeFlags(entry.id), release=deployment.vllm.release)
    except InputError:
        return None
