from __future__ import annotations

from dataclasses import replace

import pytest

from dsv4check.triage.commands import shown_launches
from dsv4check.triage.records import Run, Stated
from dsv4check.triage.stated import read_stated
from tests.triage.readings import log_lines, log_reading, log_run, report_of

_FLASH = "deepseek-ai/DeepSeek-V4-Flash"
_COLLECTED = """Collecting environment information...
==============================
       CUDA / GPU Info
==============================
GPU models and configuration :
GPU 0: NVIDIA H200
GPU 1: NVIDIA H200

[pip3] torch==2.10.0
[pip3] flashinfer-python==0.6.12
[conda] transformers              5.0.1                    pypi_0    pypi
vLLM Version                 : 0.24.0
==============================
     Environment Variables
==============================
VLLM_USE_V2_MODEL_RUNNER=1
NVIDIA_REQUIRE_CUDA=cuda>=12.9
CUDA_MODULE_LOADING=LAZY
HF_TOKEN=hf_abc
CUDA_VISIBLE_DEVICES=0,1
"""


def test_collect_env_states_packages_variables_and_gpus() -> None:
    stated = read_stated(*report_of(_COLLECTED))
    assert stated.vllm == "0.24.0"
    assert (stated.gpu, stated.gpus) == ("H200", 2)
    assert stated.packages == {"torch": "2.10.0", "flashinfer-python": "0.6.12", "transformers": "5.0.1"}
    assert stated.env == {"VLLM_USE_V2_MODEL_RUNNER": "1", "CUDA_VISIBLE_DEVICES": "0,1"}


def test_a_package_table_is_read() -> None:
    rows = (
        "Package            Version",
        "------------------ -------",
        "flashinfer-python  0.6.12",
        "torch  2.10.0+cu130",
    )
    text = "\n".join(rows)
    assert read_stated(*report_of(text)).packages == {"flashinfer-python": "0.6.12", "torch": "2.10.0+cu130"}


def test_a_variable_that_vllm_does_not_know_is_stated_by_its_warning() -> None:
    run = log_run(["Unknown vLLM environment variable detected: VLLM_USE_MAGIC"])
    assert read_stated(log_reading(run), run).env == {"VLLM_USE_MAGIC": ""}


_FENCED = """It fails. I don't know why:
```bash
export VLLM_A=1
VLLM_B=2 vllm serve deepseek-ai/DeepSeek-V4-Flash \\
  --tensor-parallel-size 8 \\
  --speculative-config '{"method":"mtp","num_speculative_tokens":2}'
```
"""


@pytest.mark.parametrize(
    ("text", "words", "env", "image"),
    [
        (
            _FENCED,
            ("--tensor-parallel-size", "8", "--speculative-config", '{"method":"mtp","num_speculative_tokens":2}'),
            {"VLLM_A": "1", "VLLM_B": "2"},
            None,
        ),
        (
            "PS C:\\> docker run --gpus all -e CUDA_VISIBLE_DEVICES=0,1 -v I:\\a:/models vllm/vllm-openai:v0.24.0 "
            f"{_FLASH} --kv-cache-dtype fp8\n(APIServer pid=1) INFO 04-24 10:27:00 [utils.py:299]\n",
            ("--kv-cache-dtype", "fp8"),
            {"CUDA_VISIBLE_DEVICES": "0,1"},
            "vllm/vllm-openai:v0.24.0",
        ),
        (
            f"env: none vllm serve {_FLASH} --tensor-parallel-size=2 INFO 11-03 05:51:41 [__init__.py:216] Auto",
            ("--tensor-parallel-size=2",),
            {},
            None,
        ),
        (
            f"vllm serve {_FLASH}\n --block-size 256\n --enforce-eager\n\nbroken",
            ("--block-size", "256", "--enforce-eager"),
            {},
            None,
        ),
        (f"root@a:/# python3 -m vllm.entrypoints.openai.api_server --model {_FLASH} -tp 8", ("-tp", "8"), {}, None),
        (
            f"```yaml\nservices:\n  a:\n    image: vllm/vllm-openai:v0.26.0\n    environment:\n      - VLLM_A=1\n"
            f"    command: --model {_FLASH} -tp 4\n```\n",
            ("-tp", "4"),
            {"VLLM_A": "1"},
            "vllm/vllm-openai:v0.26.0",
        ),
        (
            f"```\n[Service]\nEnvironment=VLLM_A=1\nExecStart=/x/vllm serve {_FLASH} \\\n    -tp 4\n```\n",
            ("-tp", "4"),
            {"VLLM_A": "1"},
            None,
        ),
    ],
    ids=["fenced", "docker", "one line", "no backslashes", "module", "compose", "unit"],
)
def test_a_shown_command_is_read(text: str, words: tuple[str, ...], env: dict[str, str], image: str | None) -> None:
    reading, run = report_of(text)
    stated = read_stated(reading, run)
    assert (stated.model, stated.words, stated.env) == (_FLASH, words, env)
    assert shown_launches(reading)[0].image == image
    if image is not None:
        assert stated.vllm == image


def test_a_sentence_about_vllm_serve_is_no_launch() -> None:
    assert shown_launches(report_of("I run vllm serve with the model and it is slow")[0]) == ()


def test_a_value_that_the_text_does_not_hold_is_left_out_with_its_flag() -> None:
    stated = read_stated(*report_of(f"vllm serve {_FLASH} --max-model-len $LEN --block-size 256"))
    assert stated.words == ("--block-size", "256")
    assert any("--max-model-len" in fact.value for fact in stated.facts if fact.name == "note")


def test_secrets_of_a_command_are_not_taken_over() -> None:
    text = f"HF_TOKEN=hf_abc VLLM_API_KEY=k VLLM_A=1 vllm serve {_FLASH} --block-size 256"
    assert read_stated(*report_of(text)).env == {"VLLM_A": "1"}


def test_the_printed_arguments_win_over_a_command_which_adds_its_surroundings() -> None:
    run = log_run([f"non-default args: {{'model': '{_FLASH}', 'tensor_parallel_size': 4}}"])
    stated = read_stated(log_reading(run, _FENCED), run)
    assert stated.words == ("--tensor-parallel-size", "4")
    assert stated.env == {"VLLM_A": "1", "VLLM_B": "2"}


def _gpus(text: str) -> Stated:
    return read_stated(*report_of(text))


@pytest.mark.parametrize(
    ("text", "gpu", "gpus"),
    [
        ("we run on 8x H200", "H200", 8),
        ("单机8卡 H100 部署", "H100", 8),
        ("8卡H20", "H20", 8),
        ("H20 * 8", "H20", 8),
        ("2 × RTX PRO 6000 Blackwell", "RTX-PRO-6000", 2),
        ("on a DGX Spark", "GB10", 1),
        ("4x3090", "RTX-3090", 4),
        ("MI355X x8", "MI355X", 8),
        ("H200 works, B200 does not", None, None),
        ("model DeepSeek-V4-Flash-H200 and /data/H100/x", None, None),
        ("only on SM120", "sm120", None),
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)", "H100", 2),
        ("|   0  NVIDIA RTX PRO 6000 Blac...    On  |   00000000:01:00.0 Off |", "RTX-PRO-6000", 1),
    ],
)
def test_gpus_in_texts(text: str, gpu: str | None, gpus: int | None) -> None:
    stated = _gpus(text)
    assert (stated.gpu, stated.gpus) == (gpu, gpus)


@pytest.mark.parametrize(
    ("text", "gpu", "gpus", "nodes"),
    [
        ("DGX Spark (GB10, 128 GB), vllm 0.30.0", "GB10", 1, None),
        ("128 x GB10", "GB10", 1, None),
        ("3 nodes × 8 H100 (24 GPUs)", "H100", 8, 3),
        ("2 x 8 H100", "H100", 8, 2),
        ("two nodes of 8xH100", "H100", 8, 2),
        ("2 nodes H20 ( 8 x 96GB VRAM)", "H20", 8, 2),
        ("2x DGX Spark", "GB10", 1, 2),
        ("two DGX Sparks", "GB10", 1, 2),
        ("2x AMD Radeon 8060S (Strix Halo APU, gfx1151), 1 GPU per node", "Radeon-8060S", 1, 2),
        ("across eight RTX 4090 GPUs", "RTX-4090", 8, None),
        ("tp=4 with 4 H100 works\ntp=8 with 8 H100 does not", "H100", 8, None),
        ("H200 4卡，vllm", "H200", 4, None),
        ("4卡H20", "H20", 4, None),
        ("4卡48GB 4090显卡", "RTX-4090", 4, None),
        ("8*H20", "H20", 8, None),
        ("H20 x8", "H20", 8, None),
        ("H20-141G*8 SINGLE NODE", "H20-141GB", 8, 1),
        ("2xRTX 6000 Blackwell:", "RTX-PRO-6000", 2, None),
        ("8x H200s", "H200", 8, None),
        ("CUDA 12 H100", "H100", None, None),
        ("Apache Spark, 4090 tokens", None, None, None),
    ],
)
def test_gpus_and_nodes_in_sentences(text: str, gpu: str | None, gpus: int | None, nodes: int | None) -> None:
    stated = _gpus(text)
    assert (stated.gpu, stated.gpus, stated.nodes) == (gpu, gpus, nodes)


def test_equal_rows_of_a_table_are_gpus_of_their_own() -> None:
    row = "|   {}  NVIDIA RTX PRO 6000 Blac...    Off |   00000000:16:00.0 Off |                    0 |"
    text = "\n".join(row.format(index) for index in range(2))
    kept = replace(log_lines(text)[0], count=2)
    run = Run(None, (kept,), ())
    assert read_stated(log_reading(run, text), run).gpus == 2
    assert read_stated(log_reading(run, ""), run).gpus is None


def test_the_columns_of_a_topology_are_counted() -> None:
    columns = "\t".join(f"GPU{index}" for index in range(8))
    text = f"GPU Topology:\n\t{columns}\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\n"
    assert _gpus(text).gpus == 8


@pytest.mark.parametrize(
    ("address", "nodes"), [("tcp://127.0.0.1:1", None), ("file:///tmp/x", None), ("tcp://10.0.0.1:1", 2)]
)
def test_ranks_that_meet_on_this_machine_are_on_one_node(address: str, nodes: int | None) -> None:
    run = log_run([f"world_size=16 rank=0 local_rank=0 distributed_init_method={address} backend=nccl"])
    stated = read_stated(log_reading(run, "8x H200"), run)
    assert (stated.gpus, stated.nodes) == (8, nodes)


def test_the_driver_wins_over_prose() -> None:
    stated = _gpus("It works on 8x H100.\n\nGPU 0: NVIDIA B200\nGPU 1: NVIDIA B200\n")
    assert (stated.gpu, stated.gpus) == ("B200", 2)


@pytest.mark.parametrize(
    ("line", "gpu", "gpus", "memory"),
    [
        ("CUDA out of memory. GPU 3 has a total capacity of 139.80 GiB of which 1 GiB is free", None, None, 139.8),
        ("Config file not found at /c/E=256,N=512,device_name=NVIDIA_H20-3e,dtype=fp8.json", "H20-141GB", None, None),
        ("Your 'NVIDIA L20' device (with compute capability 8.9)", "L20", None, None),
        ("Free memory on device cuda:0 (116.42/121.69 GiB) on startup", None, None, 121.69),
        ("world_size=8 rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:1 backend=nccl", None, 8, None),
        ("no kernel image, compute capability 12.1", "GB10", 1, None),
    ],
)
def test_gpus_in_log_lines(line: str, gpu: str | None, gpus: int | None, memory: float | None) -> None:
    run = log_run([line])
    stated = read_stated(log_reading(run, ""), run)
    assert (stated.gpu, stated.gpus, stated.gpu_memory_gib) == (gpu, gpus, memory)


def test_ranks_of_a_replica_over_two_nodes() -> None:
    line = "DP group leader: node_rank=0, node_rank_within_dp=0, world_size=16, local_world_size=8"
    run = log_run([line])
    stated = read_stated(log_reading(run, ""), run)
    assert (stated.gpus, stated.nodes) == (8, 2)


def test_nothing_known_is_said() -> None:
    stated = read_stated(*report_of("it does not work"))
    assert len(stated.missing) == 5
    assert (stated.vllm, stated.model, stated.words, stated.gpu) == (None, None, (), None)


_TWO_NODES = """# docker compose
```yml
services:
  head:
    image: someone/vllm-gb10:ready
    deploy:
      resources:
        reservations:
          devices:
            - {driver: nvidia, count: 1, capabilities: [gpu]}
    environment:
      NCCL_IB_DISABLE: "0"
      CUDA_VISIBLE_DEVICES: "0"
    command: ["vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash", "--tensor-parallel-size", "2", "--nnodes", "2"]
```
"""
_ITS_LOG = (
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.21.1rc1.dev339+g1967a5627bc3",
    "non-default args: {'model_tag': 'deepseek-ai/DeepSeek-V4-Flash', 'api_key': ['x'], 'model': "
    "'deepseek-ai/DeepSeek-V4-Flash', 'nnodes': 2, 'tensor_parallel_size': 2, 'kv_cache_dtype': 'fp8'}",
    "Resolved architecture: DeepseekV4ForCausalLM",
    "Resolved architecture: DeepSeekV4MTPModel",
    "DP group leader: node_rank=0, node_rank_within_dp=0, master_addr=10.0.1.1, world_size=2, local_world_size=1",
    "world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://10.0.1.1:29501 backend=nccl",
    "SymmMemCommunicator: Device capability 12.1 not supported, communicator is not available.",
)


def test_a_whole_report_of_two_nodes() -> None:
    run = log_run(_ITS_LOG)
    stated = read_stated(log_reading(run, _TWO_NODES + "\n".join(_ITS_LOG)), run)
    assert stated.vllm == "0.21.1rc1.dev339+g1967a5627bc3"
    assert stated.words == ("--nnodes", "2", "--tensor-parallel-size", "2", "--kv-cache-dtype", "fp8")
    assert (stated.gpu, stated.gpus, stated.nodes) == ("GB10", 1, 2)
    assert stated.env == {"NCCL_IB_DISABLE": "0", "CUDA_VISIBLE_DEVICES": "0"}
    assert stated.observed["architecture"] == "DeepseekV4ForCausalLM"
    assert stated.observed["draft_architecture"] == "DeepSeekV4MTPModel"
    assert stated.missing == ()
    assert not [fact.how for fact in stated.facts if "contradicts" in fact.how]


def test_a_start_that_says_nothing_borrows_from_the_one_before_it() -> None:
    first = log_run(_ITS_LOG)
    second = Run(None, log_lines("Model loading took 84.2 GiB memory and 4.5 seconds"), ())
    stated = read_stated(log_reading(second, "", more=[first]), second)
    assert stated.vllm == "0.21.1rc1.dev339+g1967a5627bc3"
    assert "--kv-cache-dtype" in stated.words
    assert stated.observed == {"weights_gib": "84.2"}
    assert any("another start" in fact.value for fact in stated.facts if fact.name == "note")


def test_a_model_behind_the_flags_is_found() -> None:
    stated = read_stated(*report_of(f"vllm serve --enforce-eager --block-size 256 {_FLASH}"))
    assert (stated.model, stated.words) == (_FLASH, ("--enforce-eager", "--block-size", "256"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"M={_FLASH}\nTP=8\n\nvllm serve $M --tensor-parallel-size $TP\n", ("--tensor-parallel-size", "8")),
        (f"`vllm serve {_FLASH} --block-size 256` on 8×H200 fails", ("--block-size", "256")),
        (f"I run vllm serve {_FLASH} -tp 8, on 2 nodes with 8 x H100 each", ("-tp", "8")),
        (
            f"vllm serve {_FLASH} --cudagraph-capture-sizes 1 2 4 8 16 --served-model-name a b",
            ("--cudagraph-capture-sizes", "1", "2", "4", "8", "16", "--served-model-name", "a", "b"),
        ),
        (f"Spark (GB10, 128 GB), vllm 0.30.0, vllm serve {_FLASH} -tp 2 --nnodes 2", ("-tp", "2", "--nnodes", "2")),
        (f"docker run ... vllm/vllm-openai:v0.28.0 {_FLASH} \\\n  -tp 8", ("-tp", "8")),
        (
            f"Running command: ['/x/vllm', 'serve', '{_FLASH}', '-tp', '8', '--block-size', '256']",
            ("-tp", "8", "--block-size", "256"),
        ),
        (f"> vllm serve {_FLASH} \\\n>   -tp 2 \\\n>   --block-size 256\n", ("-tp", "2", "--block-size", "256")),
    ],
    ids=["variables", "inline", "sentence", "many values", "behind a sentence", "words left out", "list", "quoted"],
)
def test_commands_between_prose(text: str, words: tuple[str, ...]) -> None:
    stated = read_stated(*report_of(text))
    assert (stated.model, stated.words) == (_FLASH, words)
