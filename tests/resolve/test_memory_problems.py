"""What memory stops or spoils: one launch on either side of every line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4check.memory import requests
from dsv4check.problems import Problem
from dsv4check.resolution import Resolution
from tests.launches import run_launch
from tests.resolve.engine_launches import deployment

FLASH_NAME, PRO_NAME = "deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"


def resolved(
    args: str, *, vllm: str = "0.33.0", gpu: str = "H200", gpus: int = 8, model: str = FLASH_NAME
) -> Resolution:
    return run_launch({"vllm": vllm, "gpu": gpu, "gpus": gpus, "model": model, "args": args}).resolution


def problems(resolution: Resolution) -> dict[str, Problem]:
    return {problem.code: problem for problem in resolution.problems}


@pytest.mark.parametrize(
    ("gpu", "args", "model", "fits"),
    [
        ("H200", "", FLASH_NAME, False),
        ("H200", "-tp 2", FLASH_NAME, True),
        ("B200", "", FLASH_NAME, True),
        ("H100", "-tp 4", FLASH_NAME, True),
        ("H100", "-dp 4 --enable-expert-parallel", FLASH_NAME, True),
        ("H200", "-tp 8", PRO_NAME, True),
        ("H100", "-tp 8", PRO_NAME, False),
        ("H100", "-tp 8 -pp 2", PRO_NAME, True),
        ("H200", "--cpu-offload-gb 40", FLASH_NAME, True),
        ("H200", "--load-format dummy", FLASH_NAME, False),
        ("sm90", "", FLASH_NAME, True),
    ],
)
def test_weights_against_the_gpu(gpu: str, args: str, model: str, fits: bool) -> None:
    found = problems(resolved(f"--kv-cache-dtype fp8 {args}", vllm="0.28.0", gpu=gpu, model=model))
    assert ("weights-exceed-gpu" not in found) is fits


@pytest.mark.parametrize(
    ("vllm", "runner", "fits"), [("0.27.1", "1", False), ("0.27.1", "0", True), ("0.28.0", "1", True)]
)
def test_only_a_runner_with_an_offloader_offloads(vllm: str, runner: str, fits: bool) -> None:
    launch = {"vllm": vllm, "gpu": "H200", "gpus": 1, "model": FLASH_NAME, "env": {"VLLM_USE_V2_MODEL_RUNNER": runner}}
    found = run_launch({**launch, "args": "--kv-cache-dtype fp8 --cpu-offload-gb 60"})
    assert ("weights-exceed-gpu" not in problems(found.resolution)) is fits


@pytest.mark.parametrize("size", ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"])
def test_a_size_beyond_a_float_is_survived(size: str) -> None:
    from dsv4check.releases.facts import load_facts
    from dsv4check.resolve.resolver import resolve

    launch = deployment("0.30.0", {size: 10**400}, gpu="H200", gpus=8)
    resolve(launch, load_facts("0.30.0"))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "gpu_memory_utilization": st.one_of(st.floats(), st.text(max_size=3), st.none()),
            "max_model_len": st.one_of(st.integers(-3, 1 << 70), st.just("auto")),
            "max_num_batched_tokens": st.integers(-1, 1 << 70),
            "max_num_seqs": st.integers(-1, 1 << 70),
            "kv_cache_memory_bytes": st.integers(-1, 1 << 70),
            "num_gpu_blocks_override": st.integers(-1, 1 << 70),
            "cpu_offload_gb": st.one_of(st.floats(), st.integers(-1, 1 << 40)),
            "tensor_parallel_size": st.sampled_from([1, 2, 4, 8, 16, 3]),
            "pipeline_parallel_size": st.sampled_from([1, 2, 5, 43, 44]),
            "decode_context_parallel_size": st.sampled_from([1, 2]),
        },
    ),
    st.sampled_from(["0.20.0", "0.24.0", "0.27.0", "0.29.0", "0.33.0"]),
)
def test_any_values_are_survived(flags: dict[str, Any], release: str) -> None:
    from dsv4check.releases.facts import load_facts
    from dsv4check.resolve.resolver import resolve

    launch = deployment(release, {"kv_cache_dtype": "fp8", **flags}, gpu="H200", gpus=8)
    memory = resolve(launch, load_facts(release)).memory
    if memory is not None and memory.blocks is not None:
        assert memory.blocks.low <= memory.blocks.high


def test_nothing_left_is_told_from_too_little() -> None:
    nothing = problems(resolved("-tp 8 --gpu-memory-utilization 0.73", model=PRO_NAME))
    assert nothing["no-memory-for-cache"].error == "No available memory for the cache blocks."
    little = problems(resolved("-tp 8 --gpu-memory-utilization 0.8 --max-num-batched-tokens 16384", model=PRO_NAME))
    assert "no-memory-for-cache" not in little
    assert little["request-exceeds-cache"].error.startswith("To serve at least one request")


@pytest.mark.parametrize(("share", "batch"), [(0.9, 16384), (0.88, 16384), (0.88, 8192), (0.92, 32768)])
def test_remedies_do_what_they_say(share: float, batch: int) -> None:
    def launch(share: float, batch: int, length: int) -> Resolution:
        args = f"-tp 8 --gpu-memory-utilization {share} --max-num-batched-tokens {batch} --max-model-len {length}"
        return resolved(args, model=PRO_NAME)

    found = problems(launch(share, batch, 1048576))
    [data] = [item.data for code, item in found.items() if code.startswith("request-")]
    changes = [
        (share, data["fit_tokens"], 1048576),
        (share, batch, data["fit_length"]),
        (data["fit_utilization"], batch, 1048576),
        (share, data["both_tokens"], data["both_length"]),
    ]
    offered = [change for change in changes if None not in change]
    assert offered
    for change in offered:
        memory = launch(*change).memory
        assert memory is not None
        assert memory.fits is True, change


def test_no_more_is_asked_than_is_free() -> None:
    found = problems(resolved("-tp 8 --gpu-memory-utilization 1.0"))
    said = found["less-memory-free-than-asked"]
    assert said.error.startswith("Free memory on device cuda:0 (139.4/139.8 GiB) on startup is less than desired")
    assert "less-memory-free-than-asked" not in problems(resolved("-tp 8 --gpu-memory-utilization 0.98"))


def test_auto_context_fits_where_any_request_does() -> None:
    fixed = resolved("-tp 8 --gpu-memory-utilization 0.86 --max-num-batched-tokens 16384", model=PRO_NAME)
    auto = resolved(
        "-tp 8 --gpu-memory-utilization 0.9 --max-num-batched-tokens 2048 --max-model-len auto", model=PRO_NAME
    )
    assert fixed.memory is not None
    assert auto.memory is not None
    assert fixed.memory.fits is False
    assert auto.memory.fits is True


def test_fixed_cache_size_is_exact() -> None:
    memory = resolved("-tp 4 --kv-cache-memory-bytes 20G").memory
    assert memory is not None
    assert memory.plan is not None
    assert memory.blocks is not None
    assert memory.cache_bytes is not None
    assert memory.cache_bytes.exact
    assert memory.blocks.exact
    assert memory.blocks.low == requests.pool_blocks(memory.plan, [memory.cache_bytes.low])


def test_data_parallel_engines_have_caches_of_their_own() -> None:
    memory = resolved("-dp 8 --enable-expert-parallel").memory
    assert memory is not None
    assert any("8 data-parallel engines" in note for note in memory.notes)
