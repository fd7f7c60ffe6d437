"""GPUs as an interpreter sees them, and what a child may know."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsv4check.probe import machine


def test_folders_come_first_on_the_path() -> None:
    assert machine.child_variables(("/a", "/b"), "/s", {})["PYTHONPATH"] == f"/a{os.pathsep}/b"


def test_gpus_are_counted_by_an_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho a warning\necho \'[["NVIDIA H200", "9.0"], ["NVIDIA H200", "9.0"]]\'\n')
    python.chmod(0o755)
    assert machine.gpus_seen(str(python)) == [("NVIDIA H200", "9.0")] * 2
    assert machine.visible_gpus(str(python)) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert machine.visible_gpus(str(python)) == ["4", "6"]
    python.write_text("#!/bin/sh\necho no module named torch >&2; exit 1\n")
    assert machine.visible_gpus(str(python)) == []
