from __future__ import annotations

import pytest

from dsv4check.releases.facts import known_releases
from dsv4check.releases.timeline import (
    before_first_support,
    brackets,
    development_facts,
    known_development,
    nearest_release,
    neighbours,
    newest_release,
    representative,
)


@pytest.mark.parametrize(
    ("version", "early"),
    [
        ("0.19.1", True),
        ("0.19.2rc1.dev5", True),
        ("0.20.0", False),
        ("0.20.0rc1", False),
        ("0.33.0", False),
        ("nightly", False),
    ],
)
def test_before_first_support(version: str, early: bool) -> None:
    assert before_first_support(version) is early


def test_nearest_release_says_when_it_is_another_one() -> None:
    assert nearest_release("0.24.0") == ("0.24.0", "")
    assert nearest_release("0.24.0+cu129") == ("0.24.0", "")
    release, note = nearest_release("0.24.5")
    assert release == "0.24.0"
    assert note == "no facts for vLLM 0.24.5; nearest are 0.24.0 and 0.25.0, using 0.24.0"
    release, note = nearest_release("99.0")
    assert release == newest_release()
    assert "newer than all known" in note


def test_neighbours_at_the_ends() -> None:
    assert neighbours("0.1.0") == (None, known_releases()[0])
    assert neighbours("99.0") == (newest_release(), None)


@pytest.mark.parametrize(
    ("base", "number", "expected"),
    [
        ("0.23.1rc1", 100, ("0.23.0", "0.24.0", "0.25.0")),
        ("0.25.1rc0", 3, ("0.25.1", "0.26.0", "0.27.0")),
        ("0.23.1rc1", 788, ("0.24.0", "0.25.0")),
        ("0.20.1", 0, ("0.20.0",)),
        ("0.20.2", 9, ("0.20.1", "0.20.2")),
        ("99.0.1rc1", 4, (newest_release(),)),
    ],
)
def test_brackets(base: str, number: int, expected: tuple[str, ...]) -> None:
    assert brackets(base, number) == expected


def test_representative_is_the_middle_unless_it_is_known() -> None:
    assert representative("0.23.1rc1", 100, ("0.23.0", "0.24.0", "0.25.0")) == "0.24.0"
    assert representative("0.23.1rc1", 788, ("0.24.0", "0.25.0")) == "0.25.0"
    assert representative("0.20.2", 9, ("0.20.1", "0.20.2")) == "0.20.1"


def test_known_builds() -> None:
    assert {fact.code for fact in known_development("0.23.1rc1", 803)} == {
        "swa-rows-512",
        "dspark-global-layer-names",
    }
    assert known_development("0.23.1rc1", 804) == ()
    assert known_development(None, None) == ()


def test_every_entry_names_known_releases() -> None:
    assert development_facts()
    for fact in development_facts():
        assert fact.first <= fact.last
        assert fact.nearest in known_releases()
        assert set(fact.brackets) <= set(known_releases())
        assert fact.nearest in fact.brackets
        assert fact.summary
