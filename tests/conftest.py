"""Shared helpers of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test may see the machine's own Hugging Face cache, GPUs or vLLM."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
