"""Weights by config.json against the tensors of published checkpoints, and against what the release's loader takes."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dsv4check.api import check_request, read_request
from dsv4check.checkpoint.published import published_tensors
from dsv4check.checkpoint.synthetic import make_checkpoint
from dsv4check.checkpoint.tensors import Checkpoint
from dsv4check.deployment import Deployment
from dsv4check.inputs.checkpoint import bundled_config, published_models
from dsv4check.memory.records import StageWeights, Weights
from dsv4check.memory.weights import weights_of
from dsv4check.memory.weights_checkpoint import draft_weights, target_weights
from dsv4check.releases.facts import known_releases, load_facts
from dsv4check.resolution import Draft, Parallelism
from dsv4check.resolve.mega_moe import uses_mega_moe
from dsv4check.resolve.parallelism import pipeline_layers
from dsv4check.resolve.placement import placement_of
from tests.synthetic import synthetic_folder

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
V41 = "deepseek-ai/DeepSeek-V4.1-Flash"
MTP = '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\''
DSPARK = '--speculative-config \'{"method": "dspark", "num_speculative_tokens": 5}\''
ON_GPU = '--engram-config \'{"cpu_offload": false}\''
GIB = 1 << 30
ENTRIES = {entry.id: entry for entry in published_models().values()}


class Launch:
    """A launch and its decisions."""

    def __init__(self, words: str, vllm: str = "0.33.0", gpu: str = "B200", **more: Any) -> None:
        request = read_request(f"vllm serve {words}", gpu=gpu, gpus=8, vllm=vllm, **more)
        report = check_request(request, (), fixes=False)
        resolution = report.resolution
        assert resolution.parallel is not None
        assert resolution.draft is not None
        self.deployment: Deployment = report.deployment
        self.facts = load_facts(report.deployment.vllm.release)
        self.parallel: Parallelism = resolution.parallel
        self.draft: Draft = resolution.draft
        self.mega = uses_mega_moe(resolution.moe, resolution.parallel)
        self.kernel = resolution.moe.backend if resolution.moe is not None else None

    def weights(self, *, padded: bool = False) -> Weights | None:
        return weights_of(
            self.deployment,
            self.facts,
            self.parallel,
            self.draft,
            mega_moe=self.mega,
            kernel=self.kernel if padded else None,
        )


def known(words: str, vllm: str = "0.33.0", **more: Any) -> Weights:
    found = Launch(words, vllm, **more).weights()
    assert found is not None
    return found


def method_of(model: str) -> str:
    kind = ENTRIES[model].draft
    return {"mtp": MTP, "dspark": DSPARK}.get(str(kind), "")


TENSORS_KNOWN = [name for name, entry in ENTRIES.items() if entry.tensors is not None and entry.trust != "assumed"]
SYNTHETIC = {
    "deepseek-ai/DeepSeek-V4-Flash-Base": "flash-base",
    "deepseek-ai/DeepSeek-V4-Pro-Base": "pro-base",
    "nvidia/DeepSeek-V4-Flash-NVFP4": "flash-nvfp4",
    "nvidia/DeepSeek-V4-Pro-NVFP4": "pro-nvfp4",
    "sgl-project/DeepSeek-V4-Flash-FP8": "flash-fp8",
    "sgl-project/DeepSeek-V4-Pro-FP8": "pro-fp8",
}
"""Variants of which no list of tensors was published: theirs are put together from what is known of their formats."""


def published_size(model: str) -> int:
    checkpoint = published_tensors(model)
    tensors = make_checkpoint(SYNTHETIC[model])[0] if checkpoint is None else checkpoint.tensors
    return sum(tensor.size or 0 for tensor in tensors.values())


@pytest.mark.parametrize("model", [*TENSORS_KNOWN, *SYNTHETIC])
def test_the_config_tells_the_size_of_a_checkpoint(model: str, figures: Callable[[str], None]) -> None:
    # These two say nothing of their experts, which vLLM then takes for FP4 ones, unless the launch says what they are.
    stated = {"expert_dtype": "fp8"} if model.startswith("sgl-project") else None
    found = known(f"{model} -tp 8 {method_of(model)}", config_overrides=stated)
    assert found.source == "config"
    assert found.draft_bytes
    total, size = found.checkpoint_bytes + found.draft_bytes, published_size(model)
    off = total / size - 1
    figures(f"{model}: {total / GIB:.2f} GiB by config.json, {size / GIB:.2f} GiB of tensors ({off:+.4%})")
    # The base checkpoints keep embedding and head in float32, which their config.json does not say.
    assert abs(off) < (0.01 if model.endswith("-Base") else 1e-4)


def test_flash_is_as_large_as_its_files() -> None:
    found = known(f"{FLASH} -tp 8 {MTP}")
    assert found.draft_bytes is not None
    assert (found.checkpoint_bytes + found.draft_bytes) / GIB == pytest.approx(148.66, abs=0.02)


GEOMETRIES = (
    *("-tp 1", "-tp 2", "-tp 4", "-tp 8", "-tp 16", "-tp 8 --enable-expert-parallel", "-tp 1 -dp 8"),
    *("-dp 8 --enable-expert-parallel", "-tp 4 -dp 2", "-tp 4 -dp 4 --enable-expert-parallel"),
    *("-tp 4 -pp 2", "-tp 2 -pp 4 --enable-expert-parallel"),
)
MODELS = {
    FLASH: MTP,
    "deepseek-ai/DeepSeek-V4-Pro": MTP,
    "deepseek-ai/DeepSeek-V4-Flash-0731": DSPARK,
    "deepseek-ai/DeepSeek-V4-Pro-0813": DSPARK,
    "deepseek-ai/DeepSeek-V4-Flash-Vision-Exp": DSPARK,
    V41: DSPARK,
}


def by_tensors(launch: Launch, checkpoint: Checkpoint) -> tuple[tuple[StageWeights, ...] | None, int | None]:
    """What a GPU of each stage holds, and the draft's share."""
    deployment, facts, parallel = launch.deployment, launch.facts, launch.parallel
    placement = placement_of(deployment, facts, parallel, mega_moe=launch.mega, kernel=None)
    layers = pipeline_layers(deployment, parallel)
    assert layers is not None
    if placement is None:
        return None, None
    target = target_weights(checkpoint, deployment, facts, parallel, layers, placement, mega_moe=launch.mega)
    draft = None
    if launch.draft.method in ("mtp", "dspark"):
        model = deployment.model
        draft = draft_weights(
            checkpoint, launch.draft.method, model, deployment, facts, parallel, placement, mega_moe=launch.mega
        )
    return None if target is None else target[1], None if draft is None else draft[1]


CUT = {"layers": 6, "experts": 16}


@cache
def small(model: str) -> tuple[Path, Checkpoint]:
    """A folder with the config.json of a model with fewer layers and experts, and its tensors (which are not there)."""
    tensors, config = make_checkpoint(model, **CUT)
    folder = Path(tempfile.mkdtemp(prefix="dsv4check-weights-"))
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder, Checkpoint(f"{model}, cut", tensors)


@pytest.mark.parametrize("release", [*known_releases(), "as published"])
def test_shares_are_those_of_the_tensors(release: str, figures: Callable[[str], None]) -> None:
    compared, drafts, worst = 0, 0, 0.0
    whole = release == "as published"
    release = "0.33.0" if whole else release
    for model, draft in MODELS.items():
        checkpoint = published_tensors(model)
        assert checkpoint is not None
        for geometry in GEOMETRIES[::3] if whole else GEOMETRIES:
            for table in ("", ON_GPU) if model == V41 and release >= "0.30" else ("",):
                folder, tensors = (model, checkpoint) if whole else small(model)
                launch = Launch(f"{folder} {geometry} {draft} {table}", release)
                assert launch.deployment.checkpoint is None
                found = launch.weights()
                stages, share = by_tensors(launch, tensors)
                # A release without the model's class has neither; one without the vision tower stops at its tensors.
                if stages is None or found is None:
                    assert found is None or "Vision" in model
                    continue
                assert len(found.stages) == launch.parallel.pipeline
                for mine, theirs in zip(found.stages, stages, strict=True):
                    for part in ("experts", "cut", "whole"):
                        off = abs(getattr(mine, part) - getattr(theirs, part)) / theirs.total
                        worst = max(worst, off)
                        assert off < 1e-4, (model, geometry, part, mine, theirs)
                    compared += 1
                if share is not None:
                    assert found.stages[-1].draft == pytest.approx(share, rel=1e-3)
                    assert not any(stage.draft for stage in found.stages[:-1])
                    drafts += 1
    figures(f"weights by config, vLLM {release}: {compared} stages, {drafts} drafts; largest difference {worst:.5%}")
    assert compared > (20 if whole else 40)
    assert drafts > 10
