"""The `code:` of rules: how it is written, and what a tree answers."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from dsv4check.engine.code_marks import FingerprintMark, Group, marks_from_record
from dsv4check.engine.conditions import version_in
from dsv4check.engine.rule import Rule, load_rules, rule_from_source
from dsv4check.errors import InputError
from dsv4check.installation.code_answers import CodeAnswer, TreeCode
from dsv4check.installation.fingerprint import Answer, Quote, fingerprints
from dsv4check.learning.source import Source
from dsv4check.releases.facts import known_releases
from tests.launches import all_rules

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
RULE = {
    "id": "ZZ001",
    "name": "made-up",
    "summary": "Made up.",
    "severity": "error",
    "certainty": "proven",
    "stage": "warmup",
    "message": "made up",
}
RUNNER = '''
"""A module that names old_call(x) only here."""
from somewhere import thing

class Runner:
    """Docs about dtype_of(spec)."""

    limit = 3

    def shape(self, spec):
        """reshape("x")"""
        # spec.own_dtype would be better
        if spec.kind == "packed":
            return spec.view(
                "uint8",
                width = 584,
            )
        return None

    def empty(self):
        """Nothing but this."""
'''


def answer(folder: Path, code: Any, files: dict[str, str] | None = None, **answers: str | None) -> CodeAnswer:
    for name, text in (files or {"v1/runner.py": RUNNER}).items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    known = {
        name.replace("_", "-"): Answer(value, "", (Quote("vllm/a.py", 7, "x = 1"),)) for name, value in answers.items()
    }
    return TreeCode(Source(folder / "vllm"), lambda _source: known).judge(marks_from_record(code))


PLACE = "v1/runner.py:Runner.shape"


@pytest.mark.parametrize(
    ("mark", "verdict"),
    [
        ({"in": PLACE, "has": "spec.view('uint8', width=584)"}, True),
        ({"in": PLACE, "has": 'spec.view( "uint8",\n width=584 )'}, True),
        ({"in": PLACE, "has": 'if spec.kind == "packed":'}, True),
        ({"in": PLACE, "has": "width = 584"}, True),
        ({"in": PLACE, "has": "'packed'"}, True),
        ({"in": PLACE, "has": "'pack'"}, False),
        ({"in": PLACE, "has": ["spec.kind", "width=512"]}, False),
        ({"in": PLACE, "has": "pec.kind"}, False),
        ({"in": PLACE, "has": "spec.kin"}, False),
        ({"in": PLACE, "lacks": "own_dtype"}, True),
        ({"in": PLACE, "lacks": ["own_dtype", "584"]}, False),
        ({"in": PLACE, "lacks": "reshape"}, True),
        ({"in": "v1/runner.py", "lacks": "old_call"}, True),
        ({"in": "v1/runner.py:Runner", "lacks": "dtype_of"}, True),
        ({"in": "v1/runner.py:Runner.limit", "has": "limit = 3"}, True),
        ({"in": "v1/runner.py:Runner.empty", "lacks": "return"}, True),
        ({"in": PLACE, "matches": r"width=5\d\d"}, True),
        ({"in": PLACE, "matches": r"width=6\d\d"}, False),
        ({"in": PLACE, "has": "spec.view", "lacks": "own_dtype"}, True),
        ({"in": "v1/runner.py", "exists": True}, True),
        ({"in": "v1/runner.py", "exists": False}, False),
        ({"in": "v1/", "exists": True}, True),
        ({"in": ["v2/", "v1/runner.py:Runner.gone"], "exists": True}, False),
        ({"in": ["v1/gone.py", PLACE], "has": "584"}, True),
        ({"in": "v1/runner.py:Runner.gone", "has": "584"}, None),
        ({"in": "v1/gone.py", "lacks": "584"}, None),
        ({"not": {"in": PLACE, "has": "512"}}, True),
        ({"not": {"in": "v1/gone.py", "has": "512"}}, None),
        ({"any": [{"in": "v1/gone.py", "has": "1"}, {"in": PLACE, "has": "584"}]}, True),
        ({"any": [{"in": "v1/gone.py", "has": "1"}, {"in": PLACE, "has": "512"}]}, None),
        ({"any": [[{"in": PLACE, "has": "584"}, {"in": PLACE, "has": "512"}], {"in": PLACE, "lacks": "584"}]}, False),
        ([{"in": "v1/gone.py", "has": "1"}, {"in": PLACE, "has": "512"}], False),
        ([{"in": "v1/gone.py", "has": "1"}, {"in": PLACE, "has": "584"}], None),
        ({"all": [{"in": PLACE, "has": "584"}, {"in": PLACE, "has": "spec.kind"}]}, True),
        ({"fingerprint": "draft-names", "is": "global"}, True),
        ({"fingerprint": "draft-names", "is": ["local", "none"]}, False),
        ({"fingerprint": "unanswered", "is": "yes"}, None),
        ({"fingerprint": "unheard-of", "is": "yes"}, None),
    ],
)  # fmt: skip
def test_a_mark_is_there_or_not(tmp_path: Path, mark: Any, verdict: bool | None) -> None:
    found = answer(tmp_path, mark, draft_names="global", unanswered=None)
    assert found.verdict is verdict
    assert bool(found.why) is (verdict is None)
    if verdict is not None:
        assert found.evidence


def test_an_answer_quotes_file_and_line(tmp_path: Path) -> None:
    code = [
        {"in": PLACE, "has": "584"},
        {"in": PLACE, "lacks": "own_dtype"},
        {"in": PLACE, "matches": "spec.kind == '[a-z]+'"},
        {"in": "v2/", "exists": False},
        {"fingerprint": "draft-names", "is": "global"},
    ]
    assert answer(tmp_path, code, draft_names="global").evidence == (
        "vllm/v1/runner.py:16 has `584`",
        "vllm/v1/runner.py:10 (Runner.shape) has no `own_dtype`",
        "vllm/v1/runner.py:13 has `spec.kind == 'packed'`",
        "vllm/v2/ is not there",
        "draft-names is global: vllm/a.py:7 `x = 1`",
    )
    assert answer(tmp_path, {"in": "v1/gone.py:f", "has": "x"}).why == "the tree has no vllm/v1/gone.py:f"


@pytest.mark.parametrize(
    "text", ["def broken(:", "x = " + "(" * 3000 + ")" * 3000, "x = 1\0", "def f():\n return " + "+".join("1" * 20_000)]
)
def test_a_file_that_cannot_be_read_leaves_the_question_open(tmp_path: Path, text: str) -> None:
    found = answer(tmp_path, {"in": "a.py:f", "has": "1"}, {"a.py": text})
    assert found.verdict is None
    assert "vllm/a.py:f" in found.why
    assert "\n" not in found.why


def test_fingerprints_that_fail_leave_the_question_open(tmp_path: Path) -> None:
    def fail(_source: Source) -> Any:
        raise RuntimeError("odd code\nsecond line")

    found = TreeCode(Source(tmp_path), fail).judge(marks_from_record({"fingerprint": "draft-names", "is": "local"}))
    assert found.verdict is None
    assert found.why == "the fingerprint draft-names cannot be read (odd code)"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ([], "an empty list says nothing"),
        ("a.py", "expected a mapping"),
        ({"in": "a.py"}, "needs in and one of has, lacks, matches, exists"),
        ({"has": "x"}, "needs in and one of"),
        ({"in": "a.py", "have": "x"}, "unknown key 'have'"),
        ({"in": "../a.py", "has": "x"}, "expected a path below vllm"),
        ({"in": "/a.py", "has": "x"}, "expected a path below vllm"),
        ({"in": "a.py:1x", "has": "x"}, "expected a path below vllm"),
        ({"in": "a.py", "has": 3}, "has takes a text, found 3"),
        ({"in": "a.py", "has": ""}, "has takes a text"),
        ({"in": "a.py", "lacks": []}, "lacks takes a text or a list of texts"),
        ({"in": "a.py", "matches": "("}, "matches '('"),
        ({"in": "a.py", "exists": "yes"}, "exists takes true or false"),
        ({"in": "a.py", "exists": True, "has": "x"}, "exists takes true or false and stands alone"),
        ({"in": "a/", "has": "x"}, "of a folder only exists can be asked"),
        ({"any": {"in": "a.py", "has": "x"}}, "any takes a list"),
        ({"any": [], "not": {}}, "cannot stand in one mapping"),
        ({"fingerprint": "x"}, "a fingerprint takes the key is"),
        ({"fingerprint": "x", "is": True}, "is takes a text"),
    ],
)
def test_a_rule_with_a_wrong_mark_is_refused(code: Any, said: str) -> None:
    with pytest.raises(InputError) as refused:
        rule_from_source(RULE | {"code": code}, "kv-cache", "rules/ZZ001.yaml")
    assert said in str(refused.value)
    assert str(refused.value).startswith("rules/ZZ001.yaml: ")
    assert "\n" not in str(refused.value)


def test_the_users_own_rules_are_checked(tmp_path: Path) -> None:
    lines = [f"{key}: {value}" for key, value in RULE.items()]
    (tmp_path / "ZZ001.yaml").write_text("\n".join([*lines, "code: {in: a.py}"]) + "\n")
    with pytest.raises(InputError, match="a mark needs in and one of"):
        load_rules(tmp_path)


def with_code() -> list[Rule]:
    return [rule for rule in all_rules() if rule.code is not None]


@pytest.mark.parametrize("rule", with_code(), ids=lambda rule: rule.id)
def test_the_code_of_a_bundled_rule_is_well_formed(rule: Rule) -> None:
    marks = list(marks_from_record(rule.code).marks)
    known = {item.id: set(item.values) for item in fingerprints()}
    assert marks
    while marks:
        mark = marks.pop()
        if isinstance(mark, Group):
            marks += mark.marks
        elif isinstance(mark, FingerprintMark):
            assert set(mark.values) <= known[mark.name]


@pytest.mark.skipif(TREES is None, reason="DSV4CHECK_VLLM_TREES names no folder of unpacked releases")
@pytest.mark.parametrize("version", known_releases())
def test_the_code_of_every_release_tells_what_the_ranges_say(version: str) -> None:
    package = Path(TREES or "") / version / "vllm"
    if not package.is_dir():
        pytest.skip(f"vLLM {version} is not unpacked under DSV4CHECK_VLLM_TREES")
    code = TreeCode(Source(package))
    wrong = {}
    for rule in with_code():
        admitted = version_in(version, rule.vllm) if rule.vllm else not rule.development
        found = code.answer(rule)
        # Where a release has not got the place at all, the range counts as it does without a tree.
        if found.verdict not in (admitted, None) or (found.verdict is None and admitted):
            wrong[rule.id] = (found, admitted)
    assert not wrong
