from __future__ import annotations

import pytest

from dsv4check.engine.signature import Signature
from dsv4check.triage.matching import rules_for_event, rules_for_lines, specificity
from dsv4check.triage.records import Frame, LogLine, Run
from tests.report.triage import event
from tests.triage.own_rules import own_rule
from tests.triage.readings import log_run

SHORT = own_rule("ZZ001", "got auto")
LONG = own_rule("ZZ002", "for now", "only supports fp8 kv-cache format for now, got")
FRAMED = own_rule("ZZ003", {"text": "got auto", "frame": r"deepseek_v4/attention\.py:_resolve"})
ELSEWHERE = own_rule("ZZ004", {"text": "got auto", "frame": r"mhc\.py:"})
PLACE = own_rule("ZZ005", {"frame": r"v1/engine/core\.py:run_engine_core$"})
RULES = (SHORT, LONG, FRAMED, ELSEWHERE, PLACE)


def test_the_most_specific_first_and_each_rule_once() -> None:
    found = rules_for_event(event(), RULES)
    assert [match.rule.id for match in found] == ["ZZ003", "ZZ005", "ZZ002", "ZZ001"]
    assert found[2].signature == LONG.signatures[1]
    assert [match.frames_below for match in found] == [0, 1, None, None]
    assert all(match.line == event().line for match in found)


def test_an_error_without_a_traceback_has_no_place() -> None:
    assert [match.rule.id for match in rules_for_event(event(frames=()), RULES)] == ["ZZ002", "ZZ001"]


def test_what_caused_an_error_belongs_to_it() -> None:
    inner = event(message="out of plugh", frames=(Frame("vllm/x/mhc.py", 3, "go"),))
    rule = own_rule("ZZ006", {"text": "^ValueError: out of plugh", "frame": r"mhc\.py:go"})
    assert [match.rule.id for match in rules_for_event(event(caused_by=inner), [rule])] == ["ZZ006"]
    assert rules_for_event(event(), [rule]) == []


def test_only_the_begin_of_a_long_error_is_searched() -> None:
    assert rules_for_event(event(message="x" * 30_000 + "got auto"), [SHORT]) == []


def test_equal_rules_come_by_id() -> None:
    twins = [own_rule("ZZ009", "got auto"), own_rule("ZZ008", "got auto")]
    assert [match.rule.id for match in rules_for_event(event(), twins)] == ["ZZ008", "ZZ009"]


def test_lines_are_searched_where_no_frame_is_asked_for() -> None:
    run = log_run(["got nothing", "it got auto", "cache format for now, got x", "it got auto again"])
    found = rules_for_lines(run, RULES)
    assert [(match.rule.id, match.line.number) for match in found] == [("ZZ001", 2), ("ZZ002", 3)]


def test_a_text_over_two_lines_is_in_none() -> None:
    assert rules_for_lines(log_run(["it got", "auto"]), [own_rule("ZZ001", r"got\s+auto")]) == []


def test_a_debug_line_says_nothing() -> None:
    line = LogLine("vllm.log", 1, "it got auto", level="DEBUG")
    assert rules_for_lines(Run(line, (line,), ()), RULES) == []


@pytest.mark.parametrize(
    ("text", "said", "letters"),
    [
        ("got auto", "it got auto", 8),
        (r"got \w+", "got bfloat16", 4),
        (r"^(?:a long alternative|got b)$", "got b", 5),
        ("[abc]+x{3}", "axxx", 1),
        (r"a\.b", "a.b", 2),
        ("(?i)got", "GOT", 3),
        ("got auto", "nothing", 0),
    ],
)
def test_letters_of_the_log_that_a_signature_asks_for(text: str, said: str, letters: int) -> None:
    assert specificity(Signature(text), said) == letters
    assert specificity(Signature(text, "core"), said) == letters
