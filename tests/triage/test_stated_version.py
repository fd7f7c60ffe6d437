from __future__ import annotations

import pytest

from dsv4check.triage.stated import read_stated
from tests.triage.readings import log_reading, log_run, report_of


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (" ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.27.0", "0.27.0"),
        ("vLLM server version 0.33.0, serving model deepseek-ai/DeepSeek-V4-Pro", "0.33.0"),
        ("vLLM API server version 0.20.0", "0.20.0"),
        ("Initializing a V1 LLM engine (v0.23.1rc1.dev788+gfa4321de3) with config: ", "0.23.1rc1.dev788+gfa4321de3"),
    ],
)
def test_the_first_lines_of_a_start_state_the_version(line: str, version: str) -> None:
    run = log_run([line])
    assert read_stated(log_reading(run), run).vllm == version


@pytest.mark.parametrize(
    ("text", "version", "how"),
    [
        ("vLLM Version                 : 0.23.1rc1.dev788+gabcdef0 (git sha: abcdef0)", None, "collect_env"),
        ("[pip3] vllm==0.24.0", "0.24.0", "package list"),
        ("Name: vllm\nVersion: 0.25.1", "0.25.1", "package list"),
        ("Package    Version\n----- ----\nvllm                 0.26.0", "0.26.0", "package list"),
        ("docker pull vllm/vllm-openai:v0.28.0-cu130", "vllm/vllm-openai:v0.28.0-cu130", "image"),
        ("We see it with vLLM 0.30.0.", "0.30.0", "prose"),
        ("vllm版本：0.31.0", "0.31.0", "prose"),
        ("vllm-0.23.1rc1.dev145+g8c631d45e.cu130-cp312-cp312-linux_x86_64.whl", None, "package list"),
    ],
)
def test_texts_around_a_log_state_the_version(text: str, version: str | None, how: str) -> None:
    stated = read_stated(*report_of(text))
    facts = [fact for fact in stated.facts if fact.name == "vllm"]
    assert facts[0].how == how
    assert stated.vllm == (version or facts[0].value)
    assert stated.vllm is not None
    assert stated.vllm.startswith(("0.", "vllm/"))


def test_the_log_wins_over_a_package_list_and_the_conflict_is_said() -> None:
    run = log_run([" █▄█ █ ▀▄▀ █  version 0.24.0"])
    stated = read_stated(log_reading(run, "[pip3] vllm==0.23.0\n"), run)
    assert stated.vllm == "0.24.0"
    assert [fact.how for fact in stated.facts if fact.name == "vllm"] == [
        "version banner",
        "package list (contradicts 0.24.0)",
    ]


def test_two_versions_in_prose_are_no_version() -> None:
    stated = read_stated(*report_of("vLLM 0.23.0 works, vLLM 0.24.0 does not."))
    assert stated.vllm is None
    assert any("version" in text for text in stated.missing)


def test_line_numbers_of_a_traceback_are_no_version() -> None:
    text = 'File "/usr/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 1110, in run_engine_core'
    assert read_stated(*report_of(text)).vllm is None


def test_the_model_stands_in_the_banner() -> None:
    run = log_run(["  █▄█▀ █     █     █     █  model   /models/DeepSeek-V4-Flash"])
    assert read_stated(log_reading(run), run).model == "/models/DeepSeek-V4-Flash"


_BUILD = "0.23.1rc1.dev1271+gb6ff8a2f5"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("- **vLLM**: 0.27.0 (pip install)", "0.27.0"),
        ("- **vLLM**: `v0.27.1-cu129`", "0.27.1"),
        ("with vLLM **v0.23.0** it crashes", "0.23.0"),
        ("**vllm version**: 0.24.0", "0.24.0"),
        ("pip install vllm==0.24.0+cu130", "0.24.0+cu130"),
        (f"{_BUILD} on 8xH200", _BUILD),
        ("vLLM 版本：0.26.0", "0.26.0"),
        ("vLLM版本 0.26", "0.26"),
        ("It stops on long sequences (DeepSeek-V4-Flash, v0.24.0)", "0.24.0"),
        ("v0.26.0, works on v0.25.1", "0.26.0"),
        (f"Image: vllm/vllm-openai:nightly\nvLLM: `{_BUILD}`", _BUILD),
        (f"Base image: vllm/vllm-openai:v0.27.0-cu129\nRuntime vLLM: {_BUILD}", _BUILD),
        ("vllm/vllm-openai:nightly, vllm 0.24.0", "0.24.0"),
        ("vllm/vllm-openai:nightly", "vllm/vllm-openai:nightly"),
        ("vllm/vllm-openai:v0.28.0 with vllm 0.27.0 inside", "vllm/vllm-openai:v0.28.0"),
        (f"vLLM 0.22.0 worked, {_BUILD} does not", _BUILD),
        ("vllm-ascend v0.18.0rc1", None),
        ("SGLang v0.25.1", None),
    ],
)
def test_the_most_exact_version_of_a_text_counts(text: str, version: str | None) -> None:
    assert read_stated(*report_of(text)).vllm == version
