"""Releases to learn from: the unpacked ones under DSV4CHECK_VLLM_TREES, and made-up ones."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from dsv4check.learning.registry import learner
from dsv4check.learning.release import Release, source_only
from dsv4check.learning.source import Source
from dsv4check.releases.facts import SECTIONS_APART

RULES = Path(__file__).parents[2] / "rules" / "releases"
VERSIONS = sorted(path.stem for path in RULES.glob("*.yaml") if path.stem[0].isdigit())


def assert_learned(section: str, version: str) -> None:
    """The section learned from an unpacked release is the shipped one; skips when the release is not there."""
    folder = os.environ.get("DSV4CHECK_VLLM_TREES")
    package = Path(folder or "") / version / "vllm"
    if folder is None or not package.is_dir():
        pytest.skip(f"vLLM {version} is not unpacked under DSV4CHECK_VLLM_TREES")
    shipped: dict[str, Any] = (
        yaml.safe_load((RULES / section / f"{version}.yaml").read_text())
        if section in SECTIONS_APART
        else yaml.safe_load((RULES / f"{version}.yaml").read_text())[section]
    )
    assert learner(section)(source_only(package)) == shipped


def made_up(folder: Path, files: dict[str, str]) -> Release:
    """A release whose package consists of these files."""
    package = folder / "vllm"
    for path, text in files.items():
        target = package / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(dedent(text))
    return source_only(package)


def tree(folder: Path, files: dict[str, str]) -> Source:
    """The text of a package that consists of these files, as they are."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Source(folder)
