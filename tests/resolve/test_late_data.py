from __future__ import annotations

import pytest

from dsv4check.resolve.late_data import LateData


def test_work_is_done_once_and_only_when_it_is_asked_for() -> None:
    calls: list[int] = []

    def work() -> dict[str, int]:
        calls.append(1)
        return {"b": 2}

    data = LateData({"a": 1}, ("b", "c"), work)
    assert (data["a"], list(data), len(data), "b" in list(data), calls) == (1, ["a", "b", "c"], 3, True, [])
    assert (data["b"], data["c"], data.get("c"), calls) == (2, None, None, [1])
    assert dict(data) == {"a": 1, "b": 2, "c": None}
    with pytest.raises(KeyError):
        data["d"]
