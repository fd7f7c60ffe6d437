from __future__ import annotations

from dsv4check.triage.answer import Candidate, Evidence, Sureness
from dsv4check.triage.apart import told_apart
from tests.triage.own_rules import own_rule


def candidate(id: str, sureness: Sureness = Sureness.POSSIBLE, *, against: str = "", needed: str = "") -> Candidate:
    evidence = [Evidence("the log has its text")]
    if against:
        evidence.append(Evidence(against, supports=False))
    return Candidate(own_rule(id, "x"), sureness, tuple(evidence), needed=(needed,) if needed else ())


def test_one_cause_has_no_rival() -> None:
    assert told_apart([]) == ""
    assert told_apart([candidate("ZZ001")]) == ""


def test_a_sure_cause_says_what_speaks_against_the_others() -> None:
    others = [candidate("ZZ002", against="it is about 0.30.0"), candidate("ZZ003")]
    said = told_apart([candidate("ZZ001", Sureness.CERTAIN), *others])
    assert said.startswith("ZZ002, ZZ003 show the same text; the launch speaks for ZZ001")
    assert "ZZ002: it is about 0.30.0" in said
    assert "ZZ003:" not in said
    assert told_apart([candidate("ZZ001", Sureness.CERTAIN), candidate("ZZ003")]).endswith("speaks for ZZ001.")


def test_open_causes_say_once_what_would_settle_it() -> None:
    said = told_apart([candidate("ZZ001", needed="the GPU"), candidate("ZZ002", needed="the GPU")])
    assert said == "ZZ002 shows the same text as ZZ001. To tell them apart: the GPU."
    assert told_apart([candidate("ZZ001"), candidate("ZZ002")]) == "ZZ002 shows the same text as ZZ001."
