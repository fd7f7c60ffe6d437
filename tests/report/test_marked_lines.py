"""Replacing on marked lines gives what replacing everywhere gives."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from dsv4check.report.marked_lines import sub_in_lines

PATTERN = re.compile(r"(?<![\w.])\w*token=\S+", re.IGNORECASE)
PIECES = st.sampled_from(["hf_token=abc", "TOKEN=x", "ToKen=", "\n", " ", "a.token=y", "ß", "plain words", "\r\n"])


@given(st.lists(PIECES, max_size=12).map("".join))
def test_same_as_everywhere(text: str) -> None:
    assert sub_in_lines(PATTERN, lambda _: "*", text, ("token",)) == PATTERN.sub("*", text)


def test_lines_without_a_mark_are_not_looked_at() -> None:
    changed = sub_in_lines(re.compile("b"), lambda _: "*", "a b\nb", ("a",))
    assert changed == "a *\nb"
