"""What tells causes with the same text apart, in one sentence."""

from __future__ import annotations

from dsv4check.triage.answer import Candidate, Evidence, Standing, Sureness
from dsv4check.triage.apart import ruled_out, told_apart
from tests.report.triage import finding, report, rule

AGAINST = Evidence("it is about another GPU than the log shows", supports=False)


def open_(id: str) -> Candidate:
    return Candidate(rule(id), Sureness.POSSIBLE, (AGAINST,), needed=("the whole command",))


def refuted(id: str) -> Candidate:
    evidence = (Evidence("the log has its text"), AGAINST)
    return Candidate(rule(id), Sureness.POSSIBLE, evidence, standing=Standing.REFUTED)


def certain() -> Candidate:
    return Candidate(rule("KV001"), Sureness.CERTAIN, (), finding=finding(report(), "KV001"))


def test_nothing_to_tell_apart() -> None:
    assert told_apart(()) == told_apart((certain(),)) == ""


def test_the_launch_speaks_against_all_others() -> None:
    said = told_apart((certain(), refuted("PK001"), refuted("PK003")))
    assert said == "PK001 and PK003 are other causes of the same text; the launch speaks against them."
    # The reasons stand with the candidates.
    assert AGAINST.text not in said


def test_the_checker_finds_one_of_them() -> None:
    assert told_apart((certain(), open_("PK001"), refuted("PK003"))) == (
        "PK001 shows the same text; the checker finds KV001 in the launch."
    )


def test_nothing_decides() -> None:
    assert told_apart((open_("PK001"), open_("PK002"), refuted("PK003"))) == (
        "PK001 and PK002 show the same text, and the log states too little of the launch to choose."
    )


def test_what_is_ruled_out() -> None:
    assert ruled_out(refuted("PK001")) is AGAINST
    assert ruled_out(open_("PK001")) is None
    assert ruled_out(certain()) is None
