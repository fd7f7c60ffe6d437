"""Weights of a launch against the parameters that vLLM's own model classes register on each pipeline stage."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from dsv4check.api import check_request, read_request
from dsv4check.memory.weights import weights_of
from dsv4check.rehearsal.launch import build_launch
from dsv4check.rehearsal.parent import RehearsalSession
from dsv4check.rehearsal.protocol import RehearsedStage
from dsv4check.releases.facts import load_facts
from dsv4check.resolve.mega_moe import uses_mega_moe
from tests.rehearsal.live import live_environment, needs_vllm

pytestmark = needs_vllm
LAUNCHES = (
    ("deepseek-ai/DeepSeek-V4-Flash -tp 8", "H200"),
    ("deepseek-ai/DeepSeek-V4-Flash -tp 2 -dp 4 --enable-expert-parallel", "H200"),
    (
        "deepseek-ai/DeepSeek-V4-Flash -tp 8 --enable-expert-parallel --enable-eplb "
        "--eplb-config '{\"num_redundant_experts\": 32}'",
        "H200",
    ),
    ("deepseek-ai/DeepSeek-V4-Flash-Base -tp 8", "H200"),
    ("deepseek-ai/DeepSeek-V4-Flash-Vision-Exp -tp 2 -pp 2", "H200"),
    ("deepseek-ai/DeepSeek-V4-Flash-Vision-Exp -tp 4 --language-model-only", "H200"),
    ("deepseek-ai/DeepSeek-V4-Pro -tp 8", "B200"),
    ("deepseek-ai/DeepSeek-V4.1-Flash -tp 8", "B200"),
    ("deepseek-ai/DeepSeek-V4.1-Flash -tp 4 -pp 2", "B200"),
)


@pytest.mark.parametrize("release", ["0.24.0", "0.30.0", "0.33.0"])
def test_a_gpu_holds_what_the_model_registers(release: str, figures: Callable[[str], None]) -> None:
    environment = live_environment(release)
    if environment is None:
        pytest.skip(f"vLLM {release} is not there")
    compared, worst = 0, 0.0
    with RehearsalSession(environment) as session:
        for words, gpu in LAUNCHES:
            # Later releases allocate the n-gram tables in another way while nothing is real.
            if "V4.1" in words and release != "0.30.0":
                continue
            command = f"vllm serve {words} --kv-cache-dtype fp8"
            request = read_request(shlex.split(command), gpu=gpu, gpus=8, vllm=release)
            report = check_request(request, (), fixes=False)
            resolution = report.resolution
            assert resolution.parallel is not None
            assert resolution.draft is not None
            answer = session.rehearse(build_launch(request, report.deployment, draft=None, stage_timeout=300))
            detail = answer.result(RehearsedStage.MODEL_INIT).detail
            # Without FlashInfer beside it the release takes another kernel, with other tiles.
            kernel = str(detail["experts"][0]).partition(":")[2]
            found = weights_of(
                report.deployment,
                load_facts(release),
                resolution.parallel,
                resolution.draft,
                mega_moe=uses_mega_moe(resolution.moe, resolution.parallel),
                kernel=kernel,
            )
            assert found is not None
            for stage, held in zip(found.stages, detail["parameter_bytes"], strict=True):
                worst = max(worst, abs(stage.total / held - 1))
                assert stage.total == pytest.approx(held, rel=0.002), words
                compared += 1
    figures(f"weights by GPU, vLLM {release}: {compared} stages as vLLM registers them, off by at most {worst:.3%}")
    assert compared
