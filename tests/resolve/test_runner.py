"""Model runner V1 or V2, by release, platform, environment and feature."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsv4check.api import build_deployment
from dsv4check.problems import Problem, Stage
from dsv4check.releases.facts import known_releases, load_facts
from dsv4check.resolution import Runner
from dsv4check.resolve.draft import resolve_draft
from dsv4check.resolve.parallelism import resolve_parallel
from dsv4check.resolve.runner import ENV, resolve_runner
from tests.launches import launch_request

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
FLASH_0731 = "deepseek-ai/DeepSeek-V4-Flash-0731"
V41 = "deepseek-ai/DeepSeek-V4.1-Flash"
DSPARK = {"method": "dspark", "num_speculative_tokens": 5}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


def run(
    release: str, model: str = FLASH, spec: Any = None, args: str = "", env: str | None = None, gpu: str = "H200"
) -> tuple[Runner, list[Problem]]:
    """Resolve the runner of ``vllm serve model -tp 4``; ``env`` is VLLM_USE_V2_MODEL_RUNNER."""
    words = ["--tensor-parallel-size", "4", "--kv-cache-dtype", "fp8", *args.split()]
    if spec is not None:
        words += ["--speculative-config", json.dumps(spec)]
    launch = {"vllm": release, "model": model, "gpu": gpu, "gpus": 8, "args": words}
    deployment = build_deployment(launch_request({**launch, "env": {} if env is None else {ENV: env}}))
    facts = load_facts(release)
    parallel, _ = resolve_parallel(deployment, facts)
    draft, _ = resolve_draft(deployment, facts, parallel)
    runner, problems = resolve_runner(deployment, facts, draft, parallel)
    return runner, list(problems)


def codes(problems: list[Problem]) -> list[str]:
    return [problem.code for problem in problems]


@pytest.mark.parametrize("release", known_releases())
def test_default_runner_on_cuda(release: str) -> None:
    runner, problems = run(release)
    assert runner.name == ("v2" if tuple(map(int, release.split("."))) >= (0, 28, 0) else "v1")
    assert problems == []


@pytest.mark.parametrize("release", [name for name in known_releases() if name >= "0.28.0"])
def test_default_runner_on_rocm(release: str) -> None:
    runner, problems = run(release, gpu="MI355X")
    assert runner.name == ("v1" if release < "0.32.0" else "v2")
    assert problems == []


def test_v41_is_not_on_the_rocm_list() -> None:
    assert run("0.30.0", V41, gpu="MI355X")[0].name == "v2"


@pytest.mark.parametrize("release", known_releases())
@pytest.mark.parametrize(("value", "name"), [("1", "v2"), ("0", "v1"), ("2", "v2")])
def test_the_variable_decides(release: str, value: str, name: str) -> None:
    runner, problems = run(release, env=value)
    assert runner.name == name
    assert problems == []


@pytest.mark.parametrize("value", ["true", "", "1.0"])
def test_the_variable_must_be_a_number(value: str) -> None:
    runner, [problem] = run("0.28.0", env=value)
    assert runner.name is None
    assert problem.code == "runner-bad-env"
    assert problem.error == f"invalid literal for int() with base 10: {value!r}"


@pytest.mark.parametrize("release", [name for name in known_releases() if name >= "0.25.0"])
def test_dspark_gets_v2(release: str) -> None:
    runner, problems = run(release, FLASH_0731, DSPARK)
    assert (runner.name, problems) == ("v2", [])


@pytest.mark.parametrize("release", [name for name in known_releases() if name >= "0.25.0"])
def test_dspark_on_v1(release: str) -> None:
    runner, [problem] = run(release, FLASH_0731, DSPARK, env="0")
    assert runner.name == "v1"
    assert problem.code == "runner-v1-dspark"
    assert problem.stage is (Stage.MODEL_INIT if release < "0.29.0" else Stage.ENGINE_CONFIG)
    if release >= "0.29.0":
        assert problem.error == "Model Runner V1 does not support: dspark speculative decoding"


@pytest.mark.parametrize(
    ("release", "refused"), [("0.28.0", False), ("0.29.0", True), ("0.30.0", True), ("0.31.0", False)]
)
def test_dspark_on_rocm(release: str, refused: bool) -> None:
    _, problems = run(release, FLASH_0731, DSPARK, gpu="MI355X")
    assert codes(problems) == (["runner-v1-dspark"] if refused else [])
    assert run(release, FLASH_0731, DSPARK, gpu="MI355X", env="1")[1] == []


@pytest.mark.parametrize(
    ("release", "name", "noted"),
    [
        ("0.24.0", "v1", False),
        ("0.28.0", "v1", True),
        ("0.31.0", "v1", True),
        ("0.32.0", "v2", False),
        ("0.33.0", "v2", False),
    ],
)
def test_ngram_falls_back_quietly(release: str, name: str, noted: bool) -> None:
    runner, problems = run(release, spec=NGRAM)
    assert runner.name == name
    assert codes(problems) == (["runner-fell-back-to-v1"] if noted else [])


@pytest.mark.parametrize("release", ["0.20.2", "0.22.1", "0.28.0", "0.31.0"])
def test_ngram_on_forced_v2(release: str) -> None:
    _, [problem] = run(release, spec=NGRAM, env="1")
    assert problem.code == "runner-v2-unsupported"
    start = "VLLM_USE_V2_MODEL_RUNNER does not yet" if release < "0.23.0" else "Model Runner V2 does not yet"
    assert problem.error.startswith(f"{start} support: ")


@pytest.mark.parametrize(
    ("release", "args", "feature"),
    [
        ("0.27.1", "--enable-prompt-embeds", "prompt embeds"),
        ("0.25.1", "--logprobs-mode raw_logits", "logprobs mode 'raw_logits'"),
        ("0.22.1", "--reasoning-parser deepseek_v4", "reasoning budget enforcement"),
        ("0.29.0", "--enable-dbo", "dual batch overlap"),
        (
            "0.25.1",
            '--compilation-config {"pass_config":{"enable_sp":true,"sp_min_token_num":1}}',
            "sequence parallelism",
        ),
    ],
)
def test_features_v2_refuses(release: str, args: str, feature: str) -> None:
    _, [problem] = run(release, args=args, env="1")
    assert problem.error.endswith(f"support: {feature}")


@pytest.mark.parametrize(
    ("release", "args"),
    [
        ("0.29.0", "--enable-prompt-embeds"),
        ("0.26.0", "--logprobs-mode raw_logits"),
        ("0.23.0", "--reasoning-parser deepseek_v4"),
        ("0.25.1", '--compilation-config {"pass_config":{"enable_sp":true}}'),
    ],
)
def test_features_v2_takes(release: str, args: str) -> None:
    assert run(release, args=args, env="1")[1] == []


def test_sequence_parallelism_counts_only_when_forced() -> None:
    plain = '--compilation-config {"pass_config":{"enable_sp":true}}'
    assert run("0.25.1", FLASH_0731, DSPARK, plain)[1] == []


@pytest.mark.parametrize(
    ("release", "sizes", "refused"),
    [("0.24.0", 2, True), ("0.24.0", 4, False), ("0.27.1", 2, True), ("0.28.0", 2, False)],
)
def test_capture_sizes(release: str, sizes: int, refused: bool) -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 3}
    _, problems = run(release, spec=spec, args=f"--max-cudagraph-capture-size {sizes}")
    assert codes(problems) == (["spec-capture-sizes"] if refused else [])
    _, problems = run(release, spec=spec, args=f"--max-cudagraph-capture-size {sizes} --enforce-eager")
    assert problems == []


@pytest.mark.parametrize(
    ("release", "env", "refused"),
    [("0.24.0", None, True), ("0.32.0", None, True), ("0.33.0", None, False), ("0.33.0", "0", True)],
)
def test_async_scheduling_with_ngram(release: str, env: str | None, refused: bool) -> None:
    _, problems = run(release, spec=NGRAM, args="--async-scheduling", env=env)
    assert ("runner-async-refused" in codes(problems)) is refused


@pytest.mark.parametrize(
    ("release", "code"), [("0.30.0", None), ("0.31.0", "runner-v1-unsupported"), ("0.33.0", "runner-async-refused")]
)
def test_v1_with_pipeline_and_async_scheduling(release: str, code: str | None) -> None:
    _, problems = run(release, args="--pipeline-parallel-size 2 --async-scheduling", env="0")
    assert codes(problems) == ([code] if code else [])
