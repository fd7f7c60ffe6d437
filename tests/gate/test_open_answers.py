"""Findings that become questions."""

from __future__ import annotations

import pytest

from dsv4check.engine.rule import Severity
from dsv4check.gate.records import LaunchResult
from dsv4check.gate.settings import Facts
from tests.gate.fixing import MODEL, result

FP8 = "--kv-cache-dtype fp8"


def said(answer: LaunchResult) -> set[str]:
    return {finding.rule for finding in answer.findings if finding.severity is not Severity.NOTE}


@pytest.mark.parametrize("extra", ['"$@"', "$EXTRA_ARGS", "${ARGS[@]}", "$(cat flags)"])
def test_a_missing_flag_may_stand_in_further_flags(extra: str) -> None:
    assert said(result(f"vllm serve {MODEL} -tp 8\n")) == {"KV001"}
    answer = result(f"vllm serve {MODEL} -tp 8 {extra}\n", fixes=True)
    assert said(answer) == set()
    (question,) = (item for item in answer.not_evaluated if "KV001" in item.what)
    assert "may hold further flags" in question.why
    assert answer.verdict == "pass"


def test_a_written_flag_stays_a_finding() -> None:
    for fixes in (False, True):
        answer = result(f"vllm serve {MODEL} -tp 8 --kv-cache-dtype fp8 --block-size 128 $ARGS\n", fixes=fixes)
        assert said(answer) == {"KV012"}
        assert answer.verdict == "fail"


def test_an_unknown_flag_stays_a_finding() -> None:
    answer = result(f"vllm serve {MODEL} -tp 8 {FP8} --no-such-flag $ARGS\n", fixes=True)
    assert said(answer) == {"FL001"}


def test_a_missing_flag_is_open_without_the_search_for_fixes_too() -> None:
    answer = result(f"vllm serve {MODEL} -tp 8 --enable-auto-tool-choice {FP8} $ARGS\n", fixes=False)
    assert said(answer) == set()


def test_further_flags_are_an_open_question_even_without_findings() -> None:
    answer = result(f"vllm serve {MODEL} -tp 8 {FP8} $ARGS\n", fixes=True)
    assert answer.verdict == "pass"
    assert any("$ARGS may hold further flags" in item.why for item in answer.not_evaluated)


def test_a_config_file_that_is_not_here_may_hold_further_flags() -> None:
    answer = result(f"vllm serve {MODEL} -tp 8 --config /etc/vllm/c.yaml\n", fixes=True)
    assert said(answer) == set()
    assert any("/etc/vllm/c.yaml may hold further flags" in item.why for item in answer.not_evaluated)


def test_values_that_matter_are_named() -> None:
    answer = result(f"vllm serve {MODEL} -tp 8 --kv-cache-dtype $KV\n", fixes=True)
    assert said(answer) == set()
    (question,) = (item for item in answer.not_evaluated if "$KV (of --kv-cache-dtype)" in item.why)
    assert "KV0" in question.what
    assert "--env" in question.how


def test_a_stated_variable_settles_it() -> None:
    text = f"vllm serve {MODEL} -tp 8 --kv-cache-dtype $KV $ARGS\n"
    answer = result(text, env={"KV": "fp8", "ARGS": ""})
    assert (said(answer), answer.verdict) == (set(), "pass")
    assert not any("further" in item.why or "not stated" in item.why for item in answer.not_evaluated)
    answer = result(text, configured=Facts(env={"KV": "bfloat16", "ARGS": "--port 80"}))
    assert answer.verdict == "fail"
