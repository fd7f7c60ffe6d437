"""The report as plain data: back again, in the published schema, and fit for strangers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsv4check.doctor import DoctorReport, DoctorRequest, examine
from dsv4check.doctor.public import public_data, public_variables, without_home
from dsv4check.errors import InputError
from dsv4check.host.records import Observation, State
from dsv4check.installation.build_facts import Difference
from dsv4check.report.doctor_schema import doctor_json_schema
from tests.doctor.fakes import FakeLooks, tree_of

FLASH = "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8"
DIFFERS = (Difference("kv_cache.auto", '"none"', '"fp8"'),)
PUBLISHED = Path(__file__).parents[2] / "docs/doctor.schema.json"


def whole(folder: Path, **asked: Any) -> DoctorReport:
    looks = FakeLooks(tree_of(folder), differs=DIFFERS, failing=["driver"])
    return examine(DoctorRequest(**asked), looks=looks, env={"VLLM_LOGGING_LEVEL": "INFO"})


@pytest.mark.parametrize("command", [None, FLASH])
def test_there_and_back(tmp_path: Path, command: str | None) -> None:
    report = whole(tmp_path, command=command)
    data = json.loads(json.dumps(report.to_dict()))
    again = DoctorReport.from_dict(data)
    # The record of the launch stays on its machine; everything else comes back.
    assert again == replace(report, report=None, launch=data["launch"])
    assert again.to_dict() == data
    assert again.verdict is report.verdict
    assert again.open_answers == report.open_answers


@pytest.mark.parametrize("command", [None, FLASH])
def test_it_follows_the_published_schema(tmp_path: Path, command: str | None) -> None:
    schema = doctor_json_schema()
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == schema, "run scripts/write_schema.py"
    data = whole(tmp_path, command=command).to_dict()
    jsonschema.validate(data, schema)
    del data["build"]["found"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


def test_without_vllm_it_follows_the_schema() -> None:
    report = examine(DoctorRequest(), looks=FakeLooks("nothing", gpus=0), env={})
    jsonschema.validate(report.to_dict(), doctor_json_schema())


def test_keys_of_a_newer_program_are_left_out(tmp_path: Path) -> None:
    data = whole(tmp_path).to_dict()
    expected = DoctorReport.from_dict(data)
    for record in (data, data["build"], data["machine"], data["observations"][0], data["fingerprints"][0]):
        record["of_tomorrow"] = 1
    assert DoctorReport.from_dict(data) == expected


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        None,
        {"schema_version": 2},
        {"schema_version": 1},
        {"schema_version": 1, "build": [], "fingerprints": [], "machine": {}, "observations": []},
        {"schema_version": 1, "build": {"found": True}, "fingerprints": 3, "machine": {}, "observations": []},
        {"schema_version": 1, "build": {"found": True}, "fingerprints": [], "machine": {}, "observations": [{}]},
    ],
)
def test_other_data_is_refused(data: Any) -> None:
    with pytest.raises(InputError, match="no report of doctor"):
        DoctorReport.from_dict(data)


def test_the_home_folder_is_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "alice"))
    report = whole(tmp_path / "alice" / "src")
    seen = Observation("x", "limits", State.OK, "x", source=f"{tmp_path}/alice/.cache, {tmp_path}/alicent/y")
    report = replace(report, observations=(*report.observations, seen))
    data = report.to_dict()
    assert data["build"]["package"] == "~/src/vllm"
    assert data["observations"][-1]["source"] == f"~/.cache, {tmp_path}/alicent/y"
    assert f"{tmp_path}/alice/" not in json.dumps(data)


@pytest.mark.parametrize(
    ("text", "home", "expected"),
    [
        ("/home/al/x", "/home/al", "~/x"),
        ("'/home/al'", "/home/al", "'~'"),
        ("/home/al.b/x", "/home/al", "/home/al.b/x"),
        ("/mnt/home/al/x", "/home/al", "/mnt/home/al/x"),
        ("PATH=/home/al/bin:/home/al/x", "/home/al", "PATH=~/bin:~/x"),
        ("/x", "", "/x"),
    ],
)
def test_without_home(text: str, home: str, expected: str) -> None:
    assert without_home(text, home) == expected
    assert public_data({"a": [text, 1, None]}, home) == {"a": [expected, 1, None]}


def test_variables_show_no_secret_and_no_host() -> None:
    shown = public_variables(
        {
            "VLLM_API_KEY": "very-secret",
            "VLLM_HOST_IP": "10.1.2.3",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "gpu-node-7",
            "VLLM_USAGE_STATS_SERVER": "https://bob:pw@stats.acme.corp/x",
            "VLLM_TARGET_DEVICE": "cuda",
            "VLLM_RPC": "tcp://192.168.7.9:5555 hf_abcdefghijklmnopqrstuv",
            "VLLM_ATTENTION_BACKEND": "FLASHMLA",
        }
    )
    assert shown["VLLM_API_KEY"] == "***"
    assert (shown["VLLM_HOST_IP"], shown["VLLM_NIXL_SIDE_CHANNEL_HOST"]) == ("<host>", "<host>")
    assert (shown["VLLM_TARGET_DEVICE"], shown["VLLM_ATTENTION_BACKEND"]) == ("cuda", "FLASHMLA")
    text = str(shown)
    for word in ("very-secret", "10.1.2.3", "gpu-node-7", "bob", "pw", "acme", "192.168", "hf_abc"):
        assert word not in text


def test_a_secret_of_the_launch_is_not_in_the_report(tmp_path: Path) -> None:
    report = whole(tmp_path, command=f"VLLM_API_KEY=hunter-two-22 {FLASH} --api-key hunter-two-23")
    assert "hunter-two" not in json.dumps(report.to_dict())
