"""One launch and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from dsv4check.engine.rule import Severity
from dsv4check.gate.fix import fix_source
from dsv4check.gate.records import Fact, LaunchResult
from dsv4check.gate.run import _bare
from dsv4check.gate.settings import Facts
from dsv4check.launchfiles.text import SourceText
from dsv4check.releases.facts import known_releases
from tests.gate.fixing import MODEL, Everything, checked, checker, fixed, result, results
from tests.gate.test_fix_files import compose, pod

FP8 = "--kv-cache-dtype fp8"


def said(answer: LaunchResult) -> set[str]:
    return {finding.rule for finding in answer.findings if finding.severity is not Severity.NOTE}


def test_a_good_launch() -> None:
    answer = result(f"set -e\nvllm serve {MODEL} -tp 8 {FP8}\n")
    assert (answer.verdict, answer.findings, answer.not_checked) == ("pass", (), "")
    assert answer.command == f"vllm serve {MODEL} -tp 8 {FP8}"
    assert (answer.path, answer.name, answer.format, answer.model) == ("run.sh", "line 2", "shell", MODEL)
    assert answer.facts == {
        "vllm": Fact("0.24.0", "option"),
        "gpu": Fact("B300", "option"),
        "gpus": Fact("8", "option"),
    }


def test_a_finding_with_its_fix() -> None:
    answer = result(f"vllm serve {MODEL} -tp 8 --kv-cache-dtype bfloat16\n", fixes=True)
    assert answer.verdict == "fail"
    finding = answer.findings[0]
    assert finding.fixes[0].verified
    assert finding.fixes[0].command == f"vllm serve {MODEL} -tp 8 {FP8}"
    assert finding.fingerprint
    assert (finding.path, finding.launch) == ("run.sh", "line 1")


def test_a_fix_holds_for_every_value_that_was_tried_and_keeps_the_words_of_the_file() -> None:
    answer = result(f"vllm serve {MODEL} -tp $TP {FP8} --block-size 128\n", fixes=True)
    assert said(answer) == {"KV012"}
    for fix in answer.findings[0].fixes:
        assert fix.verified
        assert '-tp "$TP"' in " ".join(fix.command.split()).replace("\\ ", "")


def test_other_servers_and_models_are_passed_over() -> None:
    for text in (
        "sglang serve --model-path x\n",
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4-Pro\n",
    ):
        answer = result(text)
        assert (answer.other_model, answer.verdict) == (True, None)
        assert "not vLLM" in answer.not_checked
    answer = result("vllm serve meta-llama/Llama-3.1-8B-Instruct --kv-cache-dtype nonsense\n")
    assert (answer.other_model, answer.findings) == (True, ())


def test_a_skipped_launch() -> None:
    answer = result(f"# dsv4check: skip a sketch\nvllm serve {MODEL} --kv-cache-dtype bfloat16\n")
    assert (answer.not_checked, answer.findings, answer.other_model) == ("left out: a sketch", (), False)
    answer = result(f"vllm serve {MODEL}\n", configured=Facts(skip="of the past"))
    assert answer.not_checked == "left out: of the past"


def test_environment_of_the_file_wins_over_the_configuration() -> None:
    text = f"export VLLM_ATTENTION_BACKEND=FLASHMLA\nvllm serve {MODEL} -tp 8 {FP8}\n"
    bare = f"vllm serve {MODEL} -tp 8 {FP8}\n"
    assert said(result(text)) == said(result(bare, env={"VLLM_ATTENTION_BACKEND": "FLASHMLA"})) != set()
    assert said(result(bare)) == set()


def test_a_finding_of_a_variable_stands_at_the_variable() -> None:
    text = f"export VLLM_ATTENTION_BACKEND=FLASHMLA\nvllm serve {MODEL} -tp 8 {FP8}\n"
    assert {finding.region.line for finding in result(text).findings} == {1}


@pytest.mark.parametrize(
    "name", ["VLLM_PORT", "VLLM_USE_DEEP_GEMM", "VLLM_KV_CACHE_LAYOUT", "VLLM_USE_V2_MODEL_RUNNER"]
)
def test_a_variable_of_unknown_value_is_not_judged(name: str) -> None:
    assert said(result(f"export {name}=$X\nvllm serve {MODEL} -tp 8 {FP8}\n")) == set()


def test_a_wrong_value_is_fixed_in_front_of_further_flags() -> None:
    outcome = fixed(f'vllm serve {MODEL} -tp 8 --kv-cache-dtype bfloat16 "$@"\n')
    assert outcome.source.text == f'vllm serve {MODEL} -tp 8 {FP8} "$@"\n'


def test_a_config_file_beside_the_launch(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    text = f"vllm serve {MODEL} --config c.yaml\n"
    (tmp_path / "c.yaml").write_text("tensor-parallel-size: 8\nkv-cache-dtype: fp8\n")
    assert result(text, path=script).verdict == "pass"
    (tmp_path / "c.yaml").write_text("tensor-parallel-size: 8\nkv-cache-dtype: bfloat16\n")
    assert result(text, path=script).verdict == "fail"


def test_nothing_outside_the_tree_is_read(tmp_path: Path) -> None:
    inside = tmp_path / "tree"
    inside.mkdir()
    (tmp_path / "c.yaml").write_text("kv-cache-dtype: bfloat16\n")
    (inside / "link.yaml").symlink_to(tmp_path / "c.yaml")
    for name in ("../c.yaml", str(tmp_path / "c.yaml"), "link.yaml"):
        answer = result(f"vllm serve {MODEL} -tp 8 --config {name}\n", path=inside / "run.sh")
        assert (said(answer), answer.verdict) == (set(), "pass")


# -- releases ------------------------------------------------------------------------------------------------


def test_an_unstated_release_says_what_every_release_has() -> None:
    text = f"vllm serve {MODEL} -tp 8 {FP8} --no-such 100\n"
    everywhere = set.intersection(*(said(result(text, vllm=name)) for name in known_releases()))
    assert everywhere == {"FL001"}
    answer = result(text, vllm=None)
    assert said(answer) == everywhere
    assert answer.facts["vllm"].source == "assumed"


@pytest.mark.parametrize("flags", ["-tp 8", f"-tp 8 {FP8} --enable-lora", f"-tp 4 {FP8} --max-num-active-seqs 8"])
def test_an_unstated_release_leaves_open_what_only_some_have(flags: str) -> None:
    text = f"vllm serve {MODEL} {flags}\n"
    by_release = [said(result(text, vllm=name)) for name in known_releases()]
    everywhere = set.intersection(*by_release)
    answer = result(text, vllm=None)
    assert set().union(*by_release) - everywhere
    assert said(answer) == everywhere
    newest = by_release[-1] - everywhere
    for rule in newest:
        assert any(rule in question.what for question in answer.not_evaluated), rule


def test_an_image_states_the_release_per_container() -> None:
    text = pod(f"args: [--model={MODEL}, --tensor-parallel-size=8]")
    assert said(result(text, "d.yaml", vllm="0.33.0")) == {"KV001"}
    newer = text.replace("v0.24.0", "v0.33.0")
    assert said(result(newer, "d.yaml", vllm="0.24.0")) == set()


# -- secrets -------------------------------------------------------------------------------------------------

SECRET = "s3cr3t-4c1d"
LEAKS = {
    "flag": ("run.sh", f"vllm serve {MODEL} -tp 8 --api-key {SECRET} --kv-cache-dtype bfloat16 --no-such\n"),
    "joined flag": ("run.sh", f"vllm serve {MODEL} --api-key={SECRET} --hf-token={SECRET} --block-size 128\n"),
    "several keys": ("run.sh", f"vllm serve {MODEL} --api-key {SECRET} {SECRET}2 --block-size 128\n"),
    "variable": ("run.sh", f"export HF_TOKEN={SECRET} VLLM_API_KEY={SECRET}\nvllm serve {MODEL} --block-size 128\n"),
    "variable in a flag": ("run.sh", f"KEY={SECRET}\nvllm serve {MODEL} --api-key $KEY --block-size 128\n"),
    "assignment": ("run.sh", f"HUGGING_FACE_HUB_TOKEN={SECRET} vllm serve {MODEL} --block-size 128 --no-such x\n"),
    "docker": (
        "run.sh",
        f"docker run -e HF_TOKEN={SECRET} vllm/vllm-openai:v0.24.0 --model {MODEL} --api-key {SECRET} --no-such\n",
    ),
    "kubernetes": (
        "d.yaml",
        pod(
            "env:",
            f"- {{name: HF_TOKEN, value: {SECRET}}}",
            "args:",
            f"- --model={MODEL}",
            f"- --api-key={SECRET}",
            "- --block-size=128",
            "- --no-such",
        ),
    ),
    "compose": (
        "compose.yaml",
        compose("environment:", f"  - HF_TOKEN={SECRET}", f"command: --model {MODEL} --api-key {SECRET} --no-such"),
    ),
    "systemd": (
        "a.service",
        f"[Service]\nEnvironment=HF_TOKEN={SECRET}\nExecStart=/bin/vllm serve {MODEL} --api-key {SECRET} --no-such\n",
    ),
    "Dockerfile": (
        "Dockerfile",
        f"FROM vllm/vllm-openai:v0.24.0\nENV HF_TOKEN={SECRET}\n"
        f'CMD ["--model", "{MODEL}", "--api-key", "{SECRET}", "--no-such"]\n',
    ),
    "Python": ("run.py", f"import os\nos.system('vllm serve {MODEL} --api-key {SECRET} --no-such')\n"),
    "a wrong model": ("run.sh", f"vllm serve meta-llama/Llama-3.1-8B --api-key {SECRET}\n"),
    "a wrong config": ("run.sh", f"vllm serve /model --tokenizer-mode deepseek_v4 --hf-token {SECRET}\n"),
}


def strings(value: Any) -> Iterator[str]:
    """Every text in a result, but for the corrected command that is compared and never printed."""
    if isinstance(value, str):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            if item.name != "edited":
                yield from strings(getattr(value, item.name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from strings(item)


@pytest.mark.parametrize("case", LEAKS)
def test_no_secret_is_said(case: str) -> None:
    name, text = LEAKS[case]
    for facts in ({}, {"vllm": None, "gpu": None, "gpus": None}):
        answers = results(text, name, fixes=True, **facts)
        assert answers
        for answer in answers:
            assert answer.other_model or answer.not_checked or answer.findings
            assert [text for text in strings(answer) if SECRET in text] == []


@pytest.mark.parametrize("case", LEAKS)
def test_no_secret_is_in_what_a_report_keeps(case: str) -> None:
    name, text = LEAKS[case]
    for judged in checked(text, name, fixes=True).judged:
        assert SECRET not in repr(_bare(judged.result))


@pytest.mark.parametrize("case", LEAKS)
def test_no_secret_is_said_while_fixing(case: str) -> None:
    name, text = LEAKS[case]
    outcome = fix_source(SourceText(name, text), None, checker(), Everything())
    assert [line for line in (*outcome.applied, *outcome.refused) if SECRET in line] == []
    assert outcome.source.text.count(SECRET) == text.count(SECRET)


def test_the_same_command_elsewhere_has_the_same_answer_at_its_own_place() -> None:
    command = f"vllm serve {MODEL} -tp 8 --kv-cache-dtype bfloat16"
    first, second, other = results(f"{command}\n# between\n  {command}\n{command} --seed 1\n", fixes=True)
    assert said(first) == said(second) == said(other) != set()
    assert [item.region.line for launch in (first, second, other) for item in launch.findings] == [1, 3, 4]
    columns = [item.region.column for launch in (first, second) for item in launch.findings]
    assert columns[1] == columns[0] + 2
    assert [fix.command for item in first.findings for fix in item.fixes] == [
        fix.command for item in second.findings for fix in item.fixes
    ]
    outcome = fixed(f"{command}\n{command}\n")
    assert outcome.source.text == 2 * f"vllm serve {MODEL} -tp 8 {FP8}\n"


@pytest.mark.parametrize(
    "how", ["VLLM_ASCEND_ENABLE_FLASHCOMM1=1 vllm serve {} ", "vllm serve {} --quantization ascend "]
)
def test_launches_on_ascend_are_not_judged(how: str) -> None:
    answer = result(how.format(MODEL) + "-tp 8 --block-size 128\n")
    assert answer.verdict is None
    assert "Ascend" in answer.not_checked
