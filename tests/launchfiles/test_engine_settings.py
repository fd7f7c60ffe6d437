"""Settings of Ray Serve, vLLM's own files, SkyPilot, GPUStack, and lists of arguments."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4check.launchfiles.records import Stated
from tests.launchfiles.mutations import mutated
from tests.launchfiles.reading import check_places, context_of, env, flags, place, sample, texts, word, written
from tests.launchfiles.settings_reading import settings_launches

RAY = "10-ray-serve-llm.yaml"
CONFIG = "11-vllm-config.yaml"
SKYPILOT = "14-skypilot-flash-b200.yaml"
ARGUMENTS = "16-gonka-node-config-h100.json"
GPUSTACK = "19-gpustack-model.yaml"
CATALOG = """\
model_sets:
- name: DeepSeek V4
  specs:
  - mode: throughput
    source: model_scope
    model_scope_model_id: deepseek-ai/DeepSeek-V4-Pro
    backend: vLLM
    backend_version: 0.32.0
    backend_parameters:
    - --tensor-parallel-size 8
    - '--speculative-config {"method": "mtp"}'
    env: {VLLM_USE_V2_MODEL_RUNNER: "1"}
    gpu_selector: {gpus_per_replica: 8}
  - mode: other
    huggingface_repo_id: a/b
    backend: SGLang
    backend_parameters: [--tp-size=8]
"""


def value(stated: Stated | None) -> str | None:
    return None if stated is None else stated.value


def test_ray_serve():
    context = context_of(sample(RAY), RAY)
    (launch,) = settings_launches(context)
    assert (launch.format, launch.name) == ("ray-serve", "application dsv4 model deepseek-v4-flash")
    assert launch.server.entrypoint == "engine"
    found = flags(launch)
    assert json.loads(str(found.pop("--speculative-config"))) == {"method": "dspark", "num_speculative_tokens": 5}
    assert found == {
        "--model": "deepseek-ai/DeepSeek-V4-Flash-0731",
        "--tensor-parallel-size": "4",
        "--enable-expert-parallel": True,
        "--kv-cache-dtype": "fp8",
        "--block-size": "256",
        "--max-model-len": "393216",
        "--max-num-seqs": "64",
        "--gpu-memory-utilization": "0.92",
        "--tokenizer-mode": "deepseek_v4",
        "--trust-remote-code": True,
        "--reasoning-parser": "deepseek_v4",
    }
    assert env(launch) == {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}
    assert (value(launch.gpu), launch.gpus, launch.image) == ("H200", None, None)
    assert place(context, launch, "--kv-cache-dtype") == (19, 9)
    assert place(context, launch, "fp8") == (19, 25)
    assert written(context, word(launch, '{"method": "dspark", "num_speculative_tokens": 5}')) == (
        "method: dspark\n          num_speculative_tokens: 5"
    )
    assert launch.server.notes == (
        "tool_call_parser, enable_auto_tool_choice are arguments of the server, not of the engine: left out",
    )


def test_ray_configuration_as_a_file_of_its_own():
    text = """\
model_loading_config: {model_id: a/b}
engine_kwargs: {tensor_parallel_size: 2, enable_prefix_caching: no, max_model_len: null, kv_cache_dtype: "fp8"}
"""
    (launch,) = settings_launches(context_of(text))
    assert texts(launch) == [
        *("--model", "a/b", "--tensor-parallel-size", "2"),
        *("--no-enable-prefix-caching", "--kv-cache-dtype", "fp8"),
    ]


def test_vllm_configuration():
    context = context_of(sample(CONFIG), f"conf/{CONFIG}")
    (launch,) = settings_launches(context)
    assert (launch.format, launch.config_file) == ("vllm-config", f"conf/{CONFIG}")
    assert texts(launch) == ["--config", f"conf/{CONFIG}"]
    assert all(item.slot == "derived" for item in launch.server.words)
    assert context.source.place(launch.heads[0].start) == (2, 1)
    assert written(context, launch.server.words[0]) == "model"


@pytest.mark.parametrize(
    ("text", "path", "count"),
    [
        ("max-model-len: 1\nkv-cache-dtype: fp8\ntensor-parallel-size: 2\n", "a.yml", 1),
        ("max_model_len: 1\nkv_cache_dtype: fp8\ntensor_parallel_size: 2\n", "a.yaml", 1),
        ("model: a/b\nhost: x\nport: 1\n", "a.yaml", 0),
        ("max-model-len: 1\nkv-cache-dtype: fp8\nport: 2\n", "a.yaml", 0),
        ("max-model-len: 1\nkv-cache-dtype: fp8\ntensor-parallel-size: 2\n", "a.json", 0),
        ("apiVersion: v1\nmax-model-len: 1\nkv-cache-dtype: fp8\ntensor-parallel-size: 2\n", "a.yaml", 0),
        ("model: a/b\nmax-model-len: 1\nlr: 1\nepochs: 2\nbatch: 3\nport: 1\n", "a.yaml", 0),
        ("a: 1\n---\nmodel: a/b\nmax-model-len: 1\nkv-cache-dtype: fp8\n", "a.yaml", 0),
    ],
)
def test_what_counts_as_a_vllm_configuration(text: str, path: str, count: int):
    assert len(settings_launches(context_of(text, path))) == count


def test_skypilot():
    context = context_of(sample(SKYPILOT), SKYPILOT)
    (launch,) = settings_launches(context)
    assert (launch.format, launch.name) == ("skypilot", "task dsv4-flash")
    assert texts(launch)[0] == "deepseek-ai/DeepSeek-V4-Flash"
    found = flags(launch)
    assert json.loads(str(found.pop("--speculative-config"))) == {"method": "mtp", "num_speculative_tokens": 2}
    assert found == {
        "--trust-remote-code": True,
        "--kv-cache-dtype": "fp8",
        "--block-size": "256",
        "--enable-expert-parallel": True,
        "--tensor-parallel-size": "8",
        "--attention_config.indexer_kv_dtype": "mxfp4",
        "--moe-backend": "deep_gemm_mega_moe",
        "--tokenizer-mode": "deepseek_v4",
        "--tool-call-parser": "deepseek_v4",
        "--enable-auto-tool-choice": True,
        "--reasoning-parser": "deepseek_v4",
    }
    assert env(launch) == {
        "MODEL": "deepseek-ai/DeepSeek-V4-Flash",
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
    }
    assert (value(launch.gpu), value(launch.gpus), value(launch.nodes)) == ("B200", "8", None)
    assert value(launch.image) == "vllm/vllm-openai:v0.33.0"
    assert place(context, launch, "deepseek-ai/DeepSeek-V4-Flash") == (8, 10)
    assert place(context, launch, "8") == (3, 22)
    assert place(context, launch, "--moe-backend") == (25, 5)


@pytest.mark.parametrize(
    ("accelerators", "gpu", "gpus"),
    [
        ("B200:8", "B200", "8"),
        ("B200", "B200", "1"),
        ("{B200: 8}", "B200", "8"),
        ("[B200:8]", "B200", "8"),
        ("[B200:8, H200:8]", None, "8"),
        ("{B200: 8, H200: 4}", None, None),
        ("null", None, None),
    ],
)
def test_accelerators_of_skypilot(accelerators: str, gpu: str | None, gpus: str | None):
    text = f"num_nodes: 2\nresources:\n  cloud: aws\n  accelerators: {accelerators}\nrun: vllm serve a/b\n"
    (launch,) = settings_launches(context_of(text))
    assert (value(launch.gpu), value(launch.gpus), value(launch.nodes)) == (gpu, gpus, "2")


def test_arguments_below_the_model():
    context = context_of(sample(ARGUMENTS), ARGUMENTS)
    (launch,) = settings_launches(context)
    assert (launch.format, launch.server.program) == ("arguments", ())
    assert texts(launch)[0] == "deepseek-ai/DeepSeek-V4-Flash-0731"
    found = flags(launch)
    assert json.loads(str(found.pop("--compilation-config"))) == {"max_cudagraph_capture_size": 640}
    assert found == {
        "--scheduling-policy": "priority",
        "--max-num-seqs": "640",
        "--revision": "7872f01b1d1fe23eabc4c98b48bffcef5a386062",
        "--tensor-parallel-size": "4",
        "--gpu-memory-utilization": "0.85",
        "--max-model-len": "400000",
        "--max-num-batched-tokens": "32768",
        "--kv-cache-dtype": "fp8",
        "--tokenizer-mode": "deepseek_v4",
        "--enable-auto-tool-choice": True,
        "--tool-call-parser": "deepseek_v4",
        "--reasoning-parser": "deepseek_v4",
        "--trust-remote-code": True,
    }
    assert place(context, launch, "deepseek-ai/DeepSeek-V4-Flash-0731") == (8, 7)
    assert place(context, launch, "--kv-cache-dtype") == (18, 11)
    assert written(context, word(launch, "fp8")) == '"fp8"'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: a/b\nextra_args: [--max-model-len=1, --kv-cache-dtype, fp8]\n", "a/b"),
        ("x: {args: [--model, c/d, --max-model-len, '1', --kv-cache-dtype, fp8]}\n", "--model"),
        ("x: {args: [--max-model-len, '1', --kv-cache-dtype, fp8]}\n", None),
        ("model: a/b\nargs: [--port, '1', --verbose]\n", None),
        ("model: a/b\ncommand: [vllm, serve, m, --max-model-len, '1', --kv-cache-dtype, fp8]\n", None),
        ("model: a/b\nargs: [--max-model-len, {a: 1}, --kv-cache-dtype, fp8]\n", None),
    ],
)
def test_which_lists_are_arguments(text: str, expected: str | None):
    assert [texts(launch)[0] for launch in settings_launches(context_of(text))] == ([expected] if expected else [])


def test_gpustack_model():
    context = context_of(sample(GPUSTACK), GPUSTACK)
    (launch,) = settings_launches(context)
    assert (launch.format, launch.name) == ("gpustack", "model deepseek-v4-1-flash-1017")
    assert texts(launch) == [
        "deepseek-ai/DeepSeek-V4.1-Flash-1017",
        "--max-model-len=65536",
        "--trust-remote-code",
        "--tokenizer-mode=deepseek_v41",
        "--reasoning-parser=deepseek_v41",
        "--tool-call-parser=deepseek_v41",
        "--enable-auto-tool-choice",
    ]
    assert (launch.gpu, launch.gpus, launch.image, launch.vllm, env(launch)) == (None, None, None, None, {})
    assert place(context, launch, "--trust-remote-code") == (9, 3)


def test_gpustack_catalog():
    context = context_of(CATALOG)
    (launch,) = settings_launches(context)
    assert texts(launch) == [
        "deepseek-ai/DeepSeek-V4-Pro",
        *("--tensor-parallel-size", "8", "--speculative-config", '{"method": "mtp"}'),
    ]
    assert (value(launch.vllm), value(launch.gpus)) == ("0.32.0", "8")
    assert env(launch) == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert place(context, launch, "8") == (10, 30)


@given(st.sampled_from((*map(sample, (RAY, CONFIG, SKYPILOT, ARGUMENTS, GPUSTACK)), CATALOG)).flatmap(mutated))
@settings(max_examples=200, deadline=None)
def test_garbled_settings_are_read_without_an_error(text: str):
    context = context_of(text, "file.yaml")
    check_places(context, settings_launches(context))
