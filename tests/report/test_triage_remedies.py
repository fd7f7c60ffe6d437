"""Remedies in words: no placeholder is ever shown, and every rule's fixes can be said."""

from __future__ import annotations

import re

import pytest

from dsv4check.engine.edits import edits_text
from dsv4check.report.triage_remedies import remedies
from dsv4check.triage.answer import Candidate, Sureness
from tests.launches import all_rules
from tests.report.triage import rule


def said_for(id: str) -> tuple[str, ...]:
    item = rule(id)
    words = (*item.advice, *(edits_text(fix["edits"]) for fix in item.fixes))
    return remedies(Candidate(item, Sureness.LIKELY, (), remedies=words))


def test_no_rule_shows_a_placeholder_or_the_name_of_an_edit() -> None:
    raw = re.compile(r"\{[a-z_][\w.]*\}|\b(?:set|drop) (?:flag|key|vllm|gpu|env|package|model) ")
    for item in all_rules():
        assert [text for text in said_for(item.id) if raw.search(text)] == [], item.id


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("KV001", "--kv-cache-dtype fp8"),
        ("KV001", "vLLM >=0.30.0"),
        ("PK001", "vLLM >=0.26.0"),
        ("WT001", '"method":"dspark","num_speculative_tokens":5 in --speculative-config'),
        ("EV015", "unset VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
        ("GA002", "run on H200 or B200"),
        ("ME003", "another value of --max-num-batched-tokens"),
    ],
)
def test_edits_in_words(id: str, said: str) -> None:
    assert said in said_for(id)


def test_advice_and_free_words_stay_as_they_are() -> None:
    assert said_for("HO001") == rule("HO001").advice
    made = Candidate(rule("KV001"), Sureness.LIKELY, (), remedies=("call the operator", "call the operator"))
    assert remedies(made) == ("call the operator",)
