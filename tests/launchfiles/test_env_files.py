"""Files of environment variables."""

from __future__ import annotations

from dsv4check.launchfiles.env_files import env_of_file, read_env
from dsv4check.launchfiles.text import Span
from tests.launchfiles.reading import context_of


def test_lines() -> None:
    content = "# c\nA=1\nexport B='x y'\nC=\"z\" \r\nD=1 # why\nE=\nno line\nF=a=b\nG='\n"
    assert read_env(content) == {"A": "1", "B": "x y", "C": "z", "D": "1", "E": "", "F": "a=b", "G": "'"}


def test_values_stand_where_the_file_is_named() -> None:
    context = context_of("x", neighbour={"v.env": "A=1\n"}.get)
    stated = env_of_file("v.env", Span(3, 8), context)
    assert {name: (item.value, item.span) for name, item in stated.items()} == {"A": ("1", Span(3, 8))}
    assert env_of_file("missing", Span(3, 8), context) == {}
