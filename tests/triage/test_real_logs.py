"""The logs modelled on public reports: what their index says about them is true of the text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsv4check.inputs.vllm_version import resolve_vllm
from tests.launches import all_rules

FOLDER = Path(__file__).parent / "real_logs"
INDEX: list[dict[str, Any]] = yaml.safe_load((FOLDER / "INDEX.yaml").read_text(encoding="utf-8"))
KEYS = {"file", "form", "first", "vllm", "gpu", "gpus", "model", "args", "rule", "acceptable", "reference", "assumed"}


def test_the_index_lists_every_file() -> None:
    names = [item["file"] for item in INDEX]
    assert sorted(names) == sorted(path.name for path in FOLDER.iterdir() if path.name != "INDEX.yaml")
    assert len(names) == len(set(names)) >= 25


@pytest.mark.parametrize("item", INDEX, ids=lambda item: str(item["file"]))
def test_entries_fit_their_text(item: dict[str, Any]) -> None:
    text = (FOLDER / item["file"]).read_text(encoding="utf-8")
    assert set(item) == KEYS
    assert item["first"] is None or item["first"] in text
    assert item["rule"] in item["acceptable"]
    known = {rule.id for rule in all_rules()} | {"unknown"}
    assert set(item["acceptable"]) <= known
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", item["reference"])
    if item["vllm"] is not None:
        assert item["vllm"] in text
        resolve_vllm(item["vllm"])
    if item["model"] is not None:
        assert item["model"].rpartition("/")[2].lower() in text.lower()


@pytest.mark.parametrize("item", INDEX, ids=lambda item: str(item["file"]))
def test_nothing_names_people_or_hosts(item: dict[str, Any]) -> None:
    text = (FOLDER / item["file"]).read_text(encoding="utf-8")
    assert not re.search(r"/home/|/mnt/|/Users/|@\w", text)
    for address in re.findall(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", text):
        assert address.startswith(("192.0.2.", "127.0.0.1", "0.0.0.0")), address
