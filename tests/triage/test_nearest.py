from __future__ import annotations

from dsv4check.problems import Stage
from dsv4check.triage.nearest import nearest_rules
from tests.launches import all_rules
from tests.report.triage import SAID, event
from tests.triage.own_rules import own_rule

RULES = [own_rule(f"ZZ{number:03}", name=f"word-{number}", error=f"plugh{number} and others") for number in range(400)]


def test_rare_words_lead_to_a_rule() -> None:
    error = event(message="the frobnicator of gizmos is xyzzy", frames=())
    near = own_rule("ZZ900", error="frobnicator without gizmos")
    farther = own_rule("ZZ901", error="gizmos are fine")
    assert nearest_rules(error, Stage.MODEL_INIT, [*RULES, near, farther]) == (near, farther)


def test_common_words_lead_to_none() -> None:
    assert nearest_rules(event(message="that file must have been made", frames=()), Stage.MODEL_INIT, RULES) == ()


def test_the_stage_decides_among_equals_and_no_more_are_said_than_asked_for() -> None:
    error = event(message="the frobnicator of gizmos", frames=())
    same = [own_rule(f"ZZ90{n}", error="frobnicator gizmos", stage=stage) for n, stage in enumerate(["warmup"] * 4)]
    same.append(own_rule("ZZ909", error="frobnicator gizmos", stage="model-init"))
    assert [rule.id for rule in nearest_rules(error, Stage.MODEL_INIT, [*RULES, *same])] == ["ZZ909", "ZZ900", "ZZ901"]
    assert len(nearest_rules(error, Stage.MODEL_INIT, [*RULES, *same], most=1)) == 1


def test_places_of_the_traceback_count() -> None:
    near = own_rule("ZZ900", {"text": "zero", "frame": "_resolve_dsv4_kv_cache_dtype"})
    assert nearest_rules(event(message="plain"), Stage.MODEL_INIT, [*RULES, near]) == (near,)


def test_a_text_that_vllm_changed_leads_to_rules_of_its_kind() -> None:
    changed = SAID.replace("for now, got auto", "today; it was auto")
    near = nearest_rules(event(message=changed), Stage.MODEL_INIT, all_rules())
    assert "kv-cache" in {rule.area for rule in near}
