"""The compiled twins of the rule data are what their sources say, and are never used when those have changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dsv4check import data
from dsv4check.data import compiled_path, load_data, load_yaml, rules_dir
from dsv4check.engine import rule as rule_module
from dsv4check.engine.conditions import version_in
from dsv4check.engine.rule import COMPILED_RULES, bundled_rules, listing
from dsv4check.releases.facts import known_releases

NAMES = ["gpus", "models/index", "releases/development", *(f"releases/{name}" for name in known_releases())]


@pytest.mark.parametrize("name", NAMES)
def test_twin_is_current(name: str) -> None:
    source = rules_dir() / f"{name}.yaml"
    assert compiled_path(name).is_file(), "run scripts/compile_data.py"
    compiled = json.loads(compiled_path(name).read_text(encoding="utf-8"))["content"]
    assert compiled == load_yaml(source.read_text(encoding="utf-8")), "run scripts/compile_data.py"


def test_rules_twin_is_current() -> None:
    compiled = json.loads(compiled_path(COMPILED_RULES).read_text(encoding="utf-8"))
    assert compiled["listing"] == listing(rules_dir() / "checks"), "run scripts/compile_data.py"
    for rule in bundled_rules():
        admitted = None if rule.vllm is None else {name for name in known_releases() if version_in(name, rule.vllm)}
        assert rule.releases == admitted


def test_changed_source_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "rules"
    shutil.copytree(rules_dir(), copy)
    monkeypatch.setattr(data, "rules_dir", lambda: copy)
    monkeypatch.setattr(rule_module, "rules_dir", lambda: copy)
    (copy / "gpus.yaml").write_text("[]\n", encoding="utf-8")
    assert load_data("gpus") == []
    path = next((copy / "checks").rglob("KV001-*.yaml"))
    path.write_text(path.read_text(encoding="utf-8").replace("severity: error", "severity: note"), encoding="utf-8")
    changed = next(item for item in bundled_rules.__wrapped__() if item.id == "KV001")
    assert changed.severity == "note"
