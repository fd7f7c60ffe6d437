"""Nodes beside each other: verdicts, differences, text and JSON; and the command on a real two-node Ray cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from dsv4check.cli.launch_options import LaunchOptions
from dsv4check.cli.main import make_app
from dsv4check.probe.cluster import Node, result_of
from dsv4check.probe.nodes import CommandAnswer
from dsv4check.report.cluster_schema import cluster_json_schema
from dsv4check.report.cluster_text import cluster_blocks
from dsv4check.report.doctor_schema import doctor_json_schema
from dsv4check.report.probe_schema import probe_json_schema
from dsv4check.report.text_format import render_blocks
from tests.rehearsal.live import live_environment, needs_vllm

LAUNCH = ["--", "vllm", "serve", "deepseek-ai/DeepSeek-V4-Flash", "-tp", "8", "--kv-cache-dtype", "fp8"]


def looked(**changes: Any) -> CommandAnswer:
    build = {"found": True, "version": "0.28.0", "nearest": "0.28.0", "differs": [], **changes.get("build", {})}
    gpus = [{"name": "NVIDIA H200", "sm": changes.get("sm", "9.0"), "memory_mib": 143771}] * 8
    packages = {"torch": "2.13.0", **changes.get("packages", {})}
    content = {
        "build": build,
        "fingerprints": [{"id": "auto-kv-cache-dtype", "value": changes.get("auto", "refused")}],
        "machine": {"gpus": gpus, "python": "3.12.3", "packages": packages, "variables": {}},
        "observations": changes.get("observations", []),
    }
    return CommandAnswer(0, content)


def probed(verdict: str = "pass") -> CommandAnswer:
    return CommandAnswer(0, {"verdict": verdict, "devices": []})


def node(name: str, doctor: CommandAnswer, probe: CommandAnswer, gpus: int = 8) -> Node:
    return Node(name, f"id-{name}", gpus, doctor, probe)


def said(*nodes: Node) -> str:
    return render_blocks(cluster_blocks(result_of(nodes, 12.0)), 200)


def test_equal_nodes() -> None:
    result = result_of((node("a", looked(), probed()), node("b", looked(), probed())))
    assert (result.verdict.value, result.differences) == ("pass", ())
    assert "PASS: the caches went through the kernel on all 2 nodes" in said(*result.nodes)
    jsonschema.validate(result.to_dict(), cluster_json_schema())


@pytest.mark.parametrize(
    ("change", "id"),
    [
        ({"sm": "10.0"}, "gpu-sm"),
        ({"build": {"version": "0.29.0"}}, "vllm-version"),
        ({"auto": "fp8"}, "fingerprint-auto-kv-cache-dtype"),
        ({"packages": {"torch": "2.12.0"}}, "package-torch"),
    ],
)
def test_nodes_that_do_not_go_together(change: dict[str, Any], id: str) -> None:
    result = result_of((node("a", looked(), probed()), node("b", looked(**change), probed())))
    assert id in {item.id for item in result.differences}
    assert result.verdict.value == "fail"
    text = said(*result.nodes)
    assert "FAIL: the nodes do not go together" in text
    assert "Not the same on all nodes" in text


def test_a_difference_that_only_warns_is_no_failure() -> None:
    result = result_of((node("a", looked(), probed()), node("b", looked(packages={"triton": "3.6"}), probed())))
    assert [item.state.value for item in result.differences] == ["warning"]
    assert result.verdict.value == "pass"


def test_the_worst_node_counts() -> None:
    good = node("a", looked(), probed())
    bad = node("b", looked(), CommandAnswer(1, {"verdict": "fail", "devices": [FAILED]}))
    assert result_of((good, bad)).verdict.value == "fail"
    assert "GPU 0: contract: swa failed: kv must have shape" in said(good, bad)
    gone = node("c", CommandAnswer(None, None, "it took longer than 180 s"), probed())
    assert result_of((good, gone)).verdict.value == "unavailable"
    assert "no answer from doctor: it took longer than 180 s" in said(good, gone)
    assert result_of((good, node("d", looked(), probed("no-gpu")))).verdict.value == "no-gpu"


FAILED = {"device": "GPU 0", "checks": [{"name": "contract: swa", "status": "failed", "message": "kv must have shape"}]}


def test_a_machine_on_which_the_launch_fails() -> None:
    seen = {"id": "driver-cuda", "state": "error", "what": "driver", "found": "525.60", "why": "too old", "advice": ""}
    bad = node("b", looked(observations=[seen]), probed())
    assert result_of((bad,)).verdict.value == "fail"
    assert "error: driver: 525.60; too old" in said(bad)


def test_a_head_node_without_gpus_is_no_worker() -> None:
    head = node("head", looked(packages={"torch": "none"}), probed("no-gpu"), gpus=0)
    result = result_of((head, node("a", looked(), probed())))
    assert (result.verdict.value, result.differences) == ("pass", ())
    assert "no GPUs, so vLLM places no rank there: head" in said(*result.nodes)


def test_options_travel_as_words() -> None:
    options = LaunchOptions(gpu="H200", gpus=8, env=["A=1", "B=2"], online=True)
    words = options.words(["vllm", "serve", "m"])
    assert words == [
        "--gpu",
        "H200",
        "--gpus",
        "8",
        "--env",
        "A=1",
        "--env",
        "B=2",
        "--online",
        "--",
        "vllm",
        "serve",
        "m",
    ]
    assert LaunchOptions().words("vllm serve m") == ["--", "vllm serve m"]


def test_without_a_cluster() -> None:
    pytest.importorskip("ray")
    words = ["probe", "--ray", "--ray-address", "127.0.0.1:1", "--format", "json", *LAUNCH]
    done = CliRunner().invoke(make_app(["probe", "rules"]), words)
    assert done.exit_code == 3
    document = json.loads(done.stdout)
    jsonschema.validate(document, cluster_json_schema())
    assert document["verdict"] == "unavailable"
    assert document["unavailable"].startswith("no Ray cluster at '127.0.0.1:1'")
    plain = CliRunner().invoke(
        make_app(["probe", "rules"]), ["probe", "--ray", "--ray-address", "127.0.0.1:1", *LAUNCH]
    )
    assert plain.exit_code == 3
    assert plain.stdout.startswith("PROBE UNAVAILABLE")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    made.add_node(num_cpus=1, num_gpus=0)
    made.wait_for_nodes()
    yield made
    made.shutdown()


@needs_vllm
def test_doctor_and_probe_on_two_nodes(cluster: Any) -> None:
    environment = live_environment("0.33.0")
    assert environment is not None
    place = ["--python", environment.python, "--vllm-path", os.pathsep.join(environment.folders)]
    words = ["--format", "json", "--allow-no-gpu", "--gpu", "H200", "--gpus", "8", "--timeout", "120", *place]
    done = CliRunner().invoke(
        make_app(["probe", "rules"]), ["probe", "--ray", "--ray-address", cluster.address, *words, *LAUNCH]
    )
    document = json.loads(done.stdout)
    jsonschema.validate(document, cluster_json_schema())
    assert (len(document["nodes"]), document["differences"]) == (2, [])
    # The PyTorch that is at hand need not be the release's: then the machine fails, the same on both nodes.
    seen = [item for node in document["nodes"] for item in node["doctor"]["observations"]]
    wrong = {item["id"] for item in seen if item["state"] == "error"}
    assert wrong <= {"package-torch"}
    assert (done.exit_code, document["verdict"]) == ((1, "fail") if wrong else (0, "no-gpu"))
    for item in document["nodes"]:
        assert item["unavailable"] is None
        assert item["doctor"]["build"]["nearest"] == "0.33.0"
        assert item["doctor"]["launch"]["verdict"] != "fail"
        jsonschema.validate(item["doctor"], doctor_json_schema())
        jsonschema.validate(item["probe"], probe_json_schema())
        assert item["probe"]["verdict"] == "no-gpu"
        assert item["probe"]["layouts"]["by_vllm"] is True
        checks = item["probe"]["devices"][0]["checks"]
        assert any(check["name"].startswith("bytes: swa") and check["status"] == "ok" for check in checks), checks
