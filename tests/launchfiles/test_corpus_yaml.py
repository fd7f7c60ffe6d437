"""Shapes of YAML as it is found in public repositories, typed anew in their smallest form."""

from __future__ import annotations

from tests.launchfiles.manifests import Manifest, env, texts, value


def test_comments_in_front_of_a_document_do_not_multiply() -> None:
    # Each line can be cut in two ways; 60 of them would take longer than anybody waits.
    comment = "#   --flag  # why ##\n" * 60
    manifest = Manifest(
        f"{comment}services:\n  a:\n    image: vllm/vllm-openai:v0.25.0\n    command: [org/m, -tp, '2']\n"
    )
    assert texts(manifest.only) == ["org/m", "-tp", "2"]


DYNAMO = """\
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: g}
spec:
  services:
    worker:
      multinode: {nodeCount: 2}
      resources: {limits: {gpu: "4"}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0
          env:
          - {name: MODEL, value: org/m}
          - {name: RANK, value: $(OUTSIDE)}
          command: [/bin/sh, -c]
          args:
          - exec python3 -m dynamo.vllm --model "$MODEL" --seed $RANK -tp SIZE
"""


def test_an_operator_spreads_an_engine_over_the_nodes_of_its_worker() -> None:
    launch = Manifest(DYNAMO.replace("SIZE", "8")).only
    assert texts(launch)[-2:] == ["--nnodes", "2"]
    assert launch.server.words[-1].slot == "derived"
    assert [note for note in launch.server.notes if "--nnodes 2 was added" in note]


def test_an_operator_gives_each_node_its_share_of_the_engines() -> None:
    manifest = Manifest(DYNAMO.replace("SIZE", "2 -dp 4 --data-parallel-hybrid-lb"))
    assert texts(manifest.only)[-2:] == ["--data-parallel-size-local", "2"]
    stated = Manifest(DYNAMO.replace("SIZE", "2 -dp 4 --data-parallel-size-local 2"))
    assert texts(stated.only)[-2:] == ["--data-parallel-size-local", "2"]
    assert texts(stated.only).count("--data-parallel-size-local") == 1
    one = Manifest(DYNAMO.replace("SIZE", "1 -dp 4 --data-parallel-hybrid-lb").replace("nodeCount: 2", "nodeCount: 1"))
    assert texts(one.only)[-2:] == ["--data-parallel-size-local", "4"]


def test_engines_that_fit_into_a_node_are_left_as_they_are() -> None:
    assert "--nnodes" not in texts(Manifest(DYNAMO.replace("SIZE", "4")).only)
    assert texts(Manifest(DYNAMO.replace("SIZE", "8 --nnodes 2 --node-rank 1")).only).count("--nnodes") == 1
    assert "--nnodes" not in texts(Manifest(DYNAMO.replace("SIZE", "8").replace("nodeCount: 2", "nodeCount: 1")).only)


def test_a_variable_of_unknown_value_stays_open_in_a_script_of_a_pod() -> None:
    manifest = Manifest(DYNAMO.replace("SIZE", "4"))
    assert manifest.word("org/m").open == ()
    assert manifest.word("$RANK").open == ("$RANK",)
    assert env(manifest.only)["RANK"] == "$(OUTSIDE)"


def test_a_variable_of_unknown_value_stays_open_in_a_script_of_a_service() -> None:
    manifest = Manifest(
        "services:\n  a:\n    image: vllm/vllm-openai:v0.25.0\n    environment:\n"
        '      RANK: "${RANK}"\n      PORT: "${PORT:-8100}"\n    entrypoint: [bash, -c]\n'
        '    command: ["vllm serve org/m --node-rank $$RANK --port $$PORT"]\n'
    )
    assert manifest.word("$RANK").open == ("$RANK",)
    assert manifest.word("8100").open == ()
    assert env(manifest.only) == {"RANK": "${RANK}", "PORT": "8100"}


JOB = """\
name: job
model: {path: short-name, container: "vllm/vllm-openai:v0.25.1", precision: fp4}
resources: {gpu_type: gb200, gpus_per_node: 4, gpus_per_prefill: 2, gpus_per_decode: 8}
environment: {A: "1"}
backend:
  type: vllm
  decode_environment: {B: "2"}
  vllm_config:
    prefill:
      served-model-name: org/m
      tensor-parallel-size: 2
      enable-expert-parallel: false
    decode:
      served-model-name: org/m
      tensor-parallel-size: 8
      no-enable-prefix-caching: true
      speculative-config: '{"method":"mtp"}'
"""


def test_roles_of_a_slurm_job_are_launches() -> None:
    manifest = Manifest(JOB)
    prefill, decode = manifest.launches
    assert texts(prefill) == [
        *("--model", "org/m", "--served-model-name", "org/m", "--tensor-parallel-size", "2"),
    ]
    assert texts(decode)[4:] == [
        *("--tensor-parallel-size", "8", "--no-enable-prefix-caching", "--speculative-config", '{"method":"mtp"}'),
        *("--nnodes", "2"),
    ]
    assert [(value(item.gpu), value(item.gpus), value(item.nodes)) for item in manifest.launches] == [
        ("gb200", "2", "1"),
        ("gb200", "4", "2"),
    ]
    assert (env(prefill), env(decode)) == ({"A": "1"}, {"A": "1", "B": "2"})
    assert value(decode.image) == "vllm/vllm-openai:v0.25.1"
    assert manifest.at(manifest.word("8", 1)) == (15, 29)
    assert manifest.format == "srt-slurm"


def test_jobs_of_other_engines_are_left_alone() -> None:
    assert Manifest(JOB.replace("vllm_config", "sglang_config")).launches == []


ROLES = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}]
prefill:
  tp: 1
  enable-expert-parallel: true
  extra-args: >-
    --tokenizer-mode deepseek_v4
    --block-size 256
  env: {X: "1"}
"""


def test_settings_by_role_stand_below_those_of_the_endpoint_picker() -> None:
    launch = Manifest(ROLES).only
    assert texts(launch) == [
        *("--tensor-parallel-size", "1", "--enable-expert-parallel"),
        *("--tokenizer-mode", "deepseek_v4", "--block-size", "256"),
    ]
    assert env(launch) == {"X": "1"}
    assert Manifest(ROLES.replace("EndpointPickerConfig", "Other")).launches == []


RECIPE = """\
model:
  model_id: org/m
  base_args: [--trust-remote-code]
guide: |
  ```text
  eth0  up
  ```

  It's a cluster: don't use `vllm serve` here.

  ```bash
  vllm serve org/m --seed 1
  ```

  That's all.

  ```python
  LLM("it's")
  ```
"""


def test_prose_between_the_blocks_of_a_guide_is_no_script() -> None:
    manifest = Manifest(RECIPE)
    assert manifest.problems == []
    assert [texts(launch) for launch in manifest.launches] == [
        ["org/m", "--trust-remote-code"],
        ["org/m", "--seed", "1"],
    ]


WORKLOAD = """\
name: flash-b200
gpu: B200
num_gpus: 8
vllm:
  model: org/m
  env: {CUDA_HOME: /usr/local/cuda}
  serve_args: >-
    --tensor-parallel-size 2
    --speculative_config.method=mtp
"""


def test_workloads_of_a_benchmark_name_their_arguments() -> None:
    manifest = Manifest(WORKLOAD)
    launch = manifest.only
    assert texts(launch) == ["org/m", "--tensor-parallel-size", "2", "--speculative_config.method=mtp"]
    assert (value(launch.gpu), value(launch.gpus), env(launch)) == ("B200", "8", {"CUDA_HOME": "/usr/local/cuda"})
    assert manifest.at(manifest.word("2")) == (8, 28)


TEMPLATE = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    image: vllm/vllm-openai:v0.25.0
    args:
    - ${MODEL_ID}
    - --tensor-parallel-size=${TP:-4}
    - --max-model-len
    - <MAX_MODEL_LEN>
    - --served-model-name=<your model>
    - --reasoning-config
    - '{"reasoning_start_str": "<think>"}'
"""


def test_what_is_filled_in_before_the_start_is_open() -> None:
    manifest = Manifest(TEMPLATE)
    assert [(word.text, word.open) for word in manifest.only.server.words] == [
        ("${MODEL_ID}", ("${MODEL_ID}",)),
        ("--tensor-parallel-size=${TP:-4}", ("${TP:-4}",)),
        ("--max-model-len", ()),
        ("<MAX_MODEL_LEN>", ("<MAX_MODEL_LEN>",)),
        ("--served-model-name=<your model>", ("<your model>",)),
        ("--reasoning-config", ()),
        ('{"reasoning_start_str": "<think>"}', ()),
    ]


MODEL = """\
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: m}
spec:
  url: hf://org/m
  engine: VLLM
  env: {A: "1"}
  args: [--max-model-len=8192]
  resourceProfile: nvidia-gpu-h100:4
"""


def test_an_object_that_describes_a_model_is_a_launch() -> None:
    manifest = Manifest(MODEL)
    launch = manifest.only
    assert (launch.format, launch.name) == ("kubernetes", "Model/m")
    assert texts(launch) == ["org/m", "--max-model-len=8192"]
    assert manifest.at(manifest.word("org/m")) == (5, 13)
    assert (value(launch.gpu), value(launch.gpus), env(launch)) == ("h100", "4", {"A": "1"})
    assert manifest.written(launch.gpu) == "h100"
    assert Manifest(MODEL.replace("VLLM", "OLlama")).launches == []


RUNTIME = """\
apiVersion: production-stack.vllm.ai/v1alpha1
kind: VLLMRuntime
metadata: {name: r}
spec:
  model: {modelURL: org/m, maxModelLen: 4096, enableTool: true, toolCallParser: deepseek_v4}
  vllmConfig:
    tensorParallelSize: 8
    enablePrefixCaching: true
    extraArgs: [--seed, "1"]
    env: [{name: A, value: "1"}]
  deploymentConfig:
    resources: {gpu: "8"}
    image: {registry: docker.io, name: "vllm/vllm-openai:v0.25.0"}
"""


def test_a_runtime_of_the_production_stack_is_a_launch() -> None:
    launch = Manifest(RUNTIME).only
    assert texts(launch) == [
        *("org/m", "--max-model-len", "4096", "--enable-auto-tool-choice", "--tool-call-parser", "deepseek_v4"),
        *("--tensor-parallel-size", "8", "--enable-prefix-caching", "--no-enable-chunked-prefill", "--seed", "1"),
    ]
    assert (value(launch.image), value(launch.gpus)) == ("docker.io/vllm/vllm-openai:v0.25.0", "8")
    assert env(launch) == {"A": "1"}


def test_a_command_in_one_item_is_named() -> None:
    manifest = Manifest(
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.25.0\n"
        '    command: ["vllm serve org/m -tp 2"]\n'
    )
    assert manifest.launches == []
    [(line, why)] = manifest.problems
    assert line == 6
    assert "write each word as an item" in why
