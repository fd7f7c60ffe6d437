"""Launches in unit files."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4check.launchfiles.systemd import systemd_launches
from tests.launchfiles.mutations import mutated
from tests.launchfiles.reading import check_places, context_of, env, flags, place, sample, texts, word, written

SPARK = "07-systemd-spark-head.service"
UNIT = """\
[Service]
Environment="ARGS=--tensor-parallel-size 4 --port 1" MODEL=deepseek-ai/DeepSeek-V4-Flash 'X=a b'
Environment=GONE=1 PERCENT=5%%
UnsetEnvironment=GONE
ExecStart=/usr/bin/vllm serve old/model
ExecStart=
; a comment
ExecStart=@-/opt/vllm/bin/vllm vllm serve ${MODEL} $ARGS --served-model-name "a b" \\
# a comment between
  --speculative-config '{"method":"mtp","x":"$$b%%"}' --api-key=${KEY} --node-rank %i $NONE --seed \\x31
"""
QUADLET = """\
[Container]
Image=docker.io/vllm/vllm-openai:v0.33.0
Exec=deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 4
Environment=VLLM_USE_V2_MODEL_RUNNER=1
Volume=/srv/hf:/root/.cache/huggingface:Z
AddDevice=nvidia.com/gpu=all
"""


def test_docker_run_in_a_unit():
    context = context_of(sample(SPARK), f"units/{SPARK}")
    (launch,) = systemd_launches(context)
    assert (launch.format, launch.name) == ("systemd", f"unit {SPARK} ExecStart")
    assert launch.server.program == ("vllm", "serve")
    assert texts(launch)[0] == "deepseek-ai/DeepSeek-V4-Flash-0731"
    found = flags(launch)
    compilation = found.pop("--compilation-config")
    speculative = found.pop("--speculative-config")
    assert found == {
        "--trust-remote-code": True,
        "--kv-cache-dtype": "fp8",
        "--block-size": "256",
        "--max-num-seqs": "8",
        "--max-num-batched-tokens": "8192",
        "--gpu-memory-utilization": "0.85",
        "--enable-prefix-caching": True,
        "--load-format": "instanttensor",
        "--moe-backend": "b12x",
        "--linear-backend": "b12x",
        "--attention-backend": "B12X_MLA_SPARSE",
        "--max-cudagraph-capture-size": "64",
        "--tensor-parallel-size": "2",
        "--nnodes": "2",
        "--node-rank": "0",
        "--master-addr": "${HEAD_IP}",
        "--tokenizer-mode": "deepseek_v4",
        "--tool-call-parser": "deepseek_v4",
        "--enable-auto-tool-choice": True,
        "--reasoning-parser": "deepseek_v4",
    }
    assert json.loads(str(compilation)) == {"cudagraph_mode": "FULL_AND_PIECEWISE", "custom_ops": ["all"]}
    assert json.loads(str(speculative))["num_speculative_tokens"] == 5
    assert env(launch) == {
        "NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0",
        "NCCL_IB_DISABLE": "0",
        "NCCL_SOCKET_IFNAME": "${IFACE_NAME}",
        "GLOO_SOCKET_IFNAME": "${IFACE_NAME}",
        "CUTE_DSL_ARCH": "sm_121a",
        "VLLM_USE_B12X_MOE": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }
    assert launch.image is not None
    assert launch.image.value == "eugr/spark-vllm-b12x:latest"
    assert launch.server.gpus is not None
    assert launch.server.gpus.value == "all"
    assert launch.server.mounts == {"/root/.cache/huggingface": "/srv/hf"}
    assert place(context, launch, "--moe-backend") == (24, 33)
    assert place(context, launch, "--kv-cache-dtype") == (22, 25)
    assert word(launch, "${HEAD_IP}").open == ("${HEAD_IP}",)
    assert context.problems == []


def test_variables_from_the_file_beside_it():
    text = sample(SPARK)
    context = context_of(text, SPARK, neighbour={"/etc/dsv4/spark.env": "HEAD_IP=10.0.0.1\nIFACE_NAME=eth0\n"}.get)
    (launch,) = systemd_launches(context)
    assert flags(launch)["--master-addr"] == "10.0.0.1"
    assert env(launch)["NCCL_SOCKET_IFNAME"] == "eth0"


def test_quoting_variables_and_prefixes():
    context = context_of(UNIT, "vllm@.service")
    (launch,) = systemd_launches(context)
    assert launch.server.program == ("/opt/vllm/bin/vllm", "serve")
    assert texts(launch) == [
        "deepseek-ai/DeepSeek-V4-Flash",
        "--tensor-parallel-size",
        "4",
        "--port",
        "1",
        "--served-model-name",
        "a b",
        "--speculative-config",
        '{"method":"mtp","x":"$b%"}',
        "--api-key=${KEY}",
        "--node-rank",
        "%i",
        "$NONE",
        "--seed",
        "1",
    ]
    opened = {item.text: item.open for item in launch.server.words if item.open}
    assert opened == {"--api-key=${KEY}": ("${KEY}",), "%i": ("%i",), "$NONE": ("$NONE",)}
    assert env(launch) == {
        "ARGS": "--tensor-parallel-size 4 --port 1",
        "MODEL": "deepseek-ai/DeepSeek-V4-Flash",
        "X": "a b",
        "PERCENT": "5%",
    }
    # What a variable holds is shown, and changed, where it is set.
    assert place(context, launch, "4") == (2, 42)
    assert place(context, launch, "deepseek-ai/DeepSeek-V4-Flash") == (2, 60)
    assert written(context, word(launch, "deepseek-ai/DeepSeek-V4-Flash")) == "deepseek-ai/DeepSeek-V4-Flash"
    assert place(context, launch, "--node-rank") == (10, 72)
    assert written(context, word(launch, "--node-rank")) == "--node-rank"


def test_variables_given_from_outside():
    context = context_of(UNIT, "vllm@.service", variables={"KEY": "k", "NONE": "--a --b"})
    (launch,) = systemd_launches(context)
    assert "--api-key=k" in texts(launch)
    assert texts(launch)[-4:] == ["--a", "--b", "--seed", "1"]


def test_a_shell_in_a_unit():
    text = "[Service]\nEnvironment=TP=2\nExecStart=/bin/bash -lc 'exec vllm serve m/n -tp ${TP} --x $$HOME'\n"
    context = context_of(text)
    (launch,) = systemd_launches(context)
    assert texts(launch) == ["m/n", "-tp", "2", "--x", "$HOME"]
    assert place(context, launch, "-tp") == (3, 46)
    assert place(context, launch, "2") == (2, 16)


@pytest.mark.parametrize("section", ["Unit", "Install", "Timer"])
def test_other_sections_start_nothing(section: str):
    assert systemd_launches(context_of(f"[{section}]\nExecStart=vllm serve m\n")) == []


def test_an_open_quote_is_a_problem():
    context = context_of("[Service]\n\nExecStart=vllm serve 'm\n")
    assert systemd_launches(context) == []
    assert [(problem.line, problem.skipped) for problem in context.problems] == [(3, False)]


def test_quadlet():
    context = context_of(QUADLET, "vllm.container")
    (launch,) = systemd_launches(context)
    assert launch.name == "unit vllm.container Exec"
    assert texts(launch) == ["deepseek-ai/DeepSeek-V4-Flash", "--tensor-parallel-size", "4"]
    assert launch.image is not None
    assert launch.image.value == "docker.io/vllm/vllm-openai:v0.33.0"
    assert launch.server.gpus is not None
    assert launch.server.gpus.value == "all"
    assert launch.server.mounts == {"/root/.cache/huggingface": "/srv/hf"}
    assert env(launch) == {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert place(context, launch, "4") == (3, 59)


def test_quadlet_with_podman_arguments():
    text = QUADLET.replace("AddDevice=nvidia.com/gpu=all", "PodmanArgs=--gpus 2 --shm-size=10g")
    (launch,) = systemd_launches(context_of(text))
    assert launch.server.gpus is not None
    assert launch.server.gpus.value == "2"
    two = QUADLET.replace("gpu=all", "gpu=0\nAddDevice=nvidia.com/gpu=3")
    (launch,) = systemd_launches(context_of(two))
    assert launch.server.gpus is not None
    assert launch.server.gpus.value == "device=0,3"


@given(st.sampled_from((sample(SPARK), UNIT, QUADLET)).flatmap(mutated))
@settings(max_examples=150, deadline=None)
def test_garbled_units_are_read_without_an_error(text: str):
    context = context_of(text)
    check_places(context, systemd_launches(context))
