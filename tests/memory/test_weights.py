"""Weights by config.json against the tensors of published checkpoints, and against what the release's loader takes."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dsv4check.api import check_request, read_request
from dsv4check.checkpoint.published import published_tensors
from dsv4check.checkpoint.synthetic import make_checkpoint
from dsv4check.checkpoint.tensors import Checkpoint
from dsv4check.deployment import Deployment
from dsv4check.errors import InputError
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
ON_GPU = "--engram-config '{\"cpu_offload\": false}'"
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
    placement = placement_of(deployment, facts, parallel, launch.draft, mega_moe=launch.mega, kernel=None)
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
        for geometry in ("-tp 8", "-tp 4 -pp 2") if whole else GEOMETRIES:
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
    assert compared > (15 if whole else 40)
    assert drafts > 10


@pytest.mark.parametrize(
    ("like", "draft"), [("flash", MTP), ("flash-dspark", DSPARK), ("flash-nvfp4", MTP), ("flash-base", MTP)]
)
def test_a_checkpoint_on_disk_tells_its_own_sizes(like: str, draft: str) -> None:
    description = {"like": like, "layers": 5, "experts": 8}
    folder, tensors = synthetic_folder(description), make_checkpoint(**description)[0]
    sizes = {name: tensor.size or 0 for name, tensor in tensors.items()}
    found = known(f"{folder} -tp 2 {draft}")
    assert found.source == "checkpoint"
    assert found.checkpoint_bytes == sum(size for name, size in sizes.items() if not name.startswith("mtp."))
    assert found.draft_bytes == sum(size for name, size in sizes.items() if name.startswith("mtp."))
    experts = [size for name, size in sizes.items() if ".ffn.experts." in name and not name.startswith("mtp.")]
    assert found.stages[0].experts == sum(experts) // 2
    alone = known(f"{folder} -tp 1")
    assert alone.stages[0].total == alone.checkpoint_bytes
    assert alone.draft_bytes == 0


def test_a_checkpoint_with_holes_does_not_tell_the_size_of_the_model() -> None:
    """vLLM allocates what no tensor fills."""
    whole = known(f"{synthetic_folder({'like': 'flash', 'layers': 5, 'experts': 8})}")
    for drop in (["layers.3.*"], ["layers.2.attn.wq_b.*"]):
        folder = synthetic_folder({"like": "flash", "layers": 5, "experts": 8, "drop": drop})
        found = known(str(folder))
        assert found.source == "config"
        assert found.stages == whole.stages
    missing = synthetic_folder({"like": "flash", "layers": 5, "experts": 8, "shards": 4, "damage": {"remove": 2}})
    assert known(str(missing)).stages == whole.stages


@pytest.mark.parametrize("model", MODELS)
def test_pipeline_stages_hold_the_model_once(model: str) -> None:
    alone = known(f"{model} -tp 1 {ON_GPU if model == V41 else ''}")
    assert alone.stages[0].total == alone.checkpoint_bytes
    for stages in (2, 3, 4):
        found = known(f"{model} -tp 1 -pp {stages} {ON_GPU if model == V41 else ''}")
        assert found.checkpoint_bytes == alone.checkpoint_bytes
        experts = sum(stage.experts for stage in found.stages)
        assert experts == alone.stages[0].experts
        # The little that every stage has: what merges the hyper-connection's streams.
        assert sum(stage.total for stage in found.stages) == pytest.approx(alone.stages[0].total, rel=1e-4)


def test_layers_of_stages_count_as_they_are_stated() -> None:
    stated = known(f"{FLASH} -pp 3", env={"VLLM_PP_LAYER_PARTITION": "20,20,3"})
    layer = known(f"{FLASH}").stages[0].experts // 43
    assert [stage.experts for stage in stated.stages] == [20 * layer, 20 * layer, 3 * layer]


@pytest.mark.parametrize("model", MODELS)
def test_more_gpus_never_hold_more_each(model: str) -> None:
    for flags in ("", "--enable-expert-parallel", "-dp 2"):
        totals = [known(f"{model} -tp {size} {flags} {MODELS[model]}").stages[0].total for size in (1, 2, 4, 8)]
        if "-dp" not in flags:
            assert totals == sorted(totals, reverse=True)
            assert totals[-1] < totals[0] / 3
    spread = [known(f"{model} -dp {size} --enable-expert-parallel").stages[0] for size in (1, 2, 4, 8)]
    assert [stage.experts for stage in spread] == [spread[0].experts // size for size in (1, 2, 4, 8)]
    assert len({stage.whole + stage.cut for stage in spread}) == 1


CHANGES: Sequence[Mapping[str, Any]] = (
    *({key: None} for key in ("hidden_size", "head_dim", "q_lora_rank", "o_groups", "vocab_size", "hc_mult")),
    *({key: None} for key in ("moe_intermediate_size", "n_routed_experts", "num_hidden_layers", "compress_ratios")),
    {"n_shared_experts": 0},
    {"quantization_config": {"weight_block_size": None}},
    {"quantization_config": {"weight_block_size": [0, 128]}},
    {"expert_dtype": "int4"},
    {"num_hidden_layers": 60},
)


@pytest.mark.parametrize("changes", CHANGES)
def test_what_the_config_does_not_tell_is_not_guessed(changes: Mapping[str, Any]) -> None:
    # 0.33's config class fills what is missing, earlier ones do not.
    assert Launch(f"{FLASH} -tp 8 {MTP}", "0.28.0", config_overrides=dict(changes)).weights() is None


@pytest.mark.parametrize("model", [FLASH, "deepseek-ai/DeepSeek-V4-Flash-Vision-Exp", V41])
@pytest.mark.parametrize("release", ["0.30.0", "0.33.0"])
def test_any_key_may_be_missing(model: str, release: str) -> None:
    config = bundled_config(model)
    sections = [(), *((name,) for name in ("text_config", "vision_config", "quantization_config") if name in config)]
    answers = Counter[bool]()
    for section in sections:
        for key in config[section[0]] if section else config:
            changes = {section[0]: {key: None}} if section else {key: None}
            with suppress(InputError):
                launch = Launch(f"{model} -tp 8 {method_of(model)}", release, config_overrides=changes)
                answers[launch.weights() is None] += 1
    assert answers[True] > 1
    assert answers[False] > 20


def test_other_quantisation_is_not_known() -> None:
    for model in ("RedHatAI/DeepSeek-V4-Flash-NVFP4-FP8", "Intel/DeepSeek-V4-Flash-W4A16-AutoRound"):
        assert Launch(f"{model} -tp 8").weights() is None
    assert Launch(f"{FLASH} -tp 8", gpu="Ascend-910B").weights() is None
    assert Launch(f"{V41} -tp 8", "0.29.0").weights() is None
    # No release without quantisation config builds FP4 experts; bfloat16 takes two bytes a value.
    plain = known(f"{FLASH} -tp 8", config_overrides={"quantization_config": None})
    assert plain.checkpoint_bytes / GIB == pytest.approx(527, abs=5)


def test_sizes_follow_the_config() -> None:
    whole = known(f"{FLASH}")
    odd = known(f"{FLASH}", config_overrides={"num_hidden_layers": 41, "compress_ratios": [0, 0, *[4, 128] * 19, 4]})
    assert whole.stages[0].experts * 41 == odd.stages[0].experts * 43
    half = known(f"{FLASH}", config_overrides={"n_routed_experts": 128})
    assert half.stages[0].experts * 2 == whole.stages[0].experts


def test_the_transformers_spelling_means_the_same() -> None:
    types = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    original = known(f"{FLASH} -tp 4")
    ratios = Launch(FLASH).deployment.model.compress_ratios
    spelled = known(
        f"{FLASH} -tp 4",
        config_overrides={
            "compress_ratios": None,
            "num_hash_layers": None,
            "layer_types": [types[ratio] for ratio in ratios],
            "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40,
        },
    )
    assert spelled == original


def test_drafts() -> None:
    def draft(value: Mapping[str, Any], model: str = FLASH) -> tuple[int | None, int]:
        found = known(f"{model} -tp 8 --speculative-config '{json.dumps(value)}'")
        return found.draft_bytes, found.stages[-1].draft

    assert draft({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}) == (0, 0)
    mtp = draft({"method": "mtp", "num_speculative_tokens": 2})
    assert mtp[0]
    assert mtp[0] / GIB == pytest.approx(3.347, abs=0.001)
    other = "deepseek-ai/DeepSeek-V4-Flash-DSpark"
    own = draft({"method": "dspark", "num_speculative_tokens": 5, "model": other})
    assert own == draft({"method": "dspark", "num_speculative_tokens": 5}, other)
    unknown = draft({"method": "eagle", "num_speculative_tokens": 3, "model": "someone/a-draft"})
    assert unknown == (None, 0)


def test_what_a_launch_places_differently() -> None:
    ep = "-tp 4 -dp 2 --enable-expert-parallel"
    before, since = known(f"{FLASH} {ep}", "0.26.0").stages[0], known(f"{FLASH} {ep}", "0.27.0").stages[0]
    shared = 43 * (3 * 4096 * 2048 + 3 * 16 * 32)
    assert since.whole - before.whole == shared
    assert before.cut - since.cut == shared // 4
    plain = known(f"{FLASH} -tp 8 --enable-expert-parallel").stages[0]
    more = "--enable-eplb --eplb-config '{\"num_redundant_experts\": 32}'"
    assert known(f"{FLASH} -tp 8 --enable-expert-parallel {more}").stages[0].experts == plain.experts * 36 // 32
    old = known(f"{FLASH} -tp 8 --enable-expert-parallel {more}", "0.22.0")
    assert old.stages[0].experts == plain.experts
    # 384 experts on 10 ranks: four ranks have 39.
    uneven = known(f"{V41} -tp 1 -dp 10 --enable-expert-parallel").stages[0]
    assert uneven.experts * 384 == known(f"{V41} -tp 1").stages[0].experts * 39
    on_gpu, in_host = known(f"{V41} -tp 8 {ON_GPU}"), known(f"{V41} -tp 8")
    assert (on_gpu.stages[0].cut - in_host.stages[0].cut) / GIB == pytest.approx(189.0 / 8, abs=0.03)
    assert on_gpu.checkpoint_bytes == in_host.checkpoint_bytes
    assert Launch(f"{V41} -dp 8 {ON_GPU}").weights() is None
    seeing = "deepseek-ai/DeepSeek-V4-Flash-Vision-Exp"
    with_tower, without = known(f"{seeing} -tp 4"), known(f"{seeing} -tp 4 --language-model-only")
    assert (with_tower.stages[0].total - without.stages[0].total) / GIB == pytest.approx(0.217, abs=0.002)


def test_expert_slices_are_padded_to_the_kernels_tiles() -> None:
    launch = Launch(f"{V41} -tp 8")
    stored, padded = launch.weights(), launch.weights(padded=True)
    assert stored is not None
    assert padded is not None
    # 2304 columns over 8 ranks are 288, and the kernel takes multiples of 128.
    assert padded.stages[0].experts == stored.stages[0].experts * 384 // 288
    whole = Launch(f"{FLASH} -tp 8")
    assert whole.weights() == whole.weights(padded=True)
