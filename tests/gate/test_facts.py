"""What a launch is checked with, and where it comes from."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4check.gate.facts import FactFinder, Known
from dsv4check.gate.records import Fact
from dsv4check.gate.settings import Facts
from dsv4check.launchfiles.records import Launch, Server, Stated
from dsv4check.launchfiles.text import SourceText, Span
from tests.gate.fixing import MODEL, result

SOURCE = SourceText("x.yaml", "one\ntwo\nthree\n")


def at(value: str, line: int = 2) -> Stated:
    start = SOURCE.text.index(("", "one", "two", "three")[line])
    return Stated(value, Span(start, start + 3))


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine has is no fact of a launch somewhere else."""

    def asked() -> None:
        raise AssertionError("the driver of this machine was asked")

    monkeypatch.setattr("dsv4check.inputs.gpu._from_driver", asked)
    monkeypatch.setattr("dsv4check.inputs.vllm_version.installed_vllm", asked)


def known(
    *,
    options: Facts | None = None,
    configured: Facts | None = None,
    comment: dict[str, Stated] | None = None,
    command: dict[str, Any] | None = None,
    **launch: Stated,
) -> Known:
    server = Server(("vllm", "serve"), (), Span(0, 0), **(command or {}))
    finder = FactFinder(SOURCE, options or Facts(), configured or Facts())
    return finder.known(Launch("shell", "x", server, **launch), comment or {})


OPTIONS = Facts(vllm="0.25.0", gpu="H100", gpus=2, nodes=2)
CONFIGURED = Facts(vllm="0.26.0", gpu="B200", gpus=1, nodes=3)


def test_the_configuration_says_what_nothing_else_says() -> None:
    found = known(configured=CONFIGURED)
    assert found.shown == {
        "vllm": Fact("0.26.0", "config"),
        "gpu": Fact("B200", "config"),
        "gpus": Fact("1", "config"),
        "nodes": Fact("3", "config"),
    }
    assert found.vllm is not None
    assert found.vllm.release == "0.26.0"
    assert (found.hardware.name, found.hardware.gpus_per_node, found.hardware.nodes) == ("B200", 1, 3)


def test_an_option_wins_over_the_configuration() -> None:
    found = known(options=OPTIONS, configured=CONFIGURED)
    assert {fact.source for fact in found.shown.values()} == {"option"}
    assert (found.hardware.name, found.hardware.gpus_per_node, found.hardware.nodes) == ("H100", 2, 2)


def test_the_file_wins_over_options() -> None:
    found = known(
        options=OPTIONS,
        configured=CONFIGURED,
        image=at("vllm/vllm-openai:v0.24.0"),
        gpu=at("NVIDIA-H200", 3),
        gpus=at("8", 1),
        nodes=at("1"),
    )
    assert found.shown == {
        "image": Fact("vllm/vllm-openai:v0.24.0", "file", 2),
        "vllm": Fact("0.24.0", "file", 2),
        "gpu": Fact("H200", "file", 3),
        "gpus": Fact("8", "file", 1),
        "nodes": Fact("1", "file", 2),
    }
    assert (found.hardware.name, found.hardware.gpus_per_node, found.hardware.nodes) == ("H200", 8, 1)


def test_a_comment_wins_over_the_rest_of_the_file() -> None:
    comment = {name: at(value, 3) for name, value in (("vllm", "0.28.0"), ("gpu", "B300"), ("gpus", "4"))}
    found = known(comment=comment, image=at("vllm/vllm-openai:v0.24.0"), gpu=at("H200"), gpus=at("8"), nodes=at("2"))
    assert found.shown["vllm"] == Fact("0.28.0", "file", 3)
    assert (found.hardware.name, found.hardware.gpus_per_node, found.hardware.nodes) == ("B300", 4, 2)


def test_memory_of_a_gpu() -> None:
    assert (
        known(options=Facts(gpu="H100", gpu_memory_gib=94)).hardware.memory_mib
        != known(options=Facts(gpu="H100")).hardware.memory_mib
    )
    comment = {"gpu_memory_gib": at("48")}
    assert known(options=Facts(gpu="sm90", gpu_memory_gib=94), comment=comment).hardware.memory_mib == 48 * 1024


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("vllm/vllm-openai:v0.24.0", "0.24.0"),
        ("vllm/vllm-openai:v0.24.0-cu130", "0.24.0"),
        ("docker.io/vllm/vllm-openai:v0.24.0@sha256:0123", "0.24.0"),
        ("registry.example:5000/mirror/vllm-openai:v0.26.0", "0.26.0"),
        ("public.ecr.aws/q9t5s3a7/vllm-release-repo/vllm-openai:v0.24.0", "0.24.0"),
    ],
)
def test_images_with_a_release(image: str, release: str) -> None:
    for found in (known(image=at(image)), known(command={"image": at(image)})):
        assert found.vllm is not None
        assert (found.vllm.release, found.vllm.kind, found.unknown_image) == (release, "release", "")
        assert found.shown["image"].value == image


@pytest.mark.parametrize(
    "image",
    [
        "vllm/vllm-openai",
        "vllm/vllm-openai@sha256:0123",
        "vllm/vllm-openai:$TAG",
        "vllm/vllm-openai:{{ tag }}",
        "$IMAGE",
    ],
)
def test_images_of_an_unstated_release(image: str) -> None:
    found = known(image=at(image))
    assert found.vllm is not None
    assert (found.vllm.kind, found.shown["vllm"].source) == ("unstated", "assumed")


@pytest.mark.parametrize("tag", ["latest", "nightly", "nightly-aarch64"])
def test_moving_tags(tag: str) -> None:
    found = known(image=at(f"vllm/vllm-openai:{tag}"))
    assert found.vllm is not None
    assert found.vllm.note
    assert found.shown["vllm"].source == "file"


def test_an_option_says_what_an_image_without_release_holds() -> None:
    for image in ("vllm/vllm-openai@sha256:0123", "ghcr.io/someone/inference:7"):
        found = known(image=at(image), options=OPTIONS)
        assert found.vllm is not None
        assert found.vllm.release == "0.25.0"


def test_an_image_of_which_nothing_is_known() -> None:
    found = known(image=at("ghcr.io/someone/inference:7"))
    assert (found.vllm, found.unknown_image) == (None, "ghcr.io/someone/inference:7")
    assert "vllm" not in found.shown
    answer = result(
        f"docker run ghcr.io/someone/vllm-build:7 --model {MODEL} -tp 8 --kv-cache-dtype bfloat16\n", vllm=None
    )
    assert "which vLLM the image ghcr.io/someone/vllm-build:7 holds is not known" in answer.not_checked
    assert (answer.verdict, answer.findings) == (None, ())


def test_a_version_that_is_none() -> None:
    found = known(comment={"vllm": at("nonsense")})
    assert found.vllm is not None
    assert found.vllm.kind == "unstated"
    assert "nonsense" in found.notes[0]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("NVIDIA-H200", "H200"),
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("NVIDIA-B200", "B200"),
        ("nvidia-h200-141gb", "H200"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_gpu_products(label: str, name: str) -> None:
    found = known(gpu=at(label))
    assert found.hardware.name is not None
    assert found.hardware.name.startswith(name)
    assert found.notes == []


EMPTY = ["", "  "]


@pytest.mark.parametrize("name", ["Banana9000", "gpu-pool", "$GPU", "${GPU}", "{{ .Values.gpu }}", *EMPTY])
def test_gpu_names_that_say_nothing(name: str) -> None:
    found = known(gpu=at(name), gpus=at("8"))
    assert (found.hardware.name, found.hardware.vendor, found.hardware.gpus_per_node) == (None, None, 8)
    if name in ("Banana9000", "gpu-pool"):
        assert "stay open" in found.notes[0]


def test_an_unknown_gpu_leaves_answers_open() -> None:
    text = f"# dsv4check: gpu=Banana9000\nvllm serve {MODEL} -tp 8 --kv-cache-dtype fp8\n"
    answer = result(text, gpu=None, gpus=None)
    assert answer.findings == ()
    assert answer.not_evaluated
    assert any("Banana9000" in note for note in answer.notes)


def test_nothing_is_known() -> None:
    found = known()
    assert (found.hardware.name, found.hardware.gpus_per_node, found.hardware.nodes) == (None, None, 1)
    assert set(found.shown) == {"vllm"}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8", 8),
        ('"8"', 8),
        ("'4'", 4),
        (" 2 ", 2),
        ('"device=0,1"', 2),
        ("device=3", 1),
        ("device=GPU-1,GPU-2", 2),
        ("all", None),
        ("0", None),
        ("-1", None),
        ("$N", None),
        ("device=$IDS", None),
        ("99999", None),
        ("eight", None),
    ],
)
def test_counts(text: str, count: int | None) -> None:
    assert known(gpus=at(text)).hardware.gpus_per_node == count
    assert known(command={"gpus": at(text)}).hardware.gpus_per_node == count
    # A count that is not known leaves room for one that is stated elsewhere.
    assert known(gpus=at(text), options=Facts(gpus=6)).hardware.gpus_per_node == (count or 6)


def test_docker_devices() -> None:
    text = f"docker run --gpus '\"device=0,1\"' vllm/vllm-openai:v0.24.0 --model {MODEL} -tp 2 --kv-cache-dtype fp8\n"
    answer = result(text, vllm=None, gpus=None)
    assert answer.facts["gpus"] == Fact("2", "file", 1)
    assert answer.facts["vllm"] == Fact("0.24.0", "file", 1)


@pytest.mark.parametrize(
    "tag", ["nightly-0123456789abcdef0123456789abcdef01234567", "nightly-dev-arm64-cu13.0.1-426e59f", "mine"]
)
def test_builds_of_a_commit_are_no_release(tag: str) -> None:
    found = known(image=at(f"vllm/vllm-openai:{tag}"))
    assert (found.vllm, found.unknown_image) == (None, f"vllm/vllm-openai:{tag}")
