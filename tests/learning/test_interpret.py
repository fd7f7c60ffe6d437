"""The small interpreter: what it works out, and where it says that it cannot tell."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsv4check.learning.classes import get_class, lineage, origin
from dsv4check.learning.interpret import Made, Reading
from dsv4check.learning.source import LearningError, Source
from dsv4check.learning.values import Raised, Symbol
from tests.learning.shipped import made_up


def source(folder: Path, **files: str) -> Source:
    return made_up(folder, {f"{name}.py": text for name, text in files.items()}).source


def read(folder: Path, text: str, known: dict[str, Any], name: str = "f") -> Any:
    return Reading(source(folder, a=text), "a.py", known).call(name)


@pytest.mark.parametrize(
    ("body", "known", "outcome"),
    [
        ("return 64 if x <= 64 else 128", {"x": 65}, 128),
        ("for size in SIZES:\n        if x <= size:\n            return size", {"x": 9}, 16),
        ("return x.startswith('fp8') and not x.endswith('_mla')", {"x": "fp8_e4m3"}, True),
        ("y = config.cache.dtype\n    return y == 'fp8'", {"config.cache.dtype": "fp8"}, True),
        ("cache = config.cache\n    return cache.dtype", {"config.cache.dtype": "fp8"}, "fp8"),
        ("return x in (Kind.A, Kind.B)", {"x": Symbol("Kind.B")}, True),
        ("return x in (Kind.A, Kind.B)", {"x": Symbol("Kind.C")}, False),
        ("return x is not None and x.major == 12", {"x": SimpleNamespace(major=12)}, True),
        ("return x is not None and x.major == 12", {"x": None}, False),
        ("a, b = 1, x\n    a += b\n    return a", {"x": 4}, 5),
        ("return torch.uint8", {}, Symbol("torch.uint8")),
        ("return g(x, y=2)", {"x": 3}, 6),
        ("return max(x, 4) - 1", {"x": 1}, 3),
    ],
)
def test_plain_code_is_worked_out(tmp_path: Path, body: str, known: dict[str, Any], outcome: object) -> None:
    text = f"SIZES = (8, 16, 32)\ndef g(x, y=1):\n    return x * y\ndef f(x, z=0):\n    {body}\n"
    assert read(tmp_path, text, known) == outcome


def test_a_refusal_keeps_exception_and_message(tmp_path: Path) -> None:
    text = "def h(n):\n    return g(n)\ndef g(n):\n    raise ValueError(f'not {n} heads of {m}')\n"
    assert read(tmp_path, text, {"n": 3}, "h") == Raised("ValueError", "not 3 heads of {m}")
    text = "def f(x):\n    assert x.startswith('a'), f'no {x}'\n"
    assert read(tmp_path, text, {"x": "b"}) == Raised("AssertionError", "no b")
    assert read(tmp_path, text, {"x": "ab"}) is None


def test_a_condition_on_something_unknown_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(LearningError, match=r"a\.py f: cannot decide 'platform\.is_new\(\)'"):
        read(tmp_path, "def f():\n    if platform.is_new():\n        return 1\n    return 2\n", {})
    with pytest.raises(LearningError, match="cannot follow the loop over 'things'"):
        read(tmp_path, "def f():\n    for x in things:\n        return x\n", {})
    with pytest.raises(LearningError, match="while statement is not understood"):
        read(tmp_path, "def f():\n    while 1:\n        return 1\n", {})


def test_a_constructor_call_gives_the_arguments_that_are_asked_for(tmp_path: Path) -> None:
    text = """
        def f(self):
            packed = self.dtype == "fp8"
            return Spec(a=576 if packed else None, b=1 if new() else 2)
    """
    made = read(tmp_path, text, {"self.dtype": "bf16"})
    assert isinstance(made, Made)
    assert made.keyword("a") is None
    assert made.passes("a")
    assert not made.passes("c")
    with pytest.raises(LearningError, match="cannot decide"):
        made.keyword("b")


def test_methods_and_attributes_come_from_the_whole_lineage(tmp_path: Path) -> None:
    release = source(
        tmp_path,
        base="class Base:\n    flag = True\n    def layout(self):\n        return self.flag\n",
        a="""
            from vllm.base import Base
            class Mine(Base):
                flag = False
                def f(self):
                    return self.layout()
        """,
    )
    mine = get_class(release, "a.py", "Mine")
    assert [item.name for item in lineage(release, mine)] == ["Mine", "Base"]
    assert Reading(release, "a.py", {}).call("Mine.f") is False
    assert origin(release, "a.py", "Base") == "base.py"
    with pytest.raises(LearningError, match=r"a\.py has no class Other"):
        get_class(release, "a.py", "Other")


def test_only_the_statements_that_assign_a_target_are_followed(tmp_path: Path) -> None:
    text = """
        class A:
            def __init__(self, ratio):
                boom(other)
                if ratio == 4:
                    self.size = 4
                else:
                    self.size = 8
    """
    release = source(tmp_path, a=text)
    function = get_class(release, "a.py", "A").member("__init__")
    reading = Reading(release, "a.py", {"ratio": 128})
    assert reading.settle(function, "self.size") == 8  # type: ignore[arg-type]
    with pytest.raises(LearningError, match=r"does not assign self\.rows"):
        reading.settle(function, "self.rows")  # type: ignore[arg-type]
