"""The package's dataclass decorator behaves like the standard one."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import pytest

from dsv4check.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2
    tags: tuple[str, ...] = ()
    extra: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Counter:
    n: int = 0


def test_equality_hash_and_repr() -> None:
    assert Point(1) == Point(1, 2)
    assert Point(1) != Point(2)
    assert Point(1) != (1, 2, (), {})
    assert repr(Point(1)) == "Point(x=1, y=2, tags=(), extra={})"
    with pytest.raises(TypeError):
        hash(Point(1))


def test_frozen() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 5  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.x
    with pytest.raises(AttributeError):
        point.z = 1  # type: ignore[attr-defined]
    assert replace(point, y=9) == Point(1, 9)
    assert [item.name for item in fields(point)] == ["x", "y", "tags", "extra"]
    assert Point(1).extra is not Point(1).extra


def test_mutable() -> None:
    counter = Counter()
    counter.n += 1
    assert counter == Counter(1)
    with pytest.raises(TypeError):
        hash(counter)
