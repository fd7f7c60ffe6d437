from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsv4check.data import rules_dir
from dsv4check.engine.literal import required_literal
from dsv4check.engine.rule import read_sources, rule_from_record
from tests.triage.regex_text import text_for

PATTERNS = sorted(
    {
        pattern
        for record, area, path in read_sources(rules_dir() / "checks")
        for signature in rule_from_record(record, area, path).signatures
        for pattern in (signature.text, signature.frame)
        if pattern
    }
)


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        ("got auto", "got auto"),
        (r"got \w+ from vllm", " from vllm"),
        (r"layout\.hpp:\d+\): Unknown", "layout.hpp:"),
        ("colou?r is", "colo"),
        ("colou*r", "colo"),
        ("aab+c", "aab"),
        ("ab{2}cd", "cd"),
        ("(one|other) thing", " thing"),
        ("either|or", ""),
        ("(?i)Model Runner", ""),
        ("(?P<name>x)y", ""),
        ("a(?#note (|)b", ""),
        ("[^]|]bc", "bc"),
        (r"[\]|]bc", "bc"),
        (r"(\)|[)]|x)bc", "bc"),
        (r"\x41b", "b"),
        (r"ab\123cd", "ab"),
        ("{not a count} really", "{not a count} really"),
        ("x{a|b}", ""),
        ("", ""),
        ("^$", ""),
    ],
)
def test_plain_part(pattern: str, literal: str) -> None:
    assert required_literal(pattern) == literal


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_a_signature_matches_holds_its_plain_part(pattern: str) -> None:
    text = text_for(pattern)
    assert re.search(pattern, text, re.MULTILINE)
    assert required_literal(pattern) in text


def test_most_signatures_have_one() -> None:
    assert sum(len(required_literal(pattern)) >= 6 for pattern in PATTERNS) > len(PATTERNS) * 0.9


@pytest.mark.filterwarnings("ignore::FutureWarning")
@given(st.data(), st.text(alphabet=r"ab01|()[]{},?*+\.^$xd-", max_size=14))
def test_any_pattern_that_compiles(data: st.DataObject, pattern: str) -> None:
    try:
        compiled = re.compile(pattern)
    except re.error:
        assume(False)
    except RecursionError:
        assume(False)
    text = data.draw(st.text(alphabet="ab01|(){},x-^", max_size=12) | st.from_regex(compiled))
    if compiled.search(text):
        assert required_literal(pattern) in text
