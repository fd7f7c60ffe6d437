"""Launches on which rules and rehearsals are known to differ, from tests/corpus/rehearsals/known.yaml."""

from __future__ import annotations

from pathlib import Path

import yaml

FOLDER = Path(__file__).parent.parent / "corpus" / "rehearsals"


def known_differences() -> dict[str, str]:
    """id -> reason."""
    content = yaml.safe_load((FOLDER / "known.yaml").read_text(encoding="utf-8")) or {}
    return {identity: entry["reason"] for entry in content.get("known", ()) for identity in entry["launches"]}
