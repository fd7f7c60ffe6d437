from __future__ import annotations

import shlex

import pytest
import yaml

from tests.launchfiles.manifests import SAMPLES, Manifest, env, texts, value

HEAD = "services:\n  s:\n    image: vllm/vllm-openai:v0.33.0\n"


def test_a_script_with_defaults_and_escapes() -> None:
    name = "04-docker-compose-flash-rtxpro6000-b12x.yml"
    manifest = Manifest.sample(name)
    launch = manifest.only
    assert manifest.format == "compose"
    assert launch.name == "service dsv4"
    image = "voipmonitor/vllm:chthonic-consecration-f1190eab-b12x0ff2847-pr20-cu132"
    assert value(launch.image) == image
    assert manifest.written(launch.image) == image
    spec = '{"method":"mtp","num_speculative_tokens":2,"draft_sample_method":"probabilistic","moe_backend":"b12x"}'
    script = yaml.safe_load((SAMPLES / name).read_text(encoding="utf-8"))["services"]["dsv4"]["command"]
    for variable, content in {
        "MODEL_PATH": "deepseek-ai/DeepSeek-V4-Flash",
        "TP_SIZE": "4",
        "GPU_MEMORY_UTILIZATION": "0.875",
        "MAX_MODEL_LEN": "130000",
        "MAX_NUM_SEQS": "64",
    }.items():
        script = script.replace(f"$${{{variable}}}", content)
    command = shlex.split(script[script.index("vllm serve") :].replace("\\\n", " "))
    assert command.pop() == "$${SPEC_ARGS[@]}"
    assert texts(launch) == [*command[2:], "--speculative-config", spec]
    assert env(launch)["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert env(launch)["SPEC_JSON"] == spec
    assert len(env(launch)) == 15
    assert launch.server.mounts == {"/root/.cache/huggingface": "/srv/hf"}
    # "all" is no number.
    assert (value(launch.server.gpus), launch.gpus) == ("all", None)
    # What a variable holds stands where its default is.
    assert manifest.at(manifest.word("deepseek-ai/DeepSeek-V4-Flash")) == (25, 33)
    assert manifest.at(manifest.word("130000")) == (29, 39)
    assert manifest.at(manifest.word("--tensor-parallel-size")) == (42, 9)
    assert manifest.at(manifest.word("--speculative-config")) == (37, 20)
    assert manifest.lines() == [3, 4, 32, 33]
    assert any("only its first word" in note for note in launch.server.notes)


def test_a_list_of_arguments() -> None:
    name = "05-docker-compose-2node-h20.yml"
    manifest = Manifest.sample(name)
    launch = manifest.only
    service = yaml.safe_load((SAMPLES / name).read_text(encoding="utf-8"))["services"]["vllm-master"]
    assert launch.name == "service vllm-master"
    assert launch.server.program == ("vllm", "serve")
    assert texts(launch) == service["command"]
    assert env(launch) == dict(item.split("=", 1) for item in service["environment"])
    assert value(launch.image) == "vllm/vllm-openai:v0.25.0"
    assert (value(launch.gpus), launch.gpu) == ("8", None)
    assert launch.server.mounts == {"/model": "/data/DeepSeek-V4-Flash-0731"}
    assert manifest.at(manifest.word("/model")) == (24, 9)
    assert manifest.at(manifest.word("393216")) == (53, 9)
    assert manifest.written(manifest.word("393216")) == '"393216"'
    assert manifest.at(launch.server.env["NCCL_SOCKET_IFNAME"]) == (11, 28)
    assert manifest.lines() == [3, 4, 23]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("command: org/model --max-num-seqs 8", ["org/model", "--max-num-seqs", "8"]),
        ("command: >\n      org/model\n      --max-num-seqs 8\n      -O '{\"a\": 1}'", None),
        ('command: "org/model -O \\"{}\\""', ["org/model", "-O", "{}"]),
        ("command: [org/model, -tp, 2]", ["org/model", "-tp", "2"]),
        ("command: bash -c 'vllm serve org/model -tp 2'", ["org/model", "-tp", "2"]),
        ("entrypoint: vllm serve\n    command: org/model -tp 2", ["org/model", "-tp", "2"]),
        ("entrypoint: []\n    command: [vllm, serve, org/model]", ["org/model"]),
        ("entrypoint: [bash, -c]\n    command: ['vllm serve org/model -tp 2']", ["org/model", "-tp", "2"]),
        ("entrypoint: ~\n    command: [--model, org/model]", ["--model", "org/model"]),
    ],
)
def test_ways_to_write_a_command(command: str, words: list[str] | None) -> None:
    launch = Manifest(f"{HEAD}    {command}\n").only
    assert texts(launch) == (words or ["org/model", "--max-num-seqs", "8", "-O", '{"a": 1}'])
    assert launch.server.notes == ()


def test_words_of_folded_text_stand_where_they_are_written() -> None:
    manifest = Manifest(HEAD + "    command: >\n      org/model\n      --max-num-seqs ${N:-8}\n")
    assert manifest.at(manifest.word("--max-num-seqs")) == (6, 7)
    assert manifest.at(manifest.word("8")) == (6, 27)


@pytest.mark.parametrize(
    ("text", "read", "unknown"),
    [
        ("${A}", "aa", ()),
        ("$A-$A", "aa-aa", ()),
        ("${A:-x}", "aa", ()),
        ("${E:-x}", "x", ()),
        ("${E-x}", "", ()),
        ("${U-x y}", "x y", ()),
        ("${U:-${A}/z}", "aa/z", ()),
        ("${U:-${V:-{z}}}", "{z}", ()),
        ("${A:+x}", "x", ()),
        ("${U:+x}", "", ()),
        ("${A:?no}", "aa", ()),
        ("${U:?no}", "${U:?no}", ("${U:?no}",)),
        ("$U", "$U", ("$U",)),
        ("p${U}s", "p${U}s", ("${U}",)),
        ("$$U $${U}", "$U ${U}", ()),
        ("${U", "${U", ("${",)),
        ("100$", "100$", ()),
    ],
)
def test_interpolation(text: str, read: str, unknown: tuple[str, ...]) -> None:
    manifest = Manifest(HEAD + f"    command: [org/model, '--x={text}']\n", variables={"A": "aa", "E": ""})
    word = manifest.only.server.words[1]
    assert word.text == f"--x={read}"
    assert word.open == unknown
    assert len(word.offsets) == len(word.text)
    assert list(word.offsets) == sorted(word.offsets)


def test_the_file_env_beside_it_and_files_of_variables() -> None:
    files = {".env": "TP=4\nMODEL=org/env\n", "a.env": "X=a\nY=a\n", "b.env": 'Y="b"\n'}
    manifest = Manifest(
        HEAD + "    command: [$MODEL, -tp, $TP]\n    env_file:\n    - a.env\n    - {path: b.env, required: false}\n"
        "    - missing.env\n    environment:\n    - X=own\n    - TP\n    - NOT_SET\n",
        neighbour=files.get,
        variables={"MODEL": "org/outside"},
    )
    assert texts(manifest.only) == ["org/outside", "-tp", "4"]
    assert env(manifest.only) == {"X": "own", "Y": "b", "TP": "4"}


def test_anchors_merges_and_services_that_extend_others() -> None:
    manifest = Manifest(
        """
x-base: &base
  image: vllm/vllm-openai:v0.33.0
  environment: &env {A: base, B: base}
services:
  one:
    <<: *base
    command: [org/one]
    environment: {<<: *env, B: one}
  two:
    extends: {service: one}
    command: [org/two, -tp, "2"]
    environment: [A=two]
    volumes: [/srv:/models]
  three: {extends: three, image: x}
"""
    )
    one, two = manifest.launches
    assert (one.name, texts(one), env(one)) == ("service one", ["org/one"], {"A": "base", "B": "one"})
    assert (two.name, texts(two), env(two)) == ("service two", ["org/two", "-tp", "2"], {"A": "two", "B": "one"})
    assert value(two.image) == "vllm/vllm-openai:v0.33.0"
    assert two.server.mounts == {"/models": "/srv"}


@pytest.mark.parametrize(
    ("devices", "said", "number"),
    [
        ("gpus: 4", "4", "4"),
        ("gpus: all", "all", None),
        ("gpus: [{count: 2}]", "2", "2"),
        ("gpus: [{driver: nvidia, device_ids: ['0', '1']}]", "2", "2"),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [gpu], count: all}]}}}", "all", None),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [gpu], count: '${N:-8}'}]}}}", "8", "8"),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [tpu], count: 3}]}}}", None, None),
        ("deploy: {replicas: 2}", None, None),
    ],
)
def test_devices(devices: str, said: str | None, number: str | None) -> None:
    launch = Manifest(HEAD + f"    command: [org/model]\n    {devices}\n").only
    assert (value(launch.server.gpus), value(launch.gpus)) == (said, number)


def test_volumes_short_and_long() -> None:
    launch = Manifest(
        HEAD + "    command: [/m]\n    volumes:\n    - ./models:/m/:ro\n    - /anonymous\n"
        "    - '${HF:?set HF: please}:/hf'\n"
        "    - {type: bind, source: '${D:-/data}', target: /data}\n    - cache:/cache\n"
    ).only
    assert launch.server.mounts == {
        "/m": "./models",
        "/hf": "${HF:?set HF: please}",
        "/data": "/data",
        "/cache": "cache",
    }


def test_a_file_without_a_server() -> None:
    manifest = Manifest("services:\n  db: {image: postgres, command: [postgres, -c, x=y]}\n  odd: 3\n  none:\n")
    assert (manifest.format, manifest.launches, manifest.problems) == ("compose", [], [])


def test_services_of_something_else() -> None:
    assert Manifest("services:\n  web: {port: 80}\n").format == ""
    assert Manifest("services: [docker]\nscript: [echo]\n").format == ""
