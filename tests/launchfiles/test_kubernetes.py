from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml

from tests.launchfiles.manifests import SAMPLES, Manifest, env, texts, value

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    image: vllm/vllm-openai:v0.33.0
"""


def loaded(name: str) -> Any:
    return yaml.safe_load((SAMPLES / name).read_text(encoding="utf-8"))


def test_a_deployment() -> None:
    name = "01-k8s-deployment-flash0731-h200-tp4.yaml"
    manifest = Manifest.sample(name)
    launch = manifest.only
    container = loaded(name)["spec"]["template"]["spec"]["containers"][0]
    assert manifest.format == launch.format == "kubernetes"
    assert launch.name == "Deployment/dsv4-flash container vllm"
    assert launch.server.program == ("vllm", "serve")
    assert texts(launch) == [container["command"][2], *container["args"]]
    assert env(launch) == {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}
    assert value(launch.image) == "vllm/vllm-openai:v0.30.0"
    assert (value(launch.gpu), value(launch.gpus), launch.nodes) == ("NVIDIA-H200", "4", None)
    assert launch.server.mounts == {"/root/.cache/huggingface": "hf-cache"}
    assert manifest.at(manifest.word("deepseek-ai/DeepSeek-V4-Flash-0731")) == (18, 36)
    assert manifest.at(manifest.word("--max-model-len=393216")) == (26, 11)
    assert manifest.at(manifest.word("256")) == (25, 11)
    assert manifest.written(manifest.word("256")) == '"256"'
    assert (manifest.at(launch.gpu), manifest.at(launch.gpus)) == ((14, 33), (40, 36))
    assert manifest.lines() == [16, 17, 18, 19]


def test_a_graph_of_dynamo_with_a_script() -> None:
    name = "02-dynamo-dgd-pro0813-h200-tep8.yaml"
    manifest = Manifest.sample(name)
    launch = manifest.only
    container = loaded(name)["spec"]["components"][1]["podTemplate"]["spec"]["containers"][0]
    assert launch.name == "DynamoGraphDeployment/pro-h200 Worker container main"
    assert launch.server.program == ("python3", "-m", "dynamo.vllm")
    assert launch.server.entrypoint == "engine"
    assert texts(launch) == shlex.split(container["args"][0].replace("\\\n", " "))[3:]
    assert env(launch) == {"HF_HOME": "/model-cache", "HF_HUB_OFFLINE": "1"}
    assert value(launch.image) == "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0"
    assert (value(launch.gpu), value(launch.gpus)) == ("NVIDIA-H200", "8")
    assert launch.server.mounts == {"/model-cache": "model-cache"}
    assert manifest.at(manifest.word("deepseek-ai/DeepSeek-V4-Pro-0813")) == (34, 23)
    assert manifest.at(manifest.word("--gpu-memory-utilization")) == (50, 15)
    config = texts(launch)[-1]
    assert manifest.written(manifest.word(config)) == f"'{config}'"
    assert manifest.lines() == [28, 29, 30, 31]


def test_an_inference_service_with_a_container() -> None:
    name = "15-kserve-inferenceservice.yaml"
    manifest = Manifest.sample(name)
    launch = manifest.only
    assert launch.name == "InferenceService/dsv4-flash-0731 container kserve-container"
    assert texts(launch) == loaded(name)["spec"]["predictor"]["containers"][0]["args"]
    assert (value(launch.gpu), value(launch.gpus)) == ("NVIDIA-H200", "2")
    assert value(launch.image) == "vllm/vllm-openai:v0.25.1"
    assert launch.server.mounts == {"/data": "dsv4-flash-0731"}
    # Not 0.9: the text counts.
    assert manifest.at(manifest.word("--gpu-memory-utilization=0.90")) == (20, 9)
    assert manifest.lines() == [12, 13, 14, 15]


def test_arguments_alone_are_those_of_the_image_s_entry_point() -> None:
    manifest = Manifest(POD + "    args: [--model, a/b, --block-size, 0x100]\n")
    assert manifest.only.server.program == ("vllm", "serve")
    assert texts(manifest.only) == ["--model", "a/b", "--block-size", "0x100"]
    assert manifest.only.server.place == manifest.word("--model").span


def test_variables_in_arguments() -> None:
    manifest = Manifest(
        POD + "    args: ['$(MODEL)', --port=$(PORT), --seed=$(SEED), '--name=$$(MODEL)', --x=$(UNSET), 'a$b$']\n"
        "    env:\n"
        "    - {name: ORG, value: deepseek-ai}\n"
        "    - {name: MODEL, value: '$(ORG)/DeepSeek-V4-Flash'}\n"
        '    - {name: PORT, value: "80"}\n'
        "    - {name: SEED, valueFrom: {secretKeyRef: {name: s, key: k}}}\n"
        "    - name: EMPTY\n"
    )
    launch = manifest.only
    model = "deepseek-ai/DeepSeek-V4-Flash"
    assert texts(launch) == [model, "--port=80", "--seed=$(SEED)", "--name=$(MODEL)", "--x=$(UNSET)", "a$b$"]
    assert [word.open for word in launch.server.words] == [(), (), ("$(SEED)",), (), ("$(UNSET)",), ()]
    assert env(launch) == {"ORG": "deepseek-ai", "MODEL": model, "PORT": "80", "EMPTY": ""}
    # A word that is nothing but a variable stands where the variable is set.
    assert manifest.written(launch.server.words[0]) == "'$(ORG)/DeepSeek-V4-Flash'"
    port = launch.server.words[1]
    assert manifest.written(port) == "--port=$(PORT)"
    assert [manifest.text[at] for at in port.offsets] == list("--port=80")
    name = launch.server.words[3]
    assert [manifest.text[at] for at in name.offsets] == list(name.text)


def test_variables_that_double_with_each_stay_small() -> None:
    more = "".join(f"    - {{name: V{n}, value: '$(V{n - 1})$(V{n - 1})'}}\n" for n in range(1, 60))
    manifest = Manifest(POD + "    args: [m, --a=$(V59)]\n    env:\n    - {name: V0, value: xxxxxxxx}\n" + more)
    assert len(texts(manifest.only)[1]) < 200_000


def test_a_script_behind_bash_with_variables_of_the_container() -> None:
    manifest = Manifest(
        POD + "    command: [bash, -c]\n"
        "    args:\n"
        '    - "set -e\\n\n'
        "      export TP=4\\n\n"
        '      vllm serve \\"$MODEL\\" --tensor-parallel-size $TP"\n'
        "    env: [{name: MODEL, value: org/model}]\n"
    )
    assert texts(manifest.only) == ["org/model", "--tensor-parallel-size", "4"]
    assert manifest.at(manifest.word("--tensor-parallel-size")) == (12, 29)
    assert manifest.at(manifest.word("4")) == (11, 17)
    assert manifest.at(manifest.word("org/model")) == (13, 32)


def test_templates_in_a_script_stay_whole() -> None:
    manifest = Manifest(
        POD
        + "    command: [bash, -c]\n    args:\n    - |\n      vllm serve {{ .Values.model }} -tp {{ .Values.tp }} --x\n"
    )
    words = manifest.only.server.words
    assert [word.text for word in words] == ["{{ .Values.model }}", "-tp", "{{ .Values.tp }}", "--x"]
    assert [word.open for word in words] == [("{{ .Values.model }}",), (), ("{{ .Values.tp }}",), ()]
    assert manifest.written(words[2]) == "{{ .Values.tp }}"
    assert manifest.at(words[3]) == (11, 59)


def test_text_where_kubernetes_takes_a_list() -> None:
    manifest = Manifest(POD + "    command: vllm serve org/model -tp 4\n")
    assert texts(manifest.only) == ["org/model", "-tp", "4"]
    assert "lists of words" in manifest.only.server.notes[0]


def test_windows_line_ends_and_letters_beyond_ascii() -> None:
    text = ("# Größe 😀\n" + POD + "    args:\n    - m/ü\n    - >-\n      --a=b\n      c\n").replace("\n", "\r\n")
    manifest = Manifest(text)
    assert texts(manifest.only) == ["m/ü", "--a=b c"]
    assert manifest.at(manifest.word("m/ü")) == (10, 7)
    assert [manifest.text[at] for at in manifest.word("--a=b c").offsets] == list("--a=b\rc")


def test_json_in_one_piece() -> None:
    manifest = Manifest(
        '{"apiVersion": "v1", "kind": "Pod",\n\t"spec": {"containers": [{"name": "c",\n'
        '\t\t"image": "vllm/vllm-openai:v0.33.0", "args": ["org/model", "--max-num-seqs", "8", '
        '"-O", "{\\"a\\":1}"]}]}}',
        "pod.json",
    )
    assert manifest.only.name == "Pod container c"
    assert texts(manifest.only) == ["org/model", "--max-num-seqs", "8", "-O", '{"a":1}']
    assert manifest.at(manifest.word("--max-num-seqs")) == (3, 62)


def test_arguments_that_two_containers_share() -> None:
    manifest = Manifest(
        POD + "    args: &args [org/model, -tp, '2']\n  - &second\n    name: d\n"
        "    image: vllm/vllm-openai:v0.30.0\n    args: *args\n  - *second\n"
    )
    assert [launch.name for launch in manifest.launches] == ["Pod/p container c", "Pod/p container d"]
    assert manifest.launches[0].server.words == manifest.launches[1].server.words
    assert manifest.launches[0].heads != manifest.launches[1].heads


def test_only_containers_that_serve_count() -> None:
    text = POD.replace("containers:", "initContainers:") + "    args: [org/model, -tp, '2']\n"
    manifest = Manifest(text)
    assert (manifest.format, manifest.launches, manifest.problems) == ("kubernetes", [], [])


def test_several_documents_one_of_them_broken() -> None:
    pod = POD + "    args: [org/model, -tp, '2']\n"
    service = "kind: Service\napiVersion: v1\n"
    compose = "services:\n  s: {image: vllm/vllm-openai:v0.33.0, command: [a/b]}\n"
    manifest = Manifest("---\n".join([service, pod, pod.replace("- name", " - name:"), compose, pod]))
    assert [launch.format for launch in manifest.launches] == ["kubernetes", "compose", "kubernetes"]
    assert [line for line, _why in manifest.problems] == [19]
    assert manifest.launches[2].heads[0].start == manifest.text.rindex("name: c")


def test_a_list_of_objects() -> None:
    item = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {
            "jobTemplate": {
                "spec": {"template": {"spec": {"containers": [{"name": "c", "command": ["vllm", "serve", "a/b"]}]}}}
            }
        },
    }
    manifest = Manifest(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [item]}))
    assert manifest.only.name == "CronJob/nightly container c"


def test_a_group_of_leader_and_workers() -> None:
    container = "containers: [{name: %s, image: 'vllm/vllm-openai:v0.33.0', args: [a/b, --nnodes, '2'%s],"
    resources = " resources: {requests: {nvidia.com/gpu: 8}}}]"
    manifest = Manifest(
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: lws}\nspec:\n"
        "  leaderWorkerTemplate:\n    size: 2\n"
        f"    leaderTemplate:\n      spec:\n        {container % ('leader', '')}{resources}\n"
        f"    workerTemplate:\n      spec:\n        {container % ('worker', ', --headless')}{resources}\n"
    )
    assert [launch.name for launch in manifest.launches] == [
        "LeaderWorkerSet/lws container leader",
        "LeaderWorkerSet/lws container worker",
    ]
    assert [(value(launch.nodes), value(launch.gpus)) for launch in manifest.launches] == [("2", "8"), ("2", "8")]
    assert manifest.at(manifest.launches[0].nodes) == (6, 11)


def test_a_cluster_of_ray() -> None:
    manifest = Manifest(
        """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: ray}
spec:
  headGroupSpec:
    template:
      spec:
        containers:
        - {name: head, image: i, command: [vllm, serve, a/b], resources: {limits: {nvidia.com/gpu: 4}}}
  workerGroupSpecs:
  - replicas: 3
    template: {spec: {containers: [{name: w, image: i, resources: {limits: {nvidia.com/gpu: 4}}}]}}
  - replicas: 5
    template: {spec: {containers: [{name: cpu, image: i}]}}
"""
    )
    assert manifest.only.name == "RayCluster/ray container head"
    assert (value(manifest.only.nodes), value(manifest.only.gpus)) == ("4", "4")


DYNAMO = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: graph}
spec:
  services:
    Frontend:
      extraPodSpec: {mainContainer: {image: i, command: [python3, -m, dynamo.frontend]}}
    Decode:
      envs: [{name: A, value: outer}, {name: B, value: outer}]
      resources: {limits: {gpu: "4"}}
      multinode: {nodeCount: 2}
      extraPodSpec:
        nodeSelector: {cloud.google.com/gke-accelerator: nvidia-b200}
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0
          command: [python3, -m, dynamo.vllm]
          args: [--model, a/b]
          env: [{name: B, value: inner}]
"""


def test_a_graph_of_dynamo_s_first_version() -> None:
    launch = Manifest(DYNAMO).only
    assert launch.name == "DynamoGraphDeployment/graph Decode"
    assert texts(launch) == ["--model", "a/b"]
    assert env(launch) == {"A": "outer", "B": "inner"}
    assert (value(launch.gpu), value(launch.gpus), value(launch.nodes)) == ("nvidia-b200", "4", "2")


@pytest.mark.parametrize(
    ("selector", "gpu", "note"),
    [
        ("nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3-SHARED}", "NVIDIA-H100-80GB-HBM3", "shared"),
        ("nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3-MIG-1g.10gb}", None, "slice"),
        ("nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-mega-80gb}", "H100", ""),
        ("nodeSelector: {gpu.nvidia.com/class: H200}", "H200", ""),
        ("nodeSelector: {node.kubernetes.io/instance-type: p5.48xlarge}", "H100", ""),
        ("nodeSelector: {node.kubernetes.io/instance-type: p5en.48xlarge}", "H200", ""),
        ("nodeSelector: {node.kubernetes.io/instance-type: p6-b200.48xlarge}", "B200", ""),
        ("nodeSelector: {node.kubernetes.io/instance-type: a3-ultragpu-8g}", "H200", ""),
        ("nodeSelector: {beta.kubernetes.io/instance-type: x, eks.amazonaws.com/instance-gpu-name: h100}", "h100", ""),
        ("nodeSelector: {disk: ssd}", None, ""),
    ],
)  # fmt: skip
def test_the_gpu_of_a_selector(selector: str, gpu: str | None, note: str) -> None:
    launch = Manifest(POD + f"    args: [a/b]\n  {selector}\n").only
    if note == "slice":
        assert value(launch.gpu) == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"
    else:
        assert value(launch.gpu) == gpu
    assert note in " ".join(launch.server.notes)
    assert bool(note) == bool(launch.server.notes)


@pytest.mark.parametrize(("values", "gpu"), [("[NVIDIA-H20]", "NVIDIA-H20"), ("[NVIDIA-H100, NVIDIA-H200]", None)])
def test_the_gpu_of_an_affinity(values: str, gpu: str | None) -> None:
    launch = Manifest(
        POD + "    args: [a/b]\n  affinity:\n    nodeAffinity:\n"
        "      requiredDuringSchedulingIgnoredDuringExecution:\n        nodeSelectorTerms:\n"
        f"        - matchExpressions: [{{key: nvidia.com/gpu.product, operator: In, values: {values}}}]\n"
    ).only
    assert value(launch.gpu) == gpu


@pytest.mark.parametrize(
    ("limits", "gpus"),
    [
        ("{nvidia.com/gpu: 8}", "8"),
        ("{amd.com/gpu: '4'}", "4"),
        ("{nvidia.com/mig-1g.10gb: 2}", None),
        ("{nvidia.com/gpu: 0}", None),
    ],
)
def test_the_number_of_gpus(limits: str, gpus: str | None) -> None:
    launch = Manifest(POD + f"    args: [a/b]\n    resources: {{limits: {limits}}}\n").only
    assert value(launch.gpus) == gpus


def test_mounts() -> None:
    launch = Manifest(
        POD + "    args: [/models/x]\n    volumeMounts:\n"
        "    - {name: host, mountPath: /models/, subPath: v4}\n"
        "    - {name: claim, mountPath: /cache}\n"
        "    - {name: shm, mountPath: /dev/shm}\n"
        "    - {name: template, mountPath: /data}\n"
        "  volumes:\n  - {name: host, hostPath: {path: /srv/models}}\n"
        "  - {name: claim, persistentVolumeClaim: {claimName: hf}}\n  - {name: shm, emptyDir: {}}\n"
    ).only
    assert launch.server.mounts == {"/models": "/srv/models/v4", "/cache": "hf", "/data": "template"}


def test_scripts_in_a_config_map() -> None:
    manifest = Manifest(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: scripts}\ndata:\n"
        "  note.md: vllm serve a/b --x\n"
        "  start.sh: |\n    #!/bin/bash\n    MODEL=a/b\n    vllm serve $MODEL \\\n      --tensor-parallel-size 8\n"
    )
    launch = manifest.only
    assert launch.name == "ConfigMap/scripts start.sh"
    assert texts(launch) == ["a/b", "--tensor-parallel-size", "8"]
    assert manifest.at(manifest.word("a/b")) == (8, 11)
    assert manifest.at(manifest.word("8")) == (10, 30)


def test_a_model_that_kserve_s_runtime_serves() -> None:
    manifest = Manifest(
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: m}\nspec:\n"
        "  predictor:\n    nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}\n    model:\n"
        "      modelFormat: {name: huggingface}\n      storageUri: hf://deepseek-ai/DeepSeek-V4-Flash:main\n"
        "      args: [--model_name=x, --tensor-parallel-size, '4', --model_dir, /d, --enforce-eager]\n"
        "      resources: {limits: {nvidia.com/gpu: 4}}\n"
    )
    launch = manifest.only
    assert launch.server.entrypoint == "engine"
    model = "deepseek-ai/DeepSeek-V4-Flash"
    assert texts(launch) == ["--model", model, "--tensor-parallel-size", "4", "--enforce-eager"]
    assert manifest.written(manifest.word(model)) == model
    assert (value(launch.gpu), value(launch.gpus)) == ("NVIDIA-H200", "4")


def test_a_model_in_a_volume_that_kserve_s_runtime_serves() -> None:
    launch = Manifest(
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: m}\nspec:\n  predictor:\n"
        "    model: {modelFormat: {name: vLLM}, storageUri: 'pvc://claim/v4', args: [--max-num-seqs=8]}\n"
    ).only
    assert texts(launch) == ["--model", "/mnt/models", "--max-num-seqs=8"]
    assert launch.server.mounts == {"/mnt/models": "pvc://claim/v4"}


def test_an_llm_inference_service() -> None:
    launch = Manifest(
        "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nmetadata: {name: m}\nspec:\n"
        "  model: {uri: 'hf://deepseek-ai/DeepSeek-V4-Pro', name: pro}\n"
        "  parallelism: {tensor: 8, expert: true}\n"
        "  template:\n    containers:\n    - name: main\n"
        "      env: [{name: VLLM_ADDITIONAL_ARGS, value: \"--kv-cache-dtype fp8 -O '{}'\"}]\n"
        "      resources: {limits: {nvidia.com/gpu: '8'}}\n"
    ).only
    assert launch.name == "LLMInferenceService/m model"
    assert texts(launch) == [
        "deepseek-ai/DeepSeek-V4-Pro", "--served-model-name", "pro", "--tensor-parallel-size", "8",
        "--enable-expert-parallel", "--kv-cache-dtype", "fp8", "-O", "{}",
    ]  # fmt: skip
    assert value(launch.gpus) == "8"


def test_another_server_is_named() -> None:
    launch = Manifest(POD + "    command: [python3, -m, sglang.launch_server, --model, a/b]\n").only
    assert launch.server.other == "sglang"
