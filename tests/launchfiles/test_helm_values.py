"""Helm values of the production stack and of llm-d, and recipes."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4check.launchfiles.records import Stated
from tests.launchfiles.mutations import mutated
from tests.launchfiles.reading import check_places, context_of, env, flags, place, sample, texts, word, written
from tests.launchfiles.settings_reading import settings_launches

STACK = "06-helm-values-production-stack.yaml"
ROLES = "12-llm-d-values-pro-gb200-pd.yaml"
MODELSERVICE = """\
modelArtifacts:
  uri: hf://deepseek-ai/DeepSeek-V4-Pro
  name: dsv4
decode:
  parallelism: {tensor: 1, data: 16, dataLocal: 8, workers: 2}
  acceleratorTypes: {labelKey: nvidia.com/gpu.product, labelValues: [NVIDIA-H200]}
  containers:
  - name: vllm
    image: ghcr.io/llm-d/llm-d-cuda:v0.5.0
    modelCommand: vllmServe
    args:
    - --kv-cache-dtype
    - fp8
    - --api-key=$(KEY)
    env: [{name: KEY, value: secret}]
    resources: {limits: {nvidia.com/gpu: 8}}
prefill:
  containers:
  - name: vllm
    image: ghcr.io/llm-d/llm-d-cuda:v0.5.0
    command: [/bin/sh, -c]
    args:
    - |
      exec vllm serve deepseek-ai/DeepSeek-V4-Pro \\
        --tensor-parallel-size 8
routing:
  servicePort: 8000
"""
RECIPE = """\
model:
  model_id: "deepseek-ai/DeepSeek-V4-Flash"
  docker_image: {nvidia: "vllm/vllm-openai:v0.33.0", amd: "vllm/vllm-openai-rocm:nightly"}
  base_args: ["--trust-remote-code", "--kv-cache-dtype", "fp8"]
  base_env: {BASE: "1"}
features:
  reasoning: {args: ["--reasoning-parser", "deepseek_v4"]}
  spec_decoding: {args: ["--speculative-config", '{"method":"mtp"}']}
opt_in_features: [spec_decoding]
variants:
  default: {precision: fp8}
  nvfp4: {model_id: nvidia/DeepSeek-V4-Flash-NVFP4, extra_args: ["--moe-backend", "flashinfer_trtllm"]}
default_strategy: single_node_tep
hardware_overrides:
  b200: {extra_args: ["--block-size", "256"], extra_env: {HW: "1"}}
strategy_overrides:
  single_node_tp:
    tp: 8
    hardware_overrides:
      b200: {extra_args: ["--block-size", "64"]}
  pd_cluster:
    env: {PD: "1"}
    decode: {nodes: 2, parallelism: dep, vllm_args: ["--max-num-seqs", "512"]}
guide: |
  It's simple:

  ```bash
  docker run --gpus all vllm/vllm-openai:v0.33.0 \\
    deepseek-ai/DeepSeek-V4-Flash -tp 4
  ```
"""


def value(stated: Stated | None) -> str | None:
    return None if stated is None else stated.value


def test_production_stack():
    context = context_of(sample(STACK), STACK)
    (launch,) = settings_launches(context)
    assert (launch.format, launch.name) == ("helm-values", "modelSpec dsv4-flash")
    assert texts(launch)[0] == "nvidia/DeepSeek-V4-Flash-NVFP4"
    found = flags(launch)
    assert json.loads(str(found.pop("--compilation-config")))["custom_ops"] == ["all"]
    assert json.loads(str(found.pop("--attention-config"))) == {"indexer_kv_dtype": "mxfp4"}
    assert found == {
        "--enable-prefix-caching": True,
        "--max-model-len": "1048576",
        "--tensor-parallel-size": "4",
        "--gpu-memory-utilization": "0.92",
        "--max-num-seqs": "64",
        "--trust-remote-code": True,
        "--kv-cache-dtype": "fp8",
        "--block-size": "256",
        "--max-num-batched-tokens": "16384",
        "--no-scheduler-reserve-full-isl": True,
        "--moe-backend": "flashinfer_trtllm",
        "--tokenizer-mode": "deepseek_v4",
        "--tool-call-parser": "deepseek_v4",
        "--enable-auto-tool-choice": True,
        "--reasoning-parser": "deepseek_v4",
    }
    assert env(launch) == {"VLLM_SKIP_P2P_CHECK": "1", "NCCL_CUMEM_ENABLE": "1"}
    assert (value(launch.image), value(launch.gpu)) == ("vllm/vllm-openai:v0.33.0", "NVIDIA-B200")
    assert (value(launch.gpus), launch.nodes) == ("4", None)
    assert place(context, launch, "--max-model-len") == (17, 7)
    assert place(context, launch, "1048576") == (17, 20)
    assert place(context, launch, "fp8") == (25, 9)
    assert written(context, word(launch, "--max-model-len")) == "maxModelLen"


def test_what_the_chart_adds_and_ignores():
    text = """\
servingEngineSpec:
  modelSpec:
  - name: x
    repository: r/vllm
    tag: 0.33.0
    modelURL: a/b
    enableTool: true
    toolCallParser: deepseek_v4
    lmcacheConfig: {enabled: true}
    vllmConfig: {enableChunkedPrefill: false, pipelineParallelSize: 2, numScheduler: 1}
"""
    (launch,) = settings_launches(context_of(text))
    assert texts(launch) == [
        "a/b",
        *("--enable-auto-tool-choice", "--tool-call-parser", "deepseek_v4"),
        *("--no-enable-chunked-prefill", "--no-enable-prefix-caching"),
        *("--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'),
    ]
    assert any("--no-enable-prefix-caching" in note for note in launch.server.notes)
    assert any("pipelineParallelSize, numScheduler" in note for note in launch.server.notes)


def test_settings_by_role():
    context = context_of(sample(ROLES), ROLES)
    prefill, decode = settings_launches(context)
    assert [launch.name for launch in (prefill, decode)] == ["role prefill", "role decode"]
    common = {
        "--tensor-parallel-size": "1",
        "--data-parallel-size": "8",
        "--data-parallel-size-local": "4",
        "--enable-expert-parallel": True,
        "--kv-cache-dtype": "fp8",
        "--max-model-len": "9280",
        "--enable-cumem-allocator": True,
        "--no-enable-prefix-caching": True,
        "--no-enable-flashinfer-autotune": True,
        "--block-size": "256",
        "--tokenizer-mode": "deepseek_v4",
        "--moe-backend": "deep_gemm_mega_moe",
        "--enable-ep-weight-filter": True,
        "--no-disable-hybrid-kv-cache-manager": True,
        "--kv-transfer-config": '{"kv_connector":"NixlConnector","kv_role":"kv_both"}',
    }
    assert flags(prefill) == {
        **common,
        "--enforce-eager": True,
        "--gpu-memory-utilization": "0.92",
        "--max-num-seqs": "16",
        "--max-num-batched-tokens": "32768",
        "--no-async-scheduling": True,
        "--numa-bind": True,
    }
    assert flags(decode) == {
        **common,
        "--gpu-memory-utilization": "0.9",
        "--max-num-seqs": "512",
        "--max-num-batched-tokens": "512",
        "--max-cudagraph-capture-size": "512",
        "--compilation-config": '{"cudagraph_mode":"FULL_DECODE_ONLY","mode":0}',
    }
    for launch in (prefill, decode):
        assert texts(launch)[0] == "deepseek-ai/DeepSeek-V4-Pro"
        assert (value(launch.gpu), value(launch.gpus), value(launch.nodes)) == ("gb200", "4", "2")
    assert env(prefill)["UCX_TLS"] == "cuda_copy,cuda_ipc,rc,tcp"
    assert len(env(prefill)) == 6
    assert env(decode) == {}
    compilation = word(decode, '{"cudagraph_mode":"FULL_DECODE_ONLY","mode":0}')
    assert context.source.place(compilation.span.start) == (49, 26)
    assert written(context, compilation) == compilation.text
    assert place(context, prefill, "--data-parallel-size") == (7, 28)


def test_modelservice():
    context = context_of(MODELSERVICE)
    decode, prefill = settings_launches(context)
    assert texts(decode) == [
        "deepseek-ai/DeepSeek-V4-Pro",
        *("--data-parallel-size", "16", "--data-parallel-size-local", "8"),
        *("--served-model-name", "dsv4", "--kv-cache-dtype", "fp8", "--api-key=secret"),
    ]
    assert (value(decode.gpu), value(decode.gpus), value(decode.nodes)) == ("NVIDIA-H200", "8", "2")
    assert value(decode.image) == "ghcr.io/llm-d/llm-d-cuda:v0.5.0"
    assert decode.name == "role decode container vllm"
    assert place(context, decode, "deepseek-ai/DeepSeek-V4-Pro") == (2, 13)
    assert texts(prefill) == ["deepseek-ai/DeepSeek-V4-Pro", "--tensor-parallel-size", "8"]
    assert (prefill.format, prefill.name) == ("llm-d", "role prefill container vllm")
    assert place(context, prefill, "8") == (25, 32)


def test_where_the_model_of_a_modelservice_lies():
    for uri, model in [
        ("pvc://claim/models/x", "/model-cache/models/x"),
        ("pvc+hf://claim/hub/a/b", "a/b"),
        ("oci://registry/x", "oci://registry/x"),
    ]:
        launch = settings_launches(context_of(MODELSERVICE.replace("hf://deepseek-ai/DeepSeek-V4-Pro", uri, 1)))[0]
        assert texts(launch)[0] == model


def test_recipe():
    context = context_of(RECIPE)
    launches = {launch.name: launch for launch in settings_launches(context)}
    assert list(launches) == [
        *("default single_node_tep b200", "default single_node_tp b200", "default pd_cluster decode"),
        *("nvfp4 single_node_tep b200", "nvfp4 single_node_tp b200", "nvfp4 pd_cluster decode"),
        "guide line 29",
    ]
    default = launches["default single_node_tep b200"]
    base = ["--trust-remote-code", "--kv-cache-dtype", "fp8", "--reasoning-parser", "deepseek_v4"]
    assert texts(default) == [
        *("deepseek-ai/DeepSeek-V4-Flash", *base, "--tensor-parallel-size", "{gpu_count}"),
        *("--enable-expert-parallel", "--block-size", "256"),
    ]
    assert word(default, "{gpu_count}").open == ("{gpu_count}",)
    assert (value(default.gpu), value(default.image)) == ("b200", "vllm/vllm-openai:v0.33.0")
    assert env(default) == {"BASE": "1", "HW": "1"}
    assert texts(launches["nvfp4 single_node_tp b200"]) == [
        *("nvidia/DeepSeek-V4-Flash-NVFP4", *base, "--tensor-parallel-size", "8"),
        *("--moe-backend", "flashinfer_trtllm", "--block-size", "64"),
    ]
    decode = launches["default pd_cluster decode"]
    assert flags(decode)["--data-parallel-size"] == "{gpu_count}"
    assert (flags(decode)["--max-num-seqs"], value(decode.nodes), env(decode)["PD"]) == ("512", "2", "1")
    guide = launches["guide line 29"]
    assert texts(guide) == ["deepseek-ai/DeepSeek-V4-Flash", "-tp", "4"]
    assert place(context, guide, "-tp") == (29, 35)
    assert context.problems == []


@given(st.sampled_from((sample(STACK), sample(ROLES), MODELSERVICE, RECIPE)).flatmap(mutated))
@settings(max_examples=200, deadline=None)
def test_garbled_values_are_read_without_an_error(text: str):
    context = context_of(text)
    check_places(context, settings_launches(context))
