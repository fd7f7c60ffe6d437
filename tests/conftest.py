"""Shared helpers of the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How fast inputs are made says how busy the machine is, not whether the code is right.
_UNHURRIED = {"suppress_health_check": (HealthCheck.too_slow,), "deadline": None}
settings.register_profile("here", **_UNHURRIED)
# A gate must give the same answer twice; outside it, every run tries something new.
settings.register_profile("gate", derandomize=True, **_UNHURRIED)
settings.load_profile("gate" if os.environ.get("CI") else "here")

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test may see the machine's own Hugging Face cache, GPUs or vLLM."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say a figure that the run prints at its end (also under xdist, where a test's own output is lost)."""
    return lambda text: record_property("figures", text)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    said = [value for report in reports for name, value in report.user_properties if name == "figures"]
    if said:
        terminalreporter.section("figures")
        for text in dict.fromkeys(said):
            terminalreporter.write_line(text)


PEAK_MEMORY = """
def peak_mib():
    # ru_maxrss also counts what the process was before exec, which is the test runner's memory.
    import pathlib, resource
    status = pathlib.Path("/proc/self/status")
    if status.is_file():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return int(lines["VmHWM"].split()[0]) // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
"""
"""Source of a function that child processes measure their memory with."""

SLOWER = 2.5
"""How much slower a shared machine may be than two idle cores, on which bounds of CPU time are stated."""
