"""Commands on the nodes of a real two-node Ray cluster on this machine."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from dsv4check.probe.nodes import NodeAnswer, RayUnavailable, ask_nodes, packed_program

LAUNCH = ["--gpu", "H200", "--gpus", "8", "--vllm", "0.24.0", "--", "vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    made.add_node(num_cpus=1, num_gpus=0)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def test_every_node_answers_once(cluster: Any) -> None:
    answers = ask_nodes(
        {"check": ["serve-args", "--format", "json", *LAUNCH], "wrong": ["serve-args", "--gpu", "nonsense", "x"]},
        address=cluster.address,
    )
    assert len({answer.node_id for answer in answers}) == len(answers) == 2
    assert len({answer.name for answer in answers}) == 2
    for answer in answers:
        check = answer.answers["check"]
        assert (check.code, check.why) == (1, "")
        assert check.content is not None
        assert check.content["verdict"] == "fail"
        wrong = answer.answers["wrong"]
        assert (wrong.code, wrong.content) == (2, None)
        assert "no GPU" in wrong.why or "unknown" in wrong.why or "nonsense" in wrong.why


def test_a_command_that_takes_too_long(cluster: Any) -> None:
    answers = ask_nodes({"check": ["serve-args", "--format", "json", *LAUNCH]}, address=cluster.address, seconds=0.05)
    assert {answer.answers["check"].why for answer in answers} == {"it took longer than 0 s"}


def test_no_cluster() -> None:
    pytest.importorskip("ray")
    with pytest.raises(RayUnavailable, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        ask_nodes({}, address="127.0.0.1:1")


def test_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(RayUnavailable, match=r"dsv4check\[ray\]"):
        ask_nodes({})


def test_the_program_travels_whole() -> None:
    with zipfile.ZipFile(io.BytesIO(packed_program())) as archive:
        names = archive.namelist()
        assert "dsv4check/cli/main.py" in names
        assert "dsv4check/rules/compiled/checks.json" in names
        assert not [name for name in names if "__pycache__" in name]
        assert json.loads(archive.read("dsv4check/rules/compiled/checks.json"))


def test_records_are_plain() -> None:
    assert NodeAnswer("a", "b", 8).answers == {}
