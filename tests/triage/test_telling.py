from __future__ import annotations

import pytest

from dsv4check.triage.telling import TELLING
from tests.triage.test_milestones import _START


@pytest.mark.parametrize("line", _START)
def test_every_line_that_moves_a_start_on_is_telling(line: str) -> None:
    assert any(words in line for words in TELLING)


def test_a_line_of_a_request_that_failed_is_not() -> None:
    assert not any(words in "Received request chatcmpl-1: prompt: 'x'" for words in TELLING)
