"""``docker run`` and its kin."""

from __future__ import annotations

import pytest

from dsv4check.launchfiles.extract import extract
from dsv4check.launchfiles.records import Launch
from tests.launchfiles.reading import check_places, context_of, env, texts

IMAGE = "vllm/vllm-openai:v0.24.0"


def read(text: str) -> Launch:
    context = context_of(text, "run.sh", neighbour={"x.env": "A='1'\nTP=4\n"}.get)
    (launch,) = extract(context).launches
    check_places(context, [launch])
    assert not context.problems
    return launch


@pytest.mark.parametrize(
    "options",
    [
        *("", "-itd --rm", "-p 8000:8000", "--ipc=host --shm-size 1g", "--unknown=x", "--device nvidia.com/gpu=all"),
        *("--ulimit memlock=-1 --network host", "$OPTS", '"${OPTS[@]}"', "-itv /a:/b", "--entrypoint ''", "--"),
    ],
)
def test_options(options: str) -> None:
    behind = "vllm serve M" if "entrypoint" in options else "M"
    launch = read(f"docker run {options} {IMAGE} {behind} -tp 8")
    assert texts(launch) == ["M", "-tp", "8"]
    assert launch.image is not None
    assert launch.image.value == IMAGE


def test_environment() -> None:
    launch = read(f"export P=9\ndocker run -e A=b -eB=c --env=C=d --env D=e -e HF -e P {IMAGE} M")
    assert env(launch) == {"A": "b", "B": "c", "C": "d", "D": "e", "P": "9"}
    assert env(read(f"podman run --env-file x.env {IMAGE} M")) == {"A": "1", "TP": "4"}


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("--gpus all", "all"),
        ("--gpus=8", "8"),
        ("--gpus '\"device=0,1\"'", "device=0,1"),
        ("--gpus device=0", "device=0"),
        ("--device nvidia.com/gpu=all", "all"),
        ("--device nvidia.com/gpu=0 --device=nvidia.com/gpu=1", "device=0,1"),
        ("--device /dev/fuse", None),
    ],
)
def test_gpus(options: str, gpus: str | None) -> None:
    stated = read(f"nerdctl run {options} {IMAGE} M").server.gpus
    assert (stated.value if stated else None) == gpus


def test_mounts() -> None:
    launch = read(f"docker run -v /h:/c:ro --mount type=bind,source=/a,target=/b {IMAGE} M")
    assert dict(launch.server.mounts) == {"/c": "/h", "/b": "/a"}


@pytest.mark.parametrize(
    ("command", "notes"),
    [
        (f"docker run --entrypoint bash {IMAGE} -c 'vllm serve M'", 0),
        (f"docker run --entrypoint vllm {IMAGE} serve M", 0),
        ("docker run --entrypoint /bin/bash img -lc 'vllm serve M'", 0),
        (f"docker run {IMAGE} bash -c 'pip install x && vllm serve M'", 0),
        (f"docker run {IMAGE} vllm serve M", 1),
        ("docker run r.example:5000/v/vllm-openai:v0.24.0@sha256:abc M", 0),
        ("sudo docker container run vllm/vllm-openai M", 0),
    ],
)
def test_what_is_started(command: str, notes: int) -> None:
    launch = read(command)
    assert texts(launch) == ["M"]
    assert len(launch.server.notes) == notes


def test_a_private_image_called_like_vllm() -> None:
    launch = read("docker run me/vllm:1 --model M -tp 8")
    assert texts(launch) == ["--model", "M", "-tp", "8"]
    assert "taken to start `vllm serve`" in launch.server.notes[0]


@pytest.mark.parametrize(
    "text",
    ["docker run --help", "docker run", f"docker run {IMAGE} sleep infinity", f"docker pull {IMAGE} vllm serve M"],
)
def test_what_starts_nothing(text: str) -> None:
    assert extract(context_of(f"{text}\n", "run.sh")).launches == ()
