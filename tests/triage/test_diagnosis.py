"""From logs to an answer: which start, which error, which launch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dsv4check.engine.rule import Rule
from dsv4check.errors import InputError
from dsv4check.triage.answer import Outcome, Sureness, TriageReport
from dsv4check.triage.diagnosis import diagnose, triage
from dsv4check.triage.records import LogReading, Run
from dsv4check.triage.said import SaidByUser
from tests.launches import all_rules
from tests.report.triage import event
from tests.triage.own_rules import own_rule
from tests.triage.readings import log_lines, log_reading, log_run

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
GIZMO = own_rule("ZZ001", "gizmo is xyzzy", found_in="log", advice=["Turn it."])


def start(flags: str = "'tensor_parallel_size': 8", version: str = "0.24.0", more: Sequence[str] = ()) -> list[str]:
    return [
        f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
        f"non-default args: {{'model_tag': '{FLASH}', 'model': '{FLASH}', {flags}}}",
        f"Initializing a V1 LLM engine (v{version}) with config: model='{FLASH}'",
        *more,
    ]


def explained(
    *runs: Run, rules: tuple[Rule, ...] | None = None, said: SaidByUser | None = None, number: int | None = None
) -> TriageReport:
    reading = log_reading(runs[0], more=runs[1:])
    return diagnose(reading, all_rules() if rules is None else rules, said or SaidByUser(gpu="8xH200"), number)


def ids(answer: TriageReport) -> list[str]:
    return [item.rule.id for item in answer.candidates]


def test_an_error_that_the_launch_bears_out() -> None:
    answer = explained(log_run(start(), [event()]))
    assert answer.outcome is Outcome.EXPLAINED
    assert (ids(answer)[0], answer.candidates[0].sureness) == ("KV001", Sureness.CERTAIN)
    assert answer.candidates[0].finding is not None
    assert answer.candidates[0].finding.fixes
    assert "--tensor-parallel-size 8" in answer.command
    assert answer.nearest == ()


def test_an_unknown_error_has_the_nearest_rules_and_no_cause() -> None:
    error = event(message="the kv-cache format is xyzzy", frames=())
    answer = explained(log_run(start(), [error]))
    assert answer.outcome is Outcome.UNKNOWN
    assert answer.error == error
    assert answer.candidates == ()
    assert answer.nearest


def test_no_error_is_no_error_whatever_the_checker_finds() -> None:
    answer = explained(log_run(start()))
    assert (answer.outcome, answer.error) == (Outcome.NO_ERROR, None)
    assert answer.report is not None
    assert answer.report.errors


def test_a_line_that_warns_is_told_without_an_error() -> None:
    answer = explained(log_run(start(more=["the gizmo is xyzzy"])), rules=(GIZMO,))
    assert (answer.outcome, ids(answer)) == (Outcome.NO_ERROR, ["ZZ001"])


def test_what_vllm_survived_ended_nothing() -> None:
    answer = explained(log_run(start(more=["fine"]), [event(survived=True)]))
    assert (answer.outcome, answer.error) == (Outcome.NO_ERROR, None)


def test_a_real_error_comes_before_what_vllm_survived() -> None:
    real = event(message="the gizmo is xyzzy")
    answer = explained(log_run(start(), [event(survived=True), real]), rules=(GIZMO,))
    assert answer.error == real
    assert ids(answer) == ["ZZ001"]


def test_only_consequences_are_explained_by_the_lines() -> None:
    only = event(kind="RuntimeError", message="Engine core initialization failed.", consequence=True, frames=())
    answer = explained(log_run(start(more=["the gizmo is xyzzy"]), [only]), rules=(GIZMO,))
    assert answer.error == only
    assert ids(answer) == ["ZZ001"]
    assert explained(log_run(start(), [only]), rules=(GIZMO,)).outcome is Outcome.UNKNOWN


def test_lines_do_not_explain_a_real_error() -> None:
    answer = explained(log_run(start(more=["the gizmo is xyzzy"]), [event(message="plugh")]), rules=(GIZMO,))
    assert (answer.outcome, ids(answer)) == (Outcome.UNKNOWN, [])


def test_a_later_error_is_said_and_not_answered() -> None:
    first, later = event(message="plugh"), event(message="the gizmo is xyzzy", kind="KeyError")
    answer = explained(log_run(start(), [first, later]), rules=(GIZMO,))
    assert answer.error == first
    assert answer.later == (later,)
    assert answer.outcome is Outcome.UNKNOWN


def test_the_last_start_that_failed_is_answered() -> None:
    failed = log_run(start(), [event()])
    other = log_run(start(), [event(message="the gizmo is xyzzy")])
    works = log_run(start("'kv_cache_dtype': 'fp8'"))
    answer = explained(failed, other, works, rules=(*all_rules(), GIZMO))
    assert (answer.run_number, ids(answer)) == (2, ["ZZ001"])
    assert any("3 starts" in note for note in answer.notes)
    assert explained(failed, other, works, number=1).candidates[0].rule.id == "KV001"
    assert explained(failed, other, works, number=3).outcome is Outcome.NO_ERROR
    assert explained(works, works).run_number == 2


def test_a_start_with_a_cause_counts_more_than_one_with_consequences() -> None:
    consequence = event(message="Engine core initialization failed.", consequence=True, frames=())
    assert explained(log_run(start(), [event()]), log_run(start(), [consequence])).run_number == 1


@pytest.mark.parametrize("number", [0, 3, -1])
def test_a_start_that_is_not_there(number: int) -> None:
    with pytest.raises(InputError, match=f"--run {number}"):
        explained(log_run(start()), log_run(start()), number=number)


def test_a_launch_that_cannot_be_checked_is_said() -> None:
    lines = [line.replace(FLASH, "/models/unheard-of") for line in start()]
    answer = explained(log_run(lines, [event()]))
    assert answer.report is None
    assert answer.command == ""
    assert any(note.startswith("the launch was not checked: ") for note in answer.notes)
    assert ids(answer)[0] == "KV001"
    assert answer.candidates[0].sureness is not Sureness.CERTAIN
    with pytest.raises(InputError, match="--model: "):
        explained(log_run(start(), [event()]), said=SaidByUser(model="/models/unheard-of"))


def test_a_log_without_a_launch_still_has_its_cause() -> None:
    answer = explained(Run(None, (), (event(),)), said=SaidByUser())
    assert answer.outcome is Outcome.EXPLAINED
    assert answer.report is None
    assert answer.missing


def test_a_development_build() -> None:
    build = "0.23.1rc1.dev788+gfa4321de3"
    answer = explained(log_run(start(version=build), [event()]))
    assert answer.report is not None
    assert answer.report.deployment.vllm.version == build
    assert (ids(answer)[0], answer.candidates[0].sureness) == ("KV001", Sureness.CERTAIN)


def test_a_preview_build_is_not_older_than_deepseek_v4() -> None:
    answer = explained(log_run(start(version="0.1.dev15830+g8d599d76a"), [event()]))
    assert answer.report is not None
    assert "MC001" not in {item.rule for item in answer.report.findings}
    assert ids(answer)[0] == "KV001"
    assert answer.candidates[0].sureness in (Sureness.LIKELY, Sureness.POSSIBLE)
    assert any("without tags" in note for note in answer.report.notes)


def test_fixes_are_looked_for_where_they_may_be_told() -> None:
    """An error always; a warning only as a cause."""
    flags = "'tensor_parallel_size': 8, 'attention_backend': 'TRITON_MLA'"
    answer = explained(log_run(start(flags), [event()]))
    assert answer.report is not None
    assert all(item.fixes or item.no_fix for item in answer.report.errors)
    quiet = [item for item in answer.report.findings if item.severity.value != "error" and not item.error]
    assert quiet
    assert not any(item.fixes for item in quiet if item.rule not in ids(answer))


def test_a_log_rule_is_a_cause_without_a_finding() -> None:
    answer = explained(log_run(start(), [event(message="the gizmo is xyzzy")]), rules=(GIZMO,))
    (candidate,) = answer.candidates
    assert candidate.finding is None
    assert candidate.remedies == ("Turn it.",)
    assert candidate.fixed_in is None


def test_wrong_options_are_said_before_a_log_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="banana"):
        triage([str(tmp_path / "no.log")], all_rules(), SaidByUser(vllm="banana"))


def test_notes_of_the_reading_are_kept() -> None:
    run = Run(None, log_lines(start()), ())
    reading = LogReading(("vllm.log",), 9, 3, (run,), "", ("vllm.log: the gzip data ends early.",))
    assert "vllm.log: the gzip data ends early." in diagnose(reading, all_rules(), SaidByUser()).notes
