"""The benchmark of triage measures what it says and knows a bad figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts.bench_triage import measure, over_budget, write_log

GOOD = {"seconds": 9.0, "peak_mib": 60.0, "error": "The last unsupported architecture"}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, ""),
        ({"seconds": 20.1}, "20.1 s, budget 20 s"),
        ({"peak_mib": 144.0}, "144 MiB, budget 150 MB"),
        ({"error": "another"}, "the last error was not found, but 'another'"),
        ({"error": None}, "the last error was not found"),
    ],
)
def test_budget(more: dict[str, Any], says: str) -> None:
    found = over_budget(GOOD | more)
    assert found.startswith(says)
    assert bool(found) is bool(says)


@pytest.mark.parametrize("kind", ["loop", "gzip"])
def test_a_small_log_is_measured(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    write_log(path, kind, 1_000_000)
    found = measure(path)
    assert over_budget(found) == ""
    assert found["runs"] > 1 or kind == "gzip"
    assert found["size"] > 900_000
