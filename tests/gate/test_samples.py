"""The sample launch files, whole and garbled: launches are found with their facts, nothing is lost or raised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv4check.engine.rule import load_rules
from dsv4check.gate.file_check import FileChecker, FileResult
from dsv4check.gate.judge import Judge
from dsv4check.gate.run import report_of
from dsv4check.gate.settings import Facts, load_settings
from dsv4check.launchfiles.text import SourceText
from dsv4check.report.gate_formats import GateFormat, render
from tests.launchfiles.mutations import mutated

SAMPLES = Path(__file__).parents[1] / "launchfiles/samples"
NAMES = sorted(path.name for path in SAMPLES.iterdir())
RULES = load_rules()
CHECKER = FileChecker(
    Judge(RULES, Facts(), fixes=False),
    load_settings(SAMPLES, None, True),
    SAMPLES,
    {rule.id: rule.name for rule in RULES},
)

EXPECTED = {
    # File: (model, vLLM, GPU, GPUs of a node, nodes) of every launch; None for what the file does not state.
    "01-k8s-deployment-flash0731-h200-tp4.yaml": [("DeepSeek-V4-Flash-0731", "0.30.0", "H200", "4", None)],
    "02-dynamo-dgd-pro0813-h200-tep8.yaml": [("DeepSeek-V4-Pro-0813", None, "H200", "8", None)],
    "04-docker-compose-flash-rtxpro6000-b12x.yml": [("DeepSeek-V4-Flash", None, None, None, None)],
    "05-docker-compose-2node-h20.yml": [("model", "0.25.0", None, "8", None)],
    "06-helm-values-production-stack.yaml": [("DeepSeek-V4-Flash-NVFP4", "0.33.0", "B200", "4", None)],
    "07-systemd-spark-head.service": [("DeepSeek-V4-Flash-0731", None, None, None, None)],
    "09-shell-backslashes-exports.sh": [("DeepSeek-V4-Pro", None, None, None, None)],
    "10-ray-serve-llm.yaml": [("DeepSeek-V4-Flash-0731", None, "H200", None, None)],
    "11-vllm-config.yaml": [("DeepSeek-V4-Flash-DSpark", None, None, None, None)],
    "12-llm-d-values-pro-gb200-pd.yaml": [("DeepSeek-V4-Pro", None, "GB200", "4", "2")] * 2,
    "14-skypilot-flash-b200.yaml": [("DeepSeek-V4-Flash", "0.33.0", "B200", "8", None)],
    "15-kserve-inferenceservice.yaml": [("model", "0.25.1", "H200", "2", None)],
    "16-gonka-node-config-h100.json": [("DeepSeek-V4-Flash-0731", None, None, None, None)],
    "18-python-offline.py": [("DeepSeek-V4-Flash", None, None, None, None)],
    "19-gpustack-model.yaml": [("DeepSeek-V4.1-Flash-1017", None, None, None, None)],
}
NOT_CHECKED = {
    "04-docker-compose-flash-rtxpro6000-b12x.yml": "voipmonitor/vllm:chthonic-consecration",
    "07-systemd-spark-head.service": "eugr/spark-vllm-b12x:latest",
}
"""Images that hold forks: the files do not tell which vLLM."""


OF_DOCKER = ("--rm", "--name", "--gpus", "--network", "--ipc", "--shm-size", "--ulimit", "--device")
OF_DYNAMO_FRONTEND = ("--trust-remote-code",)


def text_of(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def check(name: str, text: str) -> FileResult:
    return CHECKER.check_text(SourceText(name, text), None)


def test_the_table_has_every_sample() -> None:
    assert sorted(EXPECTED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_sample(name: str) -> None:
    text = text_of(name)
    result = check(name, text)
    assert not result.problems
    found = []
    for launch in result.launches:
        facts = {key: fact.value for key, fact in launch.facts.items() if fact.source == "file"}
        model = (launch.model or "").rsplit("/", 1)[-1]
        found.append((model, *(facts.get(key) for key in ("vllm", "gpu", "gpus", "nodes"))))
        if name in NOT_CHECKED:
            assert launch.verdict is None
            assert NOT_CHECKED[name] in launch.not_checked
        else:
            assert launch.verdict == "pass", (launch.not_checked, launch.findings)
    assert found == EXPECTED[name]
    # Every flag of the file reaches the command, in its order.
    said = " ".join(" ".join(launch.args) for launch in result.launches)
    code = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    for flag in re.findall(r"--[a-z][\w-]*(?=[=\s\"'])", code):
        if flag not in OF_DOCKER and flag not in OF_DYNAMO_FRONTEND and not flag.startswith("--dyn-"):
            assert flag in said, flag
    lines = text.splitlines()
    for launch in result.launches:
        for finding in launch.findings:
            region = finding.region
            if region.token:
                assert lines[region.line - 1][region.column - 1 :].strip(), (region, lines[region.line - 1])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_garbled_samples_never_raise_and_render(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    result = check(name, data.draw(mutated(text_of(name))))
    assert all(item.verdict in ("pass", "warn", "fail", None) for item in result.launches)
    assert all(item.not_checked for item in result.launches if item.verdict is None)
    report = report_of([result], CHECKER)
    for format in GateFormat:
        assert render(report, format, rules=RULES, fail_rank=2)


@pytest.mark.parametrize("name", NAMES)
def test_line_ends_of_windows_change_nothing(name: str) -> None:
    plain, windows = check(name, text_of(name)), check(name, text_of(name).replace("\n", "\r\n"))
    assert [item.args for item in windows.launches] == [item.args for item in plain.launches]
    assert [item.env for item in windows.launches] == [item.env for item in plain.launches]
    for one, other in zip(plain.launches, windows.launches, strict=True):
        assert one.region == other.region
        assert [item.region for item in one.findings] == [item.region for item in other.findings]
